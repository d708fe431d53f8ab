// Policy `quota` on one GPU: who is granted what is decided by credit, which is handed out here.
#include <algorithm>
#include <utility>
#include <vector>

#include "kernel_intercept/manager/gpu.hpp"
#include "kernel_intercept/shared/clock.hpp"
#include "kernel_intercept/shared/futex.hpp"

namespace explsched::manager {

namespace {

// Policy `quota`: when the GPU is expected to have been idle for kIdleNs, kEarlyNs of credit are handed out
// early; with more than kHighNs to run, less is handed out than time has passed. The pause keeps the gap
// between two steps of one client from being filled by another, which would slow the next step down.
constexpr std::uint64_t kIdleNs = 100'000;
constexpr std::int64_t kEarlyNs = 300'000;
constexpr std::uint64_t kHighNs = 5'000'000;

bool is_waiting(std::uint32_t grant) { return (grant & shared::kGrantState) == shared::kGrantWaiting; }

}  // namespace

bool Gpu::grant_paid() {
    bool unpaid = false;
    each_bit(page_->control.occupied.load(), [&](std::uint32_t slot) {
        shared::ClientState& client = page_->slots[slot].client;
        std::uint32_t grant = client.grant.load(std::memory_order_acquire);
        if (!is_waiting(grant)) return;
        if (client.credit_ns.load(std::memory_order_relaxed) <= 0) {
            unpaid = true;
            return;
        }
        client.granted_ns.store(shared::now_ns(), std::memory_order_relaxed);
        if (client.grant.compare_exchange_strong(grant, (grant & ~shared::kGrantState) | shared::kGranted))
            shared::futex_wake_all(client.grant);
    });
    return unpaid;
}

std::uint64_t Gpu::serve_quota(std::uint64_t now_ns) {
    if (!grant_paid()) return 0;
    const std::uint64_t until_ns = busy_until_ns(now_ns);
    if (until_ns + kIdleNs > now_ns) return until_ns + kIdleNs;
    const bool advanced = change_credit([&](std::vector<policy::Member> members) {
        return policy::advance(std::move(members), kEarlyNs, best_effort_permille());
    });
    // Who is at its limit waits for a refill.
    return advanced && grant_paid() ? now_ns + kIdleNs : 0;
}

std::uint32_t Gpu::best_effort_permille() const {
    std::uint32_t least = 1000;
    for (const Client& client : clients_) least = std::min(least, client.pressure.best_effort_permille());
    return least;
}

void Gpu::feel_pressure(std::uint64_t now_ns) {
    const bool others = working(page_->control.occupied.load() & ~page_->control.high.load()) != 0;
    for (std::uint32_t slot = 0; slot < shared::kSlots; ++slot) {
        Client& client = clients_[slot];
        if (!client.tenant || client.tenant->priority != shared::Class::kHigh) continue;
        const shared::Slot& state = page_->slots[slot];
        const bool busy = state.client.busy.load(std::memory_order_relaxed) != shared::kIdle;
        const std::uint64_t busy_time = state.counters.busy_time.load(std::memory_order_relaxed);
        const shared::BusyTime ended = shared::unpack_busy(busy_time - client.busy_time);
        client.busy_time = busy_time;
        client.pressure.look({ended.wall_ns, ended.work_ns, busy, client.launched(), others}, now_ns);
    }
}

void Gpu::refill(std::uint64_t now_ns) {
    const std::uint64_t until_ns = busy_until_ns(now_ns);
    feel_pressure(now_ns);
    settle_silent(page_->control.occupied.load(), now_ns);
    // What passed while all stood still, or launched uncharged, is nobody's to save.
    const std::uint64_t elapsed_ns = std::min(now_ns - last_refill_ns_, kStoodStillNs);
    const std::uint64_t ahead_ns = until_ns > now_ns + kHighNs ? until_ns - now_ns - kHighNs : 0;
    const std::uint64_t handed_out_ns = elapsed_ns - std::min(elapsed_ns, ahead_ns);
    change_credit([&](std::vector<policy::Member> members) {
        return policy::refill(std::move(members), elapsed_ns, handed_out_ns, best_effort_permille());
    });
    last_refill_ns_ = now_ns;
    for (Client& client : clients_) client.refilled_ns = client.charged_ns;
}

// Until when the GPU is busy with what has been charged: by what it says that it has done, where it does, and
// no longer than predicted twice over, since the end of the last launches may not be told. Else as predicted,
// and with no more than was launched since each client last said that all is done.
std::uint64_t Gpu::busy_until_ns(std::uint64_t now_ns) {
    std::uint64_t outstanding_ns = 0;
    bool reported = true;
    each_bit(page_->control.occupied.load(), [&](std::uint32_t slot) {
        const shared::Slot& state = page_->slots[slot];
        std::uint64_t& seen_ns = clients_[slot].charged_ns;
        const std::uint64_t charged_ns = state.counters.charged_ns.load(std::memory_order_relaxed);
        if (charged_ns != seen_ns)
            predicted_until_ns_ = std::max(predicted_until_ns_, now_ns) + (charged_ns - seen_ns);
        seen_ns = charged_ns;
        const shared::Progress work = progress(slot);
        const double charge =
            work.issued_ns == 0 ? 0 : static_cast<double>(charged_ns) / static_cast<double>(work.issued_ns);
        outstanding_ns +=
            static_cast<std::uint64_t>(static_cast<double>(work.outstanding_ns()) * std::min(charge, 1.0));
        reported = reported && state.client.reports.load(std::memory_order_relaxed) != 0;
    });
    const std::uint64_t until_ns = now_ns + outstanding_ns;
    if (!reported) return predicted_until_ns_ = std::min(predicted_until_ns_, until_ns);
    return predicted_until_ns_ + 2 * outstanding_ns < now_ns ? predicted_until_ns_ : until_ns;
}

bool Gpu::change_credit(const std::function<std::vector<policy::Member>(std::vector<policy::Member>)>& rule) {
    std::vector<policy::Member> members;
    std::vector<std::uint32_t> slots;
    each_bit(page_->control.occupied.load(), [&](std::uint32_t slot) {
        const Client& client = clients_[slot];
        const shared::Slot& state = page_->slots[slot];
        if (!client.tenant) return;  // a client can write anything to the page
        const std::int64_t credit_ns = std::clamp(state.client.credit_ns.load(std::memory_order_relaxed),
                                                  -2 * policy::kDebtNs, 2 * policy::kDebtNs);
        members.push_back({client.tenant->request_permille, client.tenant->limit_permille,
                           client.tenant->priority == shared::Class::kHigh,
                           is_waiting(state.client.grant.load()), client.launched(), credit_ns,
                           client.room_ns});
        slots.push_back(slot);
    });
    const std::vector<policy::Member> after = rule(members);
    bool changed = false;
    for (std::size_t i = 0; i < slots.size(); ++i) {
        changed = changed || after[i].credit_ns != members[i].credit_ns;
        // Added, not stored: the client spends at the same time.
        page_->slots[slots[i]].client.credit_ns.fetch_add(after[i].credit_ns - members[i].credit_ns,
                                                          std::memory_order_relaxed);
        clients_[slots[i]].room_ns = after[i].room_ns;
    }
    return changed;
}

}  // namespace explsched::manager
