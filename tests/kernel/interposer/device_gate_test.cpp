// Best-effort work that waits on the GPU, through the interposer, the gate and a manager, on the fake driver:
// who may run when, and what becomes of it when somebody is killed. Argument: the manager's program. Run
// under the interposer.
//
// Itself it starts clients: device_gate_test client CLASS KERNEL COUNT, which launch without synchronising,
// say so, synchronise, and say so.

#include <cuda.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "explsched/job_options.h"
#include "kernel_intercept/shared/clock.hpp"
#include "tests/kernel/interposer/check.hpp"
#include "tests/kernel/manager/daemon.hpp"

using daemon_under_test::Daemon;
using daemon_under_test::number_in;

namespace {

#define DO(call) CHECK_EQUAL(static_cast<int>(call), 0)

bool told_to_go() {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    return poll(&input, 1, 2) > 0;
}

int client(const std::string& kernel, int count) {
    const bool graph = kernel.rfind("graph:", 0) == 0;
    CUcontext context = nullptr;
    CUmodule module = nullptr;
    CUfunction function = nullptr, first = nullptr;
    CUstream stream = nullptr;
    CUgraph captured = nullptr;
    CUgraphExec exec = nullptr;
    DO(cuInit(0));
    DO(cuDevicePrimaryCtxRetain(&context, 0));
    DO(cuCtxSetCurrent(context));
    DO(cuModuleLoadData(&module, "image"));
    DO(cuModuleGetFunction(&first, module, "first"));
    DO(cuModuleGetFunction(&function, module, kernel.substr(graph ? 6 : 0).c_str()));
    DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    const auto launch = [&](CUfunction what) {
        DO(cuLaunchKernel(what, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr));
    };
    // The GPU's writes are relied on when the first of them has been seen.
    while (!told_to_go()) {
        launch(first);
        DO(cuStreamSynchronize(stream));
    }
    if (std::getchar() == EOF) return 1;
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
    for (int i = 0; i < count && !graph; ++i) launch(function);
    CUevent event{};
    DO(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    DO(cuEventRecord(event, stream));  // from now on nothing has to be predicted
    std::puts("launched");
    std::fflush(stdout);
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
    void end() {
        if (pid_ <= 0) return;
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
        pid_ = -1;
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

// While a high-priority kernel runs, best-effort kernels that were launched long before it do not begin, but
// for a batch.
void launches_ahead_wait_on_the_gpu(Daemon& daemon, const char* kernels) {
    Process low(daemon, "best-effort", kernels, 300), high(daemon, "high", "long", 1);
    high.go();
    CHECK_EQUAL(high.line(), std::string("launched"));
    low.go();
    CHECK_EQUAL(low.line(), std::string("launched"));  // they are not held up on the host
    CHECK_EQUAL(high.line(), std::string("done"));
    CHECK_EQUAL(low.line(), std::string("done"));
    const bool on_time = !somebody_was_forced_open(daemon.status());
    long from_ns = 0, to_ns = 0;
    int begun = 0, all = 0;
    for (int tries = 0; tries < 5000 && (all < 300 || to_ns == 0);
         ++tries) {  // another process may be writing the log
        usleep(1000);
        begun = all = 0;
        const std::vector<Ended> log = log_of(std::string(std::getenv("FAKECUDA_GPU")) + ".log");
        for (const Ended& ended : log) {
            if (ended.pid == high.pid() && ended.kernel == "long")
                from_ns = ended.started_ns, to_ns = ended.ended_ns;
        }
        for (const Ended& ended : log) {
            if (ended.pid != low.pid() || ended.kernel != "short") continue;
            ++all;
            begun += ended.started_ns > from_ns && ended.started_ns < to_ns;
        }
    }
    CHECK(to_ns > from_ns);
    CHECK_EQUAL(all, 300);
    if (on_time) CHECK(begun <= 32);  // else this machine held the manager up, and the watchdog did its work
}

// From the death of the high-priority client, the manager, or both, until the work of others that had waited
// is done.
double longest_ms[3]{};

// A high-priority client that never ends keeps the gate shut; whoever is killed, best-effort work goes on.
void nobody_is_left_waiting(Daemon& daemon, bool kill_high, bool kill_manager) {
    Process low(daemon, "best-effort", "short", 300), high(daemon, "high", "endless", 1);
    high.go();
    CHECK_EQUAL(high.line(), std::string("launched"));
    low.go();
    CHECK_EQUAL(low.line(), std::string("launched"));
    if (kill_high) high.end();
    if (kill_manager) daemon.kill_hard();
    const std::uint64_t killed_ns = explsched::shared::now_ns();
    CHECK_EQUAL(low.line(), std::string("done"));
    const double took_ms = static_cast<double>(explsched::shared::now_ns() - killed_ns) / 1e6;
    if (kill_high || kill_manager) {
        double& longest = longest_ms[kill_high + 2 * kill_manager - 1];
        longest = std::max(longest, took_ms);
    }
    if (kill_manager) daemon.start();
}

// A client that is killed while its work waits holds up nobody, with the manager or without.
void who_is_killed_waiting_holds_up_nobody(Daemon& daemon, bool kill_manager) {
    Process high(daemon, "high", "long", 2);
    {
        Process low(daemon, "best-effort", "short", 300);
        high.go();
        CHECK_EQUAL(high.line(), std::string("launched"));
        low.go();
        CHECK_EQUAL(low.line(), std::string("launched"));
        if (kill_manager) daemon.kill_hard();
    }
    if (kill_manager) daemon.start();
    CHECK_EQUAL(high.line(), std::string("done"));
    Process next(daemon, "best-effort", "short", 300);
    next.go();
    CHECK_EQUAL(next.line(), std::string("launched"));
    CHECK_EQUAL(next.line(), std::string("done"));
}

}  // namespace

int main(int argc, char** argv) {
    if (argc == 4 && std::strcmp(argv[1], "client") == 0) return client(argv[2], std::atoi(argv[3]));
    program = argv[0];
    Daemon daemon(argv[1]);
    std::remove((std::string(std::getenv("FAKECUDA_GPU")) + ".log").c_str());
    const std::string kernels = daemon.directory() + "/kernels";
    std::ofstream(kernels) << "first 32 0 1000 10 10\nshort 32 0 20000 500 100\nlong 32 0 100000000 500 100\n"
                              "endless 32 0 3600000000000 400 100\n";
    setenv("FAKECUDA_KERNELS", kernels.c_str(), 1);
    setenv("EXPLSCHED_KM_SOCKET", daemon.socket().c_str(), 1);
    launches_ahead_wait_on_the_gpu(daemon, "short");
    launches_ahead_wait_on_the_gpu(daemon, "graph:short");
    for (int round = 0; round < (argc > 2 ? std::atoi(argv[2]) : 1);
         ++round) {  // 5 deaths each; by hand 200 times
        nobody_is_left_waiting(daemon, true, false);
        nobody_is_left_waiting(daemon, false, true);
        nobody_is_left_waiting(daemon, true, true);
        who_is_killed_waiting_holds_up_nobody(daemon, false);
        who_is_killed_waiting_holds_up_nobody(daemon, true);
    }
    std::printf(
        "6 ms of work that had waited were done, at most, after the death of a client %.1f, of the manager "
        "%.1f, of both %.1f ms\n",
        longest_ms[0], longest_ms[1], longest_ms[2]);
    nobody_is_left_waiting(daemon, false, false);  // the watchdog lets it go on, time and again
}
