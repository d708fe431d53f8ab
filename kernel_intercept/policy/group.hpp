// The rule by which kernels share a GPU: their summed compute and their summed bandwidth stay within the caps
// (Orion, EuroSys'24, section 5; the sums as ExplSched-kernel states them). Used by the clients before each
// launch and by the manager for those that wait. Header-only: the client side links no library.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernel_intercept/shared/packed.hpp"

namespace explsched::policy {

using shared::Load;

struct Caps {
    std::uint32_t compute_permille;
    std::uint32_t bandwidth_permille;
};

// A kernel that is too large for the caps may run, but alone.
constexpr bool fits(Load others, Load own, Caps caps) {
    if (others.none()) return true;
    const Load sum = others + own;
    return sum.compute_permille <= caps.compute_permille && sum.bandwidth_permille <= caps.bandwidth_permille;
}

// What a high-priority client is doing, as far as a best-effort kernel must know.
struct HighPriority {
    std::uint64_t busy_until_ns;  // expected end of all it has launched
    bool drained;                 // it has said that this is done
    std::uint64_t idle_since_ns;  // when it said so last
    std::uint64_t latency_ns;     // usual length of its busy periods, 0 = unknown
    std::int64_t exposure_ns;     // what may still be risked in this busy period
};

// After its work is done, a high-priority client counts as idle only after this long: many requests are a
// chain of short synchronised parts. Tally (ASPLOS'25) waits as long.
constexpr std::uint64_t kGraceNs = 100'000;

// A client that is expected to be done but has not said so counts as busy for this share of its latency more.
constexpr std::uint64_t kOverdueDivisor = 4;

struct Verdict {
    bool allowed;
    std::uint64_t exposed_ns;  // time to take from the exposure of the high-priority client
    std::uint64_t retry_ns;    // when to ask again, if not allowed
};

// Whether a best-effort kernel that would run in [begin_ns, end_ns) leaves enough room to the high-priority
// client for launches that are not known yet. `share_permille` of its latency bounds the outstanding
// best-effort time. A longer kernel may go only alone (`begin_ns` == `now_ns`) and when the client is idle.
constexpr Verdict spares(const HighPriority& high, std::uint64_t now_ns, std::uint64_t begin_ns,
                         std::uint64_t end_ns, std::uint32_t share_permille) {
    const std::uint64_t bound_ns = high.latency_ns * share_permille / 1000;
    const std::uint64_t overdue_ns = high.drained ? 0 : high.latency_ns / kOverdueDivisor + kGraceNs;
    if (high.busy_until_ns + overdue_ns > now_ns) {  // busy
        if (end_ns <= high.busy_until_ns) return {true, 0, 0};
        const std::uint64_t tail_ns = end_ns - std::max(high.busy_until_ns, now_ns);
        if (static_cast<std::int64_t>(tail_ns) <= high.exposure_ns) return {true, tail_ns, 0};
        return {false, 0, std::max(high.busy_until_ns, now_ns) + overdue_ns + kGraceNs};
    }
    if (end_ns - now_ns <= bound_ns) return {true, 0, 0};
    const std::uint64_t idle_from_ns =
        (high.drained ? high.idle_since_ns : high.busy_until_ns + overdue_ns) + kGraceNs;
    if (now_ns < idle_from_ns) return {false, 0, idle_from_ns};
    if (begin_ns <= now_ns) return {true, 0, 0};
    return {false, 0, std::min(begin_ns, end_ns - bound_ns)};
}

// A best-effort launch that waits.
struct Want {
    std::uint32_t slot;
    Load load;
    std::uint64_t since_ns;
};

// The waiting launches in the order in which they are to be tried: those that waited longer than `aged_ns`
// first, oldest first; then by how much room they leave beside `running` on the scarcer resource (largest
// minimum slack); ties by age, then by slot.
std::vector<Want> order(std::vector<Want> wants, Load running, Caps caps, std::uint64_t now_ns,
                        std::uint64_t aged_ns);

}  // namespace explsched::policy
