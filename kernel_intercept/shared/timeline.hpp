// What a client has launched and what of it is still to run, as the others see it.
//
// A client's launches are taken to run one after the other: each span begins where the one before it ends.
// Launches of several streams of one process are therefore counted in a row, which overstates how long they
// take and understates their load while they overlap.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "kernel_intercept/shared/packed.hpp"

namespace explsched::shared {

constexpr std::uint32_t kSpans = 64;

struct alignas(64) Timeline {
    std::atomic<std::uint64_t> busy_until_ns;   // end of the last span; in the past when idle
    std::atomic<std::uint64_t> period_work_ns;  // running time launched since the client was last idle
    std::atomic<std::uint64_t> latency_ns;      // running mean of that over the busy periods, 0 = unknown
    std::atomic<std::int64_t> exposure_ns;      // what best-effort kernels may still risk in this busy period
    std::atomic<std::uint64_t> head;            // spans pushed, one per launch
    std::atomic<std::uint64_t> settled;         // of them known to be done
    std::atomic<std::uint64_t> reserved;        // a span granted but not launched yet, 0 = none
    std::atomic<std::uint64_t> idle_since_ns;   // when the last synchronising call returned
    std::atomic<std::uint64_t> began_ns;        // first launch after that
    std::atomic<std::uint64_t> drain_wall_ns;   // from first launch to synchronised, the last time
    std::atomic<std::uint64_t> drain_work_ns;   // running time launched in between
    std::atomic<std::uint64_t> pushed_ns;       // running time launched
    std::atomic<std::uint64_t> settled_ns;      // of it known to be done
    std::atomic<std::uint64_t> lag_ns;          // how late its launches end by then, see `settle`
    std::atomic<std::uint64_t>
        starting_ns;  // announced then, first of a row, the driver has it not yet; 0 = none
    std::atomic<std::uint64_t> company_until_ns;  // until then it meets what does not fit beside it
    std::atomic<std::uint64_t> unsure_ns;  // how much later than announced all may happen, see `returned`
    alignas(
        64) std::array<std::atomic<std::uint64_t>, kSpans> spans;  // end in ticks, and the load until then
};

// Ends are kept in ticks of 256 ns, which wrap after 52 days. Only spans that end within the client's
// `busy_until_ns` are read, so an old word is never taken for a future one.
constexpr std::uint64_t tick_of(std::uint64_t time_ns) { return time_ns >> 8; }

// An end in nanoseconds, for a word written less than 26 days from `near_ns`.
constexpr std::uint64_t end_ns_of(std::uint64_t word, std::uint64_t near_ns) {
    const std::uint64_t ahead = (packed_time(word) - tick_of(near_ns)) & kTimeMask;
    const std::int64_t delta = static_cast<std::int64_t>(ahead << 20) >> 20;  // sign of 44 bits
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(tick_of(near_ns)) + delta) << 8;
}

// How many of its newest spans are there to be read and not known to be done.
inline std::uint64_t open_spans(const Timeline& line) {
    return std::min<std::uint64_t>(
        kSpans, line.head.load(std::memory_order_relaxed) - line.settled.load(std::memory_order_relaxed));
}

// The running time of what is not known to be done.
inline std::uint64_t unsettled_ns(const Timeline& line) {
    const std::uint64_t settled_ns = line.settled_ns.load(std::memory_order_relaxed);
    return line.pushed_ns.load(std::memory_order_relaxed) - settled_ns;
}

// Whether the client has said that all it launched is done.
inline bool drained(const Timeline& line) {
    return line.settled.load(std::memory_order_relaxed) == line.head.load(std::memory_order_relaxed);
}

// Lets span `index` end later, unless its owner writes it at the same time.
inline void put_off(Timeline& line, std::uint64_t index, std::uint64_t by_ns, std::uint64_t near_ns) {
    std::atomic<std::uint64_t>& span = line.spans[index % kSpans];
    std::uint64_t word = span.load(std::memory_order_relaxed);
    const std::uint64_t end = tick_of(end_ns_of(word, near_ns) + by_ns + 255);
    span.compare_exchange_strong(word, pack(end, packed_load(word)), std::memory_order_seq_cst);
}

// Appends a launch and returns when it is expected to begin. Safe among threads of one process. Others see it
// at once if it was announced as `reserved`, else after a fence of the caller's.
inline std::uint64_t push(Timeline& line, const KernelCost& cost, std::uint64_t now_ns) {
    if (drained(line)) line.began_ns.store(now_ns, std::memory_order_relaxed);
    line.pushed_ns.fetch_add(cost.gpu_ns, std::memory_order_relaxed);
    std::uint64_t busy = line.busy_until_ns.load(std::memory_order_relaxed);
    std::uint64_t begin = 0;
    do {
        begin = std::max(busy, now_ns);
    } while (!line.busy_until_ns.compare_exchange_weak(busy, begin + cost.gpu_ns, std::memory_order_seq_cst,
                                                       std::memory_order_relaxed));
    const std::uint64_t index = line.head.fetch_add(1, std::memory_order_relaxed);
    Load load = load_of(cost);
    std::atomic<std::uint64_t>& span = line.spans[index % kSpans];
    const std::uint64_t oldest = span.load(std::memory_order_relaxed);
    if (index >= kSpans && index - line.settled.load(std::memory_order_relaxed) >= kSpans &&
        end_ns_of(oldest, now_ns) > now_ns) {
        // The span pushed out is still to run: its load lives on in the next one, so none is understated.
        std::atomic<std::uint64_t>& next = line.spans[(index + 1) % kSpans];
        const std::uint64_t word = next.load(std::memory_order_relaxed);
        next.store(pack(packed_time(word), larger(packed_load(word), packed_load(oldest))),
                   std::memory_order_relaxed);
    }
    span.store(pack(tick_of(begin + cost.gpu_ns + 255), load), std::memory_order_release);
    return begin;
}

// A reservation may be withdrawn at once; this long it takes its client to wake up and launch, else.
constexpr std::uint64_t kReservedNs = 50'000;

// The largest load the client is expected to put on the GPU in [from_ns, to_ns), and when its first span in
// it ends (the end of time if there is none).
struct Peak {
    Load load;
    std::uint64_t eases_ns;
};

inline Peak peak(const Timeline& line, std::uint64_t from_ns, std::uint64_t to_ns) {
    Peak found{{}, UINT64_MAX};
    const std::uint64_t reserved = line.reserved.load(std::memory_order_seq_cst);
    if (reserved != 0) {
        found = {packed_load(reserved), from_ns + kReservedNs};
    }
    if (line.busy_until_ns.load(std::memory_order_seq_cst) <= from_ns) return found;
    const std::uint64_t head = line.head.load(std::memory_order_relaxed);
    const std::uint64_t open = open_spans(line);
    std::uint32_t past = 0;
    for (std::uint64_t back = 1; back <= open; ++back) {
        const std::uint64_t word = line.spans[(head - back) % kSpans].load(std::memory_order_seq_cst);
        const std::uint64_t end = end_ns_of(word, from_ns);
        if (end <= from_ns) {
            if (++past == 4) break;  // words of concurrent threads may be out of order by a few places
            continue;
        }
        const bool first = back == open;
        const std::uint64_t begin =
            first
                ? from_ns
                : end_ns_of(line.spans[(head - back - 1) % kSpans].load(std::memory_order_relaxed), from_ns);
        if (begin >= to_ns) continue;
        found.load = larger(found.load, packed_load(word));
        found.eases_ns = std::min(found.eases_ns, end);
    }
    return found;
}

}  // namespace explsched::shared
