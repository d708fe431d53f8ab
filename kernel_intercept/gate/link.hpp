// The connection of this process to the manager for one GPU: the socket and the shared memory.
#pragma once

#include <atomic>
#include <cstdint>

#include "kernel_intercept/gate/gate.hpp"
#include "kernel_intercept/gate/kept_descriptor.hpp"
#include "kernel_intercept/gate/settings.hpp"
#include "kernel_intercept/shared/layout.hpp"
#include "kernel_intercept/shared/protocol.hpp"

namespace explsched::gate {

// Threads only read `page` and `table`, and use them without further checks. They therefore stay valid
// addresses for ever: when the manager is gone, its memory is replaced by zero pages at the same address.
// Zero pages look like a dead manager and an empty table.
//
// One thread at a time changes the link, the one that holds `changing`; the others go on without.
//
// A manager that sees the connection end gives the slot to whoever comes next, and so it ends when the
// program closes our socket. The page stays mapped: before anything is done to the slot, `is_tenant` is to be
// asked.
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
    std::atomic<std::uint32_t> tenancy{0};  // of the slot, see Doorway
    std::atomic<bool> recording{false};     // a thread writes to the sample ring
    Underway underway;

    // Greets the manager and waits up to `patience_ms` for its answer.
    void attach(const GpuIdentity& gpu, int patience_ms) noexcept;

    // Whether the slot is this process's still.
    bool is_tenant(const shared::Page& of) const noexcept {
        return of.slots[slot.load(std::memory_order_relaxed)].door.tenancy.load(std::memory_order_relaxed) ==
               tenancy.load(std::memory_order_relaxed);
    }

    // The page, unless the slot is another's by now.
    shared::Page* own_page() const noexcept {
        shared::Page* mapped = page.load(std::memory_order_acquire);
        return mapped != nullptr && is_tenant(*mapped) ? mapped : nullptr;
    }

    // Called when there is no live manager, or when it has given the slot away: looks, without waiting and at
    // growing intervals, whether the old one is gone and whether there is a new one.
    void recover(std::uint64_t now_ns) noexcept;

    // Tells the manager that something waits or has become free. False if it is gone.
    bool ring() noexcept;

    // In the child of a fork.
    void forget() noexcept;

    bool wanted() const noexcept { return wanted_.load(std::memory_order_relaxed); }

   private:
    bool greet() noexcept;
    bool hear(int patience_ms) noexcept;
    bool adopt(int page_fd, int table_fd, const shared::Welcome& welcome) noexcept;
    bool registration_lost() const noexcept;
    void retire() noexcept;
    void back_off(std::uint64_t now_ns) noexcept;

    std::atomic<bool> wanted_{false};
    std::atomic<bool> changing_{false};
    std::atomic<std::uint64_t> next_try_ns_{0};
    std::uint64_t pause_ns_{0};
    KeptDescriptor socket_;        // keeps its number while it can: a late writer must not hit a foreign file
    KeptDescriptor fresh_socket_;  // greeted, not answered yet
    GpuIdentity gpu_{};
    Settings settings_{};
};

}  // namespace explsched::gate
