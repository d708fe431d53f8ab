#include "kernel_intercept/gate/timed_wait.hpp"

#include <sys/prctl.h>

#include <cerrno>
#include <ctime>

namespace explsched::gate {

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
