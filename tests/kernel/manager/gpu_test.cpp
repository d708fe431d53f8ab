// One GPU of a manager, without processes and without a clock: who comes gets nothing of who was there
// before, and what a client writes into its page holds up nobody.

#include "kernel_intercept/manager/gpu.hpp"

#include <algorithm>
#include <vector>

#include "tests/kernel/gate/check.hpp"

using namespace explsched;
using manager::Company;
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

void launch(Gpu& gpu, std::uint32_t slot, std::uint64_t gpu_ns, std::uint64_t now_ns) {
    shared::push(slot_of(gpu, slot).timeline, {gpu_ns, 1000, 0}, now_ns);
    slot_of(gpu, slot).counters.charged_ns += gpu_ns;
    slot_of(gpu, slot).door.credit_ns -= static_cast<std::int64_t>(gpu_ns);
}

// A high-priority client has said that it is done, for the `drains`th time.
void drain(Gpu& gpu, std::uint32_t slot, std::uint64_t drains, std::uint64_t wall_ns, std::uint64_t work_ns) {
    slot_of(gpu, slot).timeline.drain_wall_ns = wall_ns;
    slot_of(gpu, slot).timeline.drain_work_ns = work_ns;
    slot_of(gpu, slot).counters.drains = drains;
}

void who_leaves_leaves_no_mark() {
    Gpu gpu(settings(Policy::kGroup), {});
    const std::uint32_t slot = *gpu.join(tenant(Class::kHigh), kNow);
    shared::Control& control = gpu.page().control;
    launch(gpu, slot, kMs, kNow);
    control.waiting = std::uint64_t{1} << slot;
    control.aged = slot + 1;
    CHECK(control.occupied == 1 && control.high == 1 && !gpu.empty());
    gpu.leave(slot);
    CHECK(control.occupied == 0 && control.high == 0 && control.waiting == 0 && control.aged == 0);
    CHECK(gpu.empty() && !gpu.tenants()[slot]);
    CHECK(slot_of(gpu, slot).timeline.busy_until_ns == 0 && slot_of(gpu, slot).counters.charged_ns == 0);
    CHECK(*gpu.join(tenant(Class::kBestEffort), kNow) == slot && control.high == 0);
}

void the_aged_one_stays_when_another_leaves() {
    Gpu gpu(settings(Policy::kGroup), {});
    const std::uint32_t first = *gpu.join(tenant(Class::kBestEffort), kNow);
    const std::uint32_t second = *gpu.join(tenant(Class::kBestEffort), kNow);
    gpu.page().control.aged = first + 1;
    gpu.leave(second);
    CHECK(gpu.page().control.aged == first + 1);
}

