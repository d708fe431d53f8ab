#include "kernel_intercept/gate/admission.hpp"

#include <algorithm>

#include "kernel_intercept/gate/launch.hpp"
#include "kernel_intercept/gate/nap.hpp"
#include "kernel_intercept/shared/clock.hpp"
#include "kernel_intercept/shared/futex.hpp"

namespace explsched::gate {

namespace {

using shared::Slot;

constexpr std::uint64_t kSpinNs = 2'000;
constexpr std::uint64_t kNapNs = 5'000'000;
constexpr std::uint64_t kSoonestNs = 20'000;  // between two tries

// A wait that ends while the client's earlier launches keep the GPU busy for this much longer may end late.
constexpr std::uint64_t kLateAnywayNs = 150'000;

enum class Outcome : std::uint8_t { kGranted, kWithdrawn, kLaunched };

struct Wait {
    Link& link;
    shared::Page& page;
    std::uint32_t index;
    const KernelCost& cost;
    std::uint64_t since_ns;
    std::uint64_t deadline_ns;
};

bool is_served(const Link& link, const shared::Page& page, std::uint64_t now_ns) {
    return manager_alive(page.control, now_ns) && link.is_tenant(page);
}

// The manager learns of a wait by a ring, once: then it looks after it until it ends. It need not know of a
// launch that nobody but itself is in the way of and that knows when there will be room, unless it waits
// long.
class Bell {
   public:
    // False if the manager is gone.
    bool ring(const Wait& wait, const Try& last, std::uint64_t now_ns) {
        const std::uint64_t others = wait.page.control.waiting.load() & ~(std::uint64_t{1} << wait.index);
        const bool old = now_ns - wait.since_ns >= shared::kAgedNs;
        const bool needed = old || (last.contested && others != 0);
        if (last.retry_ns != 0 && (rung_ || !needed)) return true;
        rung_ = true;
        return wait.link.ring();
    }

