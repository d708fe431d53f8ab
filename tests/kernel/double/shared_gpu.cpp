// One virtual GPU, several processes: they slow each other down, and the death of one costs the others
// nothing. Argument: a path for the GPU's file.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/kernel/double/require.hpp"
#include "tests/kernel/fakecuda/gpu/virtual_gpu.hpp"

using namespace fakecuda::gpu;

namespace {

constexpr Work kBusy{2e6, 900, 100, {'b', 'u', 's', 'y'}};

struct Row {
    int pid;
    std::string kernel;
    std::vector<std::int64_t>
        numbers;  // stream, admitted, started, ended, compute, bandwidth, the two sums, called

    std::int64_t took_ns() const { return numbers[3] - numbers[2]; }
};

std::vector<Row> read_log(const std::string& path) {
    std::vector<Row> rows;
    std::ifstream file(path + ".log");
    for (std::string line; std::getline(file, line);) {
        std::replace(line.begin(), line.end(), ',', ' ');
        std::istringstream fields(line);
        Row row{};
        fields >> row.pid >> row.kernel;
        for (std::int64_t n = 0; fields >> n;) row.numbers.push_back(n);
        REQUIRE(row.numbers.size() == 9);
        rows.push_back(row);
    }
    return rows;
}

Settings logging() {
    Settings settings;
    settings.logs = 1;
    return settings;
}

pid_t in_child(const std::function<void()>& work) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child != 0) return child;
    work();
    _exit(0);
}

void await_success(pid_t child) {
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

void run_kernels(const std::string& path, int count) {
    VirtualGpu gpu(path, logging());
    const std::int32_t stream = gpu.open_stream();
    std::uint64_t last = 0;
    for (int i = 0; i < count; ++i) last = gpu.submit(stream, kBusy, {});
    gpu.wait_until_ended(stream, last);
}

void two_processes_share(const std::string& path) {
    constexpr int kKernels = 20;
    const pid_t one = in_child([&] { run_kernels(path, kKernels); });
    const pid_t two = in_child([&] { run_kernels(path, kKernels); });
    await_success(one);
    await_success(two);
    const std::vector<Row> rows = read_log(path);
    REQUIRE(rows.size() == 2 * kKernels);
    for (const Row& row : rows) {
        REQUIRE(row.pid == one || row.pid == two);
        REQUIRE(row.kernel == "busy");
        const bool beside = row.numbers[6] == 1800;
        REQUIRE(beside || row.numbers[6] == 900);
        // Alone 2 ms; beside another 1.8 times that; in between when the other came or went. Rounding: 2 ns.
        REQUIRE(row.took_ns() >= 2'000'000 && row.took_ns() <= 3'600'002);
    }
}

void work_of_the_dead_vanishes(const std::string& path) {
    std::array<int, 2> ready{};
    REQUIRE(pipe(ready.data()) == 0);
    const pid_t child = in_child([&] {
        VirtualGpu gpu(path, logging());
        const std::int32_t stream = gpu.open_stream();
        for (int i = 0; i < 1000; ++i) gpu.submit(stream, Work{1e9, 1000, 1000, {'l', 'o', 'n', 'g'}}, {});
        REQUIRE(write(ready[1], "x", 1) == 1);
        pause();
    });
    char byte = 0;
    REQUIRE(read(ready[0], &byte, 1) == 1);
    kill(child, SIGKILL);
    // Not reaped yet: a dead process that nobody has waited for is dead all the same.
    siginfo_t info{};
    REQUIRE(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
    run_kernels(path, 3);  // would take 17 minutes behind the dead one's work
    REQUIRE(waitpid(child, nullptr, 0) == child);
    for (const Row& row : read_log(path)) REQUIRE(row.kernel == "busy");
}

void deaths_at_any_moment_wedge_nobody(const std::string& path) {
    for (int round = 0; round < 60; ++round) {
        const pid_t child = in_child([&] {
            VirtualGpu gpu(path, Settings{});
            const std::int32_t stream = gpu.open_stream();
            for (;;) gpu.submit(stream, Work{100, 10, 10, {'s', 'h', 'o', 'r', 't'}}, {});
        });
        usleep(static_cast<useconds_t>(1000 + 137 * round));
        kill(child, SIGKILL);
        REQUIRE(waitpid(child, nullptr, 0) == child);
    }
    run_kernels(path, 3);  // no lock, stream or process slot is lost
}

void events_have_the_kernels_times(const std::string& path) {
    Settings slow;
    slow.time_scale = 20;
    VirtualGpu gpu(path, slow);
    const std::int32_t stream = gpu.open_stream();
    const std::int32_t before = gpu.open_event();
    const std::int32_t after = gpu.open_event();
    gpu.submit(stream, Work{20e6, 100, 100, {'l', 'o', 'n', 'g'}},
               {});  // so that what follows is queued in time
    gpu.mark(stream, before, {});
    gpu.submit(stream, kBusy, {});
    const std::uint64_t last = gpu.mark(stream, after, {});
    gpu.wait_until_ended(stream, last);
    REQUIRE(gpu.event_time_ns(after).value() - gpu.event_time_ns(before).value() == 2'000'000);
}

// Another thread destroys a stream while one waits for the context, or for an event of the stream.
void a_queue_of_another_stream_still_tells_the_end_of_the_former_ones_work(const std::string& path) {
    VirtualGpu gpu(path, Settings{});
    const std::int32_t stream = gpu.open_stream();
    const std::uint64_t last = gpu.submit(stream, kBusy, {});
    gpu.close_stream(stream);
    REQUIRE(gpu.open_stream() == stream);
    REQUIRE(gpu.has_ended(stream, last));
    REQUIRE(gpu.submit(stream, kBusy, {}) == last + 1);
}

}  // namespace

int main(int, char** argv) {
    const std::string path = argv[1];
    const std::vector<std::function<void(const std::string&)>> tests = {
        two_processes_share, work_of_the_dead_vanishes, deaths_at_any_moment_wedge_nobody,
        events_have_the_kernels_times, a_queue_of_another_stream_still_tells_the_end_of_the_former_ones_work};
    for (const auto& test : tests) {
        std::filesystem::remove(path);
        std::filesystem::remove(path + ".log");
        test(path);
    }
    std::filesystem::remove(path);
    std::filesystem::remove(path + ".log");
    return 0;
}
