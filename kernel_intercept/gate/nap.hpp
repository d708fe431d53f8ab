// How a launch that is held up waits: asleep, and where it pays, awake for the last microseconds.
#pragma once

#include <atomic>
#include <cstdint>

namespace explsched::gate {

// Whether somebody loses when the wait ends late.
enum class Promptness : std::uint8_t {
    kAnyTime,  // the client's launches before this one keep the GPU busy for a while
    kPrompt,   // it has nothing else on the GPU
};

// Waits until `gate` is no longer `waiting`, or for `spin_ns`, awake.
void stay_awake(const std::atomic<std::uint32_t>& gate, std::uint32_t waiting,
                std::uint64_t spin_ns) noexcept;

// Waits until `gate` is no longer `waiting`, or it is `until_ns`.
void nap(std::atomic<std::uint32_t>& gate, std::uint32_t waiting, std::uint64_t until_ns,
         Promptness promptness) noexcept;

// Lets timed waits of this thread end in time: by default the kernel may end them 50 us late.
class SharpTimer {
   public:
    SharpTimer() noexcept;
    ~SharpTimer();
    SharpTimer(const SharpTimer&) = delete;
    SharpTimer& operator=(const SharpTimer&) = delete;

   private:
    int slack_ns_;
};

}  // namespace explsched::gate
