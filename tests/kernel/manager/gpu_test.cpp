// One GPU of a manager, without processes and without a clock: who comes gets nothing of who was there
// before, and what a client writes into its page holds up nobody.

#include "kernel_intercept/manager/gpu.hpp"

#include <algorithm>
#include <vector>

#include "tests/kernel/gate/check.hpp"

using namespace explsched;
using manager::CoRun;
using manager::Gpu;
using manager::Tenant;
using shared::Class;
using shared::Policy;

namespace {

constexpr std::uint64_t kMs = 1'000'000, kNow = 1'000'000 * kMs, kBeat = 5 * kMs;

manager::Settings settings(Policy policy) {
    manager::Settings made;
    made.policy = policy;
    return made;
}

Tenant tenant(Class priority, std::uint32_t request = 500, std::uint32_t limit = 1000) {
    return {1, "7", priority, request, limit};
}

shared::Slot& slot_of(Gpu& gpu, std::uint32_t slot) { return gpu.page().slots[slot]; }

shared::Line& line_of(Gpu& gpu, std::uint32_t slot) { return gpu.signals().clients[slot].lines[0]; }

void launch(Gpu& gpu, std::uint32_t slot, std::uint64_t gpu_ns) {
    line_of(gpu, slot).issued += gpu_ns;
    slot_of(gpu, slot).counters.launches += 1;
    slot_of(gpu, slot).counters.charged_ns += gpu_ns;
    slot_of(gpu, slot).client.credit_ns -= static_cast<std::int64_t>(gpu_ns);
}

void finish(Gpu& gpu, std::uint32_t slot) { shared::settle(gpu.signals().clients[slot]); }

// A high-priority client has done all of some work.
void drain(Gpu& gpu, std::uint32_t slot, std::uint64_t wall_ns, std::uint64_t work_ns) {
    launch(gpu, slot, work_ns);
    shared::Slot& state = slot_of(gpu, slot);
    state.counters.busy_time += shared::pack_busy({wall_ns, work_ns});
    state.client.busy = shared::kIdle;
    finish(gpu, slot);
}

// As a client does with its first launch after it was idle.
void begin(Gpu& gpu, std::uint32_t slot, std::uint64_t gpu_ns, std::uint64_t now_ns) {
    launch(gpu, slot, gpu_ns);
    slot_of(gpu, slot).counters.busy_since_ns = now_ns;
    slot_of(gpu, slot).client.busy = shared::kGatesShut;
    const std::uint64_t kept = gpu.page().control.high | gpu.page().control.beside;
    for (std::uint32_t other = 0; other < shared::kSlots; ++other) {
        if ((gpu.page().control.occupied & ~kept) >> other & 1)
            shared::close_gate(gpu.signals().clients[other].gate);
    }
}

bool open(Gpu& gpu, std::uint32_t slot) { return shared::is_open(gpu.signals().clients[slot].gate); }

void who_leaves_leaves_no_trace() {
    Gpu gpu(settings(Policy::kGroup), {});
    const std::uint32_t slot = *gpu.join(tenant(Class::kHigh), kNow);
    shared::Control& control = gpu.page().control;
    launch(gpu, slot, kMs);
    control.waiting = std::uint64_t{1} << slot;
    control.beside = std::uint64_t{1} << slot;
    CHECK(control.occupied == 1 && control.high == 1 && !gpu.empty());
    gpu.leave(slot);
    CHECK(control.occupied == 0 && control.high == 0 && control.waiting == 0 && control.beside == 0);
    CHECK(gpu.empty() && !gpu.tenant(slot) && slot_of(gpu, slot).counters.charged_ns == 0);
    // What the GPU still writes for it meets nobody soon.
    for (std::uint32_t next = 1; next < shared::kSlots; ++next) {
        CHECK(*gpu.join(tenant(Class::kBestEffort), kNow) == (slot + next) % shared::kSlots);
    }
    CHECK(*gpu.join(tenant(Class::kBestEffort), kNow) == slot && control.high == 0 &&
          gpu.progress(slot).idle());
    CHECK(!gpu.join(tenant(Class::kBestEffort), kNow));
}

void gates_open_when_the_gpu_has_done_what_was_launched() {
    Gpu gpu(settings(Policy::kGroup), {});
    const std::uint32_t high = *gpu.join(tenant(Class::kHigh), kNow);
    const std::uint32_t low = *gpu.join(tenant(Class::kBestEffort), kNow);
    gpu.serve(kNow);
    CHECK(open(gpu, low));
    begin(gpu, high, kMs, kNow);
    CHECK(!open(gpu, low));
    // It may take longer than was predicted.
    std::uint64_t now_ns = kNow;
    for (; now_ns < kNow + 2 * kMs; now_ns += kMs / 10) {
        const std::uint64_t again_ns = gpu.serve(now_ns);
        CHECK(!open(gpu, low) && again_ns > now_ns && again_ns <= now_ns + kMs / 5);
    }
    finish(gpu, high);
    const std::uint64_t again_ns = gpu.serve(now_ns);
    CHECK(!open(gpu, low) && again_ns <= now_ns + kMs / 10);  // there may be more to come
    gpu.serve(again_ns);
    CHECK(open(gpu, low) && slot_of(gpu, high).client.busy == 0 && gpu.latency_ns(high) == kMs);
}

// A prediction may be wrong by any factor; what the GPU is going to tell is waited for.
void what_will_be_reported_is_not_predicted() {
    Gpu gpu(settings(Policy::kGroup), {});
    const std::uint32_t high = *gpu.join(tenant(Class::kHigh), kNow);
    const std::uint32_t low = *gpu.join(tenant(Class::kBestEffort), kNow);
    begin(gpu, high, kMs, kNow);
    line_of(gpu, high).told = kMs;
    for (std::uint64_t now_ns = kNow; now_ns < kNow + 100 * kMs; now_ns += kMs / 10) gpu.serve(now_ns);
    CHECK(!open(gpu, low));
    line_of(gpu, high).done = kMs;
    gpu.serve(gpu.serve(kNow + 100 * kMs));
    CHECK(open(gpu, low));
}

void what_nobody_reports_is_predicted() {
    Gpu gpu(settings(Policy::kGroup), {});
    const std::uint32_t high = *gpu.join(tenant(Class::kHigh), kNow);
    const std::uint32_t low = *gpu.join(tenant(Class::kBestEffort), kNow);
    begin(gpu, high, kMs, kNow);
    std::uint64_t now_ns = kNow;
    while (!open(gpu, low) && now_ns < kNow + 100 * kMs) {
        now_ns += kMs / 10;
        gpu.serve(now_ns);
    }
    CHECK(now_ns > kNow + 2 * kMs && now_ns < kNow + 3 * kMs);
    CHECK(gpu.progress(high).idle());  // and counts no more
}

void a_launch_in_the_last_moment_keeps_the_gates_shut() {
    Gpu gpu(settings(Policy::kGroup), {});
    const std::uint32_t high = *gpu.join(tenant(Class::kHigh), kNow);
    const std::uint32_t low = *gpu.join(tenant(Class::kBestEffort), kNow);
    begin(gpu, high, kMs, kNow);
    finish(gpu, high);
    std::uint64_t again_ns = gpu.serve(kNow + kMs);
    launch(gpu, high, kMs);
    gpu.serve(again_ns);
    CHECK(!open(gpu, low) && slot_of(gpu, high).client.busy != shared::kIdle);
}

void who_dies_keeps_nothing_shut() {
    Gpu gpu(settings(Policy::kGroup), {});
    const std::uint32_t high = *gpu.join(tenant(Class::kHigh), kNow);
    const std::uint32_t low = *gpu.join(tenant(Class::kBestEffort), kNow);
    const std::uint32_t other = *gpu.join(tenant(Class::kBestEffort), kNow);
    begin(gpu, high, 3'600'000 * kMs, kNow);
    gpu.serve(kNow + kMs);
    CHECK(!open(gpu, low) && !open(gpu, other));
    gpu.leave(low);  // its work may wait on the GPU still
    CHECK(open(gpu, low));
    gpu.leave(high);
    gpu.serve(kNow + 2 * kMs);
    CHECK(open(gpu, other));
}

void of_many_only_a_few_run_at_the_same_time() {
    Gpu gpu(settings(Policy::kGroup), {});
    gpu.join(tenant(Class::kHigh), kNow);
    std::vector<std::uint32_t> low;
    for (int i = 0; i < 5; ++i) low.push_back(*gpu.join(tenant(Class::kBestEffort), kNow));
    for (const std::uint32_t slot : low) launch(gpu, slot, 1000 * kMs);
    std::vector<int> turns(low.size(), 0);
    for (std::uint64_t now_ns = kNow; now_ns < kNow + 100 * kMs; now_ns += kMs) {
        gpu.serve(now_ns);
        int together = 0;
        for (std::size_t i = 0; i < low.size(); ++i) {
            turns[i] += open(gpu, low[i]);
            together += open(gpu, low[i]);
        }
        CHECK(together == 2);
    }
    for (const int turn : turns) CHECK(turn >= 30 && turn <= 50);
}

// A notebook, a training that reads its data.
void who_has_nothing_to_do_takes_no_turn() {
    Gpu gpu(settings(Policy::kGroup), {});
    gpu.join(tenant(Class::kHigh), kNow);
    std::vector<std::uint32_t> low;
    for (int i = 0; i < 5; ++i) low.push_back(*gpu.join(tenant(Class::kBestEffort), kNow));
    launch(gpu, low[3], 1000 * kMs);
    for (std::uint64_t now_ns = kNow; now_ns < kNow + 100 * kMs; now_ns += kMs) {
        gpu.serve(now_ns);
        for (const std::uint32_t slot : low) CHECK(open(gpu, slot));
    }
    for (const std::uint32_t slot : low) launch(gpu, slot, 1000 * kMs);
    gpu.serve(kNow + 100 * kMs);
    CHECK(std::count_if(low.begin(), low.end(), [&](std::uint32_t slot) { return open(gpu, slot); }) == 2);
}

// A client that is stopped, or waits for its user, has launched last what nobody will tell the end of.
void who_falls_silent_takes_no_turn() {
    Gpu gpu(settings(Policy::kGroup), {});
    gpu.join(tenant(Class::kHigh), kNow);
    std::vector<std::uint32_t> low;
    for (int i = 0; i < 5; ++i) low.push_back(*gpu.join(tenant(Class::kBestEffort), kNow));
    const std::uint32_t busy = low[2], told = low[4];
    std::uint64_t now_ns = kNow;
    const auto turns_of = [&](std::uint32_t slot, int looks) {
        int turns = 0;
        for (int i = 0; i < looks; ++i) {
            launch(gpu, busy, kMs);
            gpu.serve(now_ns += kMs);
            turns += open(gpu, slot);
        }
        return turns;
    };
    for (const std::uint32_t slot : low) launch(gpu, slot, 4 * kMs);
    line_of(gpu, told).told = 4 * kMs;
    CHECK(turns_of(busy, 20) < 15);
    CHECK(turns_of(busy, 100) < 75);  // they may be slow
    turns_of(busy, 50);  // by now each has had an open gate for twice as long as it needs, and 50 ms
    CHECK(turns_of(busy, 100) == 100 && turns_of(low[0], 100) == 100);
    CHECK(!gpu.progress(told).idle());
    for (const std::uint32_t slot : low) launch(gpu, slot, 4 * kMs);
    gpu.serve(now_ns += kMs);
    CHECK(std::count_if(low.begin(), low.end(), [&](std::uint32_t slot) { return open(gpu, slot); }) == 2);
}

// It is as if it were not there: nobody else waits for the end of its work.
void who_falls_silent_is_given_up_under_quota() {
    Gpu gpu(settings(Policy::kQuota), {});
    const std::uint32_t slot = *gpu.join(tenant(Class::kBestEffort), kNow);
    slot_of(gpu, slot).client.reports = 1;
    launch(gpu, slot, 4 * kMs);
    gpu.beat(kNow + kBeat);
    CHECK(!gpu.progress(slot).idle());
    gpu.beat(kNow + 11 * kBeat);
    CHECK(!gpu.progress(slot).idle());
    gpu.beat(kNow + 13 * kBeat);
    CHECK(gpu.progress(slot).idle());
}

// What runs on when a high-priority client begins: an allowance in which one gate is open, and a batch. Of
// the usual latency it takes the promised share over what is lost meanwhile, 0.5 until it has been measured.
void what_runs_on_is_a_share_of_the_latency_for_all_together() {
    auto group = settings(Policy::kGroup);
    group.high_share_permille = 100;
    Gpu gpu(group, {});
    const std::uint32_t high = *gpu.join(tenant(Class::kHigh), kNow);
    const std::uint32_t low = *gpu.join(tenant(Class::kBestEffort), kNow);
    const shared::Control& control = gpu.page().control;
    slot_of(gpu, low).client.reports = 1;
    std::uint64_t now_ns = kNow;
    const auto serve_until = [&](std::uint64_t end_ns) {  // whenever asked for
        while (now_ns < end_ns) now_ns = gpu.serve(now_ns);
    };
    serve_until(kNow + 1);
    CHECK(control.batch_ns > 0 && control.allowance_ns == 0);  // no latency is known
    begin(gpu, high, 2 * kMs, kNow);
    finish(gpu, high);
    serve_until(kNow + 3 * kMs);
    const auto one_ns = static_cast<std::uint64_t>(2e6 * 100 / 1000 / 0.5);
    CHECK(control.batch_ns == one_ns / 3 && control.allowance_ns == one_ns);
    CHECK(control.kept == low);
    // Nothing of it for work that waits on the host, or after a long rest: then nobody looks in time.
    gpu.serve(now_ns + 200 * kMs);
    CHECK(control.batch_ns == one_ns && control.allowance_ns == 0 && control.kept == shared::kSlots);
    const std::uint32_t other = *gpu.join(tenant(Class::kBestEffort), kNow);
    gpu.serve(now_ns + 201 * kMs);
    CHECK(control.batch_ns == one_ns / 4 && control.allowance_ns == 0);  // of two
    // With work soon after: the other one's batch is taken off.
    slot_of(gpu, other).client.reports = 1;
    now_ns += 202 * kMs;
    for (int i = 0; i < 2; ++i) {  // the first is followed by one that has the GPU to itself
        begin(gpu, high, 2 * kMs, now_ns);
        finish(gpu, high);
        serve_until(now_ns + 3 * kMs);
    }
    CHECK(control.batch_ns == one_ns / 12 && control.allowance_ns == one_ns / 2 - one_ns / 12);
}

// Nine tenths of the time in which it is kept are lost: that is seen after a few periods, and tried seldom
// then.
void who_takes_more_than_it_gets_is_kept_no_more() {
    Gpu gpu(settings(Policy::kGroup), {});
    const std::uint32_t high = *gpu.join(tenant(Class::kHigh), kNow);
    const std::uint32_t low = *gpu.join(tenant(Class::kBestEffort), kNow);
    slot_of(gpu, low).client.reports = 1;
    launch(gpu, low, 3'600'000 * kMs);
    const shared::Control& control = gpu.page().control;
    std::uint64_t now_ns = kNow;
    std::array<int, 3> kept{};
    for (int i = 0; i < 120; ++i) {
        const bool keeps = control.kept == low;
        kept[static_cast<std::size_t>(i / 40)] += keeps;
        begin(gpu, high, 4 * kMs, now_ns);
        gpu.serve(now_ns);
        now_ns += 4 * kMs + (keeps ? control.allowance_ns * 9 / 10 : 0);
        finish(gpu, high);
        for (const std::uint64_t end_ns = now_ns + kMs / 2; now_ns < end_ns;) now_ns = gpu.serve(now_ns);
    }
    CHECK(kept[0] >= 1 && kept[1] + kept[2] <= 1);
}

// Nor is it left running for longer when it works, for then it may do as much harm as any.
void who_has_nothing_to_do_is_not_taken_to_be_harmless() {
    Gpu gpu(settings(Policy::kGroup), {});
    const std::uint32_t high = *gpu.join(tenant(Class::kHigh), kNow);
    const std::uint32_t low = *gpu.join(tenant(Class::kBestEffort), kNow);
    slot_of(gpu, low).client.reports = 1;
    const shared::Control& control = gpu.page().control;
    std::uint64_t now_ns = kNow, longest_ns = 0;
    int beside = 0;
    for (int i = 0; i < 4000; ++i) {
        longest_ns = std::max(longest_ns, control.allowance_ns.load());
        beside += control.beside.load() != 0;
        begin(gpu, high, 4 * kMs, now_ns);
        gpu.serve(now_ns);
        now_ns += 4 * kMs;
        finish(gpu, high);
        for (const std::uint64_t end_ns = now_ns + kMs / 2; now_ns < end_ns;) now_ns = gpu.serve(now_ns);
    }
    CHECK(longest_ns > 0 && longest_ns <= 4 * kMs * 60 / 1000 * 2);  // as long as half of it may be lost
    CHECK(beside <= 1 + 4000 / 256);                                 // trials
}

void gates_are_shut_when_the_allowance_is_over() {
    Gpu gpu(settings(Policy::kGroup), {});
    const std::uint32_t high = *gpu.join(tenant(Class::kHigh), kNow);
    const std::uint32_t low = *gpu.join(tenant(Class::kBestEffort), kNow);
    gpu.page().control.allowance_ns = kMs / 5;
    launch(gpu, high, kMs);
    slot_of(gpu, high).counters.busy_since_ns = kNow;
    slot_of(gpu, high).client.busy = shared::kBegun;
    CHECK(gpu.serve(kNow) <= kNow + kMs / 5 && open(gpu, low));
    gpu.serve(kNow + kMs / 5);
    CHECK(!open(gpu, low) && slot_of(gpu, high).client.busy == shared::kGatesShut);
}

// Where the GPU tells what it has done, credit follows that, and not when it was expected to be done.
void quota_follows_what_the_gpu_has_done() {
    for (const bool reports : {false, true}) {
        Gpu gpu(settings(Policy::kQuota), {});
        const std::uint32_t slot = *gpu.join(tenant(Class::kBestEffort, 500, 1000), kNow);
        slot_of(gpu, slot).client.reports = reports ? 1 : 0;
        launch(gpu, slot, 40 * kMs);
        gpu.beat(kNow + kBeat);  // 10 ms of which the GPU does in 60
        const std::int64_t before = slot_of(gpu, slot).client.credit_ns;
        gpu.beat(kNow + 60 * kMs);
        const std::int64_t gained = slot_of(gpu, slot).client.credit_ns - before;
        CHECK(reports ? gained < static_cast<std::int64_t>(25 * kMs)
                      : gained > static_cast<std::int64_t>(45 * kMs));
    }
}

// The credit that a newcomer has after each of some beats, while it launches what it has credit for.
std::vector<std::int64_t> credits(Gpu& gpu, std::uint64_t now_ns) {
    const std::uint32_t slot = *gpu.join(tenant(Class::kBestEffort, 300, 400), now_ns);
    std::vector<std::int64_t> found{slot_of(gpu, slot).client.credit_ns};
    for (int beat = 0; beat < 20; ++beat) {
        if (slot_of(gpu, slot).client.credit_ns > 0) launch(gpu, slot, 4 * kMs);
        now_ns += kBeat;
        gpu.beat(now_ns);
        found.push_back(slot_of(gpu, slot).client.credit_ns);
    }
    gpu.leave(slot);
    return found;
}

void a_newcomer_has_as_much_as_the_first_ever() {
    Gpu gpu(settings(Policy::kQuota), {});
    const std::vector<std::int64_t> first = credits(gpu, kNow);
    CHECK(first[0] == static_cast<std::int64_t>(kBeat) * 3 / 10);  // so that it need not wait for a beat
    CHECK(credits(gpu, kNow + 3600 * 1000 * kMs) == first);
    // Neither what it would still be given, nor what it has not paid for yet.
    const std::uint32_t slot = *gpu.join(tenant(Class::kBestEffort, 1000, 1000), kNow + 7200 * 1000 * kMs);
    launch(gpu, slot, 400 * kMs);
    gpu.beat(kNow + 7200 * 1000 * kMs + kBeat);
    gpu.leave(slot);
    CHECK(credits(gpu, kNow + 9000 * 1000 * kMs) == first);
}

void a_limit_holds_over_many_beats() {
    Gpu gpu(settings(Policy::kQuota), {});
    const std::uint32_t slot = *gpu.join(tenant(Class::kBestEffort, 300, 300), kNow);
    std::uint64_t launched_ns = 0;
    for (std::uint64_t beat = 1; beat <= 1000; ++beat) {
        while (slot_of(gpu, slot).client.credit_ns > 0) {
            launch(gpu, slot, kMs / 2);
            launched_ns += kMs / 2;
        }
        gpu.beat(kNow + beat * kBeat);
    }
    CHECK(launched_ns <= 1000 * kBeat * 3 / 10 + 2 * kBeat && launched_ns >= 1000 * kBeat * 29 / 100);
}

// A client whose kernels fit beside those of a high-priority one runs there, and does so again after a pause.
void a_pause_of_all_is_no_slowdown() {
    Gpu gpu(settings(Policy::kGroup), {});
    const std::uint32_t high = *gpu.join(tenant(Class::kHigh), kNow);
    const std::uint32_t low = *gpu.join(tenant(Class::kBestEffort), kNow);
    launch(gpu, low, 3'600'000 * kMs);
    std::uint64_t now_ns = kNow;
    const auto periods = [&](int count, std::uint64_t pause_ns) {
        int beside = 0;
        for (int i = 0; i < count; ++i) {
            for (const std::uint32_t slot : {high, low})
                slot_of(gpu, slot).counters.peak = shared::pack_cost({0, 300, 300});
            beside += gpu.page().control.beside >> low & 1;
            begin(gpu, high, kMs, now_ns);
            gpu.serve(now_ns);
            now_ns += kMs + pause_ns;
            gpu.beat(now_ns);
            finish(gpu, high);
            for (int look = 0; look < 10; ++look) gpu.serve(now_ns += kMs / 10);
        }
        return beside;
    };
    CHECK(periods(400, 0) > 200);
    for (int i = 0; i < 20; ++i) {  // of which some are compared with the period before
        periods(1, 3'600'000 * kMs);
        CHECK(periods(100, 0) > 50);
    }
}

// As a job that Slurm has suspended, with its manager and all its clients.
void what_passes_while_all_stand_still_is_not_handed_out() {
    Gpu gpu(settings(Policy::kQuota), {});
    const std::uint32_t slot = *gpu.join(tenant(Class::kBestEffort, 300, 300), kNow);
    gpu.beat(kNow + kBeat);
    const std::uint64_t hour_ns = std::uint64_t{3'600'000} * kMs;
    gpu.beat(kNow + kBeat + hour_ns);
    CHECK(slot_of(gpu, slot).client.credit_ns <= policy::kSavingsNs);
}

void a_stretched_client_cuts_the_others_until_it_leaves() {
    Gpu gpu(settings(Policy::kQuota), {});
    const std::uint32_t other = *gpu.join(tenant(Class::kBestEffort), kNow);
    std::uint64_t now_ns = kNow;
    const std::uint32_t calm = *gpu.join(tenant(Class::kHigh), now_ns);
    drain(gpu, calm, kMs, kMs);
    gpu.beat(now_ns += kBeat);
    gpu.leave(calm);
    for (int round = 0; round < 2; ++round) {  // in the slot of the one before
        const std::uint32_t slot = *gpu.join(tenant(Class::kHigh), now_ns);
        CHECK(gpu.best_effort_permille() == 1000);
        drain(gpu, slot, kMs, kMs);
        gpu.beat(now_ns += kBeat);
        launch(gpu, other, kMs / 10);
        drain(gpu, slot, 2 * kMs, kMs);
        gpu.beat(now_ns += kBeat);
        CHECK(gpu.best_effort_permille() >= 499 && gpu.best_effort_permille() <= 501);
        gpu.beat(now_ns += kBeat);  // the same period counts once
        CHECK(gpu.best_effort_permille() >= 499);
        auto& stretched_ns = slot_of(gpu, slot).client.credit_ns;
        auto& cut_ns = slot_of(gpu, other).client.credit_ns;
        stretched_ns = 0;
        cut_ns = 0;
        gpu.beat(now_ns += kBeat);
        CHECK(cut_ns > 0 && cut_ns >= stretched_ns * 49 / 100 && cut_ns <= stretched_ns * 51 / 100);
        gpu.leave(slot);
    }
    CHECK(gpu.best_effort_permille() == 1000);
    gpu.leave(other);
}

// A beat sees one end of work or several.
void the_number_of_periods_in_a_beat_is_no_slowdown() {
    Gpu gpu(settings(Policy::kQuota), {});
    const std::uint32_t high = *gpu.join(tenant(Class::kHigh), kNow);
    const std::uint32_t low = *gpu.join(tenant(Class::kBestEffort), kNow);
    std::uint64_t now_ns = kNow;
    for (int beat = 0; beat < 10; ++beat) {
        launch(gpu, low, kMs / 10);
        for (int period = 0; period <= beat % 2; ++period) drain(gpu, high, 2 * kMs, 2 * kMs);
        gpu.beat(now_ns += kBeat);
        CHECK(gpu.best_effort_permille() == 1000);
    }
}

// What a client does without others is the measure of what it does beside them.
void a_client_alone_is_slowed_down_by_nobody() {
    Gpu gpu(settings(Policy::kQuota), {});
    const std::uint32_t high = *gpu.join(tenant(Class::kHigh), kNow);
    const std::uint32_t low = *gpu.join(tenant(Class::kBestEffort), kNow);
    std::uint64_t now_ns = kNow;
    const auto period = [&](std::uint64_t wall_ns) {
        drain(gpu, high, wall_ns, kMs);
        gpu.beat(now_ns += kBeat);
        return gpu.best_effort_permille();
    };
    CHECK(period(kMs) == 1000);
    for (int i = 0; i < 15; ++i) CHECK(period(2 * kMs) == 1000);
    launch(gpu, low, kMs);
    CHECK(period(2 * kMs) == 1000);  // no slower than alone
    CHECK(period(4 * kMs) < 510);    // the other one's kernel runs still
    finish(gpu, low);
}

// As Dilu does: a server is slowed down again by its next request, but who is idle for long needs nothing.
void what_was_cut_for_a_client_ends_when_it_is_idle() {
    Gpu gpu(settings(Policy::kQuota), {});
    const std::uint32_t high = *gpu.join(tenant(Class::kHigh), kNow);
    const std::uint32_t low = *gpu.join(tenant(Class::kBestEffort), kNow);
    std::uint64_t now_ns = kNow;
    for (const std::uint64_t wall_ns : {kMs, 3 * kMs, 3 * kMs, 3 * kMs}) {
        launch(gpu, low, kMs / 10);
        drain(gpu, high, wall_ns, kMs);
        gpu.beat(now_ns += kBeat);
    }
    CHECK(gpu.best_effort_permille() < 40);
    finish(gpu, low);
    for (const std::uint64_t end_ns = now_ns + 500 * kMs; now_ns < end_ns;) gpu.beat(now_ns += kBeat);
    CHECK(gpu.best_effort_permille() < 40);
    for (const std::uint64_t end_ns = now_ns + 500 * kMs; now_ns < end_ns;) gpu.beat(now_ns += kBeat);
    CHECK(gpu.best_effort_permille() == 1000);
    slot_of(gpu, low).client.credit_ns = 0;
    gpu.beat(now_ns += kBeat);
    CHECK(slot_of(gpu, low).client.credit_ns == static_cast<std::int64_t>(kBeat));
}

void what_a_client_writes_as_its_credit_is_bounded() {
    for (const std::int64_t written : {INT64_MAX / 2, INT64_MIN / 2}) {
        Gpu gpu(settings(Policy::kQuota), {});
        const std::uint32_t liar = *gpu.join(tenant(Class::kBestEffort), kNow);
        const std::uint32_t honest = *gpu.join(tenant(Class::kBestEffort), kNow);
        slot_of(gpu, liar).client.credit_ns = written;
        const std::int64_t before = slot_of(gpu, honest).client.credit_ns;
        for (std::uint64_t beat = 1; beat <= 10; ++beat) gpu.beat(kNow + beat * kBeat);
        const std::int64_t gained = slot_of(gpu, honest).client.credit_ns - before;
        CHECK(gained > 0 && gained <= static_cast<std::int64_t>(10 * kBeat));
    }
}

void who_is_not_there_gets_no_credit() {
    Gpu gpu(settings(Policy::kQuota), {});
    const std::uint32_t gone = *gpu.join(tenant(Class::kBestEffort), kNow);
    gpu.join(tenant(Class::kBestEffort), kNow);
    gpu.leave(gone);
    gpu.page().control.occupied = UINT64_MAX;  // by the other one
    for (std::uint64_t beat = 1; beat <= 10; ++beat) gpu.beat(kNow + beat * kBeat);
    CHECK(slot_of(gpu, gone).client.credit_ns == 0);
}

struct Taken {
    std::vector<std::string> names;
    std::vector<CoRun> co_run;
};

Taken taken(Gpu& gpu) {
    Taken all;
    gpu.take_samples([&](const shared::RingSample& sample, CoRun co_run) {
        all.names.emplace_back(sample.name.data());
        all.co_run.push_back(co_run);
    });
    return all;
}

void write_samples(Gpu& gpu, std::uint32_t slot, std::uint64_t count) {
    slot_of(gpu, slot).ring.written += count;
}

void nonsense_in_a_ring_costs_one_pass() {
    Gpu gpu(settings(Policy::kGroup), {});
    const std::uint32_t slot = *gpu.join(tenant(Class::kBestEffort), kNow);
    for (shared::RingSample& sample : slot_of(gpu, slot).ring.samples) sample.name.fill('x');
    for (const std::uint64_t written : {std::uint64_t{1} << 60, std::uint64_t{5}}) {
        slot_of(gpu, slot).ring.written = written;
        const Taken found = taken(gpu);
        CHECK(found.names.size() == shared::kRingSamples);
        for (const std::string& name : found.names) CHECK(name.size() == shared::kNameBytes - 1);
        CHECK(taken(gpu).names.empty());  // once
    }
}

void timings_beside_others_are_known_as_such() {
    Gpu gpu(settings(Policy::kGroup), {});
    const std::uint32_t one = *gpu.join(tenant(Class::kBestEffort), kNow);
    const std::uint32_t other = *gpu.join(tenant(Class::kBestEffort), kNow);
    std::uint64_t now_ns = kNow;
    const auto beat_and_take = [&] {
        gpu.beat(now_ns += kBeat);
        write_samples(gpu, one, 1);
        const Taken found = taken(gpu);
        REQUIRE(found.co_run.size() == 1);
        return found.co_run[0];
    };
    launch(gpu, one, kMs);
    CHECK(beat_and_take() == CoRun::kAlone);
    launch(gpu, one, kMs);
    launch(gpu, other, kMs);
    CHECK(beat_and_take() == CoRun::kShared);
    CHECK(beat_and_take() == CoRun::kShared);  // timings are read late
    now_ns += 1000 * kMs;
    finish(gpu, one);
    finish(gpu, other);
    CHECK(beat_and_take() == CoRun::kAlone);
    // One that comes anew, and has launched as often as who was there before.
    gpu.leave(other);
    const std::uint32_t next = *gpu.join(tenant(Class::kBestEffort), now_ns);
    launch(gpu, one, kMs);
    launch(gpu, next, kMs);
    CHECK(beat_and_take() == CoRun::kShared);
}

}  // namespace

