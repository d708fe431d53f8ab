// The gate against a real manager: launches, waits, samples, death and return of either side, forks.
// Argument: the manager's program.

#include "kernel_intercept/gate/gate.hpp"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "kernel_intercept/manager/profile.hpp"
#include "kernel_intercept/manager/profile_store.hpp"
#include "kernel_intercept/shared/protocol.hpp"
#include "tests/kernel/gate/check.hpp"
#include "tests/kernel/manager/daemon.hpp"

using namespace explsched;
using daemon_under_test::Daemon;
using daemon_under_test::number_in;
using gate::Admission;

namespace {

std::string manager_program;
const gate::GpuIdentity kGpu{{1, 2, 3}, 90, 132};
const KernelCost kSmall{1000, 100, 100};
const KernelKey kKey{42, {1, 1, 1}, {32, 1, 1}, 0, 90};
const std::uint64_t kHash = hash_of(kKey);

// Runs in a child with a fresh gate, so that each test starts without a registration.
template <typename Test>
void in_client(const Daemon& daemon, const char* priority, const Test& test) {
    const pid_t child = fork();
    if (child == 0) {
        check::failures = 0;
        gate::reset_after_fork();
        setenv("EXPLSCHED_KM_SOCKET", daemon.socket().c_str(), 1);
        setenv("EXPLSCHED_CLASS", priority, 1);
        setenv("SLURM_JOB_ID", "7", 1);
        gate::attach(0, kGpu);
        test();
        std::_Exit(check::result());
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(status == 0);
}

// Repeats until it holds, for at most ten seconds.
template <typename Condition>
bool soon(const Condition& condition) {
    for (int i = 0; i < 10'000; ++i) {
        if (condition()) return true;
        usleep(1000);
    }
    return false;
}

// Whether a launch is granted. On a busy machine a manager may miss a heartbeat: a launch passes then,
// rightly, and the next one is asked again.
bool granted_soon(const KernelCost& cost) {
    return soon([&] { return gate::admit(0, cost) == Admission::kGranted; });
}

void without_a_manager_everything_passes() {
    unsetenv("EXPLSCHED_KM_SOCKET");
    gate::attach(0, kGpu);
    CHECK(gate::admit(0, kSmall) == Admission::kPassThrough);
    CHECK(gate::admit(-1, kSmall) == Admission::kPassThrough);
    CHECK(gate::admit(gate::kMaxGpus, kSmall) == Admission::kPassThrough);
    CHECK(!gate::lookup(kHash));
    CHECK(!gate::sampling_due(kHash));
    gate::drained(0);
    gate::record(0, {kKey, kSmall, "name"});
    gate::record(-1, {kKey, kSmall, nullptr});
}

void launches_are_granted_and_counted() {
    const Daemon daemon(manager_program);
    in_client(daemon, "best-effort", [&] {
        for (int i = 0; i < 100; ++i) CHECK(granted_soon(kSmall));
        gate::drained(0);
        const std::string status = daemon.status();
        CHECK(number_in(status, "launches") == 100 && number_in(status, "gpu_ns") == 100'000);
        CHECK(number_in(status, "pid") != -1 && status.find("\"job\": \"7\"") != std::string::npos);
        CHECK(gate::admit(1, kSmall) == Admission::kPassThrough);  // another GPU, not attached
    });
    CHECK(soon([&] { return daemon.status().find("\"clients\": []") != std::string::npos; }));
}

void samples_become_costs_and_are_saved() {
    Daemon daemon(manager_program);
    in_client(daemon, "high", [&] {
        CHECK(!gate::lookup(kHash));
        for (int i = 0; i < 4; ++i) gate::record(0, {kKey, {5000, 300, 400}, i == 0 ? "_Z3addPf" : nullptr});
        CHECK(soon([&] { return gate::lookup(kHash).has_value(); }));
        const auto cost = gate::lookup(kHash);
        CHECK(cost && cost->gpu_ns == 5000 && cost->compute_permille == 300 &&
              cost->bandwidth_permille == 400);
        for (int i = 0; i < 100'000; ++i) gate::record(0, {kKey, {5000, 300, 400}, nullptr});
        CHECK(number_in(daemon.status(), "samples_dropped") > 0);
    });
    CHECK(daemon.stop() == 0);
    const auto saved = manager::load_profiles(daemon.profiles());
    REQUIRE(saved.profiles.size() == 1);
    CHECK(saved.profiles[0].name == "_Z3addPf" && saved.profiles[0].cost.gpu_ns == 5000);
    daemon.start();
    in_client(daemon, "high", [&] { CHECK(gate::lookup(kHash).has_value()); });
}

// As those of template libraries, which are matched by their whole names.
void long_names_are_kept() {
    Daemon daemon(manager_program);
    const std::string name = "_Z" + std::string(1500, 'x'), too_long = "_Z" + std::string(3000, 'y');
    in_client(daemon, "high", [&] {
        gate::record(0, {kKey, {5000, 300, 400}, name.c_str()});
        KernelKey other = kKey;
        other.name_hash = 43;
        gate::record(0, {other, {5000, 300, 400}, too_long.c_str()});
        CHECK(soon([&] { return gate::lookup(hash_of(other)).has_value(); }));
    });
    CHECK(daemon.stop() == 0);
    const auto saved = manager::load_profiles(daemon.profiles());
    REQUIRE(saved.profiles.size() == 2);
    for (const auto& profile : saved.profiles) {
        CHECK(profile.name == (profile.key.name_hash == 42 ? name : too_long.substr(0, 2047)));
    }
}

void a_forgotten_kernel_is_unknown_to_clients_and_in_the_file() {
    Daemon daemon(manager_program);
    in_client(daemon, "high", [&] {
        gate::record(0, {kKey, {5000, 300, 400}, "name"});
        CHECK(soon([&] { return gate::lookup(kHash).has_value(); }));
        const shared::Forget forget{shared::preamble(shared::MessageKind::kForget), kKey};
        shared::Forget answer{};
        const int fd = daemon_under_test::connect_to(daemon.socket());
        CHECK(send(fd, &forget, sizeof(forget), MSG_NOSIGNAL) == sizeof(forget));
        CHECK(recv(fd, &answer, sizeof(answer), 0) == sizeof(answer));
        close(fd);
        CHECK(!gate::lookup(kHash));
    });
    CHECK(daemon.stop() == 0);
    CHECK(manager::load_profiles(daemon.profiles()).profiles.empty());
}

void sampling_is_frequent_at_first() {
    const Daemon daemon(manager_program);
    in_client(daemon, "high", [&] {
        int due = 0;
        for (int i = 0; i < 9; ++i) due += gate::sampling_due(kHash) ? 1 : 0;
        CHECK(due == 8);  // all but the first
        due = 0;
        for (int i = 0; i < 6400; ++i) due += gate::sampling_due(kHash) ? 1 : 0;
        CHECK(due == 100);
    });
}

void launches_wait_for_room_and_get_it() {
    const Daemon daemon(manager_program);
    in_client(daemon, "best-effort", [&] {
        // A child that is expected to keep the GPU busy for a while.
        const pid_t other = fork();
        if (other == 0) {
            gate::reset_after_fork();
            gate::attach(0, kGpu);
            gate::admit(0, {30'000'000, 900, 900});
            pause();
        }
        CHECK(soon([&] { return daemon.status().find("\"launches\": 1") != std::string::npos; }));
        CHECK(gate::admit(0, {1000, 500, 500}) == Admission::kGranted);
        const std::string status = daemon.status();
        CHECK(status.find("\"waits\": 1") != std::string::npos && number_in(status, "passed") == 0);
        kill(other, SIGKILL);
        waitpid(other, nullptr, 0);
    });
}

void a_dead_client_gives_back_what_it_held() {
    const Daemon daemon(manager_program);
    in_client(daemon, "best-effort", [&] {
        const pid_t other = fork();
        if (other == 0) {
            gate::reset_after_fork();
            gate::attach(0, kGpu);
            gate::admit(0, {3'600'000'000'000, 900, 900});  // an hour
            raise(SIGKILL);
        }
        waitpid(other, nullptr, 0);
        CHECK(soon([&] { return daemon.status().find("3600000") == std::string::npos; }));
        CHECK(gate::admit(0, {1000, 500, 500}) == Admission::kGranted);
        CHECK(number_in(daemon.status(), "passed") == 0);
    });
}

void a_killed_manager_lets_pass_and_a_new_one_takes_over() {
    Daemon daemon(manager_program);
    in_client(daemon, "best-effort", [&] {
        CHECK(granted_soon(kSmall));
        daemon.kill_hard();
        CHECK(soon([&] { return gate::admit(0, kSmall) == Admission::kPassThrough; }));
        CHECK(gate::admit(0, {1000, 1000, 1000}) == Admission::kPassThrough);
        daemon.start();
        CHECK(granted_soon(kSmall));
        CHECK(number_in(daemon.status(), "launches") >= 1);
        daemon.kill_hard();
    });
}

void a_hung_manager_lets_pass_until_it_goes_on() {
    const Daemon daemon(manager_program);
    in_client(daemon, "best-effort", [&] {
        CHECK(granted_soon(kSmall));
        daemon.pause();
        CHECK(soon([&] { return gate::admit(0, kSmall) == Admission::kPassThrough; }));
        daemon.go_on();
        CHECK(granted_soon(kSmall));
    });
}

void a_fork_registers_anew() {
    const Daemon daemon(manager_program);
    in_client(daemon, "best-effort", [&] {
        CHECK(granted_soon(kSmall));
        const pid_t child = fork();
        if (child == 0) {
            gate::reset_after_fork();
            const bool passes = gate::admit(0, kSmall) == Admission::kPassThrough;
            gate::attach(0, kGpu);
            const bool granted = granted_soon(kSmall);
            std::_Exit(passes && granted ? 0 : 1);
        }
        int status = -1;
        waitpid(child, &status, 0);
        CHECK(status == 0);
        CHECK(granted_soon(kSmall));  // the parent goes on
        CHECK(number_in(daemon.status(), "launches") == 2);
    });
}

void a_program_that_closes_our_files_goes_on() {
    const Daemon daemon(manager_program);
    in_client(daemon, "best-effort", [&] {
        CHECK(granted_soon(kSmall));
        for (int fd = 3; fd < 64; ++fd) close(fd);
        // The manager sees the hang-up and frees the slot; the client must not write into whatever comes
        // next.
        int pair[2];
        REQUIRE(pipe(pair) == 0);
        for (int i = 0; i < 50; ++i) {
            gate::admit(0, {1000, 1000, 1000});
            gate::drained(0);
        }
        char byte = 0;
        close(pair[1]);
        CHECK(read(pair[0], &byte, 1) == 0);
    });
}

void threads_share_one_registration() {
    const Daemon daemon(manager_program);
    in_client(daemon, "best-effort", [&] {
        // Another client, so that room must be reserved.
        const pid_t other = fork();
        if (other == 0) {
            gate::reset_after_fork();
            gate::attach(0, kGpu);
            for (;;) gate::admit(0, {50'000, 600, 600});
        }
        std::vector<std::thread> threads;
        for (int i = 0; i < 4; ++i) {
            threads.emplace_back([] {
                for (int n = 0; n < 200; ++n) gate::admit(0, {20'000, 300, 300});
            });
        }
        for (std::thread& thread : threads) thread.join();
        kill(other, SIGKILL);
        waitpid(other, nullptr, 0);
        CHECK(soon([&] { return number_in(daemon.status(), "launches") == 800; }));
    });
}

}  // namespace

int main(int, char** argv) {
    manager_program = argv[1];
    without_a_manager_everything_passes();
    launches_are_granted_and_counted();
    samples_become_costs_and_are_saved();
    long_names_are_kept();
    a_forgotten_kernel_is_unknown_to_clients_and_in_the_file();
    sampling_is_frequent_at_first();
    launches_wait_for_room_and_get_it();
    a_dead_client_gives_back_what_it_held();
    a_killed_manager_lets_pass_and_a_new_one_takes_over();
    a_hung_manager_lets_pass_until_it_goes_on();
    a_fork_registers_anew();
    a_program_that_closes_our_files_goes_on();
    threads_share_one_registration();
    return check::result();
}
