#include "kernel_intercept/gate/admission.hpp"

#include <algorithm>

#include "kernel_intercept/gate/launch.hpp"
#include "kernel_intercept/shared/clock.hpp"
#include "kernel_intercept/shared/futex.hpp"

namespace explsched::gate {

namespace {

using shared::Slot;

constexpr std::uint64_t kSpinNs = 2'000;
constexpr std::uint64_t kNapNs = 5'000'000;

enum class Outcome : std::uint8_t { kGranted, kWithdrawn, kLaunched };

// Waits on the client's own want, which is posted. Ends in state idle.
Outcome await_grant(Link& link, shared::Page& page, std::uint32_t index, const KernelCost& cost,
                    std::uint32_t waiting, std::uint64_t deadline_ns) {
    Slot& slot = page.slots[index];
    std::atomic<std::uint32_t>& gate = slot.door.gate;
    const std::uint32_t granted = (waiting & ~shared::kGateState) | shared::kGateGranted;
    const std::uint32_t idle = waiting & ~shared::kGateState;
    bool alive = link.ring();
    std::uint64_t now_ns = shared::now_ns();
    for (const std::uint64_t until_ns = now_ns + kSpinNs; alive && now_ns < until_ns; now_ns = shared::now_ns()) {
        if (gate.load(std::memory_order_acquire) != waiting) break;
        __builtin_ia32_pause();
    }
    while (alive && now_ns < deadline_ns && gate.load(std::memory_order_acquire) == waiting) {
        shared::futex_wait(gate, waiting, std::min(kNapNs, deadline_ns - now_ns));
        if (gate.load(std::memory_order_acquire) != waiting) break;
        now_ns = shared::now_ns();
        alive = manager_alive(page.control, now_ns) && link.ring();
        if (alive && try_now(page, index, cost, now_ns)) {
            std::uint32_t expected = waiting;
            // A grant at the same moment is void: the launch is already counted. The manager's reservation,
            // if it made one, is gone with it.
            if (!gate.compare_exchange_strong(expected, idle)) {
                slot.timeline.reserved.store(0, std::memory_order_release);
                gate.store(idle, std::memory_order_release);
            }
            return Outcome::kLaunched;
        }
    }
    std::uint32_t expected = waiting;
    if (gate.compare_exchange_strong(expected, idle)) return Outcome::kWithdrawn;
    if (expected != granted) return Outcome::kWithdrawn;  // the page was replaced: the manager is gone
    gate.store(idle, std::memory_order_release);
    return Outcome::kGranted;
}

void count_wait(Slot& slot, std::uint64_t waited_ns, bool passed) {
    slot.counters.waits.fetch_add(1, std::memory_order_relaxed);
    slot.counters.waited_ns.fetch_add(waited_ns, std::memory_order_relaxed);
    std::uint64_t longest = slot.counters.longest_wait_ns.load(std::memory_order_relaxed);
    if (waited_ns > longest) slot.counters.longest_wait_ns.store(waited_ns, std::memory_order_relaxed);
    if (passed) slot.counters.passed.fetch_add(1, std::memory_order_relaxed);
}

Admission wait(Link& link, shared::Page& page, std::uint32_t index, const KernelCost& cost, std::uint64_t since_ns) {
    Slot& slot = page.slots[index];
    std::atomic<std::uint32_t>& gate = slot.door.gate;
    const std::uint64_t deadline_ns = since_ns + kLongestWaitNs;
    Outcome outcome = Outcome::kWithdrawn;
    for (std::uint64_t now_ns = since_ns; now_ns < deadline_ns; now_ns = shared::now_ns()) {
        std::uint32_t state = gate.load(std::memory_order_acquire);
        if ((state & shared::kGateState) != shared::kGateIdle) {  // another thread of this process waits
            shared::futex_wait(gate, state, 1'000'000);
            if (!manager_alive(page.control, shared::now_ns())) break;
            continue;
        }
        const std::uint32_t turn = state + (shared::kGateState + 1);
        if (!gate.compare_exchange_strong(state, turn | shared::kGatePosting)) continue;
        slot.door.want.store(shared::pack_cost(cost), std::memory_order_relaxed);
        slot.door.want_since_ns.store(since_ns, std::memory_order_relaxed);
        gate.store(turn | shared::kGateWaiting, std::memory_order_release);
        outcome = await_grant(link, page, index, cost, turn | shared::kGateWaiting, deadline_ns);
        break;
    }
    const std::uint64_t end_ns = shared::now_ns();
    if (outcome != Outcome::kLaunched) launch_on_debt(page, slot, cost, end_ns);
    if (outcome == Outcome::kGranted) slot.timeline.reserved.store(0, std::memory_order_release);
    count_wait(slot, end_ns - since_ns, outcome == Outcome::kWithdrawn);
    return outcome == Outcome::kWithdrawn ? Admission::kPassThrough : Admission::kGranted;
}

bool announces(const shared::Page& page, std::uint32_t index) {
    const bool high = (page.control.high.load(std::memory_order_relaxed) >> index & 1) != 0;
    return high && page.control.policy == shared::Policy::kGroup;
}

}  // namespace

bool manager_alive(const shared::Control& control, std::uint64_t now_ns) noexcept {
    const std::uint64_t beat = control.heartbeat_ns.load(std::memory_order_relaxed);
    const std::uint64_t bound = std::clamp<std::uint64_t>(
        3 * control.beat_interval_ns.load(std::memory_order_relaxed), 15'000'000, 40'000'000);
    return now_ns < beat + bound;
}

Admission admit_managed(Link& link, shared::Page& page, const KernelCost& cost, std::uint64_t now_ns) noexcept {
    const std::uint32_t index = link.slot.load(std::memory_order_relaxed);
    Slot& slot = page.slots[index];
    if (announces(page, index)) {
        announce(slot, cost, page.control.high_share_permille, now_ns);
        return Admission::kGranted;
    }
    if (try_now(page, index, cost, now_ns)) return Admission::kGranted;
    return wait(link, page, index, cost, now_ns);
}

void charge_managed(Link& link, shared::Page& page, const KernelCost& cost, std::uint64_t now_ns) noexcept {
    const std::uint32_t index = link.slot.load(std::memory_order_relaxed);
    if (announces(page, index)) {
        announce(page.slots[index], cost, page.control.high_share_permille, now_ns);
    } else {
        launch_on_debt(page, page.slots[index], cost, now_ns);
    }
}

}  // namespace explsched::gate
