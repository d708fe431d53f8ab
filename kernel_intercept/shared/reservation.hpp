// Room on the GPU for one best-effort launch, taken without a lock.
//
// A launch is first announced in its client's timeline, and only then are the others' timelines read; if they
// leave no room it is withdrawn. Of two that announce at the same time at least one sees the other, so the
// caps hold; both may withdraw, and then the manager, which runs the same code for those that wait, decides.
#pragma once

#include "kernel_intercept/policy/group.hpp"
#include "kernel_intercept/shared/lateness.hpp"
#include "kernel_intercept/shared/layout.hpp"

namespace explsched::shared {

// What a launch waits for.
enum class Obstacle : std::uint8_t {
    kNone,
    kHigh,        // room beside the high-priority clients, whatever best-effort clients do
    kBestEffort,  // room beside other best-effort clients: the manager says whose turn it is
    kItself,      // its client's own launches before it, of which enough wait on the GPU
};

struct Attempt {
    Obstacle obstacle;
    std::uint64_t retry_ns;  // if there is one: when to ask again

    bool reserved() const { return obstacle == Obstacle::kNone; }
};

namespace detail {

// Ends are not known better than this.
constexpr std::uint64_t kGuardNs = 4'000;

constexpr std::uint64_t kApartNs = 2'000;

struct Others {
    Load load;
    std::uint64_t eases_ns;
};

inline Others others(const Page& page, std::uint64_t mask, std::uint64_t now_ns, std::uint64_t begin_ns,
                     std::uint64_t end_ns) {
    Others sum{{}, UINT64_MAX};
    while (mask != 0) {
        const int slot = __builtin_ctzll(mask);
        mask &= mask - 1;
        const Timeline& line = page.slots[static_cast<std::size_t>(slot)].timeline;
        // What should be over by now may run on for as long as this client usually lags.
        const std::uint64_t late_ns = start_delay_ns(line, now_ns);
        const std::uint64_t lag_ns = line.lag_ns.load(std::memory_order_relaxed) +
                                     line.unsure_ns.load(std::memory_order_relaxed) + late_ns + kGuardNs;
        const Peak found = peak(line, begin_ns - lag_ns, end_ns + kGuardNs - late_ns);
        if (found.load.none()) continue;
        sum.load = sum.load + found.load;
        sum.eases_ns = std::min(sum.eases_ns, found.eases_ns + lag_ns);
    }
    return sum;
}

// A client that has launched nothing has no latency to keep yet; its first launches load their modules.
inline bool has_launched(const Timeline& line) { return line.head.load(std::memory_order_relaxed) != 0; }

inline policy::HighPriority high_priority(const Timeline& line, std::uint64_t now_ns) {
    return {line.busy_until_ns.load(std::memory_order_seq_cst) + start_delay_ns(line, now_ns), drained(line),
            line.idle_since_ns.load(std::memory_order_relaxed),
            line.latency_ns.load(std::memory_order_relaxed),
            line.exposure_ns.load(std::memory_order_relaxed)};
}

}  // namespace detail

// Whether there is room in [begin_ns, end_ns) beside all but `slot` itself. What it may outlast high-priority
// work by is taken from their exposure.
inline Attempt examine(Page& page, std::uint32_t slot, Load load, std::uint64_t now_ns,
                       std::uint64_t begin_ns, std::uint64_t end_ns) {
    const Control& control = page.control;
    const policy::Caps caps{control.cap_compute_permille, control.cap_bandwidth_permille};
    const std::uint64_t occupied =
        control.occupied.load(std::memory_order_seq_cst) & ~(std::uint64_t{1} << slot);
    const std::uint64_t high = occupied & control.high.load(std::memory_order_relaxed);
    const detail::Others above = detail::others(page, high, now_ns, begin_ns, end_ns);
    if (!policy::fits(above.load, load, caps)) return {Obstacle::kHigh, above.eases_ns};
    for (std::uint64_t mask = high; mask != 0; mask &= mask - 1) {
        Timeline& line = page.slots[static_cast<std::size_t>(__builtin_ctzll(mask))].timeline;
        if (!detail::has_launched(line)) continue;
        const policy::Verdict verdict = policy::spares(detail::high_priority(line, now_ns), now_ns, begin_ns,
                                                       end_ns, control.high_share_permille);
        if (!verdict.allowed) return {Obstacle::kHigh, verdict.retry_ns};
    }
    const detail::Others all = detail::others(page, occupied, now_ns, begin_ns, end_ns);
    if (!policy::fits(all.load, load, caps)) {
        // Not all that wait for the same end at the same time: they would be in each other's way.
        return {Obstacle::kBestEffort, all.eases_ns + slot % 8 * detail::kApartNs};
    }
    if (occupied != 0 && begin_ns > now_ns && end_ns - now_ns > control.ahead_ns) {
        // Not one launch at a time: half of it.
        return {Obstacle::kItself,
                std::max({end_ns - control.ahead_ns, begin_ns - control.ahead_ns / 2, now_ns + 1000})};
    }
    for (std::uint64_t mask = high; mask != 0; mask &= mask - 1) {
        Timeline& line = page.slots[static_cast<std::size_t>(__builtin_ctzll(mask))].timeline;
        if (!detail::has_launched(line)) continue;
        const policy::Verdict verdict = policy::spares(detail::high_priority(line, now_ns), now_ns, begin_ns,
                                                       end_ns, control.high_share_permille);
        if (!verdict.allowed) return {Obstacle::kHigh, verdict.retry_ns};
        const auto exposed = static_cast<std::int64_t>(verdict.exposed_ns);
        if (exposed != 0 && line.exposure_ns.fetch_sub(exposed, std::memory_order_relaxed) < exposed) {
            line.exposure_ns.fetch_add(exposed, std::memory_order_relaxed);
            return {Obstacle::kHigh, now_ns + policy::kGraceNs};
        }
    }
    return {Obstacle::kNone, 0};
}

// Announces a launch of `slot`. If it was reserved, the caller turns it into a launch with `push` and then
// clears `reserved`.
inline Attempt try_reserve(Page& page, std::uint32_t slot, const KernelCost& cost, std::uint64_t now_ns) {
    Timeline& line = page.slots[slot].timeline;
    const std::uint64_t begin_ns = std::max(now_ns, line.busy_until_ns.load(std::memory_order_relaxed));
    const std::uint64_t end_ns = begin_ns + cost.gpu_ns;
    const Load load = load_of(cost);
    std::uint64_t none = 0;
    if (!line.reserved.compare_exchange_strong(none, pack(tick_of(end_ns + 255), load))) {
        return {Obstacle::kItself, now_ns + 10'000};  // another thread of the client is about to launch
    }
    const Attempt attempt = examine(page, slot, load, now_ns, begin_ns, end_ns);
    if (!attempt.reserved()) line.reserved.store(0, std::memory_order_release);
    return attempt;
}

}  // namespace explsched::shared
