// Launches that run beside what was not known of them, and launches that reach the GPU late.

#include "kernel_intercept/gate/launch.hpp"
#include "tests/kernel/gate/check.hpp"
#include "tests/kernel/gate/shared_page.hpp"

using namespace explsched;
using namespace page_under_test;

namespace {

void all_end_later_for_the_company_a_high_priority_launch_meets() {
    SharedPage memory;
    memory.occupy(0, Class::kHigh);
    memory.occupy(1);
    memory.occupy(2);
    memory.occupy(3);
    Page& page = memory.page;
    push(page.slots[1].timeline, {100 * kUs, 300, 100}, kNow);
    push(page.slots[2].timeline, {300 * kUs, 400, 100}, kNow);
    gate::announce(page, 0, {kMs, 600, 200}, kNow);
    // 1300 permille for the first 100 us of the work, 1000 from then on.
    CHECK(about(page.slots[1].timeline.busy_until_ns, kNow + 130 * kUs));
    CHECK(about(page.slots[2].timeline.busy_until_ns, kNow + 330 * kUs));
    CHECK(about(page.slots[0].timeline.busy_until_ns, kNow + kMs + 30 * kUs));
    CHECK(page.slots[3].timeline.busy_until_ns == 0);
    CHECK(page.slots[0].timeline.period_work_ns == kMs);  // the company is none of its own work
    CHECK((peak(page.slots[2].timeline, kNow + 310 * kUs, kNow + 320 * kUs).load == Load{400, 100}));
    // What follows was launched in the know of it.
    gate::announce(page, 0, {kMs, 600, 200}, kNow);
    CHECK(about(page.slots[0].timeline.busy_until_ns, kNow + 2 * kMs + 30 * kUs));
    CHECK(about(page.slots[2].timeline.busy_until_ns, kNow + 330 * kUs));
}

// Of what has been launched ahead, each part is stretched by what it runs beside.
void each_launch_ends_later_for_what_it_runs_beside() {
    SharedPage memory;
    memory.occupy(0, Class::kHigh);
    memory.occupy(1);
    Page& page = memory.page;
    Timeline& line = page.slots[1].timeline;
    push(line, {100 * kUs, 600, 100}, kNow);
    push(line, {100 * kUs, 200, 100}, kNow);
    gate::announce(page, 0, {160 * kUs, 600, 200}, kNow);
    gate::announce(page, 0, {kMs, 900, 200}, kNow);
    // 1200 permille for the first 100 us of the work, 800 for the 60 that are left of the launch, and then
    // 1100 for the last 40 of the client beside the next launch.
    CHECK(about(page.slots[0].timeline.busy_until_ns, kNow + 160 * kUs + 20 * kUs + kMs + 4 * kUs));
    CHECK(about(line.busy_until_ns, kNow + 200 * kUs + 20 * kUs + 4 * kUs));
    CHECK((peak(line, kNow, kNow + 119 * kUs).load == Load{600, 100}));
    CHECK((peak(line, kNow + 122 * kUs, kNow + 200 * kUs).load == Load{200, 100}));
}

void company_that_fits_delays_nothing() {
    SharedPage memory;
    memory.occupy(0, Class::kHigh);
    memory.occupy(1);
    Page& page = memory.page;
    push(page.slots[1].timeline, {100 * kUs, 400, 100}, kNow);
    gate::announce(page, 0, {kMs, 600, 200}, kNow);
    CHECK(page.slots[1].timeline.busy_until_ns == kNow + 100 * kUs);
    CHECK(page.slots[0].timeline.busy_until_ns == kNow + kMs);
}

// A process is held up between the announcement of a launch and the driver.
void who_waits_for_a_late_launch_is_told() {
    SharedPage memory;
    memory.occupy(0);
    memory.occupy(1);
    Page& page = memory.page;
    CHECK(gate::try_now(page, 0, {100 * kUs, 600, 100}, kNow).launched);
    CHECK(!gate::try_now(page, 1, {100 * kUs, 600, 100}, kNow + 150 * kUs).launched);  // still on its way
    gate::reached_driver(page, 0, kNow + 200 * kUs);
    CHECK(about(page.slots[0].timeline.busy_until_ns, kNow + 300 * kUs));
    const gate::Try early = gate::try_now(page, 1, {100 * kUs, 600, 100}, kNow + 250 * kUs);
    CHECK(!early.launched && early.retry_ns >= kNow + 300 * kUs && early.retry_ns < kNow + 320 * kUs);
    CHECK(gate::try_now(page, 1, {100 * kUs, 600, 100}, early.retry_ns).launched);
}

void a_launch_in_time_changes_nothing() {
    SharedPage memory;
    memory.occupy(0);
    memory.occupy(1);
    Page& page = memory.page;
    CHECK(gate::try_now(page, 0, {100 * kUs, 600, 100}, kNow).launched);
    gate::reached_driver(page, 0, kNow);
    CHECK(gate::try_now(page, 0, {100 * kUs, 600, 100}, kNow + 10 * kUs).launched);  // behind the first
    gate::reached_driver(page, 0, kNow + 50 * kUs);
    CHECK(page.slots[0].timeline.busy_until_ns == kNow + 200 * kUs);
}

void a_late_launch_that_meets_others_puts_them_off() {
    SharedPage memory;
    memory.occupy(0, Class::kHigh);
    memory.occupy(1);
    Page& page = memory.page;
    CHECK(gate::try_now(page, 1, {100 * kUs, 600, 100}, kNow).launched);
    gate::announce(page, 0, {kMs, 600, 200}, kNow + 110 * kUs);  // when it should be over
    gate::reached_driver(page, 0, kNow + 110 * kUs);
    gate::reached_driver(page, 1, kNow + 200 * kUs);
    CHECK(about(page.slots[1].timeline.busy_until_ns, kNow + 300 * kUs + 20 * kUs));
    CHECK(about(page.slots[0].timeline.busy_until_ns, kNow + 1110 * kUs + 20 * kUs));
}

// A high-priority launch has met its company when it was announced: late, it is put off by its lateness
// alone.
void a_late_high_priority_launch_is_put_off_once() {
    SharedPage memory;
    memory.occupy(0, Class::kHigh);
    memory.occupy(1);
    Page& page = memory.page;
    CHECK(gate::try_now(page, 1, {100 * kUs, 600, 100}, kNow).launched);
    gate::announce(page, 0, {kMs, 600, 200}, kNow);
    CHECK(about(page.slots[0].timeline.busy_until_ns, kNow + 1020 * kUs));
    gate::reached_driver(page, 0, kNow + 30 * kUs);
    CHECK(about(page.slots[0].timeline.busy_until_ns, kNow + 1050 * kUs));
}

// When in a long call of the driver a kernel began nobody knows: it may end as much later.
void others_are_careful_after_a_long_call() {
    SharedPage memory;
    memory.occupy(0);
    memory.occupy(1);
    Page& page = memory.page;
    Timeline& line = page.slots[0].timeline;
    CHECK(gate::try_now(page, 0, {100 * kUs, 600, 100}, kNow).launched);
    gate::reached_driver(page, 0, kNow);
    returned(line, 40 * kUs, 100 * kUs);
    CHECK(line.busy_until_ns == kNow + 100 * kUs);
    CHECK(!gate::try_now(page, 1, {100 * kUs, 600, 100}, kNow + 130 * kUs).launched);
    CHECK(gate::try_now(page, 1, {100 * kUs, 600, 100}, kNow + 150 * kUs).launched);
    settle(line, kNow + 160 * kUs);
    CHECK(line.unsure_ns == 0);
}

// CUDA_LAUNCH_BLOCKING: the call lasts as long as the kernel, which began with it.
void a_call_that_waits_for_its_kernel_is_no_delay() {
    SharedPage memory;
    memory.occupy(0);
    memory.occupy(1);
    Page& page = memory.page;
    CHECK(gate::try_now(page, 0, {100 * kUs, 600, 100}, kNow).launched);
    gate::reached_driver(page, 0, kNow);
    returned(page.slots[0].timeline, 101 * kUs, 100 * kUs);
    CHECK(gate::try_now(page, 1, {100 * kUs, 600, 100}, kNow + 110 * kUs).launched);
}

// Others count the lateness from the first of a row on, and of what begins soon and lasts.
void the_first_of_a_row_is_under_way() {
    SharedPage memory;
    Timeline& line = memory.page.slots[0].timeline;
    starting(line, kNow, {20 * kUs, 100, 100}, kNow);
    CHECK(line.starting_ns == 0);
    starting(line, kNow + 2 * kMs + 1, {kMs, 100, 100}, kNow);
    CHECK(line.starting_ns == 0);
    starting(line, kNow + kMs, {kMs, 100, 100}, kNow);
    starting(line, kNow + 2 * kMs, {kMs, 100, 100}, kNow);
    CHECK(line.starting_ns == kNow + kMs);
    CHECK(start_delay_ns(line, kNow) == 0 && start_delay_ns(line, kNow + 3 * kMs) == 2 * kMs);
    CHECK(start_delay_ns(line, kNow + 1000 * kMs) == 5 * kMs);
}

}  // namespace

int main() {
    all_end_later_for_the_company_a_high_priority_launch_meets();
    each_launch_ends_later_for_what_it_runs_beside();
    company_that_fits_delays_nothing();
    who_waits_for_a_late_launch_is_told();
    a_launch_in_time_changes_nothing();
    a_late_launch_that_meets_others_puts_them_off();
    a_late_high_priority_launch_is_put_off_once();
    others_are_careful_after_a_long_call();
    a_call_that_waits_for_its_kernel_is_no_delay();
    the_first_of_a_row_is_under_way();
    return check::result();
}
