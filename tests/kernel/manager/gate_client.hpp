// A process with a gate of its own, for tests against a real manager.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "explsched/job_options.h"
#include "kernel_intercept/gate/gate.hpp"
#include "tests/kernel/gate/check.hpp"
#include "tests/kernel/manager/daemon.hpp"

namespace gate_client {

using namespace explsched;
using daemon_under_test::Daemon;
using gate::Admission;

const gate::GpuIdentity kGpu{{1, 2, 3}, 90, 132};
const KernelCost kSmall{1000, 100, 100};
const KernelKey kKey{42, {1, 1, 1}, {32, 1, 1}, 0, 90};
const std::uint64_t kHash = hash_of(kKey);

// What the manager knows of a kernel.
inline std::optional<KernelCost> known_cost(std::uint64_t hash) {
    const KernelCost cost = gate::lookup(hash, {0, 0, 0});
    if (cost.gpu_ns == 0) return std::nullopt;
    return cost;
}

// A child that runs `body`, which is to return what it exits with.
template <typename Body>
pid_t child_that(const Body& body) {
    const pid_t child = fork();
    if (child == 0) std::_Exit(body());
    return child;
}

// A child that has joined the manager of its parent as a client of its own; it ends with `body`.
template <typename Body>
pid_t other_client(const char* priority, const Body& body) {
    return child_that([&] {
        gate::reset_after_fork();
        setenv(EXPL_SHARE_VARIABLE, priority, 1);
        gate::attach(0, kGpu);
        body();
        return 0;
    });
}

inline int status_of(pid_t child) {
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

inline void end(pid_t child) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
}

// Runs in a child, whose gate is as in a program that starts: its parent has no registration.
template <typename Test>
void in_client(const Daemon& daemon, const char* priority, const Test& test) {
    CHECK(status_of(child_that([&] {
              check::failures = 0;
              setenv("EXPLSCHED_KM_SOCKET", daemon.socket().c_str(), 1);
              setenv(EXPL_SHARE_VARIABLE, priority, 1);
              setenv("SLURM_JOB_ID", "7", 1);
              gate::attach(0, kGpu);
              test();
              return check::result();
          })) == 0);
}

inline Admission admission_of(const KernelCost& cost, int ordinal = 0) {
    return gate::admit(ordinal, gate::kUncounted, cost).admission;
}

// Repeats until it holds, for at most half a minute: a client looks for a new manager every ten seconds.
template <typename Condition>
bool soon(const Condition& condition) {
    for (int i = 0; i < 30'000; ++i) {
        if (condition()) return true;
        usleep(1000);
    }
    return false;
}

// Whether a launch is granted. On a busy machine a manager may miss a heartbeat: a launch passes then,
// rightly, and the next one is asked again.
inline bool granted_soon(const KernelCost& cost) {
    return soon([&] { return admission_of(cost) == Admission::kGranted; });
}

}  // namespace gate_client
