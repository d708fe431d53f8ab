// A server and a training on one GPU, arm by arm: alone, in time slices, under CUDA MPS, under MPS with
// client priority or thread percentage, and with explsched. Needs the driver; for some arms
// nvidia-cuda-mps-control, and for ours the interposer and the kernel manager.
//
//   gpu_measure share SECONDS INTERPOSER MANAGER    all arms; prints a line of JSON after each, with all so
//                                                   far
//   gpu_measure device                              what there is, and how fast; used by the former
//   gpu_measure worker ROLE SECONDS STAMPS BLOCKS ROUNDS ROUNDS    one side, server or training; likewise
//
// The server answers requests of 60 short kernels, which arrive at random (Poisson), and waits for each. The
// training launches ahead and never waits but for full queues. Blocks of kernels come and go, as in most
// libraries; in the persistent arms those of the training stay as long as a kernel runs. All kernels do a
// fixed amount of work, half of them arithmetic, half of them memory; how much takes how long is measured
// once, alone, and is the same in all arms. Kernels note when they began and ended by the GPU's clock:
// `overlap` is the share of the server's kernel time in which a kernel of the training ran. An arm that fails
// says why, and the others go on. Times in microseconds.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/gpu/driver.hpp"
#include "benchmarks/gpu/measure.hpp"
#include "explsched/job_options.h"

namespace {

using namespace gpu_bench;

constexpr std::size_t kMemoryBytes = std::size_t{256} << 20;  // more than caches hold
constexpr double kRequestUs[] = {10, 20, 30, 40, 60};         // of the server's kernels, in turns
constexpr double kStepUs[] = {5, 15, 40, 100, 250};           // of the training's
constexpr int kRequestKernels = 60;
constexpr double kWaveUs = 20;  // of kernels whose blocks come and go: of some that fill the GPU at once
constexpr unsigned kBlocksAtOnce = 4;  // times as many as are needed to keep it busy
constexpr double kMeanPauseUs = 5000;
constexpr double kReadyUs = 60e6, kAfterUs = 30e6;  // for what hangs
constexpr double kAllUs = 330e6;                    // later no arm begins, so that what was measured is told
constexpr double kDeathSeconds = 4;                 // of arms in which one is killed
constexpr double kWarmUpUs = 1e6;                   // until the clocks are up

constexpr int kDeviceComputeMode = 20;  // CU_DEVICE_ATTRIBUTE_COMPUTE_MODE

constexpr std::size_t kMostStamps = std::size_t{1} << 20;  // later kernels note nothing

// As in kernels.cu. Both 0 where nothing computes, as on the fake driver.
struct Stamp {
    std::uint64_t began_ns, ended_ns;
};

// Whether all blocks of a kernel are on the GPU for as long as it runs, as of those that are called
// persistent, or come and go, as of most.
enum class Blocks : std::uint8_t { kStay, kComeAndGo };

class Gpu {
   public:
    explicit Gpu(const Calibration& calibration) : calibration_(calibration) {
        call("cuInit", 0U);
        call("cuDevicePrimaryCtxRetain", &context_, 0);
        call("cuCtxSetCurrent", context_);
        const Kernels loaded = load_kernels();
        compiled_ = loaded.compiled;
        call("cuModuleGetFunction", &kernels_[0], loaded.module, "arithmetic");
        call("cuModuleGetFunction", &kernels_[1], loaded.module, "memory");
        call("cuMemAlloc_v2", &memory_, kMemoryBytes);
        call("cuMemAlloc_v2", &stamps_, kMostStamps * sizeof(Stamp));
        call("cuMemsetD8_v2", stamps_, static_cast<unsigned char>(0), kMostStamps * sizeof(Stamp));
        call("cuStreamCreate", &stream_, 1U);  // CU_STREAM_NON_BLOCKING
        if (calibration_.blocks == 0) {
            int multiprocessors = 0;
            call("cuDeviceGetAttribute", &multiprocessors, kDeviceMultiprocessors, 0);
            calibration_.blocks = static_cast<unsigned>(2 * multiprocessors);
        }
        for (const int kind : {0, 1}) launch_rounds(kind, 1, 1, 0);  // loads the kernel
        wait();
    }

