#include "kernel_intercept/gate/admission.hpp"

#include <sys/prctl.h>

#include <algorithm>

#include "kernel_intercept/gate/timed_wait.hpp"
#include "kernel_intercept/gate/watchdog.hpp"
#include "kernel_intercept/shared/clock.hpp"
#include "kernel_intercept/shared/futex.hpp"

namespace explsched::gate {

namespace {

using shared::Slot;

constexpr std::uint64_t kLookAgainNs = 100'000;  // at what the GPU has done
constexpr std::uint64_t kSleepNs = 5'000'000;    // while waiting for a grant
constexpr std::uint64_t kStuckNs = 5'000'000;    // with the gate open, without an end
constexpr std::uint64_t kShortNs = 10'000;       // kernels whose shares tell little

bool needs_gate(const shared::Page& page, std::uint32_t slot) {
    return page.control.policy == shared::Policy::kGroup && !is_high(page, slot) &&
           page.control.high.load(std::memory_order_relaxed) != 0;
}

// A manager that was killed is known by its connection, long before its heartbeat is stale.
bool is_served(const Link& link, const shared::Page& page, std::uint64_t now_ns) {
    return manager_alive(page.control, now_ns) && !link.registration_lost();
}

void raise_peak(Slot& slot, const KernelCost& cost) {
    if (cost.gpu_ns < kShortNs) return;
    const std::uint64_t peak = slot.counters.peak.load(std::memory_order_relaxed);
    const shared::Load load =
        shared::larger(shared::load_of(cost), shared::load_of(shared::unpack_cost(peak)));
    const std::uint64_t after = shared::pack_cost({0, load.compute_permille, load.bandwidth_permille});
    if (after != peak) slot.counters.peak.store(after, std::memory_order_relaxed);
}

void count_wait(Slot& slot, std::uint64_t waited_ns, bool passed) {
    slot.counters.waits.fetch_add(1, std::memory_order_relaxed);
    slot.counters.waited_ns.fetch_add(waited_ns, std::memory_order_relaxed);
    std::uint64_t longest = slot.counters.longest_wait_ns.load(std::memory_order_relaxed);
    if (waited_ns > longest) slot.counters.longest_wait_ns.store(waited_ns, std::memory_order_relaxed);
    if (passed) slot.counters.passed.fetch_add(1, std::memory_order_relaxed);
}

Admission wait_for_room(Link& link, shared::Page& page, shared::Signals& signals, int stream,
                        std::uint64_t since_ns) {
    const std::uint32_t index = link.slot.load(std::memory_order_relaxed);
    CountedStream& counted = link.streams[static_cast<std::size_t>(stream)];
    const shared::ClientSignals& own = signals.clients[index];
    const std::atomic<std::uint64_t>& done = own.lines[static_cast<std::size_t>(stream)].done;
    const std::uint64_t done_ns = done.load(std::memory_order_relaxed);
    bool room = false;
    std::uint64_t now_ns = since_ns, open_ns = 0;
    const int slack_ns = prctl(PR_GET_TIMERSLACK);
    prctl(PR_SET_TIMERSLACK, 1);  // by default the kernel may end waits 50 us late
    while (!room && now_ns < since_ns + kLongestWaitNs && is_served(link, page, now_ns)) {
        timed_wait(kLookAgainNs);
        const std::uint64_t looked_ns = now_ns;
        now_ns = shared::now_ns();
        if (shared::is_open(own.gate.load(std::memory_order_relaxed))) open_ns += now_ns - looked_ns;
        room = has_room(page, signals, index, stream, counted);
    }
    prctl(PR_SET_TIMERSLACK, slack_ns);
    if (!room && stream != kUncounted && open_ns >= kStuckNs && done.load() == done_ns)
        counted.stuck_at = done_ns;
    if (link.is_tenant(page)) count_wait(page.slots[index], now_ns - since_ns, !room);
    return room ? Admission::kGranted : Admission::kPassThrough;
}

// Sleeps until the manager grants the wait that was posted as `waiting`, or credit is there without. Takes
// the wait back, and wakes another thread of this process that waits for its turn.
bool await_credit(Link& link, shared::Page& page, std::uint32_t waiting, std::uint64_t deadline_ns) {
    const std::uint32_t index = link.slot.load(std::memory_order_relaxed);
    Slot& slot = page.slots[index];
    std::atomic<std::uint32_t>& grant = slot.client.grant;
    const std::uint64_t bit = std::uint64_t{1} << index;
    page.control.waiting.fetch_or(bit);
    bool credit =
        slot.client.credit_ns.load(std::memory_order_relaxed) > 0;  // before the manager could see the wait
    if (!credit && link.notify()) {
        std::uint64_t now_ns = shared::now_ns();
        while (now_ns < deadline_ns && grant.load(std::memory_order_acquire) == waiting &&
               is_served(link, page, now_ns)) {
            shared::futex_wait(grant, waiting, std::min(kSleepNs, deadline_ns - now_ns));
            now_ns = shared::now_ns();
        }
        credit = (grant.load(std::memory_order_acquire) & shared::kGrantState) == shared::kGranted;
    }
    if (!link.is_tenant(page)) return credit;  // the slot is another client's by now
    page.control.waiting.fetch_and(~bit);
    grant.store(waiting & ~shared::kGrantState, std::memory_order_release);
    shared::futex_wake_all(grant);
    return credit;
}

Admission wait_for_credit(Link& link, shared::Page& page, std::uint64_t since_ns) {
    Slot& slot = page.slots[link.slot.load(std::memory_order_relaxed)];
    std::atomic<std::uint32_t>& grant = slot.client.grant;
    bool credit = false;
    std::uint64_t now_ns = since_ns;
    for (; now_ns < since_ns + kLongestWaitNs && is_served(link, page, now_ns) && !credit;
         now_ns = shared::now_ns()) {
        std::uint32_t state = grant.load(std::memory_order_acquire);
        if ((state & shared::kGrantState) != shared::kGrantIdle) {  // another thread of this process waits
            shared::futex_wait(grant, state, kSleepNs);
            credit = slot.client.credit_ns.load(std::memory_order_relaxed) > 0;
            continue;
        }
        const std::uint32_t waiting = state + (shared::kGrantState + 1) + shared::kGrantWaiting;
        if (!grant.compare_exchange_strong(state, waiting)) continue;
        credit = await_credit(link, page, waiting, since_ns + kLongestWaitNs);
        if (!credit) break;
    }
    if (link.is_tenant(page)) count_wait(slot, shared::now_ns() - since_ns, !credit);
    return credit ? Admission::kGranted : Admission::kPassThrough;
}

}  // namespace

constexpr std::uint64_t kLeastPatienceNs = 30'000'000, kMostPatienceNs = 40'000'000;

bool manager_alive(const shared::Control& control, std::uint64_t now_ns) noexcept {
    const std::uint64_t beat = control.heartbeat_ns.load(std::memory_order_relaxed);
    const std::uint64_t bound = std::clamp(3 * control.beat_interval_ns.load(std::memory_order_relaxed),
                                           kLeastPatienceNs, kMostPatienceNs);
    return now_ns < beat + bound;
}

bool has_room(const shared::Page& page, const shared::Signals& signals, std::uint32_t slot, int stream,
              CountedStream& counted) noexcept {
    if (!needs_gate(page, slot)) return true;
    const shared::ClientSignals& own = signals.clients[slot];
    if (stream == kUncounted) return shared::is_open(own.gate.load(std::memory_order_relaxed));
    const StreamLock lock(counted.taken);
    const std::uint64_t done_ns =
        own.lines[static_cast<std::size_t>(stream)].done.load(std::memory_order_relaxed);
    return !lock.held() || counted.is_stuck(done_ns) || counted.batches.ahead(done_ns) < kMostAhead;
}

Boundary enter(shared::Page& page, shared::Signals& signals, std::uint32_t slot, int stream,
               CountedStream& counted, const KernelCost& cost, Patience patience,
               std::uint64_t now_ns) noexcept {
    Slot& state = page.slots[slot];
    shared::Line& line = signals.clients[slot].lines[static_cast<std::size_t>(stream)];
    Boundary boundary;
    {
        const StreamLock lock(counted.taken);
        if (!lock.held()) {
            line.issued.fetch_add(cost.gpu_ns);
        } else {
            if (stream != kUncounted) {
                const bool gated = patience == Patience::kMayWait && needs_gate(page, slot);
                const bool stuck = gated && counted.is_stuck(line.done.load(std::memory_order_relaxed));
                const std::uint64_t batch_ns =
                    stuck ? UINT64_MAX : page.control.batch_ns.load(std::memory_order_relaxed);
                boundary = gated ? counted.batches.before_waiting(cost.gpu_ns, batch_ns)
                                 : counted.batches.before_reporting();
            }
            if (boundary.writes) line.told.store(boundary.done_ns, std::memory_order_relaxed);
            line.issued.store(counted.batches.launched(cost.gpu_ns), std::memory_order_seq_cst);
        }
    }
    state.counters.launches.fetch_add(1, std::memory_order_relaxed);
    raise_peak(state, cost);
    if (is_high(page, slot)) {
        if (state.client.busy.load(std::memory_order_seq_cst) == shared::kIdle)
            shared::begin_busy(page.control, signals, state, now_ns);
        shared::shut_gates_in_time(page.control, signals, state, now_ns);
    }
    return boundary;
}

bool pay(Slot& slot, const KernelCost& cost) noexcept {
    const shared::Load load = shared::load_of(cost);
    const std::uint64_t charge =
        cost.gpu_ns * std::max({load.compute_permille, load.bandwidth_permille, 1U}) / 1000;
    const bool credit = slot.client.credit_ns.load(std::memory_order_relaxed) > 0;
    slot.client.credit_ns.fetch_sub(static_cast<std::int64_t>(charge), std::memory_order_relaxed);
    slot.counters.charged_ns.fetch_add(charge, std::memory_order_relaxed);
    return credit;
}

Decision admit_managed(Link& link, shared::Page& page, int stream, const KernelCost& cost, Patience patience,
                       std::uint64_t now_ns) noexcept {
    shared::Signals* signals = link.signals.load(std::memory_order_acquire);
    if (signals == nullptr) return {};  // another thread has found the manager gone
    const std::uint32_t index = link.slot.load(std::memory_order_relaxed);
    Slot& slot = page.slots[index];
    Decision decision{Admission::kGranted, {}};
    const bool may_wait = patience == Patience::kMayWait;
    // Where nobody would open the gate of what waits on the GPU, launches wait on the host.
    if (may_wait && needs_gate(page, index) && !start_watchdog()) stream = kUncounted;
    CountedStream& counted = link.streams[static_cast<std::size_t>(stream)];
    if (page.control.policy == shared::Policy::kQuota) {
        if (may_wait && slot.client.credit_ns.load(std::memory_order_relaxed) <= 0)
            decision.admission = wait_for_credit(link, page, now_ns);
        if (!link.is_tenant(page)) return {};
        pay(slot, cost);  // a debt where the wait has reached its bound
    } else if (may_wait && !has_room(page, *signals, index, stream, counted)) {
        decision.admission = wait_for_room(link, page, *signals, stream, now_ns);
        if (!link.is_tenant(page)) return {};
    }
    decision.boundary = enter(page, *signals, index, stream, counted, cost, patience, now_ns);
    return decision;
}

}  // namespace explsched::gate
