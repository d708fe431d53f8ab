#include "kernel_intercept/gate/admission.hpp"

#include <sys/prctl.h>

#include <algorithm>

#include "kernel_intercept/gate/launch.hpp"
#include "kernel_intercept/shared/clock.hpp"
#include "kernel_intercept/shared/futex.hpp"
#include "kernel_intercept/shared/spin_pause.hpp"

namespace explsched::gate {

namespace {

using shared::Slot;

constexpr std::uint64_t kSpinNs = 2'000;
constexpr std::uint64_t kNapNs = 5'000'000;
constexpr std::uint64_t kSoonestNs = 20'000;  // between two tries

// A core that has gone idle takes its time to wake up, tens of microseconds where it is a virtual one. So a
// wait whose end is known ends awake: this long before each try, and no longer in all of one wait. Unless the
// core was taken away meanwhile: then others need it, and for a while nobody stays awake.
constexpr std::uint64_t kAwakeNs = 60'000;
constexpr std::uint64_t kAwakeInAllNs = 200'000;
constexpr std::uint64_t kTakenAwayNs = 30'000;
constexpr std::uint64_t kCrowdedNs = 10'000'000;
std::atomic<std::uint64_t> crowded_until_ns{0};

// Lets timed waits of this thread end in time: by default the kernel may end them 50 us late.
class SharpTimer {
   public:
    SharpTimer() : slack_ns_(prctl(PR_GET_TIMERSLACK)) { prctl(PR_SET_TIMERSLACK, 1); }
    ~SharpTimer() { prctl(PR_SET_TIMERSLACK, slack_ns_); }
    SharpTimer(const SharpTimer&) = delete;
    SharpTimer& operator=(const SharpTimer&) = delete;

   private:
    int slack_ns_;
};

enum class Outcome : std::uint8_t { kGranted, kWithdrawn, kLaunched };

struct Wait {
    Link& link;
    shared::Page& page;
    std::uint32_t index;
    const KernelCost& cost;
    std::uint64_t since_ns;
    std::uint64_t deadline_ns;
};

// Tells the manager of a launch that waits, unless the launch can do without: nobody else waits, it knows
// itself when there will be room, and it has not waited for long. False if the manager is gone.
bool call_manager(const Wait& wait, std::uint64_t retry_ns, std::uint64_t now_ns) {
    const std::uint64_t others = wait.page.control.waiting.load() & ~(std::uint64_t{1} << wait.index);
    if (others == 0 && retry_ns != 0 && now_ns - wait.since_ns < shared::kAgedNs) return true;
    return wait.link.ring();
}

// Awake until the gate changes or it is `until_ns`.
void spin(const std::atomic<std::uint32_t>& gate, std::uint32_t waiting, std::uint64_t until_ns) {
    std::uint64_t before_ns = shared::now_ns();
    while (gate.load(std::memory_order_acquire) == waiting && before_ns < until_ns) {
        shared::spin_pause();
        const std::uint64_t now_ns = shared::now_ns();
        if (now_ns - before_ns > kTakenAwayNs)
            crowded_until_ns.store(now_ns + kCrowdedNs, std::memory_order_relaxed);
        before_ns = now_ns;
    }
}

// Waits until the gate changes or it is `until_ns`, the last `awake_ns` of it awake.
void nap(std::atomic<std::uint32_t>& gate, std::uint32_t waiting, std::uint64_t now_ns,
         std::uint64_t until_ns, std::uint64_t awake_ns) {
    if (until_ns - now_ns > awake_ns) shared::futex_wait(gate, waiting, until_ns - now_ns - awake_ns);
    if (awake_ns != 0 && shared::now_ns() + awake_ns >= until_ns) spin(gate, waiting, until_ns);
}

// Sleeps until granted, or tries again itself when it may fit.
Outcome sleep_and_retry(const Wait& wait, std::uint32_t waiting, std::uint64_t retry_ns) {
    std::atomic<std::uint32_t>& gate = wait.page.slots[wait.index].door.gate;
    const SharpTimer sharp;
    std::uint64_t now_ns = shared::now_ns();
    std::uint64_t awake_left_ns = kAwakeInAllNs;
    while (now_ns < wait.deadline_ns && gate.load(std::memory_order_acquire) == waiting) {
        const std::uint64_t nap_ns = retry_ns > now_ns ? std::min(kNapNs, retry_ns - now_ns) : kNapNs;
        const std::uint64_t until_ns = std::min(now_ns + nap_ns, wait.deadline_ns);
        const bool known = until_ns == retry_ns && now_ns >= crowded_until_ns.load(std::memory_order_relaxed);
        const std::uint64_t awake_ns = known ? std::min({kAwakeNs, awake_left_ns, nap_ns}) : 0;
        awake_left_ns -= awake_ns;
        nap(gate, waiting, now_ns, until_ns, awake_ns);
        if (gate.load(std::memory_order_acquire) != waiting) break;
        now_ns = shared::now_ns();
        if (!manager_alive(wait.page.control, now_ns)) break;
        const Try again = try_now(wait.page, wait.index, wait.cost, now_ns);
        if (again.launched) return Outcome::kLaunched;
        retry_ns = std::max(again.retry_ns, again.retry_ns == 0 ? 0 : now_ns + kSoonestNs);
        if (!call_manager(wait, retry_ns, now_ns)) break;
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
    } else if (call_manager(wait, first.retry_ns, wait.since_ns)) {
        spin(gate, waiting, shared::now_ns() + kSpinNs);
        outcome = sleep_and_retry(wait, waiting, first.retry_ns);
    }
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
            if (!manager_alive(page.control, shared::now_ns())) break;
            continue;
        }
        const std::uint32_t turn = state + (shared::kGateState + 1);
        if (!gate.compare_exchange_strong(state, turn | shared::kGatePosting)) continue;
        slot.door.want.store(shared::pack_cost(cost), std::memory_order_relaxed);
        slot.door.want_since_ns.store(since_ns, std::memory_order_relaxed);
        gate.store(turn | shared::kGateWaiting, std::memory_order_release);
        outcome = await_grant({link, page, index, cost, since_ns, deadline_ns}, turn | shared::kGateWaiting);
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