    void launch(int kind, double us, Blocks blocks) {
        const unsigned times =
            blocks == Blocks::kStay ? 1 : kBlocksAtOnce * static_cast<unsigned>(std::ceil(us / kWaveUs));
        const double rounds = us * calibration_.rounds_per_us[kind] / times;
        launch_rounds(kind, times, static_cast<std::uint32_t>(std::max(1.0, rounds)),
                      launched_ < kMostStamps ? stamps_ : 0);
        ++launched_;
    }
    void wait() { call("cuStreamSynchronize", stream_); }

    // The bits that the last arithmetic kernel has written.
    std::uint32_t output() {
        std::uint32_t bits = 0;
        call("cuMemcpyDtoH_v2", static_cast<void*>(&bits), memory_, sizeof(bits));
        return bits;
    }

    bool compiled() const { return compiled_; }

    Calibration calibrated() {
        for (const double until_us = now_us() + kWarmUpUs; now_us() < until_us; wait())
            launch_rounds(0, 1, kMany, 0);
        for (const int kind : {0, 1})
            calibration_.rounds_per_us[kind] =
                (kMany - kFew) / std::max(median_us(kind, kMany) - median_us(kind, kFew), 1.0);
        return calibration_;
    }

    // Of what `launch` has launched.
    std::vector<Stamp> stamps() {
        std::vector<Stamp> all(std::min(launched_, kMostStamps));
        if (!all.empty())
            call("cuMemcpyDtoH_v2", static_cast<void*>(all.data()), stamps_, all.size() * sizeof(Stamp));
        return all;
    }

   private:
    static constexpr std::uint32_t kFew = 2000, kMany = 22'000;

    void launch_rounds(int kind, unsigned times, std::uint32_t rounds, DevicePointer stamps) {
        auto number = static_cast<std::uint32_t>(launched_);
        void* parameters[] = {&memory_, &rounds, &stamps, &number};
        call("cuLaunchKernel", kernels_[kind], times * calibration_.blocks, 1U, 1U, 256U, 1U, 1U, 0U, stream_,
             static_cast<void**>(parameters), static_cast<void**>(nullptr));
    }

    double median_us(int kind, std::uint32_t rounds) {
        double us[15];
        for (double& one : us) {
            const double from_us = now_us();
            launch_rounds(kind, 1, rounds, 0);
            wait();
            one = now_us() - from_us;
        }
        std::nth_element(std::begin(us), us + 7, std::end(us));
        return us[7];
    }

    Context context_{nullptr};
    Function kernels_[2]{};
    Stream stream_{nullptr};
    DevicePointer memory_{0}, stamps_{0};
    std::size_t launched_{0};
    bool compiled_{false};
    Calibration calibration_;
};

double quantile(std::vector<double> values, double share) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    return values[std::min(values.size() - 1,
                           static_cast<std::size_t>(share * static_cast<double>(values.size())))];
}

// Returns how long each request took.
std::vector<double> serve(Gpu& gpu, double end_us) {
    std::mt19937_64 random{7};
    std::exponential_distribution<double> pause(1 / kMeanPauseUs);
    std::vector<double> latencies;
    while (now_us() < end_us) {
        usleep(static_cast<useconds_t>(pause(random)));
        const double from_us = now_us();
        for (int i = 0; i < kRequestKernels; ++i) gpu.launch(i % 2, kRequestUs[i % 5], Blocks::kComeAndGo);
        gpu.wait();
        latencies.push_back(now_us() - from_us);
    }
    std::printf("\"requests\": %zu, \"p50_us\": %.1f, \"p99_us\": %.1f, \"output\": \"%08x\"",
                latencies.size(), quantile(latencies, 0.5), quantile(latencies, 0.99), gpu.output());
    return latencies;
}

