#include "kernel_intercept/gate/timed_wait.hpp"

#include <sys/prctl.h>

#include <cerrno>
#include <ctime>

#include "kernel_intercept/shared/clock.hpp"
#include "kernel_intercept/shared/spin_pause.hpp"

namespace explsched::gate {

void spin_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
               std::uint64_t spin_ns) noexcept {
    const std::uint64_t until_ns = shared::now_ns() + spin_ns;
    while (word.load(std::memory_order_acquire) == expected && shared::now_ns() < until_ns)
        shared::spin_pause();
}

void timed_wait(std::uint64_t sleep_ns) noexcept {
    const int kept_errno = errno;
    const timespec duration{static_cast<time_t>(sleep_ns / 1'000'000'000U),
                            static_cast<long>(sleep_ns % 1'000'000'000U)};
    nanosleep(&duration, nullptr);
    errno = kept_errno;
}

FineTimer::FineTimer() noexcept : slack_ns_(prctl(PR_GET_TIMERSLACK)) { prctl(PR_SET_TIMERSLACK, 1); }
FineTimer::~FineTimer() { prctl(PR_SET_TIMERSLACK, slack_ns_); }

}  // namespace explsched::gate
