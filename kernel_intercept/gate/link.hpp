// The connection of this process to the manager for one GPU: the socket and the shared memory.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "kernel_intercept/gate/batch.hpp"
#include "kernel_intercept/gate/gate.hpp"
#include "kernel_intercept/gate/kept_descriptor.hpp"
#include "kernel_intercept/gate/settings.hpp"
#include "kernel_intercept/shared/layout.hpp"
#include "kernel_intercept/shared/protocol.hpp"

namespace explsched::gate {

// Threads only read `page`, `table` and `signals`, and use them without further checks. They therefore stay
// valid addresses for ever: when the manager is gone, its memory is replaced by zero pages at the same
// address. Zero pages look like a dead manager and an empty table. Signals that the GPU knows stay as they
// are.
//
// One thread at a time changes the link, the one that holds `changing`; the others go on without.
//
// A manager that sees the connection end gives the slot to whoever comes next, and so it ends when the
// program closes our socket. The page stays mapped: before anything is done to the slot, `is_tenant` is to be
// asked.
class Link {
   public:
    std::atomic<shared::Page*> page{nullptr};
    std::atomic<const shared::Table*> table{nullptr};
    std::atomic<shared::Signals*> signals{nullptr};
    std::atomic<std::uint32_t> slot{0};
    std::atomic<std::uint32_t> tenancy{0};  // of the slot, see ClientState
    std::atomic<bool> recording{false};     // a thread writes to the sample ring
    std::atomic<bool> pinned{false};        // the GPU knows `signals`: that memory stays as it is for good
    std::array<CountedStream, kCountedStreams + 1> streams{};
    std::atomic<std::uint64_t> drained_launches{0}, drained_estimates{0};  // at the last end of all work

    // Greets the manager and waits up to `patience_ms` for its answer.
    void attach(const GpuIdentity& gpu, int patience_ms) noexcept;

    // Whether the slot is this process's still.
    bool is_tenant(const shared::Page& of) const noexcept {
        return of.slots[slot.load(std::memory_order_relaxed)].client.tenancy.load(
                   std::memory_order_relaxed) == tenancy.load(std::memory_order_relaxed);
    }

    // The page, unless the slot is another's by now.
    shared::Page* own_page() const noexcept {
        shared::Page* mapped = page.load(std::memory_order_acquire);
        return mapped != nullptr && is_tenant(*mapped) ? mapped : nullptr;
    }

    // Called when there is no live manager, or when it has given the slot away: looks, without waiting and at
    // growing intervals, whether the old one is gone and whether there is a new one.
    void recover(std::uint64_t now_ns) noexcept;

    // Whether the manager has ended the connection, or has given the slot to another.
    bool registration_lost() const noexcept;

    // Tells the manager that something waits or has become free. False if it is gone.
    bool notify() noexcept;

    // Work may still wait on the GPU for gates that we had. When the manager that made them is gone they stay
    // open; until then they are others', who open them.
    void open_retired_gates(std::uint64_t now_ns) noexcept;

    // In the child of a fork.
    void forget() noexcept;

    bool wanted() const noexcept { return wanted_.load(std::memory_order_relaxed); }

   private:
    bool greet() noexcept;
    bool hear(int patience_ms) noexcept;
    bool adopt(const int (&fds)[shared::kWelcomeDescriptors], const shared::Welcome& welcome) noexcept;
    void retire() noexcept;
    void back_off(std::uint64_t now_ns) noexcept;

    std::atomic<bool> wanted_{false};
    std::atomic<bool> changing_{false};
    std::atomic<std::uint64_t> next_try_ns_{0};
    std::uint64_t pause_ns_{0};
    KeptDescriptor socket_;        // keeps its number while it can: a late writer must not hit a foreign file
    KeptDescriptor fresh_socket_;  // greeted, not answered yet
    Settings settings_{};
    struct RetiredGate {
        std::atomic<std::atomic<std::uint32_t>*> word;
        std::atomic<const shared::Control*> control;  // of the manager that made it
    };
    std::array<RetiredGate, 8> retired_gates_{};  // the newest
    std::size_t retirements_{0};
};

extern std::array<Link, kMaxGpus> links;  // by CUDA device ordinal

}  // namespace explsched::gate
