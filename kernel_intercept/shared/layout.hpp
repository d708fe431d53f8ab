// The memory a manager shares with its clients: for each GPU one page (written by both) and the signals (see
// signals.hpp), and one table of kernel profiles (written by the manager only; sealed against writing by
// clients).
//
// Sizes are fixed, so nothing is ever resized under a client.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernel_intercept/shared/kernel.hpp"
#include "kernel_intercept/shared/packed.hpp"
#include "kernel_intercept/shared/signals.hpp"

namespace explsched::shared {

enum class Policy : std::uint32_t { kGroup = 0, kQuota = 1 };
enum class Class : std::uint32_t { kBestEffort = 0, kHigh = 1 };

// Written by the manager, but for `waiting`.
struct alignas(64) Control {
    std::atomic<std::uint64_t> heartbeat_ns;      // monotonic clock, renewed every period
    std::atomic<std::uint64_t> beat_interval_ns;  // the longest interval between the last beats
    std::atomic<std::uint64_t> occupied;          // bit per slot in use
    std::atomic<std::uint64_t> high;              // of them, bit per high-priority client
    std::atomic<std::uint64_t> beside;            // best-effort clients that run beside high-priority work
    std::atomic<std::uint64_t> batch_ns;          // work of a best-effort client that nothing can hold back
    // When a high-priority client begins, the gate of one client stays open for so long.
    std::atomic<std::uint64_t> allowance_ns;
    Policy policy;
    std::atomic<std::uint32_t> kept;  // that client's slot; kSlots for none
    alignas(
        64) std::atomic<std::uint64_t> waiting;  // bit per client with a launch that waits, set by the client
};

// A launch that waits for credit. Two low bits of the futex `grant` are a state; the rest counts the waits,
// so that a grant for an earlier wait is never taken for this one.
constexpr std::uint32_t kGrantIdle = 0;
constexpr std::uint32_t kGrantWaiting = 2;
constexpr std::uint32_t kGranted = 3;
constexpr std::uint32_t kGrantState = 3;  // mask

constexpr std::uint32_t kIdle = 0;
constexpr std::uint32_t kBegun = 1;  // all best-effort gates are shut but that of the client that is kept
constexpr std::uint32_t kGatesShut = 2;

struct alignas(64) ClientState {
    std::atomic<std::uint32_t> grant;
    std::atomic<std::uint32_t> tenancy;   // a number of its own for each client that takes the slot; 0 = free
    std::atomic<std::int64_t> credit_ns;  // policy `quota`: GPU time left
    std::atomic<std::uint64_t> granted_ns;  // monotonic time of the last grant, for measurements
    // Of a high-priority client, one of those above: from its first launch until the manager saw its end.
    std::atomic<std::uint32_t> busy;
    std::atomic<std::uint32_t> reports;  // the GPU counts what this client's streams have done
};

struct alignas(64) Counters {
    std::atomic<std::uint64_t> launches;
    std::atomic<std::uint64_t> charged_ns;     // running time x the larger share
    std::atomic<std::uint64_t> busy_since_ns;  // of a high-priority client: first launch after it was idle
    std::atomic<std::uint64_t> peak;  // packed: the largest shares of kernels that are not short, no time
    std::atomic<std::uint64_t> waits;
    std::atomic<std::uint64_t> waited_ns;
    std::atomic<std::uint64_t> longest_wait_ns;
    std::atomic<std::uint64_t> passed;  // waits that ended without a grant
    std::atomic<std::uint64_t> drains;
    std::atomic<std::uint64_t> drained_issued_ns;  // what had been issued at the last of them
    std::atomic<std::uint64_t> busy_time;          // packed: sum of the measured busy periods, policy `quota`
    std::atomic<std::uint64_t> unmanaged;    // launches that were not asked for, as the manager was late
    std::atomic<std::uint64_t> forced;       // times the client's watchdog has opened its gate
    std::atomic<std::uint64_t> collectives;  // launches of kernels that wait for other GPUs
    std::atomic<std::uint32_t> look_ups;     // of functions that are hooked, by cuGetProcAddress
    std::atomic<std::uint32_t> routed;       // of them those that were answered with ours
};

constexpr std::uint32_t kNameBytes = 2048;  // mangled names of template libraries reach a kilobyte
constexpr std::uint32_t kRingSamples = 32;

struct RingSample {
    KernelKey key;
    KernelCost cost;
    std::array<char, kNameBytes> name;  // cut if longer; zero-terminated; empty if not told
};

// One producer (a thread of the client), one consumer (the manager).
struct alignas(64) SampleRing {
    std::atomic<std::uint64_t> written;
    std::atomic<std::uint64_t> dropped;  // newest dropped while full
    alignas(64) std::atomic<std::uint64_t> read;
    alignas(64) std::array<RingSample, kRingSamples> samples;
};

struct Slot {
    ClientState client;
    Counters counters;
    SampleRing ring;
};

struct Page {
    Header header;
    Control control;
    std::array<Slot, kSlots> slots;
};

// Policy `group`: shuts best-effort gates, but for `spared` and those beside high-priority work.
inline void shut_gates(const Control& control, Signals& signals, std::uint64_t spared) {
    each_bit(control.occupied.load(std::memory_order_seq_cst) &
                 ~(control.high.load(std::memory_order_relaxed) |
                   control.beside.load(std::memory_order_relaxed) | spared),
             [&](std::uint32_t slot) { close_gate(signals.clients[slot].gate); });
}

// A high-priority client begins, or goes on: shuts the gates once the allowance is over.
inline void begin_busy(const Control& control, Signals& signals, Slot& slot, std::uint64_t now_ns) {
    const std::uint32_t kept = control.kept.load(std::memory_order_relaxed);
    slot.counters.busy_since_ns.store(now_ns, std::memory_order_relaxed);
    slot.client.busy.store(kBegun, std::memory_order_seq_cst);
    if (control.policy == Policy::kGroup) shut_gates(control, signals, kept < kSlots ? 1ULL << kept : 0);
}
inline void shut_gates_in_time(const Control& control, Signals& signals, Slot& slot, std::uint64_t now_ns) {
    const std::uint64_t since_ns = slot.counters.busy_since_ns.load(std::memory_order_relaxed);
    if (control.policy != Policy::kGroup || slot.client.busy.load(std::memory_order_relaxed) != kBegun ||
        now_ns < since_ns + control.allowance_ns.load(std::memory_order_relaxed))
        return;
    slot.client.busy.store(kGatesShut, std::memory_order_seq_cst);
    shut_gates(control, signals, 0);
}

// Open addressing with linear probing; entries are never removed while the table lives.
struct TableEntry {
    std::atomic<std::uint64_t> key;   // `hash_of`, 0 = free; written after the cost
    std::atomic<std::uint64_t> cost;  // `pack_cost`, 0 = forgotten
};

constexpr std::uint32_t kTableEntries = 16384;

struct Table {
    Header header;
    alignas(64) std::array<TableEntry, kTableEntries> entries;
};

// The entry of a key, or the free one that it would get; null in a full table without it.
template <typename Entries>
auto place_of(Entries& entries, std::uint64_t hash) -> decltype(entries.data()) {
    for (std::uint32_t step = 0; step < kTableEntries; ++step) {
        auto& entry = entries[(hash + step) % kTableEntries];
        const std::uint64_t key = entry.key.load(std::memory_order_acquire);
        if (key == hash || key == 0) return &entry;
    }
    return nullptr;
}

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::is_standard_layout_v<Page> && std::is_standard_layout_v<Table>);
static_assert(sizeof(Control) == 128 && offsetof(Page, control) == 64);
static_assert(sizeof(ClientState) == 64 && sizeof(Counters) == 128);
static_assert(sizeof(KernelKey) == 40 && sizeof(KernelCost) == 16 && sizeof(RingSample) == 56 + kNameBytes);
static_assert(sizeof(TableEntry) == 16);
static_assert(sizeof(Page) % 64 == 0 && sizeof(Page) < 8U << 20);

}  // namespace explsched::shared
