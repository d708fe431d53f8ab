// Policy `group` on one GPU: best-effort gates are shut by high-priority clients when they begin, and opened
// here when the GPU has done all they have launched.
#include <algorithm>
#include <utility>

#include "kernel_intercept/manager/gpu.hpp"

namespace explsched::manager {

namespace {

// After its work is done a client counts as busy for this long: many requests are chains of short parts.
constexpr std::uint64_t kGraceNs = 20'000;
// While a client is busy, its progress is looked at after half of what it is predicted to need still.
constexpr std::uint64_t kSoonestNs = 30'000, kLatestNs = 200'000;
// What nothing will tell the end of is taken to be done when it has had twice as long as predicted, and this.
constexpr std::uint64_t kUnreportedNs = 200'000, kSilentNs = 50'000'000;  // best-effort: may only be slow
// Clients that were idle for long are looked at less often.
constexpr std::uint64_t kLongIdleNs = 100'000'000, kSeldomNs = 1'000'000;

constexpr std::uint64_t kLeastBatchNs = 25'000, kMostBatchNs = 1'000'000, kFirstBatchNs = 100'000;
constexpr std::uint64_t kBatchesOn = 3;  // of what runs on, a batch is this part
constexpr std::uint64_t kLeastAllowanceNs = 100'000;
constexpr std::uint64_t kPeakMemoryNs = 1'000'000'000;

// More open at the same time make each other, and whoever comes, slow; so the others wait for their turn.
constexpr int kMostOpen = 2;
constexpr std::uint64_t kTurnNs = 5'000'000;

// Of a client that has told all that it will: how long ago its work has had twice the time for the rest.
std::uint64_t overdue_ns(BusyPeriod& period, const shared::Progress& progress, std::uint64_t now_ns) {
    const std::uint64_t seen_ns = progress.issued_ns + progress.done_ns;
    if (std::exchange(period.seen_ns, seen_ns) != seen_ns) period.changed_at_ns = now_ns;
    const std::uint64_t due_ns = period.changed_at_ns + 2 * progress.outstanding_ns();
    return progress.idle() || progress.pending() || now_ns < due_ns ? 0 : now_ns - due_ns;
}

}  // namespace

// Whether the busy period of a high-priority client is over. If not, when to look again.
std::uint64_t Gpu::look_at_busy(std::uint32_t slot, std::uint64_t now_ns) {
    shared::Slot& state = page_->slots[slot];
    shared::ClientSignals& signals = signals_->clients[slot];
    BusyPeriod& period = clients_[slot].period;
    const shared::Progress progress = shared::progress_of(signals);
    const bool silent = overdue_ns(period, progress, now_ns) > kUnreportedNs;
    if (!progress.idle() && !silent) {
        period.idle_since_ns = 0;
        const std::uint64_t ends_ns = period.changed_at_ns + progress.outstanding_ns();
        return now_ns + std::clamp(ends_ns > now_ns ? (ends_ns - now_ns) / 2 : 0, kSoonestNs, kLatestNs);
    }
    if (period.idle_since_ns == 0) period.idle_since_ns = now_ns;
    if (now_ns < period.idle_since_ns + kGraceNs) return period.idle_since_ns + kGraceNs;
    state.client.busy.store(shared::kIdle, std::memory_order_seq_cst);
    if (shared::progress_of(signals).issued_ns !=
        progress.issued_ns) {  // it may have launched before it could see this
        state.client.busy.store(shared::kBegun, std::memory_order_seq_cst);
        period.idle_since_ns = 0;
        return now_ns + kSoonestNs;
    }
    if (silent) shared::settle(signals);
    end_period(slot, progress.issued_ns);
    return 0;
}

void Gpu::end_period(std::uint32_t slot, std::uint64_t issued_ns) {
    BusyPeriod& period = clients_[slot].period;
    const std::uint64_t since_ns = page_->slots[slot].counters.busy_since_ns.load(std::memory_order_relaxed);
    const std::uint64_t work_ns = issued_ns - period.began_at_issued_ns;
    period.began_at_issued_ns = issued_ns;
    period.ended_ns = period.idle_since_ns;
    period.latency_ns =
        period.latency_ns == 0 ? work_ns : period.latency_ns - period.latency_ns / 8 + work_ns / 8;
    const shared::Control& control = page_->control;
    const std::uint32_t kept = control.kept.load(std::memory_order_relaxed);
    if (period.idle_since_ns > since_ns && since_ns > stood_still_until_ns_) {
        // An idle client does no harm, which tells nothing of its work.
        beside_.ended({working(control.beside.load()),
                       working(kept < shared::kSlots ? std::uint64_t{1} << kept : 0),
                       control.allowance_ns.load(), period.idle_since_ns - since_ns, work_ns});
    }
    period.idle_since_ns = 0;
    const std::uint64_t low = page_->control.occupied.load() & ~page_->control.high.load();
    page_->control.beside.store(beside_.next(low, expected_beside(low)));
}

// Of the best-effort clients those whose largest kernels fit beside the largest ones of high-priority
// clients.
std::uint64_t Gpu::expected_beside(std::uint64_t low) {
    const auto peak = [this](std::uint32_t slot) {
        const std::uint64_t word = page_->slots[slot].counters.peak.load();
        return shared::larger(shared::load_of(shared::unpack_cost(word)), clients_[slot].peak);
    };
    shared::Load high;
    each_bit(page_->control.high.load(), [&](std::uint32_t slot) { high = high + peak(slot); });
    std::uint64_t fitting = 0;
    each_bit(low, [&](std::uint32_t slot) {
        const shared::Load sum = high + peak(slot);
        const bool known = !high.none() && !peak(slot).none();
        if (known && sum.compute_permille <= settings_.cap_compute_permille &&
            sum.bandwidth_permille <= settings_.cap_bandwidth_permille) {
            fitting |= std::uint64_t{1} << slot;
        }
    });
    return fitting;
}

void Gpu::forget_old_peaks(std::uint64_t now_ns) {
    if (now_ns < peaks_from_ns_ + kPeakMemoryNs) return;
    peaks_from_ns_ = now_ns;
    each_bit(page_->control.occupied.load(), [&](std::uint32_t slot) {
        const std::uint64_t word = page_->slots[slot].counters.peak.exchange(0);
        clients_[slot].peak = shared::load_of(shared::unpack_cost(word));
    });
}

// How long best-effort work may run on when a high-priority client begins, so that its usual latency grows by
// no more than the share it was promised: of one client, the one that harms least, for a time in which its
// gate is still open; then, and of others, to the end of a batch.
void Gpu::set_batch(std::uint64_t open, bool allowed) {
    std::uint64_t latency_ns = UINT64_MAX;
    each_bit(page_->control.high.load(), [&](std::uint32_t slot) {
        if (clients_[slot].period.latency_ns != 0)
            latency_ns = std::min(latency_ns, clients_[slot].period.latency_ns);
    });
    std::uint32_t kept = shared::kSlots;
    each_bit(open, [&](std::uint32_t slot) {
        if (kept == shared::kSlots || beside_.loss(slot) < beside_.loss(kept)) kept = slot;
        // Work that waits on the host has gone ahead already.
        allowed = allowed && page_->slots[slot].client.reports.load(std::memory_order_relaxed) != 0;
    });
    std::uint64_t runs_on_ns = kFirstBatchNs;
    if (latency_ns != UINT64_MAX && kept < shared::kSlots)
        runs_on_ns = static_cast<std::uint64_t>(static_cast<double>(latency_ns) *
                                                settings_.high_share_permille / 1000 / beside_.loss(kept));
    // Those that are not kept end their batches at the same time, and slow each other down, too.
    const auto count = static_cast<std::uint64_t>(std::max(__builtin_popcountll(open), 1));
    runs_on_ns /= count;
    const bool keeps = allowed && runs_on_ns >= kLeastAllowanceNs;
    const std::uint64_t batch_ns =
        std::clamp(runs_on_ns / (keeps ? kBatchesOn : 1) / count, kLeastBatchNs, kMostBatchNs);
    const bool keeps_now = keeps && !beside_.measures_alone() && beside_.keeps(kept);
    // What its own batch takes after the allowance, and what the manager is late, is in the loss that was
    // measured.
    const std::uint64_t others_ns = std::min((count - 1) * batch_ns, runs_on_ns);
    page_->control.batch_ns.store(batch_ns, std::memory_order_relaxed);
    page_->control.allowance_ns.store(keeps_now ? runs_on_ns - others_ns : 0, std::memory_order_relaxed);
    page_->control.kept.store(keeps_now ? kept : shared::kSlots, std::memory_order_relaxed);
}

// Who is stopped, or waits for its user, tells no end of its last launches. A shut gate gives them no time.
void Gpu::settle_silent(std::uint64_t clients, std::uint64_t now_ns) {
    each_bit(clients, [&](std::uint32_t slot) {
        BusyPeriod& period = clients_[slot].period;
        shared::ClientSignals& signals = signals_->clients[slot];
        if (!shared::is_open(signals.gate.load())) period.changed_at_ns += now_ns - looked_ns_;
        if (overdue_ns(period, progress(slot), now_ns) > kSilentNs) shared::settle(signals);
    });
    looked_ns_ = now_ns;
}

// Those that have work on the GPU or before a gate or, under `quota`, launched since the last refill.
std::uint64_t Gpu::working(std::uint64_t clients) const {
    std::uint64_t found = 0;
    each_bit(clients, [&](std::uint32_t slot) {
        found |= std::uint64_t{!progress(slot).idle() || clients_[slot].launched()} << slot;
    });
    return found;
}

// Those of the rivals whose turn it is; if the next one's comes, `next_ns` says when.
std::uint64_t Gpu::choose_open(std::uint64_t rivals, std::uint64_t now_ns, std::uint64_t& next_ns) {
    if (__builtin_popcountll(rivals) <= kMostOpen) return rivals;
    if (now_ns >= turn_ends_ns_) {
        turn_ends_ns_ = now_ns + kTurnNs;
        do {
            first_open_ = (first_open_ + 1) % shared::kSlots;
        } while ((rivals >> first_open_ & 1) == 0);
    }
    next_ns = turn_ends_ns_;
    std::uint64_t chosen = 0;
    for (std::uint32_t i = 0; __builtin_popcountll(chosen) < kMostOpen; ++i)
        chosen |= rivals & std::uint64_t{1} << (first_open_ + i) % shared::kSlots;
    return chosen;
}

// Returns when to look again, 0 for no such time.
std::uint64_t Gpu::serve_group(std::uint64_t now_ns) {
    const shared::Control& control = page_->control;
    const std::uint64_t high = control.high.load(), low = control.occupied.load() & ~high;
    std::array<std::uint32_t, shared::kSlots> seen{};
    each_bit(low, [&](std::uint32_t slot) {
        seen[slot] = signals_->clients[slot].gate.load(std::memory_order_seq_cst);
    });
    const auto open = [&](std::uint32_t slot) {
        shared::open_gate(signals_->clients[slot].gate, seen[slot]);
    };
    forget_old_peaks(now_ns);
    std::uint64_t next_ns = UINT64_MAX, last_end_ns = 0;
    bool busy = false, shut = false;
    each_bit(high, [&](std::uint32_t slot) {
        if (page_->slots[slot].client.busy.load(std::memory_order_seq_cst) != 0) {
            const std::uint64_t again_ns = look_at_busy(slot, now_ns);
            busy = busy || again_ns != 0;
            if (again_ns != 0) next_ns = std::min(next_ns, again_ns);
            shared::Slot& state = page_->slots[slot];
            shared::shut_gates_in_time(control, *signals_, state, now_ns);
            shut = shut || state.client.busy.load() == shared::kGatesShut;
            if (state.client.busy.load() == shared::kBegun)
                next_ns =
                    std::min(next_ns, state.counters.busy_since_ns.load() + control.allowance_ns.load());
        }
        last_end_ns = std::max(last_end_ns, clients_[slot].period.ended_ns);
    });
    if (high == 0) each_bit(low, open);
    if (low == 0 || high == 0) return 0;
    each_bit(low & ~control.beside.load(), [&](std::uint32_t slot) {
        // Its watchdog has opened it, since it was shut for long: that is for a while.
        if (!shut || !shared::is_open(seen[slot])) {
            clients_[slot].open_since_ns = 0;
        } else if (clients_[slot].open_since_ns == 0) {
            clients_[slot].open_since_ns = now_ns;
        } else if (now_ns >= clients_[slot].open_since_ns + shared::kForcedOpenNs) {
            shared::close_gate(signals_->clients[slot].gate);
        }
    });
    if (busy) return next_ns;
    settle_silent(low, now_ns);
    // Who has nothing to do takes no turn from others.
    const std::uint64_t rivals = __builtin_popcountll(low) <= kMostOpen ? low : working(low);
    const std::uint64_t chosen = choose_open(rivals, now_ns, next_ns), others = rivals & ~chosen;
    const bool long_idle = now_ns >= last_end_ns + kLongIdleNs;
    set_batch(chosen == 0 ? low : chosen, !long_idle);
    each_bit(low & ~others, open);
    each_bit(others, [&](std::uint32_t slot) {
        if (shared::is_open(seen[slot])) shared::close_gate(signals_->clients[slot].gate);
    });
    const std::uint64_t allowance_ns = control.allowance_ns.load(std::memory_order_relaxed);
    return std::min(next_ns, now_ns + (long_idle           ? kSeldomNs
                                       : allowance_ns == 0 ? kLatestNs
                                                           : std::min(allowance_ns, kLatestNs)));
}

}  // namespace explsched::manager
