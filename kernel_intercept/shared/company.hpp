// What a high-priority launch meets on the GPU: best-effort kernels that were let in while it was idle. All
// of them slow each other down until these are done, so all end later than each alone would.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernel_intercept/shared/layout.hpp"

namespace explsched::shared {

namespace detail {

// Lets what a client has launched last end later.
inline void delay(Timeline& line, std::uint64_t by_ns, std::uint64_t now_ns) {
    line.busy_until_ns.fetch_add(by_ns, std::memory_order_seq_cst);
    std::atomic<std::uint64_t>& span = line.spans[(line.head.load(std::memory_order_relaxed) - 1) % kSpans];
    std::uint64_t word = span.load(std::memory_order_relaxed);
    const std::uint64_t end = tick_of(end_ns_of(word, now_ns) + by_ns + 255);
    span.compare_exchange_strong(word, pack(end, packed_load(word)), std::memory_order_seq_cst);
}

}  // namespace detail

// How much later a launch of `slot` with this load ends for the company it meets at `now_ns`, by the same
// sums as the caps: time is stretched by the larger sum of shares where that exceeds the whole GPU. The ends
// that the others have announced are put off, too.
inline std::uint64_t meet_company(Page& page, std::uint32_t slot, Load load, std::uint64_t now_ns) {
    struct Other {
        std::uint64_t left_ns;
        Load load;
        Timeline* line;
    };
    std::array<Other, kSlots> others;
    std::size_t count = 0;
    std::uint64_t mask = page.control.occupied.load(std::memory_order_seq_cst) & ~(std::uint64_t{1} << slot);
    for (; mask != 0; mask &= mask - 1) {
        Timeline& line = page.slots[static_cast<std::size_t>(__builtin_ctzll(mask))].timeline;
        const std::uint64_t until_ns = line.busy_until_ns.load(std::memory_order_seq_cst);
        if (until_ns <= now_ns) continue;
        others[count] = {until_ns - now_ns, peak(line, now_ns, until_ns).load, &line};
        load = load + others[count++].load;
    }
    std::sort(others.begin(), others.begin() + count,
              [](const Other& a, const Other& b) { return a.left_ns < b.left_ns; });
    std::uint64_t passed_ns = 0, delay_ns = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint64_t stretch = std::max({load.compute_permille, load.bandwidth_permille, 1000U});
        delay_ns += (others[i].left_ns - passed_ns) * (stretch - 1000) / 1000;
        passed_ns = others[i].left_ns;
        if (delay_ns != 0) detail::delay(*others[i].line, delay_ns, now_ns);
        load.compute_permille -= others[i].load.compute_permille;
        load.bandwidth_permille -= others[i].load.bandwidth_permille;
    }
    return delay_ns;
}

}  // namespace explsched::shared