// From the begin of a request's first kernel to the end of its last: without what the host adds.
std::vector<double> gpu_times(const std::vector<Stamp>& all) {
    std::vector<double> us;
    for (std::size_t i = 0; i + kRequestKernels <= all.size(); i += kRequestKernels)
        us.push_back(static_cast<double>(all[i + kRequestKernels - 1].ended_ns - all[i].began_ns) / 1e3);
    return us;
}

// Number, time and of that the GPU's: whether they are the first ones, while the gate learns, or any, and
// whether host or GPU took longer.
void tell_slowest(const std::vector<double>& latencies, const std::vector<double>& gpu_us) {
    constexpr std::size_t kSlowest = 16;
    std::vector<std::size_t> order(std::min(latencies.size(), gpu_us.size()));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&latencies](std::size_t a, std::size_t b) { return latencies[a] > latencies[b]; });
    std::printf(", \"slowest\": [");
    for (std::size_t i = 0; i < std::min(order.size(), kSlowest); ++i)
        std::printf("%s[%zu, %.1f, %.1f]", i == 0 ? "" : ", ", order[i], latencies[order[i]],
                    gpu_us[order[i]]);
    std::printf("]");
}

void train(Gpu& gpu, double seconds, double end_us, Blocks blocks) {
    double work_us = 0;
    for (long i = 0; now_us() < end_us; ++i) {
        gpu.launch(static_cast<int>(i % 2), kStepUs[i % 5], blocks);
        work_us += kStepUs[i % 5];
    }
    const double from_us = now_us();
    gpu.wait();  // what was launched ahead counts, and its time as well
    std::printf("\"work_us_per_s\": %.0f", work_us / (seconds + (now_us() - from_us) / 1e6));
}

}  // namespace

// Says when it is ready, and starts when it is told to.
int gpu_bench::work(const std::string& role, double seconds, const std::string& stamps,
                    const Calibration& calibration) {
    Gpu gpu(calibration);
    std::puts("ready");
    std::fflush(stdout);
    if (std::getchar() == EOF) return 1;
    const double end_us = now_us() + seconds * 1e6;
    std::vector<double> latencies;
    if (role == "server") {
        latencies = serve(gpu, end_us);
    } else {
        train(gpu, seconds, end_us, role == "persistent" ? Blocks::kStay : Blocks::kComeAndGo);
    }
    const std::vector<Stamp> all = gpu.stamps();
    if (role == "server") {
        const std::vector<double> us = gpu_times(all);
        std::printf(", \"gpu_p50_us\": %.1f, \"gpu_p99_us\": %.1f", quantile(us, 0.5), quantile(us, 0.99));
        tell_slowest(latencies, us);
    }
    std::fflush(stdout);
    std::ofstream(stamps, std::ios::binary)
        .write(reinterpret_cast<const char*>(all.data()),
               static_cast<std::streamsize>(all.size() * sizeof(Stamp)));
    return 0;
}