int main() {
    who_leaves_leaves_no_trace();
    gates_open_when_the_gpu_has_done_what_was_launched();
    what_will_be_reported_is_not_predicted();
    what_nobody_reports_is_predicted();
    a_launch_in_the_last_moment_keeps_the_gates_shut();
    who_dies_keeps_nothing_shut();
    of_many_only_a_few_run_at_the_same_time();
    who_has_nothing_to_do_takes_no_turn();
    who_falls_silent_takes_no_turn();
    who_falls_silent_is_given_up_under_quota();
    what_runs_on_is_a_share_of_the_latency_for_all_together();
    who_takes_more_than_it_gets_is_kept_no_more();
    who_has_nothing_to_do_is_not_taken_to_be_harmless();
    gates_are_shut_when_the_allowance_is_over();
    quota_follows_what_the_gpu_has_done();
    a_newcomer_has_as_much_as_the_first_ever();
    a_limit_holds_over_many_beats();
    what_passes_while_all_stand_still_is_not_handed_out();
    a_pause_of_all_is_no_slowdown();
    a_stretched_client_cuts_the_others_until_it_leaves();
    the_number_of_periods_in_a_beat_is_no_slowdown();
    a_client_alone_is_slowed_down_by_nobody();
    what_was_cut_for_a_client_ends_when_it_is_idle();
    what_a_client_writes_as_its_credit_is_bounded();
    who_is_not_there_gets_no_credit();
    nonsense_in_a_ring_costs_one_pass();
    timings_beside_others_are_known_as_such();
    return check::result();
}
