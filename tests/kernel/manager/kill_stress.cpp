// Kills the manager, a client, or both, at random moments, and looks at what is left.
//
//   kill_stress MANAGER ROUNDS SEED POLICY
//
// Four clients launch without pause. Beside each, on the same core, a control process only sleeps for 1 ms at
// a time: while it is stalled, so is the client, whatever the gate does. Of a launch that blocks for more
// than 50 ms it is told apart what is left without the stalls of the control process. Prints one JSON object;
// fails if a slot, a file or a mapping leaks, or if the clients are not granted launches again at the end.
// Times are only printed.

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>
#include <random>
#include <string>

#include "explsched/job_options.h"
#include "kernel_intercept/gate/gate.hpp"
#include "kernel_intercept/shared/clock.hpp"
#include "tests/kernel/gate/check.hpp"
#include "tests/kernel/manager/daemon.hpp"
#include "tests/kernel/manager/stalls.hpp"

using namespace explsched;
using daemon_under_test::Daemon;
using daemon_under_test::number_in;
using stalls::raise_to;

namespace {

constexpr int kClients = 4;
constexpr std::uint64_t kBoundNs = 50'000'000;

struct ClientCounts {
    std::atomic<std::uint64_t> launches, granted, longest_ns, over_bound;
    std::atomic<std::uint64_t> longest_own_ns, over_bound_own;  // without the stalls of the control process
    stalls::Stalls stalls;
};

struct Board {
    std::array<ClientCounts, kClients> clients;
};

// A launch has blocked. What of it is the gate's doing is known when the control process has come to run.
void count_block(ClientCounts& counts, std::uint64_t from_ns, std::uint64_t to_ns) {
    raise_to(counts.longest_ns, to_ns - from_ns);
    if (to_ns - from_ns <= kBoundNs) return raise_to(counts.longest_own_ns, to_ns - from_ns);
    counts.over_bound.fetch_add(1);
    const std::uint64_t own_ns = counts.stalls.own_ns(from_ns, to_ns);
    raise_to(counts.longest_own_ns, own_ns);
    if (own_ns > kBoundNs) counts.over_bound_own.fetch_add(1);
}

// The first client has priority, so that the others' gates are shut and opened all the time.
[[noreturn]] void launch_for_ever(const std::string& socket, int client, ClientCounts& counts,
                                  unsigned seed) {
    gate::reset_after_fork();
    setenv("EXPLSCHED_KM_SOCKET", socket.c_str(), 1);
    setenv(EXPL_REQUEST_VARIABLE, "0.25", 1);
    setenv(EXPL_SHARE_VARIABLE, client == 0 ? "high" : "best-effort", 1);
    std::mt19937 generator(seed);
    const auto random = [&] { return static_cast<std::uint32_t>(generator()); };
    stalls::stay_on_core(static_cast<unsigned>(client));
    gate::attach(0, {{1}, 90, 132});
    for (std::uint32_t n = 1;; ++n) {
        const KernelCost cost{50'000 + random() % 400'000, 200 + random() % 500, 200 + random() % 500};
        const std::uint64_t before_ns = shared::now_ns();
        const gate::Admission admission = gate::admit(0, gate::kUncounted, cost).admission;
        count_block(counts, before_ns, shared::now_ns());
        counts.launches.fetch_add(1);
        if (admission == gate::Admission::kGranted) counts.granted.fetch_add(1);
        if (n % 16 == 0) gate::drained(0);
        gate::record(0, {{random() % 100, {1, 1, 1}, {1, 1, 1}, 0, 90}, cost, "kernel"});
        usleep(100);  // passing everything must not take the whole machine
    }
}

template <typename Condition>
bool soon(const Condition& condition) {
    for (int i = 0; i < 20'000; ++i) {
        if (condition()) return true;
        usleep(1000);
    }
    return false;
}

int mappings_of(pid_t pid) {
    std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
    int count = 0;
    for (std::string line; std::getline(maps, line);)
        count += line.find("memfd:explsched") != std::string::npos;
    return count;
}

class Stress {
   public:
    Stress(const std::string& manager, unsigned seed, const std::string& policy)
        : daemon_(manager, "--policy " + policy), random_(seed) {
        void* at = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        board_ = new (at) Board{};
        empty_files_ = daemon_.idle_files();
        for (int i = 0; i < kClients; ++i) {
            controls_[i] = fork();
            if (controls_[i] == 0) stalls::be_stalled(static_cast<unsigned>(i), board_->clients[i].stalls);
            start(i);
        }
    }