namespace {

std::vector<Stamp> stamps_in(const std::string& path) {
    std::vector<Stamp> all;
    std::ifstream file(path, std::ios::binary);
    for (Stamp one{}; file.read(reinterpret_cast<char*>(&one), sizeof(one));) {
        if (one.ended_ns > one.began_ns) all.push_back(one);
    }
    return all;
}

// The share of the time of `some` in which one of `others` ran, as JSON. Each lists kernels of one stream.
std::string overlap_of(const std::vector<Stamp>& some, const std::vector<Stamp>& others) {
    double all_ns = 0, both_ns = 0;
    std::size_t first = 0;
    for (const Stamp& one : some) {
        all_ns += static_cast<double>(one.ended_ns - one.began_ns);
        while (first < others.size() && others[first].ended_ns <= one.began_ns) ++first;
        for (std::size_t i = first; i < others.size() && others[i].began_ns < one.ended_ns; ++i)
            both_ns += static_cast<double>(std::min(one.ended_ns, others[i].ended_ns) -
                                           std::max(one.began_ns, others[i].began_ns));
    }
    return all_ns == 0 || others.empty() ? "null" : std::to_string(both_ns / all_ns);
}

const char* const kNoMps = "{\"failed\": \"nvidia-cuda-mps-control -d does not start\"}";

using Variables = std::vector<std::pair<std::string, std::string>>;

struct Side {
    std::string name, role;
    Variables variables;
};

// A program with pipes to it. Killed at the end, if it has not ended.
class Child {
   public:
    Child(const std::vector<std::string>& command, const Variables& variables) {
        int to[2], from[2];
        if (pipe2(to, O_CLOEXEC) + pipe2(from, O_CLOEXEC) != 0) std::abort();
        pid_ = fork();
        if (pid_ == 0) {
            for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            dup2(to[0], STDIN_FILENO);
            dup2(from[1], STDOUT_FILENO);
            std::vector<char*> words;
            words.reserve(command.size() + 1);
            for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
            words.push_back(nullptr);
            execvp(words[0], words.data());
            _exit(127);
        }
        close(to[0]);
        close(from[1]);
        to_ = to[1];
        from_ = from[0];
    }
    ~Child() {
        kill_hard();
        close(to_);
        close(from_);
    }
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;

    void kill_hard() {
        if (pid_ > 0) kill(pid_, SIGKILL);
        status();
    }
    void stop() const {
        if (pid_ > 0 && kill(pid_, SIGSTOP) == 0) usleep(100'000);
    }
    int status() {
        int found = -1;
        if (pid_ > 0) waitpid(pid_, &found, 0);
        pid_ = -1;
        return found;
    }
    void go() {
        if (write(to_, "\n", 1) != 1) std::perror("gpu_measure: write");
    }
    // What it prints up to the end of a line, or of all; what there is if it takes longer.
    std::string text(double deadline_us, bool one_line) {
        std::string all;
        for (char byte = 0; now_us() < deadline_us;) {
            pollfd ready{from_, POLLIN, 0};
            if (poll(&ready, 1, 100) <= 0) continue;
            if (read(from_, &byte, 1) != 1) break;
            if (one_line && byte == '\n') break;
            all += byte;
        }
        return all;
    }

   private:
    pid_t pid_{-1};
    int to_{-1}, from_{-1};
};

class Arms {
   public:
    // `head`: the members of what is printed before the arms.
    Arms(std::string head, const Calibration& calibration, std::string program, double seconds,
         std::string interposer, std::string manager)
        : head_(std::move(head)),
          calibration_(calibration),
          program_(std::move(program)),
          interposer_(std::move(interposer)),
          manager_(std::move(manager)),
          seconds_(seconds) {
        const char* scratch = std::getenv("TMPDIR");
        directory_ = std::string(scratch == nullptr ? "/tmp" : scratch) + "/gpu-share-XXXXXX";
        if (mkdtemp(directory_.data()) == nullptr) std::abort();
        none_ = {{"CUDA_MPS_PIPE_DIRECTORY", directory_ + "/no-mps"}};
        mps_ = {{"CUDA_MPS_PIPE_DIRECTORY", directory_ + "/mps"},
                {"CUDA_MPS_LOG_DIRECTORY", directory_ + "/log"}};
        for (const char* name : {"/no-mps", "/mps", "/log", "/km"}) mkdir((directory_ + name).c_str(), 0700);
    }
    ~Arms() {
        if (Child({"rm", "-rf", directory_}, {}).status() != 0) std::perror(directory_.c_str());
    }
    Arms(const Arms&) = delete;
    Arms& operator=(const Arms&) = delete;

