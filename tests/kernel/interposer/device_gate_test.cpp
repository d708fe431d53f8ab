// Best-effort work that waits on the GPU, through the interposer, the gate and a manager, on the fake driver:
// who may run when, and what becomes of it when somebody is killed. Argument: the manager's program. Run
// under the interposer.
//
// Itself it starts clients: device_gate_test client KERNEL COUNT, which launch without synchronising, say so,
// wait for the end, and say so. With FREES_MEMORY they wait by freeing memory.

#include <cuda.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "explsched/job_options.h"
#include "kernel_intercept/shared/clock.hpp"
#include "kernel_intercept/shared/signals.hpp"
#include "tests/kernel/interposer/check.hpp"
#include "tests/kernel/manager/daemon.hpp"
#include "tests/kernel/manager/stalls.hpp"

using daemon_under_test::Daemon;
using daemon_under_test::number_in;
namespace shared = explsched::shared;

namespace {

#define DO(call) CHECK_EQUAL(static_cast<int>(call), 0)

bool told_to_go() {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    return poll(&input, 1, 2) > 0;
}

CUstream new_stream() {
    CUstream stream = nullptr;
    DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

// Behind an event that stands behind work that waits for the gate: it must not pass, and whoever looks sees
// the truth. Returns when all is done.
void launch_behind(CUmodule module, CUstream stream) {
    CUfunction behind = nullptr;
    CUevent event = nullptr;
    CUstream other = new_stream();
    DO(cuModuleGetFunction(&behind, module, "behind"));
    DO(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    DO(cuEventRecord(event, stream));
    DO(cuStreamWaitEvent(other, event, 0));
    DO(cuLaunchKernel(behind, 1, 1, 1, 32, 1, 1, 0, other, nullptr, nullptr));
    while (cuStreamQuery(other) == CUDA_ERROR_NOT_READY) usleep(100);
    DO(cuEventQuery(event));
    DO(cuStreamQuery(stream));
    DO(cuStreamQuery(other));
}

// A driver frees nothing while the context's work runs, or waits for the gate.
void free_behind(CUdeviceptr memory, CUmodule module, CUstream stream) {
    DO(cuMemFree(memory));
    DO(cuStreamQuery(stream));
    DO(cuModuleUnload(module));
}

// A stream is destroyed while it works, and the next one has done its work before that ends.
void launch_in_passing_streams(CUfunction kernel, CUfunction first) {
    CUstream passing = new_stream();
    DO(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, passing, nullptr, nullptr));
    DO(cuStreamDestroy(passing));
    CUstream next = new_stream();
    for (int i = 0; i < 10; ++i) DO(cuLaunchKernel(first, 1, 1, 1, 32, 1, 1, 0, next, nullptr, nullptr));
    DO(cuStreamSynchronize(next));
}

int client(const std::string& kernel, int count) {
    const bool graph = kernel.rfind("graph:", 0) == 0;
    CUcontext context = nullptr;
    CUmodule module = nullptr;
    CUfunction function = nullptr, first = nullptr;
    CUstream stream = nullptr;
    CUgraph captured = nullptr;
    CUgraphExec exec = nullptr;
    CUdeviceptr memory = 0;
    DO(cuInit(0));
    DO(cuDevicePrimaryCtxRetain(&context, 0));
    DO(cuCtxSetCurrent(context));
    DO(cuModuleLoadData(&module, "image"));
    DO(cuModuleGetFunction(&first, module, "first"));
    DO(cuModuleGetFunction(&function, module, kernel.substr(graph ? 6 : 0).c_str()));
    DO(cuMemAlloc(&memory, 1 << 20));
    stream = new_stream();
    const auto launch = [&](CUfunction what) {
        DO(cuLaunchKernel(what, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr));
    };
    // The GPU's writes are relied on when the first of them has been seen.
    while (!told_to_go()) {
        launch(first);
        DO(cuStreamSynchronize(stream));
    }
    if (std::getchar() == EOF) return 1;
    if (std::getenv("PASSING_STREAMS") != nullptr) {
        launch_in_passing_streams(function, first);
        std::puts("launched");
        std::fflush(stdout);
        pause();
    }
    if (graph) {
        DO(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        for (int i = 0; i < count; ++i) launch(function);
        DO(cuStreamEndCapture(stream, &captured));
        std::size_t nodes = 0;
        DO(cuGraphInstantiate(&exec, captured, 0));
        DO(cuGraphGetNodes(captured, nullptr, &nodes));
        CHECK_EQUAL(nodes, static_cast<std::size_t>(count));  // the program's graph is as it was
        CUgraphExecUpdateResultInfo info{};
        DO(cuGraphExecUpdate(exec, captured, &info));
        DO(cuGraphLaunch(exec, stream));
    }
    const bool waits_for_us = std::getenv("WAITS_FOR_US") != nullptr;
    std::atomic<std::uint32_t> word{0};
    if (waits_for_us)
        DO(cuStreamWaitValue32(stream, reinterpret_cast<CUdeviceptr>(&word), 1, CU_STREAM_WAIT_VALUE_AND));
    for (int i = 0; i < count && !graph; ++i) launch(function);
    word = 1;
    CUevent event{};
    DO(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    DO(cuEventRecord(event, stream));  // from now on nothing has to be predicted
    std::puts("launched");
    std::fflush(stdout);
    if (std::getenv("FREES_MEMORY") != nullptr) {
        free_behind(memory, module, stream);
    } else if (!waits_for_us && kernel != "endless") {
        launch_behind(module, stream);
    }
    DO(cuStreamSynchronize(stream));
    std::puts("done");
    std::fflush(stdout);
    if (graph) {
        DO(cuGraphExecDestroy(exec));
        DO(cuGraphDestroy(captured));
    }
    return 0;
}

const char* program;

class Process {
   public:
    // Returns when the manager has it from the GPU what it does.
    Process(const Daemon& daemon, const std::string& priority, const std::string& kernel, int count) {
        int to[2], from[2];
        CHECK_EQUAL(pipe2(to, O_CLOEXEC) + pipe2(from, O_CLOEXEC), 0);
        pid_ = fork();
        if (pid_ == 0) {
            dup2(to[0], STDIN_FILENO);
            dup2(from[1], STDOUT_FILENO);
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            stalls::stay_on_core(0);
            setenv(EXPL_SHARE_VARIABLE, priority.c_str(), 1);
            execl(program, program, "client", kernel.c_str(), std::to_string(count).c_str(), nullptr);
            _exit(127);
        }
        close(to[0]);
        close(from[1]);
        to_ = to[1];
        from_ = fdopen(from[0], "r");
        const std::string own = "{\"pid\": " + std::to_string(pid_) + ",";
        bool reports = false;
        for (int i = 0; i < 20'000 && !reports; ++i) {
            const std::string status = daemon.status();
            const std::size_t at = status.find(own);
            reports = at != std::string::npos && number_in(status.substr(at), "reports") == 1;
            usleep(1000);
        }
        CHECK(reports);
    }
    ~Process() {
        end();
        close(to_);
        std::fclose(from_);
    }
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;

    void go() { CHECK_EQUAL(write(to_, "g", 1), 1); }
    std::string line() {
        char text[32] = "";
        if (std::fgets(text, sizeof(text), from_) == nullptr) return "";
        return std::string(text, std::strcspn(text, "\n"));
    }
    // Who is killed is there until it has been waited for.
    void kill_hard() const { kill(pid_, SIGKILL); }
    void end() {
        if (pid_ <= 0) return;
        kill_hard();
        waitpid(pid_, nullptr, 0);
        pid_ = -1;
    }
    bool has_ended() const {
        siginfo_t info{};
        return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
               info.si_pid != 0;
    }
    pid_t pid() const { return pid_; }

   private:
    pid_t pid_{-1};
    int to_{-1};
    std::FILE* from_{nullptr};
};

struct Ended {
    int pid;
    std::string kernel;
    long started_ns, ended_ns;
};

std::vector<Ended> log_of(const std::string& path) {
    std::vector<Ended> all;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        std::istringstream cells(line);
        std::vector<std::string> cell;
        for (std::string one; std::getline(cells, one, ',');) cell.push_back(one);
        if (cell.size() > 5 && std::atoi(cell[0].c_str()) != 0)
            all.push_back({std::atoi(cell[0].c_str()), cell[1], std::atol(cell[4].c_str()),
                           std::atol(cell[5].c_str())});
    }
    return all;
}

bool somebody_was_forced_open(const std::string& status) {
    const std::string name = "\"forced\": ";
    for (std::size_t at = status.find(name); at != std::string::npos; at = status.find(name, at + 1)) {
        if (status[at + name.size()] != '0') return true;
    }
    return false;
}

// How many best-effort kernels that were launched long before begin while a high-priority kernel runs.
int begun_beside(Daemon& daemon, const char* kernels) {
    Process low(daemon, "best-effort", kernels, 300), high(daemon, "high", "long", 1);
    high.go();
    CHECK_EQUAL(high.line(), std::string("launched"));
    low.go();
    CHECK_EQUAL(low.line(), std::string("launched"));  // they are not held up on the host
    CHECK_EQUAL(high.line(), std::string("done"));
    CHECK_EQUAL(low.line(), std::string("done"));
    const bool on_time = !somebody_was_forced_open(daemon.status());
    long from_ns = 0, to_ns = 0, behind_ns = 0, last_ns = 0;
    int begun = 0, all = 0;
    for (int tries = 0; tries < 5000 && (all < 300 || to_ns == 0 || behind_ns == 0);
         ++tries) {  // another process may be writing the log
        usleep(1000);
        begun = all = 0;
        const std::vector<Ended> log = log_of(std::string(std::getenv("FAKECUDA_GPU")) + ".log");
        for (const Ended& ended : log) {
            if (ended.pid == high.pid() && ended.kernel == "long")
                from_ns = ended.started_ns, to_ns = ended.ended_ns;
        }
        for (const Ended& ended : log) {
            if (ended.pid == low.pid() && ended.kernel == "behind") behind_ns = ended.started_ns;
            if (ended.pid != low.pid() || ended.kernel != "short") continue;
            ++all;
            begun += ended.started_ns > from_ns && ended.started_ns < to_ns;
            last_ns = std::max(last_ns, ended.ended_ns);
        }
    }
    CHECK(behind_ns >= last_ns);
    CHECK(to_ns > from_ns);
    CHECK_EQUAL(all, 300);
    return on_time ? begun : 0;  // else this machine held the manager up, and the watchdog did its work
}

// None but for a batch. Now and then a client is left running to see what that costs; and where the machine
// stalls a client between a kernel that nobody knows and what tells of its end, that is taken to be over.
void launches_ahead_wait_on_the_gpu(Daemon& daemon, const char* kernels) {
    int begun = begun_beside(daemon, kernels);
    for (int again = 0; again < 2 && begun > 32; ++again) begun = begun_beside(daemon, kernels);
    CHECK(begun <= 32);
}

// A stream that waits for the very thread that launches: launches are held up for it once, not one by one.
void who_waits_for_the_launching_thread_is_not_held_up(Daemon& daemon) {
    setenv("WAITS_FOR_US", "1", 1);
    Process low(daemon, "best-effort", "first", 450);
    unsetenv("WAITS_FOR_US");
    const Process high(daemon, "high", "long", 1);
    low.go();
    CHECK_EQUAL(low.line(), std::string("launched"));
    const std::string status = daemon.status();
    const std::size_t at = status.find("{\"pid\": " + std::to_string(low.pid()) + ",");
    if (at != std::string::npos) CHECK(number_in(status.substr(at), "passed") <= 2);
    CHECK_EQUAL(low.line(), std::string("done"));
}

void work_of_destroyed_streams_ends(Daemon& daemon) {
    setenv("PASSING_STREAMS", "1", 1);
    Process high(daemon, "high", "long", 1);
    unsetenv("PASSING_STREAMS");
    high.go();
    CHECK_EQUAL(high.line(), std::string("launched"));
    const auto outstanding = [&] {
        const std::string status = daemon.status();
        const std::size_t at = status.find("{\"pid\": " + std::to_string(high.pid()) + ",");
        return at == std::string::npos ? -1 : number_in(status.substr(at), "outstanding_ns");
    };
    const auto has_ended = [&] {
        const std::vector<Ended> log = log_of(std::string(std::getenv("FAKECUDA_GPU")) + ".log");
        return std::any_of(log.begin(), log.end(), [&](const Ended& ended) {
            return ended.pid == high.pid() && ended.kernel == "long";
        });
    };
    for (int i = 0; i < 5000 && !has_ended(); ++i) usleep(1000);
    usleep(10'000);  // what the GPU writes is seen a little later
    for (int i = 0; i < 5000 && outstanding() != 0; ++i) usleep(1000);
    CHECK_EQUAL(outstanding(), 0LL);
}

// The words for which work waits on the GPU, as the manager of now has made them.
class Gates {
   public:
    explicit Gates(const Daemon& daemon) {
        const std::string fds = "/proc/" + std::to_string(daemon.pid()) + "/fd";
        for (const auto& file : std::filesystem::directory_iterator(fds)) {
            std::error_code closed;
            if (std::filesystem::read_symlink(file, closed).string().find("explsched-signals") ==
                std::string::npos)
                continue;
            const int fd = open(file.path().c_str(), O_RDWR | O_CLOEXEC);
            void* at = mmap(nullptr, sizeof(shared::Signals), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            close(fd);
            if (at != MAP_FAILED) signals_ = static_cast<shared::Signals*>(at);
        }
        CHECK(signals_ != nullptr);
    }
    ~Gates() { munmap(signals_, sizeof(shared::Signals)); }
    Gates(const Gates&) = delete;
    Gates& operator=(const Gates&) = delete;

    bool any_shut() const {
        // A slot that nobody has had yet is neither open nor shut.
        const auto is_shut = [](const shared::ClientSignals& client) {
            const std::uint32_t word = client.gate.load();
            return word != 0 && !shared::is_open(word);
        };
        return std::any_of(signals_->clients.begin(), signals_->clients.end(), is_shut);
    }
    // Returns when, by the clock, or 0 if not within that time.
    std::uint64_t wait_until(bool shut, int ms) const {
        for (int i = 0; i < 10 * ms; ++i) {
            if (any_shut() == shut) return shared::now_ns();
            usleep(100);
        }
        return 0;
    }

   private:
    shared::Signals* signals_{nullptr};
};

enum class Victims : std::uint8_t { kHigh, kManager, kHighAndManager, kLow, kLowAndManager, kAll, kCount };

// Of all deaths: for how long gates stayed shut that were shut when it happened.
struct Figures {
    int deaths;
    double longest_ms[static_cast<int>(Victims::kCount)];
    double longest_own_ms;  // without the time for which the control process was kept from running
    int over_bound, over_bound_own;
};
Figures figures{};
stalls::Stalls* stalled{nullptr};

void count_death(Victims victims, std::uint64_t from_ns, std::uint64_t to_ns) {
    constexpr double kBoundMs = 50;
    const double ms = static_cast<double>(to_ns - from_ns) / 1e6;
    const double own_ms = static_cast<double>(stalled->own_ns(from_ns, to_ns)) / 1e6;
    double& longest = figures.longest_ms[static_cast<int>(victims)];
    longest = std::max(longest, ms);
    figures.longest_own_ms = std::max(figures.longest_own_ms, own_ms);
    figures.over_bound += ms > kBoundMs;
    figures.over_bound_own += own_ms > kBoundMs;
    ++figures.deaths;
}

// A high-priority client that never ends keeps the gate shut. Whoever is killed, the gate opens, the work
// that waited is done if its process lives, and who comes next is held up by nobody.
void nobody_is_left_waiting(Daemon& daemon, Victims victims, bool frees) {
    const bool low_dies =
        victims == Victims::kLow || victims == Victims::kLowAndManager || victims == Victims::kAll;
    const bool high_dies =
        victims == Victims::kHigh || victims == Victims::kHighAndManager || victims == Victims::kAll;
    const bool manager_dies = victims == Victims::kManager || victims == Victims::kHighAndManager ||
                              victims == Victims::kLowAndManager || victims == Victims::kAll;
    if (frees) setenv("FREES_MEMORY", "1", 1);
    Process low(daemon, "best-effort", "short", 300);
    unsetenv("FREES_MEMORY");
    Process high(daemon, "high", "endless", 1);
    high.go();
    CHECK_EQUAL(high.line(), std::string("launched"));
    low.go();
    CHECK_EQUAL(low.line(), std::string("launched"));
    const Gates gates(daemon);
    // Now and then a client is left running beside high-priority work, to see what that costs: nothing waits.
    if (gates.wait_until(true, 1000) == 0) return;
    const std::uint64_t killed_ns = shared::now_ns();
    if (low_dies) low.kill_hard();
    if (high_dies) high.kill_hard();
    if (manager_dies) daemon.kill_hard();
    // With both gone nobody is there to open the gate, and nobody to wait for it.
    if (!(low_dies && manager_dies)) {
        const std::uint64_t opened_ns = gates.wait_until(false, 2'000);
        // A client that had just done all its work leaves a gate for which nothing waits.
        CHECK(opened_ns != 0 || low.has_ended());
        if (opened_ns != 0) count_death(victims, killed_ns, opened_ns);
    } else {
        ++figures.deaths;
    }
    if (!low_dies) CHECK_EQUAL(low.line(), std::string("done"));
    if (manager_dies) daemon.start();
    if (!low_dies) return;
    high.end();
    Process next(daemon, "best-effort", "short", 30);
    next.go();
    CHECK_EQUAL(next.line(), std::string("launched"));
    CHECK_EQUAL(next.line(), std::string("done"));
}

// Nobody dies, and the watchdog lets the work go on, time and again.
void who_never_rests_does_not_starve_others(Daemon& daemon) {
    Process low(daemon, "best-effort", "short", 300), high(daemon, "high", "endless", 1);
    high.go();
    CHECK_EQUAL(high.line(), std::string("launched"));
    low.go();
    CHECK_EQUAL(low.line(), std::string("launched"));
    CHECK_EQUAL(low.line(), std::string("done"));
}

// A process that the machine stalls as it does the clients, on one of their cores.
pid_t start_control() {
    void* at =
        mmap(nullptr, sizeof(stalls::Stalls), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    stalled = new (at) stalls::Stalls{};
    const pid_t control = fork();
    if (control == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        stalls::be_stalled(0, *stalled);
    }
    return control;
}

void print_figures() {
    std::printf("{\"deaths\": %d, \"longest_shut_ms\": {", figures.deaths);
    const char* names[] = {"high", "manager", "high and manager", "low"};
    for (int i = 0; i < 4; ++i)
        std::printf("%s\"%s\": %.1f", i == 0 ? "" : ", ", names[i], figures.longest_ms[i]);
    std::printf(
        "}, \"shut_over_50_ms\": %d, \"longest_without_stalls_ms\": %.1f, "
        "\"shut_over_50_ms_without_stalls\": %d, \"longest_stall_of_an_idle_process_ms\": %.1f}\n",
        figures.over_bound, figures.longest_own_ms, figures.over_bound_own,
        static_cast<double>(stalled->longest_ns.load()) / 1e6);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc == 4 && std::strcmp(argv[1], "client") == 0) return client(argv[2], std::atoi(argv[3]));
    program = argv[0];
    Daemon daemon(argv[1]);
    std::remove((std::string(std::getenv("FAKECUDA_GPU")) + ".log").c_str());
    const std::string kernels = daemon.directory() + "/kernels";
    std::ofstream(kernels) << "first 32 0 1000 10 10\nshort 32 0 20000 500 100\nbehind 32 0 1000 10 10\nlong "
                              "32 0 100000000 500 100\n"
                              "endless 32 0 3600000000000 400 100\n";
    setenv("FAKECUDA_KERNELS", kernels.c_str(), 1);
    setenv("EXPLSCHED_KM_SOCKET", daemon.socket().c_str(), 1);
    launches_ahead_wait_on_the_gpu(daemon, "short");
    launches_ahead_wait_on_the_gpu(daemon, "graph:short");
    work_of_destroyed_streams_ends(daemon);
    const pid_t control = start_control();
    const int rounds = argc > 2 ? std::atoi(argv[2]) : 2;  // by hand: 190, for a thousand deaths
    for (int round = 0; round < rounds; ++round) {
        for (int victims = 0; victims < static_cast<int>(Victims::kCount); ++victims)
            nobody_is_left_waiting(daemon, static_cast<Victims>(victims), round % 2 != 0);
    }
    CHECK(figures.deaths > 0);
    print_figures();
    who_never_rests_does_not_starve_others(daemon);
    who_waits_for_the_launching_thread_is_not_held_up(daemon);
    kill(control, SIGKILL);
    waitpid(control, nullptr, 0);
}