// The credit that a newcomer has after each of some beats, while it launches what it has credit for.
std::vector<std::int64_t> credits(Gpu& gpu, std::uint64_t now_ns) {
    const std::uint32_t slot = *gpu.join(tenant(Class::kBestEffort, 300, 400), now_ns);
    std::vector<std::int64_t> found{slot_of(gpu, slot).door.credit_ns};
    for (int beat = 0; beat < 20; ++beat) {
        if (slot_of(gpu, slot).door.credit_ns > 0) launch(gpu, slot, 4 * kMs, now_ns);
        now_ns += kBeat;
        gpu.beat(now_ns);
        found.push_back(slot_of(gpu, slot).door.credit_ns);
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
    launch(gpu, slot, 400 * kMs, kNow + 7200 * 1000 * kMs);
    gpu.beat(kNow + 7200 * 1000 * kMs + kBeat);
    gpu.leave(slot);
    CHECK(credits(gpu, kNow + 9000 * 1000 * kMs) == first);
}

void a_limit_holds_over_many_beats() {
    Gpu gpu(settings(Policy::kQuota), {});
    const std::uint32_t slot = *gpu.join(tenant(Class::kBestEffort, 300, 300), kNow);
    std::uint64_t launched_ns = 0;
    for (std::uint64_t beat = 1; beat <= 1000; ++beat) {
        while (slot_of(gpu, slot).door.credit_ns > 0) {
            launch(gpu, slot, kMs / 2, kNow + beat * kBeat);
            launched_ns += kMs / 2;
        }
        gpu.beat(kNow + beat * kBeat);
    }
    CHECK(launched_ns <= 1000 * kBeat * 3 / 10 + 2 * kBeat && launched_ns >= 1000 * kBeat * 29 / 100);
}

void a_stretched_client_cuts_the_others_until_it_leaves() {
    Gpu gpu(settings(Policy::kQuota), {});
    const std::uint32_t other = *gpu.join(tenant(Class::kBestEffort), kNow);
    std::uint64_t now_ns = kNow;
    const std::uint32_t calm = *gpu.join(tenant(Class::kHigh), now_ns);
    drain(gpu, calm, 1, kMs, kMs);
    gpu.beat(now_ns += kBeat);
    gpu.leave(calm);
    for (int round = 0; round < 2; ++round) {  // in the slot of the one before
        const std::uint32_t slot = *gpu.join(tenant(Class::kHigh), now_ns);
        CHECK(gpu.best_effort_permille() == 1000);
        drain(gpu, slot, 1, kMs, kMs);
        gpu.beat(now_ns += kBeat);
        drain(gpu, slot, 2, 2 * kMs, kMs);
        gpu.beat(now_ns += kBeat);
        CHECK(gpu.best_effort_permille() >= 499 && gpu.best_effort_permille() <= 501);
        gpu.beat(now_ns += kBeat);  // the same period counts once
        CHECK(gpu.best_effort_permille() >= 499);
        auto& stretched_ns = slot_of(gpu, slot).door.credit_ns;
        auto& cut_ns = slot_of(gpu, other).door.credit_ns;
        stretched_ns = 0;
        cut_ns = 0;
        gpu.beat(now_ns += kBeat);
        CHECK(cut_ns > 0 && cut_ns >= stretched_ns * 49 / 100 && cut_ns <= stretched_ns * 51 / 100);
        gpu.leave(slot);
    }
    CHECK(gpu.best_effort_permille() == 1000);
    gpu.leave(other);
}

void what_a_client_writes_as_its_credit_is_bounded() {
    for (const std::int64_t written : {INT64_MAX / 2, INT64_MIN / 2}) {
        Gpu gpu(settings(Policy::kQuota), {});
        const std::uint32_t liar = *gpu.join(tenant(Class::kBestEffort), kNow);
        const std::uint32_t honest = *gpu.join(tenant(Class::kBestEffort), kNow);
        slot_of(gpu, liar).door.credit_ns = written;
        const std::int64_t before = slot_of(gpu, honest).door.credit_ns;
        for (std::uint64_t beat = 1; beat <= 10; ++beat) gpu.beat(kNow + beat * kBeat);
        const std::int64_t gained = slot_of(gpu, honest).door.credit_ns - before;
        CHECK(gained > 0 && gained <= static_cast<std::int64_t>(10 * kBeat));
    }
}

struct Taken {
    std::vector<std::string> names;
    std::vector<Company> company;
};

Taken taken(Gpu& gpu) {
    Taken all;
    gpu.take_samples([&](const shared::RingSample& sample, Company company) {
        all.names.emplace_back(sample.name.data());
        all.company.push_back(company);
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
        REQUIRE(found.company.size() == 1);
        return found.company[0];
    };
    launch(gpu, one, kMs, now_ns);
    CHECK(beat_and_take() == Company::kAlone);
    launch(gpu, one, kMs, now_ns);
    launch(gpu, other, kMs, now_ns);
    CHECK(beat_and_take() == Company::kShared);
    CHECK(beat_and_take() == Company::kShared);  // timings are read late
    now_ns += 1000 * kMs;
    CHECK(beat_and_take() == Company::kAlone);
    // One that comes anew in a used slot, and has launched as often as who was there before.
    gpu.leave(other);
    CHECK(*gpu.join(tenant(Class::kBestEffort), now_ns) == other);
    launch(gpu, one, kMs, now_ns);
    launch(gpu, other, kMs, now_ns);
    CHECK(beat_and_take() == Company::kShared);
}

// It goes before all others only while it is the oldest that waits for them.
void who_has_waited_long_for_others_is_told_to_them() {
    Gpu gpu(settings(Policy::kGroup), {});
    const std::uint32_t busy = *gpu.join(tenant(Class::kBestEffort), kNow);
    const std::uint32_t patient = *gpu.join(tenant(Class::kBestEffort), kNow);
    shared::push(slot_of(gpu, busy).timeline, {50 * kMs, 900, 900}, kNow);
    shared::Doorway& door = slot_of(gpu, patient).door;
    door.want = shared::pack_cost({kMs, 500, 500});
    door.want_since_ns = kNow;
    door.gate = shared::kGateWaiting;
    CHECK(gpu.serve(kNow + shared::kAgedNs / 2) != 0 && gpu.page().control.aged == 0);
    CHECK(gpu.serve(kNow + shared::kAgedNs) != 0 && gpu.page().control.aged == patient + 1);
    CHECK(door.gate == shared::kGateWaiting);
    gpu.serve(kNow + 60 * kMs);
    CHECK(door.gate == shared::kGateGranted && gpu.page().control.aged == 0);
}

// A grant that comes too late must not leave room taken.
void who_gave_up_has_no_room_reserved() {
    Gpu gpu(settings(Policy::kGroup), {});
    gpu.join(tenant(Class::kBestEffort), kNow);
    const std::uint32_t slot = *gpu.join(tenant(Class::kBestEffort), kNow);
    shared::Doorway& door = slot_of(gpu, slot).door;
    door.want = shared::pack_cost({kMs, 500, 500});
    door.want_since_ns = kNow;
    for (const std::uint32_t state : {shared::kGateIdle, shared::kGatePosting, shared::kGateGranted}) {
        door.gate = state;
        gpu.serve(kNow);
        CHECK(door.gate == state && slot_of(gpu, slot).timeline.reserved == 0);
    }
}

}  // namespace

int main() {
    who_leaves_leaves_no_mark();
    the_aged_one_stays_when_another_leaves();
    a_newcomer_has_as_much_as_the_first_ever();
    a_limit_holds_over_many_beats();
    a_stretched_client_cuts_the_others_until_it_leaves();
    what_a_client_writes_as_its_credit_is_bounded();
    nonsense_in_a_ring_costs_one_pass();
    timings_beside_others_are_known_as_such();
    who_has_waited_long_for_others_is_told_to_them();
    who_gave_up_has_no_room_reserved();
    return check::result();
}