    void all() {
        const Side server{"server", "server", {}}, training{"training", "training", {}},
            persistent{"training", "persistent", {}};
        const double seconds = seconds_;
        seconds_ = 2 * seconds;  // of the arms that are compared closest
        add("server_alone", run({server}, none_));
        seconds_ = seconds;
        add("training_alone", run({training}, none_));
        add("time_slices", run({server, training}, none_));
        // Where it starts and serves nobody, as in some containers, each arm would wait for it.
        const bool starts = start_mps();
        const std::string both = starts ? run({server, training}, mps_) : kNoMps;
        const bool has_mps = both.find("\"failed\"") == std::string::npos;
        add("mps", both);
        const auto under_mps = [&](const char* name, const std::vector<Side>& sides) {
            add(name, has_mps ? run(sides, mps_) : "{\"failed\": \"no MPS, see mps\"}");
        };
        const auto below = [&](const char* variable, const char* value) {
            Side side = training;
            side.variables.emplace_back(variable, value);
            return side;
        };
        under_mps("mps_server_alone", {server});
        under_mps("mps_priority", {server, below("CUDA_MPS_CLIENT_PRIORITY", "1")});
        under_mps("mps_percentage", {server, below("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "30")});
        under_mps("mps_persistent", {server, persistent});
        const Variables& served = has_mps ? mps_ : none_;
        // In turns: a hundredth of the requests are few, and what differs within a kind is no difference.
        const auto server_managed = [&] {
            return managed("group", {high("device")}, Killed::kNobody, served);
        };
        add("explsched_server_alone", server_managed());
        under_mps("mps_server_alone_again", {server});
        add("explsched_server_alone_again", server_managed());
        add("explsched_host", group("host", "training", Killed::kNobody, served));
        seconds_ = 2 * seconds;
        add("explsched_device", group("device", "training", Killed::kNobody, served));
        seconds_ = seconds;
        add("explsched_device_persistent", group("device", "persistent", Killed::kNobody, served));
        add("explsched_device_without_mps", group("device", "training", Killed::kNobody, none_));
        add("explsched_quota_30_70", quota(served));
        // Last, since what MPS does then is not defined.
        seconds_ = std::min(seconds_, kDeathSeconds);
        for (const char* gate : {"host", "device"})
            add(std::string("explsched_") + gate + "_manager_killed",
                group(gate, "training", Killed::kManager, served));
        add("explsched_device_server_killed", group("device", "training", Killed::kServer, served));
        seconds_ *= 3;
        add("explsched_device_trainings_killed", group("device", "training", Killed::kTraining, served));
        if (starts) stop_mps();
    }

   private:
    using Children = std::vector<std::unique_ptr<Child>>;
    enum class Killed : std::uint8_t { kServer, kTraining, kManager, kNobody };

    static std::string member(const std::string& name, const std::string& value) {
        return '"' + name + "\": " + value;
    }

    // Whoever ends this program leaves what was measured so far.
    void add(const std::string& name, const std::string& value) {
        text_ += (text_.empty() ? "" : ", ") + member(name, value);
        std::printf("{%s, \"arms\": {%s}}\n", head_.c_str(), text_.c_str());
        std::fflush(stdout);
    }

    std::unique_ptr<Child> started(const Side& side, const Variables& common) const {
        Variables variables = common;
        variables.insert(variables.end(), side.variables.begin(), side.variables.end());
        return std::make_unique<Child>(
            std::vector<std::string>{program_, "worker", side.role, std::to_string(seconds_),
                                     stamps_of(side.name), std::to_string(calibration_.blocks),
                                     std::to_string(calibration_.rounds_per_us[0]),
                                     std::to_string(calibration_.rounds_per_us[1])},
            variables);
    }

    // `at_half_time` returns more members of what is printed.
    std::string run(const std::vector<Side>& sides, const Variables& common,
                    const std::function<std::string(Children&)>& at_half_time = {}) {
        if (now_us() > last_start_us_) return "{\"failed\": \"no time is left\"}";
        Children children;
        for (const Side& side : sides) children.push_back(started(side, common));
        std::string text;
        const double ready_by_us = now_us() + kReadyUs;
        for (std::size_t i = 0; i < sides.size(); ++i) {
            const std::string ready = children[i]->text(ready_by_us, true);
            if (ready != "ready")
                return "{\"failed\": \"" + sides[i].name + " is not ready\", \"it_said\": {" + ready + "}}";
        }
        for (const auto& child : children) child->go();
        std::string more;
        if (at_half_time) {
            usleep(static_cast<useconds_t>(seconds_ * 0.5e6));
            more = at_half_time(children);
        }
        const double deadline_us = now_us() + seconds_ * 1e6 + kAfterUs;
        for (std::size_t i = 0; i < sides.size(); ++i) {
            const std::string found = children[i]->text(deadline_us, false);
            const bool ended = found.find('"') == 0;
            text += (i == 0 ? "" : ", ") +
                    member(sides[i].name, ended ? "{" + found + "}" : "{\"failed\": \"no end\"}");
        }
        children.clear();
        if (sides.size() == 2)
            text += ", " + member("overlap", overlap_of(stamps_in(stamps_of(sides[0].name)),
                                                        stamps_in(stamps_of(sides[1].name))));
        for (const Side& side : sides) std::remove(stamps_of(side.name).c_str());
        return "{" + text + more + "}";
    }

    std::string stamps_of(const std::string& side) const { return directory_ + "/" + side + ".stamps"; }

    bool start_mps() const {
        return Child({"timeout", "20", "nvidia-cuda-mps-control", "-d"}, mps_).status() == 0;
    }
    void stop_mps() const {
        Child({"sh", "-c", "echo quit | timeout -s KILL 20 nvidia-cuda-mps-control"}, mps_).status();
    }

    // Runs them with a manager, which tells at half time whom it serves, if nobody is killed then. Without it
    // they would run all the same, and the figures be another arm's.
    std::string managed(const std::string& policy, const std::vector<Side>& sides, Killed killed,
                        const Variables& common) {
        const std::vector<std::string> command{manager_, "--dir", directory_ + "/km"};
        const auto with = [&command](const std::vector<std::string>& words) {
            std::vector<std::string> all = command;
            all.insert(all.end(), words.begin(), words.end());
            return all;
        };
        Child manager(with({"--profiles", directory_ + "/profiles", "--policy", policy, "--foreground"}), {});
        struct stat found {};
        for (int i = 0; i < 500 && stat(socket().c_str(), &found) != 0; ++i) usleep(10'000);
        if (stat(socket().c_str(), &found) != 0) return "{\"failed\": \"the kernel manager does not start\"}";
        std::string text = run(sides, common, [&](Children& children) -> std::string {
            if (killed == Killed::kManager) return manager.kill_hard(), "";
            if (killed == Killed::kTraining) return killed_often(children[1], sides[1], common);
            if (killed == Killed::kServer) children[0]->kill_hard();
            const std::string status = Child(with({"--status"}), {}).text(now_us() + 3e6, true);
            return ", " + member("manager", status.empty() ? "null" : status);
        });
        manager.kill_hard();
        unlink(socket().c_str());
        return text;
    }

    // A training is killed, and the next one started, as often as there is time for it: with work that waits
    // on the GPU, and half of them while they are stopped.
    std::string killed_often(std::unique_ptr<Child>& training, const Side& side, const Variables& common) {
        std::mt19937 random{3};
        int killed = 0;
        for (const double until_us = now_us() + seconds_ * 0.4e6; now_us() < until_us;) {
            usleep(100'000 + random() % 200'000);
            if (killed % 2 != 0) training->stop();
            training->kill_hard();
            ++killed;
            training = started(side, common);
            if (training->text(until_us, true) != "ready") break;
            training->go();
        }
        training->kill_hard();
        return ", " + member("trainings_killed", std::to_string(killed + 1));
    }

    std::string socket() const { return directory_ + "/km/kernel-manager.sock"; }

    Side managed_side(const std::string& name, const std::string& role, Variables own) const {
        own.insert(own.end(), {{"LD_PRELOAD", interposer_}, {"EXPLSCHED_KM_SOCKET", socket()}});
        return {name, role, own};
    }

    Side high(const std::string& gate) const {
        return managed_side("server", "server", {{EXPL_SHARE_VARIABLE, "high"}, {"EXPLSCHED_GATE", gate}});
    }

    std::string group(const std::string& gate, const std::string& training, Killed killed,
                      const Variables& common) {
        const Side best_effort = managed_side("training", training,
                                              {{EXPL_SHARE_VARIABLE, "best-effort"},
                                               {"EXPLSCHED_GATE", gate},
                                               {"CUDA_MPS_CLIENT_PRIORITY", "1"}});
        return managed("group", {high(gate), best_effort}, killed, common);
    }

    std::string quota(const Variables& common) {
        std::vector<Side> sides;
        for (const char* share : {"0.3", "0.7"})
            sides.push_back(managed_side(std::string("request_") + share, "training",
                                         {{EXPL_REQUEST_VARIABLE, share}, {"EXPLSCHED_GATE", "device"}}));
        return managed("quota", sides, Killed::kNobody, common);
    }

    std::string head_;
    Calibration calibration_;
    std::string program_, interposer_, manager_, directory_, text_;
    double seconds_, last_start_us_{now_us() + kAllUs};
    Variables none_, mps_;
};

}  // namespace

// In a process of its own, without a context while others are measured. It stays, as a driver without
// persistence mode starts the GPU anew, at other clocks, whenever the last program is gone.
int gpu_bench::device() {
    char name[128] = "";
    int version = 0, compute_mode = 0;
    call("cuInit", 0U);
    call("cuDeviceGetName", static_cast<char*>(name), static_cast<int>(sizeof(name)), 0);
    call("cuDriverGetVersion", &version);
    call("cuDeviceGetAttribute", &compute_mode, kDeviceComputeMode, 0);
    std::string kernel_module;
    std::ifstream file("/proc/driver/nvidia/version");
    std::getline(file, kernel_module);
    std::printf("\"device\": \"%s\", \"cuda\": %d, \"compute_mode\": %d, \"driver\": \"%s\"\n", name, version,
                compute_mode, kernel_module.c_str());
    std::fflush(stdout);
    Gpu gpu({});
    const Calibration found = gpu.calibrated();
    std::printf("%s %u %g %g\n", gpu.compiled() ? "compiled" : "PTX", found.blocks, found.rounds_per_us[0],
                found.rounds_per_us[1]);
    call("cuDevicePrimaryCtxRelease_v2", 0);
    std::fflush(stdout);
    while (std::getchar() != EOF) {
    }
    return 0;
}

int gpu_bench::share(const std::string& program, double seconds, const std::string& interposer,
                     const std::string& manager) {
    char date[32] = "";
    const time_t now = time(nullptr);
    tm parts{};
    strftime(date, sizeof(date), "%Y-%m-%d", gmtime_r(&now, &parts));
    Child device({program, "device"}, {});
    const std::string about = device.text(now_us() + kReadyUs, true);
    const std::string measured = device.text(now_us() + kReadyUs, true);
    Calibration calibration;
    std::string kernels;
    const bool calibrated = static_cast<bool>(std::istringstream(measured) >> kernels >> calibration.blocks >>
                                              calibration.rounds_per_us[0] >> calibration.rounds_per_us[1]);
    std::ostringstream head;
    head << "\"date\": \"" << date << "\", " << (about.empty() ? "\"device\": null" : about)
         << ", \"seconds\": " << seconds;
    if (!calibrated) {
        std::printf("{%s, \"calibration\": {%s}}\n", head.str().c_str(), measured.c_str());
        return 1;
    }
    head << ", \"kernels\": \"" << kernels << "\", \"rounds_per_us\": [" << calibration.rounds_per_us[0]
         << ", " << calibration.rounds_per_us[1] << ']';
    Arms(head.str(), calibration, program, seconds, interposer, manager).all();
    return 0;
}