   private:
    bool rung_{false};
};

Promptness promptness_of(const Wait& wait, std::uint64_t retry_ns, std::uint64_t until_ns) {
    const std::uint64_t dry_ns =
        wait.page.slots[wait.index].timeline.busy_until_ns.load(std::memory_order_relaxed);
    return until_ns >= retry_ns && retry_ns != 0 && dry_ns < until_ns + kLateAnywayNs ? Promptness::kPrompt
                                                                                      : Promptness::kAnyTime;
}

// A time that has passed meanwhile is one to try at, too.
std::uint64_t next_try_ns(const Try& last, std::uint64_t now_ns) {
    if (last.retry_ns == 0) return now_ns + kNapNs;
    return std::clamp(last.retry_ns, now_ns, now_ns + kNapNs);
}

// Sleeps until granted, or tries again itself when it may fit.
Outcome sleep_and_retry(const Wait& wait, Bell& bell, std::uint32_t waiting, Try last) {
    std::atomic<std::uint32_t>& gate = wait.page.slots[wait.index].door.gate;
    const SharpTimer sharp;
    std::uint64_t now_ns = shared::now_ns();
    while (now_ns < wait.deadline_ns && gate.load(std::memory_order_acquire) == waiting) {
        const std::uint64_t until_ns = std::min(next_try_ns(last, now_ns), wait.deadline_ns);
        nap(gate, waiting, until_ns, promptness_of(wait, last.retry_ns, until_ns));
        if (gate.load(std::memory_order_acquire) != waiting) break;
        now_ns = shared::now_ns();
        if (!is_served(wait.link, wait.page, now_ns)) break;
        last = try_now(wait.page, wait.index, wait.cost, now_ns);
        if (last.launched) return Outcome::kLaunched;
        if (last.retry_ns != 0) last.retry_ns = std::max(last.retry_ns, now_ns + kSoonestNs);
        if (!bell.ring(wait, last, now_ns)) break;
    }
    return Outcome::kWithdrawn;
}

// Waits on the client's own want, which is posted, and takes it back.
Outcome await_grant(const Wait& wait, std::uint32_t waiting) {
    Slot& slot = wait.page.slots[wait.index];
    std::atomic<std::uint32_t>& gate = slot.door.gate;
    const std::uint32_t idle = waiting & ~shared::kGateState;
    const std::uint64_t bit = std::uint64_t{1} << wait.index;
    wait.page.control.waiting.fetch_or(bit);
    Outcome outcome = Outcome::kWithdrawn;
    // Once more, now that whoever frees something will see this wait.
    const Try first = try_now(wait.page, wait.index, wait.cost, shared::now_ns());
    if (first.launched) {
        outcome = Outcome::kLaunched;
    } else if (Bell bell; bell.ring(wait, first, wait.since_ns)) {
        stay_awake(gate, waiting, kSpinNs);
        outcome = sleep_and_retry(wait, bell, waiting, first);
    }
    if (!wait.link.is_tenant(wait.page)) return outcome;  // the door is another client's by now
    wait.page.control.waiting.fetch_and(~bit);
    std::uint32_t expected = waiting;
    if (gate.compare_exchange_strong(expected, idle)) return outcome;
    if (expected != (idle | shared::kGateGranted))
        return outcome;  // the page was replaced: the manager is gone
    // A grant after the launch has been made is void, and so is the manager's reservation for it.
    if (outcome == Outcome::kLaunched) slot.timeline.reserved.store(0, std::memory_order_release);
    gate.store(idle, std::memory_order_release);
    return outcome == Outcome::kLaunched ? outcome : Outcome::kGranted;
}

void count_wait(Slot& slot, std::uint64_t waited_ns, bool passed) {
    slot.counters.waits.fetch_add(1, std::memory_order_relaxed);
    slot.counters.waited_ns.fetch_add(waited_ns, std::memory_order_relaxed);
    std::uint64_t longest = slot.counters.longest_wait_ns.load(std::memory_order_relaxed);
    if (waited_ns > longest) slot.counters.longest_wait_ns.store(waited_ns, std::memory_order_relaxed);
    if (passed) slot.counters.passed.fetch_add(1, std::memory_order_relaxed);
}

Admission wait(Link& link, shared::Page& page, std::uint32_t index, const KernelCost& cost,
               std::uint64_t since_ns) {
    Slot& slot = page.slots[index];
    std::atomic<std::uint32_t>& gate = slot.door.gate;
    const std::uint64_t deadline_ns = since_ns + kLongestWaitNs;
    Outcome outcome = Outcome::kWithdrawn;
    for (std::uint64_t now_ns = since_ns; now_ns < deadline_ns; now_ns = shared::now_ns()) {
        std::uint32_t state = gate.load(std::memory_order_acquire);
        if ((state & shared::kGateState) != shared::kGateIdle) {  // another thread of this process waits
            shared::futex_wait(gate, state, 1'000'000);
            if (!is_served(link, page, shared::now_ns())) break;
            continue;
        }
        const std::uint32_t turn = state + (shared::kGateState + 1);
        if (!gate.compare_exchange_strong(state, turn | shared::kGatePosting)) continue;
        slot.door.want.store(shared::pack_cost(cost), std::memory_order_relaxed);
        slot.door.want_since_ns.store(since_ns, std::memory_order_relaxed);
        gate.store(turn | shared::kGateWaiting, std::memory_order_release);
        outcome = await_grant({link, page, index, cost, since_ns, deadline_ns}, turn | shared::kGateWaiting);
        if (outcome != Outcome::kGranted || grant_holds(page, index, cost, shared::now_ns())) break;
        slot.timeline.reserved.store(0, std::memory_order_release);
        outcome = Outcome::kWithdrawn;
    }
    if (!link.is_tenant(page)) return Admission::kPassThrough;
    const std::uint64_t end_ns = shared::now_ns();
    if (outcome != Outcome::kLaunched) launch_on_debt(page, slot, cost, end_ns);
    if (outcome == Outcome::kGranted) slot.timeline.reserved.store(0, std::memory_order_release);
    count_wait(slot, end_ns - since_ns, outcome == Outcome::kWithdrawn);
    return outcome == Outcome::kWithdrawn ? Admission::kPassThrough : Admission::kGranted;
}

}  // namespace

// Where the group policy holds, clients find room without the manager, so a late one does no harm; and no
// wait is longer than `kLongestWaitNs`, whatever the manager does. So a short hang-up of the manager is no
// reason to let everything pass.
constexpr std::uint64_t kLeastPatienceNs = 30'000'000, kMostPatienceNs = 40'000'000;

bool manager_alive(const shared::Control& control, std::uint64_t now_ns) noexcept {
    const std::uint64_t beat = control.heartbeat_ns.load(std::memory_order_relaxed);
    const std::uint64_t bound = std::clamp(3 * control.beat_interval_ns.load(std::memory_order_relaxed),
                                           kLeastPatienceNs, kMostPatienceNs);
    return now_ns < beat + bound;
}

Admission admit_managed(Link& link, shared::Page& page, const KernelCost& cost,
                        std::uint64_t now_ns) noexcept {
    const std::uint32_t index = link.slot.load(std::memory_order_relaxed);
    if (announces(page, index)) {
        announce(page, index, cost, now_ns);
        return Admission::kGranted;
    }
    if (try_now(page, index, cost, now_ns).launched) return Admission::kGranted;
    return wait(link, page, index, cost, now_ns);
}

void charge_managed(Link& link, shared::Page& page, const KernelCost& cost, std::uint64_t now_ns) noexcept {
    const std::uint32_t index = link.slot.load(std::memory_order_relaxed);
    if (announces(page, index)) {
        announce(page, index, cost, now_ns);
    } else {
        launch_on_debt(page, page.slots[index], cost, now_ns);
    }
}

}  // namespace explsched::gate
