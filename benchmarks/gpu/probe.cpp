// What a GPU, its driver and its memory operations in streams do: to be run first where a GPU is lent.
//
//   gpu_measure probe         every probe in a process of its own, with a deadline; prints a line of JSON
//                             after each, with all so far
//   gpu_measure probe NAME    one probe; prints its members
//
// A probe that fails says with which error of the driver, one that hangs or crashes says so, and the others
// go on. Times are medians, in microseconds.

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/gpu/driver.hpp"
#include "benchmarks/gpu/measure.hpp"

namespace {

using namespace gpu_bench;

constexpr int kDeadlineMs = 8'000;  // eight of them fit the plan's limit
constexpr int kTimes = 200;
constexpr int kInRow = 500;

constexpr unsigned long long kSpinNs = 20'000;

struct Words {
    alignas(64) std::atomic<std::uint64_t> done;
    alignas(64) std::atomic<std::uint32_t> gate;
};

struct Session {
    Context context{};
    Stream stream{};
    Function spin{};
    Words* words{};
    DevicePointer done_at{}, gate_at{};

    Session() {
        call("cuInit", 0U);
        call("cuDevicePrimaryCtxRetain", &context, Device{0});
        call("cuCtxSetCurrent", context);
        call("cuStreamCreate", &stream, 1U);
        call("cuModuleGetFunction", &spin, load_kernels().module, "spin");
    }
    void pin() {  // as the gate does: memory that processes share
        const int fd = memfd_create("gpu-probe", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, 4096) != 0) fail("memfd_create", 0);
        words = static_cast<Words*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
        DevicePointer at = 0;
        call("cuMemHostRegister_v2", static_cast<void*>(words), std::size_t{4096},
             kHostRegisterPortable | kHostRegisterDeviceMap);
        call("cuMemHostGetDevicePointer_v2", &at, static_cast<void*>(words), 0U);
        done_at = at + offsetof(Words, done);
        gate_at = at + offsetof(Words, gate);
    }
    void launch() { launch(stream); }
    void launch(Stream into) {
        unsigned long long for_ns = kSpinNs;
        void* parameters[] = {&for_ns};
        call("cuLaunchKernel", spin, 1U, 1U, 1U, 32U, 1U, 1U, 0U, into, static_cast<void**>(parameters),
             static_cast<void**>(nullptr));
    }
    void operations(std::vector<MemoryOperation> all) {
        call("cuStreamBatchMemOp_v2", stream, static_cast<unsigned>(all.size()), all.data(), 0U);
    }
    MemoryOperation write(std::uint64_t value) const { return {kWriteValue64, done_at, value, 0, 0, 0}; }
    MemoryOperation wait() const { return {kWaitValue32, gate_at, 1, kWaitForBits, 0, 0}; }
    void synchronise() { call("cuStreamSynchronize", stream); }
    void until_done(std::uint64_t value) const {
        while (words->done.load(std::memory_order_acquire) < value) {
        }
    }
};

double median_us(const std::function<double()>& once) {
    std::vector<double> times(kTimes);
    for (double& time : times) time = once();
    std::nth_element(times.begin(), times.begin() + kTimes / 2, times.end());
    return times[kTimes / 2];
}

// For each of many in a row, of the GPU's time.
double in_row_us(Session& session, const std::function<void()>& one) {
    Event begin{}, end{};
    float ms = 0;
    call("cuEventCreate", &begin, 0U);
    call("cuEventCreate", &end, 0U);
    call("cuEventRecord", begin, session.stream);
    for (int i = 0; i < kInRow; ++i) one();
    call("cuEventRecord", end, session.stream);
    session.synchronise();
    call("cuEventElapsedTime", &ms, begin, end);
    return static_cast<double>(ms) * 1e3 / kInRow;
}

void device() {
    Session session;
    char name[128] = "";
    int version = 0, processors = 0;
    call("cuDeviceGetName", name, static_cast<int>(sizeof(name)), Device{0});
    call("cuDriverGetVersion", &version);
    call("cuDeviceGetAttribute", &processors, kDeviceMultiprocessors, Device{0});
    std::printf("\"name\": \"%s\", \"driver\": %d, \"multiprocessors\": %d", name, version, processors);
}

