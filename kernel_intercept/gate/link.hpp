// The connection of this process to the manager for one GPU: the socket and the shared memory.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>

#include "kernel_intercept/gate/gate.hpp"
#include "kernel_intercept/gate/settings.hpp"
#include "kernel_intercept/shared/layout.hpp"

namespace explsched::gate {

// Threads only read `page` and `table`, and use them without further checks. They therefore stay valid
// addresses for ever: when the manager is gone, its memory is replaced by zero pages at the same address.
// Zero pages look like a dead manager and an empty table.
//
// One thread at a time changes the link, the one that holds `changing`; the others go on without.
class Link {
   public:
    // How far the last launch has come. Threads that launch at the same time take each other's, which blurs
    // when their kernels begin by as much as their calls lie apart.
    struct Underway {
        std::atomic<std::uint64_t> since_ticks{
            0};                                  // it was admitted, or the driver called; 0 = not of interest
        std::atomic<std::uint64_t> since_ns{0};  // by the clock, no later than that
        std::atomic<std::uint64_t> gpu_ns{0};
    };

    std::atomic<shared::Page*> page{nullptr};
    std::atomic<const shared::Table*> table{nullptr};
    std::atomic<std::uint32_t> slot{0};
    std::atomic<bool> recording{false};  // a thread writes to the sample ring
    Underway underway;

    // Greets the manager and waits up to `patience_ms` for its answer.
    void attach(const GpuIdentity& gpu, int patience_ms) noexcept;

    // Called when there is no live manager: looks, without waiting and at growing intervals, whether the old
    // one is gone and whether there is a new one.
    void recover(std::uint64_t now_ns) noexcept;

    // Tells the manager that something waits or has become free. False if it is gone.
    bool ring() noexcept;

    // In the child of a fork.
    void forget() noexcept;

    bool wanted() const noexcept { return wanted_.load(std::memory_order_relaxed); }

   private:
    bool greet() noexcept;
    bool hear(int patience_ms) noexcept;
    bool adopt(int page_fd, int table_fd, std::uint32_t slot) noexcept;
    bool socket_is_ours() const noexcept;
    bool manager_gone() noexcept;
    void retire() noexcept;
    void back_off(std::uint64_t now_ns) noexcept;

    std::atomic<bool> wanted_{false};
    std::atomic<bool> changing_{false};
    std::atomic<std::uint64_t> next_try_ns_{0};
    std::uint64_t pause_ns_{0};
    std::atomic<int> socket_{-1};  // keeps its number for ever: a late writer must not hit a foreign file
    int fresh_socket_{-1};         // greeted, not answered yet
    ino_t inode_{0};
    GpuIdentity gpu_{};
    Settings settings_{};
};

}  // namespace explsched::gate
