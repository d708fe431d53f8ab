// What a launch does to the shared page, without waiting and without a clock.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernel_intercept/shared/company.hpp"
#include "kernel_intercept/shared/lateness.hpp"
#include "kernel_intercept/shared/reservation.hpp"

namespace explsched::gate {

constexpr std::uint64_t kLongestPeriodNs = 100'000'000;
constexpr std::uint64_t kPromptNs = 5'000;

inline std::uint64_t charge_of(const KernelCost& cost) {
    const shared::Load load = shared::load_of(cost);
    return cost.gpu_ns * std::max({load.compute_permille, load.bandwidth_permille, 1U}) / 1000;
}

// Returns when it is expected to begin.
inline std::uint64_t launch(shared::Slot& slot, const KernelCost& cost, std::uint64_t now_ns) {
    const std::uint64_t begin_ns = shared::push(slot.timeline, cost, now_ns);
    shared::starting(slot.timeline, begin_ns, cost, now_ns);
    return begin_ns;
}

// What a high-priority launch meets: first it is told, then looked for, so that of a best-effort launch in
// the same moment and this one at least one sees the other. Who is let in after the first launch of a row
// knows of it, and is no such company.
inline void meet(shared::Page& page, std::uint32_t index, const KernelCost& cost, std::uint64_t now_ns,
                 std::uint64_t begin_ns) {
    shared::Timeline& line = page.slots[index].timeline;
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const bool first = begin_ns == now_ns;
    if (!first && begin_ns >= line.company_until_ns.load(std::memory_order_relaxed)) return;
    const std::uint64_t span = line.head.load(std::memory_order_relaxed) - 1;
    const std::uint64_t delay_ns = shared::meet_company(page, index, cost, begin_ns);
    if (delay_ns != 0) shared::put_off_from(line, span, delay_ns, now_ns);
    if (first) {
        line.company_until_ns.store(shared::latest_end_ns(page, index), std::memory_order_relaxed);
    }
}

// A high-priority client tells what it does and goes on. The length of its busy periods is the running mean
// (weight 1/8) of the work launched in each; its own work, not the time that passed, so that interference
// does not raise the bound that limits interference.
inline void announce(shared::Page& page, std::uint32_t index, const KernelCost& cost, std::uint64_t now_ns) {
    shared::Slot& slot = page.slots[index];
    shared::Timeline& line = slot.timeline;
    const std::uint32_t share_permille = page.control.high_share_permille;
    const std::uint64_t idle_ns = shared::drained(line) ? line.idle_since_ns.load(std::memory_order_relaxed)
                                                        : line.busy_until_ns.load(std::memory_order_relaxed);
    const std::uint64_t work_ns = line.period_work_ns.load(std::memory_order_relaxed);
    if (now_ns > idle_ns + policy::kGraceNs || work_ns > kLongestPeriodNs) {
        const std::uint64_t mean_ns = line.latency_ns.load(std::memory_order_relaxed);
        const std::uint64_t next_ns = mean_ns == 0 ? work_ns : mean_ns - mean_ns / 8 + work_ns / 8;
        line.latency_ns.store(next_ns, std::memory_order_relaxed);
        line.exposure_ns.store(static_cast<std::int64_t>(next_ns * share_permille / 1000),
                               std::memory_order_relaxed);
        line.period_work_ns.store(cost.gpu_ns, std::memory_order_relaxed);
    } else {
        line.period_work_ns.fetch_add(cost.gpu_ns, std::memory_order_relaxed);
    }
    meet(page, index, cost, now_ns, launch(slot, cost, now_ns));
}

inline bool announces(const shared::Page& page, std::uint32_t index) {
    const bool high = (page.control.high.load(std::memory_order_relaxed) >> index & 1) != 0;
    return high && page.control.policy == shared::Policy::kGroup;
}

// The driver is called for what was launched last. If that was held up on its way, the GPU may be full by
// now. A high-priority launch has met what was there when it was announced, and must not be put off for it
// twice.
inline void reached_driver(shared::Page& page, std::uint32_t index, std::uint64_t now_ns) {
    shared::Timeline& line = page.slots[index].timeline;
    const std::uint64_t announced_ns = line.starting_ns.load(std::memory_order_relaxed);
    const std::optional<std::uint64_t> span = shared::started(line, now_ns);
    if (!span || now_ns < announced_ns + kPromptNs || page.control.policy != shared::Policy::kGroup) return;
    if (announces(page, index)) return;
    const std::uint64_t word = line.spans[*span % shared::kSpans].load(std::memory_order_relaxed);
    const std::uint64_t end_ns = shared::end_ns_of(word, now_ns);
    if (end_ns <= now_ns) return;
    const shared::Load load = shared::packed_load(word);
    const KernelCost rest{end_ns - now_ns, load.compute_permille, load.bandwidth_permille};
    const std::uint64_t delay_ns = shared::meet_company(page, index, rest, now_ns);
    if (delay_ns != 0) shared::put_off_from(line, *span, delay_ns, now_ns);
}

// How long to leave a client alone that others let go first.
constexpr std::uint64_t kAgedPauseNs = 200'000;

// Only while that one waits: it may have gone just before the manager wrote it down.
inline bool closed_for_ageing(const shared::Page& page, std::uint32_t slot) {
    const std::uint32_t aged = page.control.aged.load(std::memory_order_relaxed);
    if (aged == 0 || aged == slot + 1 || aged > shared::kSlots) return false;
    const std::uint32_t gate = page.slots[aged - 1].door.gate.load(std::memory_order_relaxed);
    return (gate & shared::kGateState) == shared::kGateWaiting;
}

// The outcome of one try. A grant of room or credit includes the launch itself.
struct Try {
    bool launched;
    std::uint64_t retry_ns;  // if not launched: when to try again, as far as is known; else 0
    bool contested;          // other best-effort clients are in the way
};

inline Try try_group(shared::Page& page, std::uint32_t index, const KernelCost& cost, std::uint64_t now_ns) {
    shared::Slot& slot = page.slots[index];
    const std::uint64_t others =
        page.control.occupied.load(std::memory_order_relaxed) & ~(std::uint64_t{1} << index);
    if (others == 0) {
        launch(slot, cost, now_ns);
        return {true, 0, false};
    }
    if (closed_for_ageing(page, index)) return {false, now_ns + kAgedPauseNs, true};
    const shared::Attempt attempt = shared::try_reserve(page, index, cost, now_ns);
    if (!attempt.reserved())
        return {false, attempt.retry_ns, attempt.obstacle == shared::Obstacle::kBestEffort};
    launch(slot, cost, now_ns);
    slot.timeline.reserved.store(0, std::memory_order_release);
    std::uint32_t aged = page.control.aged.load(std::memory_order_relaxed);
    if (aged == index + 1)  // it has gone: the way is open again
        page.control.aged.compare_exchange_strong(aged, 0, std::memory_order_relaxed);
    return {true, 0, false};
}

// Whether what the manager granted some time ago still fits now that its client is awake.
inline bool grant_holds(shared::Page& page, std::uint32_t index, const KernelCost& cost,
                        std::uint64_t now_ns) {
    if (page.control.policy == shared::Policy::kQuota) return true;
    const shared::Timeline& line = page.slots[index].timeline;
    const std::uint64_t begin_ns = std::max(now_ns, line.busy_until_ns.load(std::memory_order_relaxed));
    return shared::examine(page, index, shared::load_of(cost), now_ns, begin_ns, begin_ns + cost.gpu_ns)
        .reserved();
}

inline Try try_quota(shared::Slot& slot, const KernelCost& cost, std::uint64_t now_ns) {
    if (slot.door.credit_ns.load(std::memory_order_relaxed) <= 0) return {false, 0, true};
    const std::uint64_t charge = charge_of(cost);
    slot.door.credit_ns.fetch_sub(static_cast<std::int64_t>(charge), std::memory_order_relaxed);
    slot.counters.charged_ns.fetch_add(charge, std::memory_order_relaxed);
    launch(slot, cost, now_ns);
    return {true, 0, false};
}

inline Try try_now(shared::Page& page, std::uint32_t index, const KernelCost& cost, std::uint64_t now_ns) {
    return page.control.policy == shared::Policy::kGroup ? try_group(page, index, cost, now_ns)
                                                         : try_quota(page.slots[index], cost, now_ns);
}

// Launches whatever the credit: after a grant, or after a wait that reached its bound. Both are debts.
inline void launch_on_debt(shared::Page& page, shared::Slot& slot, const KernelCost& cost,
                           std::uint64_t now_ns) {
    if (page.control.policy == shared::Policy::kQuota) {
        const std::uint64_t charge = charge_of(cost);
        slot.door.credit_ns.fetch_sub(static_cast<std::int64_t>(charge), std::memory_order_relaxed);
        slot.counters.charged_ns.fetch_add(charge, std::memory_order_relaxed);
    }
    launch(slot, cost, now_ns);
}

}  // namespace explsched::gate