void kernels() {
    Session session;
    session.launch();
    session.synchronise();
    const double host_us = median_us([&] {
        const double began_us = now_us();
        session.launch();
        return now_us() - began_us;
    });
    session.synchronise();
    std::printf("\"launch_call_us\": %.2f, \"each_in_row_us\": %.2f", host_us,
                in_row_us(session, [&] { session.launch(); }));
}

void writes() {
    Session session;
    session.pin();
    std::uint64_t value = 0;
    const double seen_us = median_us([&] {
        session.operations({session.write(++value)});
        const double began_us = now_us();
        session.until_done(value);
        return now_us() - began_us;
    });
    const double call_us = median_us([&] {
        const double began_us = now_us();
        session.operations({session.write(++value)});
        const double took_us = now_us() - began_us;
        session.until_done(value);
        return took_us;
    });
    std::printf("\"seen_after_us\": %.2f, \"call_us\": %.2f, \"each_in_row_us\": %.2f", seen_us, call_us,
                in_row_us(session, [&] { session.operations({session.write(++value)}); }));
}

void gate() {
    Session session;
    session.pin();
    std::uint64_t value = 0;
    const double opened_us = median_us([&] {
        session.words->gate = 0;
        session.operations({session.wait(), session.write(++value)});
        usleep(500);
        if (session.words->done.load() >= value) fail("a wait for a shut gate", 0);
        const double began_us = now_us();
        session.words->gate = 1;
        session.until_done(value);
        return now_us() - began_us;
    });
    std::printf("\"opened_after_us\": %.2f, \"boundary_in_row_us\": %.2f", opened_us, in_row_us(session, [&] {
                    session.operations({session.write(++value), session.wait()});
                }));
}

void graph() {
    Session session;
    session.pin();
    Graph graph{};
    GraphExec exec{};
    GraphNode waits{};
    MemoryOperation wait = session.wait();
    const MemoryNodeParams params{session.context, 1, &wait, 0};
    call("cuGraphCreate", &graph, 0U);
    call("cuGraphAddBatchMemOpNode", &waits, graph, static_cast<const GraphNode*>(nullptr), std::size_t{0},
         &params);
    call("cuGraphInstantiateWithFlags", &exec, graph, 0ULL);
    for (std::uint64_t value = 1; value <= 3; ++value) {  // replayed, it waits each time
        session.words->gate = 0;
        call("cuGraphLaunch", exec, session.stream);
        session.operations({session.write(value)});
        usleep(5000);
        if (session.words->done.load() >= value) fail("a wait in a graph", 0);
        session.words->gate = 1;
        session.until_done(value);
    }
    std::printf("\"waits\": true");
}

// A capture of the strictest mode is not spoiled by another thread's look at an event of its own, as timing
// takes it.
void capture() {
    Session session;
    Stream other{};
    Event event{};
    Graph graph{};
    call("cuStreamCreate", &other, 1U);
    call("cuEventCreate", &event, 0U);
    call("cuEventRecord", event, other);
    call("cuStreamSynchronize", other);
    call("cuStreamBeginCapture_v2", session.stream, 0);
    session.launch();
    Result looked = kSuccess;
    std::thread([&] {
        int mode = kCaptureModeRelaxed;
        call("cuCtxSetCurrent", session.context);
        call("cuThreadExchangeStreamCaptureMode", &mode);
        looked = result_of("cuEventQuery", event);
        call("cuThreadExchangeStreamCaptureMode", &mode);
    }).join();
    call("cuStreamEndCapture", session.stream, &graph);
    std::printf("\"looked\": %d, \"ends\": true", looked);
}

