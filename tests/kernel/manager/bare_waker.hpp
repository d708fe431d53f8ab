// What the wake-up of a launch by the manager is compared with: a process that only sleeps and wakes.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <new>

#include "kernel_intercept/shared/clock.hpp"
#include "kernel_intercept/shared/futex.hpp"

namespace wakes {

using namespace explsched::shared;

// How long the GPU is full, and the waker asleep.
constexpr std::uint64_t kFullNs = 300'000;

struct Handover {
    std::atomic<std::uint32_t> asked, done;
    std::atomic<std::uint64_t> done_ns;
};

// A process that does what the manager does, and nothing else.
class BareWaker {
   public:
    BareWaker() {
        void* at = mmap(nullptr, sizeof(Handover), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) std::exit(1);
        handover_ = new (at) Handover{};
        pid_ = fork();
        if (pid_ == 0) serve();
    }
    ~BareWaker() {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
        munmap(handover_, sizeof(Handover));
    }
    BareWaker(const BareWaker&) = delete;
    BareWaker& operator=(const BareWaker&) = delete;

    pid_t pid() const { return pid_; }

    std::uint64_t wake_ns() {
        const std::uint32_t before = handover_->done.load();
        handover_->asked.fetch_add(1);
        futex_wake_all(handover_->asked);
        while (handover_->done.load() == before) futex_wait(handover_->done, before, 1'000'000'000);
        return now_ns() - handover_->done_ns.load();
    }

   private:
    [[noreturn]] void serve() {
        prctl(PR_SET_TIMERSLACK, 1);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (std::uint32_t served = 0;; ++served) {
            while (handover_->asked.load() == served) futex_wait(handover_->asked, served, 1'000'000'000);
            const timespec pause{0, static_cast<long>(kFullNs)};
            clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, nullptr);
            handover_->done_ns = now_ns();
            handover_->done.fetch_add(1);
            futex_wake_all(handover_->done);
        }
    }

    Handover* handover_;
    pid_t pid_;
};

}  // namespace wakes