    void round() {
        usleep(static_cast<useconds_t>(random_() % 20'000));
        const auto victim = static_cast<int>(random_() % kClients);
        const unsigned what = random_() % 3;
        if (what != 0) end(victim);
        if (what != 1) {
            daemon_.kill_hard();
            usleep(static_cast<useconds_t>(random_() % 30'000));
            daemon_.start();
        }
        if (what != 0) start(victim);
    }

    void finish(int rounds) {
        // All find their way back, without anything left of former managers.
        std::array<std::uint64_t, kClients> granted{};
        for (int i = 0; i < kClients; ++i) granted[i] = board_->clients[i].granted;
        for (int i = 0; i < kClients; ++i) {
            CHECK(soon([&] { return board_->clients[i].granted > granted[i] + 100; }));
            // Granted launches may still have come from the page of the manager that was killed last.
            CHECK(soon([&] { return mappings_of(clients_[i]) == 3; }));
        }
        for (int i = 0; i < kClients; ++i) end(i);
        for (const pid_t control : controls_) {
            kill(control, SIGKILL);
            waitpid(control, nullptr, 0);
        }
        CHECK(soon([&] { return daemon_.status().find("\"clients\": []") != std::string::npos; }));
        CHECK(soon([&] { return number_in(daemon_.status(), "waiting") == 0; }));
        CHECK(soon([&] {
            return daemon_.open_files() == empty_files_ + 2;
        }));  // the page of the GPU, and its signals
        std::uint64_t longest_ns = 0, over = 0, own_ns = 0, own_over = 0, stall_ns = 0;
        std::uint64_t launches = 0, all_granted = 0;
        for (const ClientCounts& counts : board_->clients) {
            longest_ns = std::max(longest_ns, counts.longest_ns.load());
            over += counts.over_bound;
            own_ns = std::max(own_ns, counts.longest_own_ns.load());
            own_over += counts.over_bound_own;
            stall_ns = std::max(stall_ns, counts.stalls.longest_ns.load());
            launches += counts.launches;
            all_granted += counts.granted;
        }
        std::printf(
            "{\"rounds\": %d, \"launches\": %llu, \"granted\": %llu, \"longest_block_ms\": %.2f, "
            "\"blocks_over_50_ms\": %llu, \"longest_stall_of_an_idle_process_ms\": %.2f, "
            "\"longest_block_without_stalls_ms\": %.2f, \"blocks_over_50_ms_without_stalls\": %llu, "
            "\"failed_checks\": %d}\n",
            rounds, static_cast<unsigned long long>(launches), static_cast<unsigned long long>(all_granted),
            static_cast<double>(longest_ns) / 1e6, static_cast<unsigned long long>(over),
            static_cast<double>(stall_ns) / 1e6, static_cast<double>(own_ns) / 1e6,
            static_cast<unsigned long long>(own_over), check::failures);
    }

   private:
    void start(int client) {
        const unsigned seed = static_cast<unsigned>(random_());
        clients_[client] = fork();
        if (clients_[client] == 0) launch_for_ever(daemon_.socket(), client, board_->clients[client], seed);
    }

    void end(int client) {
        kill(clients_[client], SIGKILL);
        waitpid(clients_[client], nullptr, 0);
    }

    Daemon daemon_;
    std::mt19937 random_;
    Board* board_;
    int empty_files_{0};
    std::array<pid_t, kClients> clients_{};
    std::array<pid_t, kClients> controls_{};
};

}  // namespace

int main(int argc, char** argv) {
    if (argc != 5) {
        std::fprintf(stderr, "usage: kill_stress MANAGER ROUNDS SEED POLICY\n");
        return 2;
    }
    const int rounds = std::atoi(argv[2]);
    Stress stress(argv[1], static_cast<unsigned>(std::atoi(argv[3])), argv[4]);
    for (int i = 0; i < rounds; ++i) stress.round();
    stress.finish(rounds);
    return check::result();
}