// Whether cuGetProcAddress gives what dlsym does: what is not equal is routed by its name.
void routing() {
    constexpr const char* kNames[] = {"cuLaunchKernel",      "cuLaunchKernelEx",    "cuGraphLaunch",
                                      "cuStreamSynchronize", "cuMemcpyDtoHAsync",   "cuMemAlloc",
                                      "cuEventQuery",        "cuStreamBeginCapture"};
    constexpr const char* kEndings[] = {"", "_v2", "_v3", "_ptsz", "_v2_ptsz", "_ptds", "_v2_ptds"};
    int asked = 0, equal = 0, missing = 0;
    call("cuInit", 0U);
    for (const char* name : kNames) {
        for (const std::uint64_t flags : {1U, 2U}) {  // default streams: legacy, per thread
            void* entry = nullptr;
            int status = 0;
            ++asked;
            call("cuGetProcAddress_v2", name, &entry, 12'000, flags, &status);
            if (entry == nullptr) ++missing;
            for (const char* ending : kEndings) {
                if (entry != nullptr && entry == entry_of((std::string(name) + ending).c_str())) {
                    ++equal;
                    break;
                }
            }
        }
    }
    std::printf("\"asked\": %d, \"as_by_dlsym\": %d, \"missing\": %d", asked, equal, missing);
}

// Calls of the program while its stream waits: how long they take tells what a shut gate would hold up.
void beside_a_shut_gate() {
    Session session;
    session.pin();
    Stream other{};
    DevicePointer memory = 0;
    session.launch();
    session.synchronise();
    call("cuStreamCreate", &other, 1U);
    session.operations({session.wait()});
    session.launch();
    const auto took_us = [](const auto& work) {
        const double began_us = now_us();
        work();
        return now_us() - began_us;
    };
    std::atomic<bool> over{false};
    std::thread opener([&] {  // whatever hangs
        for (int i = 0; i < 2000 && !over; ++i) usleep(1000);
        session.words->gate = 1;
    });
    const double allocates_us = took_us([&] { call("cuMemAlloc_v2", &memory, std::size_t{1} << 20); });
    const double frees_us = took_us([&] { call("cuMemFree_v2", memory); });
    const double launches_us = took_us([&] {
        session.launch(other);
        call("cuStreamSynchronize", other);
    });
    std::printf("\"alloc_us\": %.0f, \"free_us\": %.0f, \"other_stream_us\": %.0f", allocates_us, frees_us,
                launches_us);
    over = true;
    opener.join();
    session.synchronise();
}

struct Probe {
    const char* name;
    void (*run)();
};
constexpr Probe kProbes[] = {{"device", device},   {"routing", routing},
                             {"kernels", kernels}, {"writes", writes},
                             {"gate", gate},       {"capture", capture},
                             {"graph", graph},     {"beside_a_shut_gate", beside_a_shut_gate}};

std::string run_alone(const char* program, const char* name) {
    int ends[2];
    if (pipe(ends) != 0) return "\"failed\": \"pipe\"";
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        execl(program, program, "probe", name, nullptr);
        _exit(127);
    }
    close(ends[1]);
    std::string text;
    pollfd output{ends[0], POLLIN, 0};
    const double until_us = now_us() + kDeadlineMs * 1e3;
    char part[512];
    for (;;) {
        const int left_ms = static_cast<int>((until_us - now_us()) / 1e3);
        if (left_ms <= 0 || poll(&output, 1, left_ms) <= 0) {
            kill(child, SIGKILL);
            text = "\"failed\": \"no answer within the deadline\"";
            break;
        }
        const ssize_t got = read(ends[0], part, sizeof(part));
        if (got <= 0) break;
        text.append(part, static_cast<std::size_t>(got));
    }
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    if (text.empty()) text = "\"failed\": \"ended with status " + std::to_string(status) + "\"";
    return text;
}

}  // namespace

namespace gpu_bench {

int probe(const std::string& one) {
    for (const Probe& probe : kProbes) {
        if (one == probe.name) {
            probe.run();
            return std::fflush(stdout);
        }
    }
    std::string text = "{\"time\": " + std::to_string(time(nullptr));
    for (const Probe& probe : kProbes) {
        text += std::string(", \"") + probe.name + "\": {" + run_alone("/proc/self/exe", probe.name) + '}';
        std::puts((text + '}').c_str());
        std::fflush(stdout);
    }
    return 0;
}

}  // namespace gpu_bench
