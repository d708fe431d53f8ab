// The model of the virtual GPU against results computed by hand.

#include <memory>
#include <string>

#include "tests/kernel/double/require.hpp"
#include "tests/kernel/fakecuda/gpu/fluid.hpp"

using namespace fakecuda::gpu;

namespace {

constexpr std::int64_t kLongEnough = 1'000'000'000;

std::unique_ptr<State> idle_gpu(Sharing sharing = Sharing::kConcurrent) {
    auto state = std::make_unique<State>();
    *state = State{};
    state->settings.sharing = sharing;
    state->settings.slice_ns = 100;
    state->stream_limit = 4;
    for (std::int32_t i = 0; i < 4; ++i) {  // stream i of process i
        state->streams[i].process = i;
        state->processes[i].pid = 100 + i;
    }
    return state;
}

void submit(State& state, std::int32_t index, double duration_ns, std::uint32_t compute,
            std::uint32_t bandwidth, Dependency after = {}) {
    Stream& stream = state.streams[index];
    Work work{duration_ns, compute, bandwidth, {'k'}};
    stream.queue[stream.submitted % kQueueDepth] =
        Task{work, {}, duration_ns, state.now_ns, state.now_ns, kNone, 0, 0, kNone, {after}};
    ++stream.submitted;
}

std::vector<EndedKernel> run(State& state, std::int64_t until_ns = kLongEnough) {
    std::vector<EndedKernel> ended;
    advance(state, until_ns, ended);
    return ended;
}

void alone() {
    const auto gpu = idle_gpu();
    submit(*gpu, 0, 1000, 900, 300);
    submit(*gpu, 0, 500, 100, 100);
    const auto ended = run(*gpu);
    REQUIRE(ended.size() == 2);
    REQUIRE(ended[0].task.started_ns == 0 && ended[0].ended_ns == 1000);
    REQUIRE(ended[1].task.started_ns == 1000 && ended[1].ended_ns == 1500);  // a stream runs in order
    REQUIRE(gpu->now_ns == kLongEnough);
}

void fitting_kernels_do_not_slow_each_other() {
    const auto gpu = idle_gpu();
    submit(*gpu, 0, 1000, 700, 300);
    submit(*gpu, 1, 600, 300, 700);
    const auto ended = run(*gpu);
    REQUIRE(ended[0].pid == 101 && ended[0].ended_ns == 600);
    REQUIRE(ended[1].pid == 100 && ended[1].ended_ns == 1000);
    REQUIRE(ended[0].task.running_compute_permille == 1000 &&
            ended[0].task.running_bandwidth_permille == 1000);
}

void the_scarcer_resource_sets_the_pace() {
    const auto gpu = idle_gpu();
    submit(*gpu, 0, 1000, 800, 100);
    submit(*gpu, 1, 1000, 700, 100);
    // Both at 1 / 1.5: 1000 ns of work each take 1500.
    auto ended = run(*gpu);
    REQUIRE(ended.size() == 2 && ended[0].ended_ns == 1500 && ended[1].ended_ns == 1500);

    const auto other = idle_gpu();
    submit(*other, 0, 1000, 100, 1000);
    submit(*other, 1, 300, 100, 1000);
    // At 1 / 2 until the shorter has had its 300 at 600; then the longer has 700 to go, alone.
    ended = run(*other);
    REQUIRE(ended[0].ended_ns == 600 && ended[1].ended_ns == 1300);
}

void computing_in_small_steps_changes_nothing() {
    const auto gpu = idle_gpu();
    submit(*gpu, 0, 1000, 800, 100);
    submit(*gpu, 1, 700, 600, 100);
    std::vector<EndedKernel> ended;
    for (std::int64_t now = 0; now <= 3000; now += 7) advance(*gpu, now, ended);
    // At 1 / 1.4: the shorter ends at 980, the longer then has 300 to go. A nanosecond of rounding is
    // allowed.
    REQUIRE(ended.size() == 2);
    REQUIRE(ended[0].ended_ns >= 980 && ended[0].ended_ns <= 981);
    REQUIRE(ended[1].ended_ns >= 1280 && ended[1].ended_ns <= 1281);
}

void dependencies_across_streams() {
    const auto gpu = idle_gpu();
    submit(*gpu, 0, 1000, 10, 10);
    submit(*gpu, 1, 100, 10, 10, {0, 1});
    const auto ended = run(*gpu);
    REQUIRE(ended[1].pid == 101 && ended[1].task.started_ns == 1000 && ended[1].ended_ns == 1100);
}

void slices_without_mps() {
    const auto gpu = idle_gpu(Sharing::kTimeSliced);
    submit(*gpu, 0, 150, 10, 10);
    submit(*gpu, 1, 150, 10, 10);
    const auto ended = run(*gpu);
    // Turns of 100: one, the other, one (50 to go, gives the rest away), the other.
    REQUIRE(ended.size() == 2);
    REQUIRE(ended[0].ended_ns == 250 && ended[1].ended_ns == 300);
    REQUIRE(ended[0].pid != ended[1].pid);
    REQUIRE(ended[1].task.running_compute_permille == 10);  // never beside another process
}

void the_dead_leave_nothing() {
    const auto gpu = idle_gpu();
    submit(*gpu, 0, 1000, 1000, 0);
    submit(*gpu, 0, 1000, 1000, 0);
    submit(*gpu, 1, 1000, 1000, 0);
    REQUIRE(run(*gpu, 1000).empty());  // each has had half
    bury(*gpu, 0);
    const auto ended = run(*gpu);
    REQUIRE(ended.size() == 1 && ended[0].pid == 101 && ended[0].ended_ns == 1500);
    REQUIRE(gpu->streams[0].process == kNone && gpu->processes[0].pid == 0);
}

void estimates_are_never_late() {
    const auto gpu = idle_gpu();
    submit(*gpu, 0, 1000, 1000, 0);
    submit(*gpu, 1, 400, 1000, 0);
    run(*gpu, 0);
    REQUIRE(earliest_end_ns(*gpu, 0, 1) <= 1400);  // when it will end
    REQUIRE(earliest_end_ns(*gpu, 0, 1) >= 800);   // when the other ends
    run(*gpu, 800);
    REQUIRE(earliest_end_ns(*gpu, 0, 1) == 1400);
}

}  // namespace

int main() {
    alone();
    fitting_kernels_do_not_slow_each_other();
    the_scarcer_resource_sets_the_pace();
    computing_in_small_steps_changes_nothing();
    dependencies_across_streams();
    slices_without_mps();
    the_dead_leave_nothing();
    estimates_are_never_late();
    return 0;
}
