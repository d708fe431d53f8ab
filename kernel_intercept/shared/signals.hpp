// The memory that hosts and the GPU share: what each stream has finished, and the words for which best-effort
// work waits on the GPU. Clients pin it for their contexts, so it outlives the manager that made it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "kernel_intercept/shared/header.hpp"

namespace explsched::shared {

constexpr std::uint32_t kSlots = 64;
constexpr std::uint32_t kLines = 32;  // streams of a client that are counted one by one

// The clients of a mask, a bit for each.
template <typename Visit>
void each_bit(std::uint64_t mask, const Visit& visit) {
    for (; mask != 0; mask &= mask - 1) visit(static_cast<std::uint32_t>(__builtin_ctzll(mask)));
}

// One stream. Both count the same, the predicted running time of its launches in ns. However wrong the
// predictions are: when the two are equal, all is done.
struct Line {
    alignas(64) std::atomic<std::uint64_t> done;    // written by the GPU, in the stream's order
    alignas(64) std::atomic<std::uint64_t> issued;  // by the host, before the launch
    std::atomic<std::uint64_t> told;                // of it, what the GPU will write when it comes there
};

// A gate's word: the lowest bit says that it is open, the rest counts how often it was closed, so that who
// opens it sees that it was closed anew.
constexpr std::uint32_t kOpen = 1;
constexpr std::uint32_t kClosure = 2;
// A gate that its client has opened because it was shut for too long stays open for so long.
constexpr std::uint64_t kForcedOpenNs = 50'000'000;

struct ClientSignals {
    alignas(64) std::atomic<std::uint32_t> gate;
    alignas(64) std::atomic<std::uint64_t> probe;  // not 0 once the GPU has written to it
    std::array<Line, kLines> lines;
};

struct Signals {
    Header header;
    std::array<ClientSignals, kSlots> clients;
};

inline bool is_open(std::uint32_t word) { return (word & kOpen) != 0; }

// Counts even if the gate is closed already: who is about to open it must see that there is a new reason.
inline void close_gate(std::atomic<std::uint32_t>& gate) {
    std::uint32_t word = gate.load(std::memory_order_relaxed);
    while (!gate.compare_exchange_weak(word, (word & ~kOpen) + kClosure)) {
    }
}

// Opens a gate unless it was closed once more since it read `seen`.
inline bool open_gate(std::atomic<std::uint32_t>& gate, std::uint32_t seen) {
    return is_open(seen) || gate.compare_exchange_strong(seen, seen | kOpen);
}

struct Progress {
    std::uint64_t issued_ns, done_ns, told_ns;

    // The GPU has yet to write what it was told to: until then nothing has to be predicted.
    bool pending() const { return done_ns < told_ns; }

    bool idle() const { return issued_ns == done_ns; }
    std::uint64_t outstanding_ns() const { return issued_ns > done_ns ? issued_ns - done_ns : 0; }
};

// Of all streams of a client. `done` is read first: what is issued meanwhile counts as outstanding.
inline Progress progress_of(const ClientSignals& client) {
    Progress sum{0, 0, 0};
    for (const Line& line : client.lines) sum.done_ns += line.done.load(std::memory_order_acquire);
    for (const Line& line : client.lines) {
        sum.issued_ns += line.issued.load(std::memory_order_seq_cst);
        sum.told_ns += line.told.load(std::memory_order_relaxed);
    }
    return sum;
}

// All that was issued is done: a synchronising call has returned, and nothing was launched meanwhile.
inline void settle(ClientSignals& client) {
    for (Line& line : client.lines) {
        const std::uint64_t issued_ns = line.issued.load(std::memory_order_relaxed);
        line.told.store(issued_ns, std::memory_order_relaxed);
        line.done.store(issued_ns, std::memory_order_release);
    }
}

static_assert(sizeof(Line) == 128 && sizeof(ClientSignals) == 128 + 128 * kLines);

}  // namespace explsched::shared
