// What a high-priority launch meets on the GPU: best-effort kernels that were let in before it was known. As
// long as they run together all slow each other down, so all end later than each alone would.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernel_intercept/shared/layout.hpp"

namespace explsched::shared {

namespace detail {

// One client's announced launches, one after the other, from some moment on.
struct Row {
    Timeline* line;
    std::uint64_t index, head;  // the span that runs, and the one after the last
    std::uint64_t ends_ns;      // of the last one read, as announced
    std::uint64_t left_ns;      // of the span that runs
    std::uint64_t shift_ns;     // how much later than announced it all happens
    Load load;

    bool over() const { return index == head; }

    // The next span that ends after `from_ns`.
    void next(std::uint64_t from_ns) {
        for (; index != head; ++index) {
            const std::uint64_t word = line->spans[index % kSpans].load(std::memory_order_relaxed);
            const std::uint64_t begin_ns = std::max(ends_ns, from_ns);
            ends_ns = end_ns_of(word, from_ns);
            if (ends_ns <= begin_ns) continue;
            left_ns = ends_ns - begin_ns;
            load = packed_load(word);
            return;
        }
    }
};

inline Row row_of(Timeline& line, std::uint64_t from_ns) {
    const std::uint64_t head = line.head.load(std::memory_order_relaxed);
    Row row{&line, head - open_spans(line), head, 0, 0, 0, {}};
    row.next(from_ns);
    return row;
}

}  // namespace detail

// How much later a launch of `slot` that is to run for `cost.gpu_ns` from `begin_ns` on ends for the company
// it meets, by the same sums as the caps: time is stretched by the larger sum of shares where that exceeds
// the whole GPU. The ends that the others have announced are put off, too.
inline std::uint64_t meet_company(Page& page, std::uint32_t slot, const KernelCost& cost,
                                  std::uint64_t begin_ns) {
    std::array<detail::Row, kSlots> rows;
    std::size_t count = 0;
    std::uint64_t mask = page.control.occupied.load(std::memory_order_seq_cst) & ~(std::uint64_t{1} << slot);
    for (; mask != 0; mask &= mask - 1) {
        Timeline& line = page.slots[static_cast<std::size_t>(__builtin_ctzll(mask))].timeline;
        if (line.busy_until_ns.load(std::memory_order_seq_cst) <= begin_ns) continue;
        const detail::Row row = detail::row_of(line, begin_ns);
        if (!row.over()) rows[count++] = row;
    }
    std::uint64_t left_ns = cost.gpu_ns, delay_ns = 0;
    while (left_ns != 0) {
        Load sum = load_of(cost);
        std::uint64_t step_ns = left_ns;
        bool company = false;
        for (std::size_t i = 0; i < count; ++i) {
            if (rows[i].over()) continue;
            company = true;
            sum = sum + rows[i].load;
            step_ns = std::min(step_ns, rows[i].left_ns);
        }
        if (!company) break;
        const std::uint64_t stretch = std::max({sum.compute_permille, sum.bandwidth_permille, 1000U}) - 1000;
        const std::uint64_t more_ns = step_ns * stretch / 1000;
        delay_ns += more_ns;
        left_ns -= step_ns;
        for (std::size_t i = 0; i < count; ++i) {
            detail::Row& row = rows[i];
            if (row.over()) continue;
            row.shift_ns += more_ns;
            row.left_ns -= step_ns;
            if (row.left_ns != 0) continue;
            if (row.shift_ns != 0) put_off(*row.line, row.index, row.shift_ns, begin_ns);
            ++row.index;
            row.next(begin_ns);
        }
    }
    for (std::size_t i = 0; i < count; ++i) {
        detail::Row& row = rows[i];
        if (row.shift_ns == 0) continue;
        for (; !row.over(); ++row.index) put_off(*row.line, row.index, row.shift_ns, begin_ns);
        row.line->busy_until_ns.fetch_add(row.shift_ns, std::memory_order_seq_cst);
    }
    return delay_ns;
}

// Until when others have announced launches.
inline std::uint64_t latest_end_ns(const Page& page, std::uint32_t slot) {
    std::uint64_t latest_ns = 0;
    std::uint64_t mask = page.control.occupied.load(std::memory_order_seq_cst) & ~(std::uint64_t{1} << slot);
    for (; mask != 0; mask &= mask - 1) {
        const Timeline& line = page.slots[static_cast<std::size_t>(__builtin_ctzll(mask))].timeline;
        latest_ns = std::max(latest_ns, line.busy_until_ns.load(std::memory_order_seq_cst));
    }
    return latest_ns;
}

}  // namespace explsched::shared
