#include "tests/kernel/fakecuda/gpu/virtual_gpu.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <stdexcept>
#include <thread>

#include "tests/kernel/fakecuda/gpu/fluid.hpp"

namespace fakecuda::gpu {
namespace {

constexpr std::int64_t kCensusPeriodNs = 2'000'000;  // how long the work of a dead process may run on
constexpr std::int64_t kLongestSleepNs = 5'000'000;  // a death speeds others up: look again now and then
constexpr std::int64_t kShortestSleepNs = 2'000;

using Lock = SharedFile::Lock;

}  // namespace

VirtualGpu::VirtualGpu(const std::string& path, const Settings& settings) : file_(path, settings) {
    if (file_.state().settings.logs != 0) log_.emplace(path + ".log");
}

std::int64_t VirtualGpu::virtual_clock_ns(std::int64_t clock_ns) const {
    const State& state = file_.state();
    return static_cast<std::int64_t>(static_cast<double>(clock_ns - state.epoch_ns) /
                                     state.settings.time_scale);
}

// Does `work` with the GPU's lock held, and writes down after it what that found ended: a launch of one
// process is not to wait for the log of another.
template <typename Work>
auto VirtualGpu::locked(Work work) {
    std::vector<EndedKernel> ended;
    const auto result = [&] {
        const Lock lock(file_.state());
        const auto found = work(ended);
        if (!ended.empty()) ++writing_;
        return found;
    }();
    if (log_) log_->append(ended);
    if (!ended.empty()) --writing_;
    return result;
}

void VirtualGpu::catch_up(std::vector<EndedKernel>& ended) {
    State& state = file_.state();
    const std::int64_t clock_ns = monotonic_ns();
    advance(state, std::max(state.now_ns, virtual_clock_ns(clock_ns)), ended);
    if (clock_ns < state.census_due_ns) return;
    state.census_due_ns = clock_ns + kCensusPeriodNs;
    for (const std::int32_t process : file_.dead_processes()) bury(state, process);
}

// Of all processes that live: what the dead held is free at once.
std::uint64_t VirtualGpu::memory_in_use() {
    for (const std::int32_t process : file_.dead_processes()) bury(file_.state(), process);
    std::uint64_t sum = 0;
    for (const Process& process : file_.state().processes) sum += process.pid == 0 ? 0 : process.memory_bytes;
    return sum;
}

bool VirtualGpu::take_memory(std::uint64_t bytes, std::uint64_t capacity_bytes) {
    const Lock lock(file_.state());
    if (bytes > capacity_bytes || memory_in_use() > capacity_bytes - bytes) return false;
    file_.state().processes[static_cast<std::size_t>(file_.process())].memory_bytes += bytes;
    return true;
}

void VirtualGpu::return_memory(std::uint64_t bytes) {
    const Lock lock(file_.state());
    file_.state().processes[static_cast<std::size_t>(file_.process())].memory_bytes -= bytes;
}

std::uint64_t VirtualGpu::memory_bytes() {
    const Lock lock(file_.state());
    return memory_in_use();
}

std::int32_t VirtualGpu::open_stream() {
    return locked([&](std::vector<EndedKernel>& ended) {
        catch_up(ended);
        State& state = file_.state();
        for (std::int32_t i = 0; i < static_cast<std::int32_t>(kMaxStreams); ++i) {
            Stream& stream = state.streams[i];
            // A stream that its process has closed keeps its place until it is empty.
            if (stream.process != kNone || is_pending(stream)) continue;
            stream.written = {};
            stream.process = file_.process();
            state.stream_limit = std::max(state.stream_limit, i + 1);
            return i;
        }
        throw std::runtime_error("the virtual GPU has no stream left");
    });
}

void VirtualGpu::close_stream(std::int32_t stream) {
    wait_until_ended(stream, submitted(stream));
    locked([&](std::vector<EndedKernel>& ended) {
        const bool pending = gpu::serve_memory(file_.state(), file_.process(), ended);
        file_.state().streams[stream].process = kNone;  // what it has written can be seen
        return pending;
    });
}

std::int32_t VirtualGpu::open_event() {
    const Lock lock(file_.state());
    auto& events = file_.state().events;
    const auto free =
        std::find_if(events.begin(), events.end(), [](const Event& e) { return e.process == kNone; });
    if (free == events.end()) throw std::runtime_error("the virtual GPU has no event left");
    *free = Event{file_.process(), kNone};
    return static_cast<std::int32_t>(free - events.begin());
}

void VirtualGpu::close_event(std::int32_t event) {
    const Lock lock(file_.state());
    file_.state().events[event].process = kNone;
}

bool VirtualGpu::try_append(std::int32_t index, const Work& work, std::int64_t called_ns, std::int32_t event,
                            const std::vector<Dependency>& after, const MemoryAccess& memory) {
    State& state = file_.state();
    Stream& stream = state.streams[index];
    // A task has room for a few dependencies; marks before it carry the rest.
    const std::size_t tasks =
        std::max<std::size_t>(1, (after.size() + kMaxDependencies - 1) / kMaxDependencies);
    if (stream.submitted - stream.completed + tasks > kQueueDepth) return false;
    for (std::size_t n = 0; n < tasks; ++n) {
        const bool last = n + 1 == tasks;
        const Work& own = last ? work : Work{};
        Task task{own,
                  last ? memory : MemoryAccess{},
                  own.duration_ns,
                  called_ns,
                  state.now_ns,
                  kNone,
                  0,
                  0,
                  last ? event : kNone,
                  {}};
        for (std::size_t i = 0; i < kMaxDependencies && n * kMaxDependencies + i < after.size(); ++i) {
            task.after[i] = after[n * kMaxDependencies + i];
        }
        stream.queue[stream.submitted % kQueueDepth] = task;
        ++stream.submitted;
    }
    return true;
}

std::uint64_t VirtualGpu::append(std::int32_t index, const Work& work, std::int64_t called_ns,
                                 std::int32_t event, const std::vector<Dependency>& after,
                                 const MemoryAccess& memory) {
    for (;;) {
        std::int64_t room_ns = 0;
        const std::uint64_t count = locked([&](std::vector<EndedKernel>& ended) -> std::uint64_t {
            catch_up(ended);
            const Stream& stream = file_.state().streams[index];
            if (event != kNone) file_.state().events[event].ended_ns = kNone;
            if (!try_append(index, work, called_ns, event, after, memory)) {
                room_ns = earliest_end_ns(file_.state(), index, stream.completed + 1);
                return 0;
            }
            catch_up(ended);  // what can start, starts now
            return stream.submitted;
        });
        if (count != 0) return count;
        sleep_until(room_ns);
    }
}

std::vector<Dependency> VirtualGpu::all_of(const std::vector<std::int32_t>& streams) {
    const Lock lock(file_.state());
    std::vector<Dependency> all;
    all.reserve(streams.size());
    for (const std::int32_t stream : streams)
        all.push_back({stream, file_.state().streams[stream].submitted});
    return all;
}

std::uint64_t VirtualGpu::submit(std::int32_t stream, const Work& work,
                                 const std::vector<std::int32_t>& after) {
    const std::int64_t called_ns = virtual_clock_ns(monotonic_ns());
    return append(stream, work, called_ns, kNone, all_of(after));
}

std::uint64_t VirtualGpu::mark(std::int32_t stream, std::int32_t event,
                               const std::vector<std::int32_t>& after) {
    return append(stream, Work{}, kNone, event, all_of(after));
}

void VirtualGpu::access(std::int32_t stream, const MemoryAccess& memory,
                        const std::vector<std::int32_t>& after) {
    if (!serves_memory_.exchange(true)) {
        serving_.store(this);
        std::atexit([] { serving_.load()->stop_serving_memory(); });
        std::thread([this] { serve_memory(); }).detach();
    }
    append(stream, Work{}, kNone, kNone, all_of(after), memory);
}

std::atomic<VirtualGpu*> VirtualGpu::serving_{nullptr};

// What the thread has found ended is to be in the log before the process ends.
void VirtualGpu::stop_serving_memory() {
    {
        const Lock lock(file_.state());
        serves_memory_ = false;
    }
    while (writing_ != 0) std::this_thread::yield();
}

void VirtualGpu::serve_memory() {
    prctl(PR_SET_TIMERSLACK, 1UL);
    while (serves_memory_) {
        const bool pending = locked([&](std::vector<EndedKernel>& ended) {
            if (!serves_memory_) return false;
            catch_up(ended);
            return gpu::serve_memory(file_.state(), file_.process(), ended);
        });
        const timespec pause{0, pending ? 50'000 : 500'000};
        nanosleep(&pause, nullptr);
    }
}

void VirtualGpu::wait_for(std::int32_t stream, Dependency on) { append(stream, Work{}, kNone, kNone, {on}); }

std::uint64_t VirtualGpu::submitted(std::int32_t stream) {
    const Lock lock(file_.state());
    return file_.state().streams[stream].submitted;
}

bool VirtualGpu::has_ended(std::int32_t stream, std::uint64_t count) {
    return locked([&](std::vector<EndedKernel>& ended) {
        catch_up(ended);
        return file_.state().streams[stream].completed >= count;
    });
}

void VirtualGpu::wait_until_ended(std::int32_t stream, std::uint64_t count) {
    for (;;) {
        const auto end_ns = locked([&](std::vector<EndedKernel>& ended) -> std::optional<std::int64_t> {
            catch_up(ended);
            if (file_.state().streams[stream].completed >= count) return std::nullopt;
            return earliest_end_ns(file_.state(), stream, count);
        });
        if (!end_ns) return;
        sleep_until(*end_ns);
    }
}

std::optional<std::int64_t> VirtualGpu::event_time_ns(std::int32_t event) {
    const std::int64_t ended_ns = locked([&](std::vector<EndedKernel>& ended) {
        catch_up(ended);
        return file_.state().events[event].ended_ns;
    });
    return ended_ns == kNone ? std::nullopt : std::optional(ended_ns);
}

void VirtualGpu::sleep_until(std::int64_t virtual_ns) const {
    // Without this, Linux may wake a thread 50 us late.
    thread_local const int slack = prctl(PR_SET_TIMERSLACK, 1UL);
    static_cast<void>(slack);
    const State& state = file_.state();
    const auto real = static_cast<std::int64_t>(static_cast<double>(virtual_ns) * state.settings.time_scale);
    const std::int64_t now = monotonic_ns();
    const std::int64_t until =
        std::clamp(state.epoch_ns + real, now + kShortestSleepNs, now + kLongestSleepNs);
    const timespec target{until / 1'000'000'000, until % 1'000'000'000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &target, nullptr);
}

}  // namespace fakecuda::gpu
