// How a launch that is held up waits.
#pragma once

#include <sys/prctl.h>

#include <cerrno>
#include <cstdint>
#include <ctime>

namespace explsched::gate {

// Sleeps, for less than a second. Signals may end it early.
inline void timed_wait(std::uint64_t sleep_ns) noexcept {
    const int kept_errno = errno;
    const timespec duration{0, static_cast<long>(sleep_ns)};
    nanosleep(&duration, nullptr);
    errno = kept_errno;
}

// Lets timed waits of this thread end in time: by default the kernel may end them 50 us late.
class FineTimer {
   public:
    FineTimer() noexcept : slack_ns_(prctl(PR_GET_TIMERSLACK)) { prctl(PR_SET_TIMERSLACK, 1); }
    ~FineTimer() { prctl(PR_SET_TIMERSLACK, slack_ns_); }
    FineTimer(const FineTimer&) = delete;
    FineTimer& operator=(const FineTimer&) = delete;

   private:
    int slack_ns_;
};

}  // namespace explsched::gate
