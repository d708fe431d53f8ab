// How a launch that is held up waits.
#pragma once

#include <cstdint>

namespace explsched::gate {

// Sleeps. Signals may end it early.
void timed_wait(std::uint64_t sleep_ns) noexcept;

// Lets timed waits of this thread end in time: by default the kernel may end them 50 us late.
class FineTimer {
   public:
    FineTimer() noexcept;
    ~FineTimer();
    FineTimer(const FineTimer&) = delete;
    FineTimer& operator=(const FineTimer&) = delete;

   private:
    int slack_ns_;
};

}  // namespace explsched::gate
