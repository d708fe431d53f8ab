// Room for best-effort launches beside others.

#include "kernel_intercept/gate/launch.hpp"
#include "tests/kernel/gate/check.hpp"
#include "tests/kernel/gate/shared_page.hpp"

using namespace explsched;
using namespace page_under_test;

namespace {

void reservations_respect_caps_and_are_withdrawn() {
    SharedPage memory;
    memory.occupy(0);
    memory.occupy(1);
    Page& page = memory.page;
    CHECK(try_reserve(page, 0, {100 * kUs, 500, 100}, kNow).reserved());
    CHECK(page.slots[0].timeline.reserved != 0);
    const Attempt second = try_reserve(page, 1, {100 * kUs, 500, 100}, kNow);
    CHECK(second.obstacle == Obstacle::kBestEffort);
    CHECK(second.retry_ns > kNow && second.retry_ns < kNow + 100 * kUs);  // the other may withdraw
    CHECK(page.slots[1].timeline.reserved == 0);
    CHECK(try_reserve(page, 1, {100 * kUs, 400, 100}, kNow).reserved());
    CHECK(!try_reserve(page, 1, {100 * kUs, 10, 10}, kNow).reserved());  // one at a time
}

void a_busy_high_priority_client_holds_what_does_not_fit_beside_it() {
    SharedPage memory;
    memory.occupy(0, Class::kHigh);
    memory.occupy(1);
    Page& page = memory.page;
    for (const KernelCost& cost : {KernelCost{kMs, 600, 200}, KernelCost{kMs, 200, 600}}) {
        gate::announce(page, 0, cost, kNow);
        gate::reached_driver(page, 0, kNow);
    }
    CHECK(try_reserve(page, 1, {kMs, 300, 100}, kNow).reserved());
    page.slots[1].timeline.reserved = 0;
    const Attempt blocked = try_reserve(page, 1, {kMs / 2, 500, 100}, kNow);
    CHECK(blocked.obstacle == Obstacle::kHigh);
    CHECK(blocked.retry_ns >= kNow + kMs && blocked.retry_ns < kNow + kMs + 10 * kUs);
    CHECK(try_reserve(page, 1, {kMs / 2, 500, 100}, blocked.retry_ns).reserved());
}

void one_that_has_waited_long_is_let_go_first_while_it_waits() {
    SharedPage memory;
    memory.occupy(0);
    memory.occupy(1);
    Page& page = memory.page;
    page.control.aged = 1;
    page.slots[0].door.gate = kGateWaiting;
    const gate::Try closed = gate::try_now(page, 1, {kMs, 100, 100}, kNow);
    CHECK(!closed.launched && closed.retry_ns > kNow);
    page.slots[0].door.gate = kGateIdle;  // it has launched, and the manager does not know yet
    CHECK(gate::try_now(page, 1, {kMs, 100, 100}, kNow).launched);
}

// There high priority is no leave to launch: what counts is credit.
void under_quota_only_credit_lets_launch() {
    SharedPage memory;
    memory.occupy(0, Class::kHigh);
    Page& page = memory.page;
    page.control.policy = Policy::kQuota;
    CHECK(!gate::announces(page, 0));
    Slot& slot = page.slots[0];
    for (const std::int64_t credit : {-1, 0}) {
        slot.door.credit_ns = credit;
        const gate::Try refused = gate::try_now(page, 0, {kMs, 400, 700}, kNow);
        CHECK(!refused.launched && slot.door.credit_ns == credit && slot.timeline.head == 0);
    }
    slot.door.credit_ns = 1;
    CHECK(gate::try_now(page, 0, {kMs, 400, 700}, kNow).launched);
    CHECK(slot.door.credit_ns == 1 - 700'000 && slot.counters.charged_ns == 700'000);  // the larger share
    gate::launch_on_debt(page, slot, {kMs, 400, 100}, kNow);
    CHECK(slot.door.credit_ns == 1 - 1'100'000 && slot.counters.charged_ns == 1'100'000);
    CHECK(slot.timeline.head == 2 && gate::charge_of({kMs, 0, 0}) == 1000);  // nothing is free
}

void who_has_launched_nothing_has_no_latency_to_keep() {
    SharedPage memory;
    memory.occupy(0, Class::kHigh);
    memory.occupy(1);
    Page& page = memory.page;
    CHECK(gate::try_now(page, 1, {kMs / 2, 100, 100}, kNow).launched);
    CHECK(gate::try_now(page, 1, {kMs / 2, 100, 100}, kNow).launched);
    gate::announce(page, 0, {kMs, 100, 100}, kNow);
    settle(page.slots[0].timeline, kNow + kMs);
    CHECK(page.slots[0].timeline.latency_ns == kMs);  // a first estimate
    CHECK(!gate::try_now(page, 1, {kMs / 2, 100, 100}, kNow + kMs + policy::kGraceNs / 2).launched);
}

void the_length_of_busy_periods_is_learnt() {
    SharedPage memory;
    memory.occupy(0, Class::kHigh);
    Slot& slot = memory.page.slots[0];
    std::uint64_t now = kNow;
    for (int request = 0; request < 50; ++request) {
        for (int kernel = 0; kernel < 10; ++kernel) gate::announce(memory.page, 0, {kMs, 100, 100}, now);
        now += 10 * kMs;
        settle(slot.timeline, now);
        now += 5 * kMs;
    }
    CHECK(slot.timeline.latency_ns > 9 * kMs && slot.timeline.latency_ns <= 10 * kMs);
    gate::announce(memory.page, 0, {kMs, 100, 100}, now);
    CHECK(slot.timeline.exposure_ns > 200'000 && slot.timeline.exposure_ns <= 250'000);
}

// What is launched less than 100 us after the end of the work before belongs to the same busy period.
void a_short_pause_ends_no_busy_period() {
    SharedPage memory;
    memory.occupy(0, Class::kHigh);
    const Timeline& line = memory.page.slots[0].timeline;
    gate::announce(memory.page, 0, {kMs, 100, 100}, kNow);
    gate::announce(memory.page, 0, {kMs, 100, 100}, kNow + kMs / 2);  // launched ahead
    gate::announce(memory.page, 0, {kMs, 100, 100}, line.busy_until_ns + 100 * kUs);
    CHECK(line.period_work_ns == 3 * kMs && line.latency_ns == 0);
    gate::announce(memory.page, 0, {kMs, 100, 100}, line.busy_until_ns + 100 * kUs + 1);
    CHECK(line.period_work_ns == kMs && line.latency_ns == 3 * kMs);
    // The end is known better where the client has waited for it.
    settle(memory.page.slots[0].timeline, kNow + 10 * kMs);
    gate::announce(memory.page, 0, {kMs, 100, 100}, kNow + 10 * kMs + 100 * kUs);
    CHECK(line.period_work_ns == 2 * kMs);
}

}  // namespace

int main() {
    reservations_respect_caps_and_are_withdrawn();
    a_busy_high_priority_client_holds_what_does_not_fit_beside_it();
    one_that_has_waited_long_is_let_go_first_while_it_waits();
    under_quota_only_credit_lets_launch();
    who_has_launched_nothing_has_no_latency_to_keep();
    the_length_of_busy_periods_is_learnt();
    a_short_pause_ends_no_busy_period();
    return check::result();
}
