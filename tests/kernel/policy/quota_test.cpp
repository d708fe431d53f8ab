// Requests and limits, without a page or a clock.

#include "kernel_intercept/policy/quota.hpp"

#include <cmath>

#include "tests/kernel/gate/check.hpp"

using namespace explsched::policy;

namespace {

constexpr std::int64_t kTickNs = 5'000'000;
constexpr std::int64_t kNoLimit = 2 * kDebtNs;

Member hungry(std::uint32_t request, std::uint32_t limit = 1000) {
    return {request, limit, false, true, true, 0, 0};
}
Member idle(std::uint32_t request) { return {request, 1000, false, false, false, kSavingsNs, 0}; }

// What each member is given in one tick, in permille of it.
std::vector<double> given(const std::vector<Member>& before, std::uint32_t best_effort_permille = 1000) {
    const std::vector<Member> after = refill(before, kTickNs, kTickNs, best_effort_permille);
    std::vector<double> permille;
    for (std::size_t i = 0; i < before.size(); ++i)
        permille.push_back(static_cast<double>(after[i].credit_ns - before[i].credit_ns) * 1000 / kTickNs);
    return permille;
}

bool near(double a, double b) { return std::fabs(a - b) < 0.01; }

void all_busy_get_their_requests() {
    const auto rate = given({hungry(300), hungry(700)});
    CHECK(near(rate[0], 300) && near(rate[1], 700));
}

void requests_beyond_the_gpu_are_scaled() {
    const auto rate = given({hungry(1000), hungry(1000), hungry(500)});
    CHECK(near(rate[0], 400) && near(rate[1], 400) && near(rate[2], 200));
}

void what_is_left_goes_by_request_up_to_the_limits() {
    auto rate = given({hungry(100), hungry(300)});
    CHECK(near(rate[0], 250) && near(rate[1], 750));
    rate = given({hungry(100, 150), hungry(300)});
    CHECK(near(rate[0], 150) && near(rate[1], 850));
    CHECK(near(given({hungry(200, 500)})[0], 500));  // alone, still within the limit
}

void idle_clients_leave_their_share() {
    const auto rate = given({hungry(300), idle(700)});
    CHECK(near(rate[0], 1000) && near(rate[1], 0));
}

// Otherwise the others would slow down the client that does not come to launching all it may.
void active_clients_keep_theirs() {
    Member active = idle(700);
    active.active = true;
    const auto rate = given({hungry(300), active});
    CHECK(near(rate[0], 300) && near(rate[1], 0));
}

void best_effort_gives_way_to_a_stretched_client() {
    Member high = hungry(500);
    high.high = true;
    const auto rate = given({high, hungry(500)}, 400);
    CHECK(near(rate[0], 500) && near(rate[1], 200));
}

void less_can_be_handed_out() {
    const auto after = refill({hungry(300), hungry(700)}, kTickNs, kTickNs / 5, 1000);
    CHECK(after[0].credit_ns == kTickNs * 6 / 100 && after[1].credit_ns == kTickNs * 14 / 100);
}

void debts_are_carried_over() {
    // One kernel of 50 ms at a limit of 30 %: no credit for 167 ms.
    std::vector<Member> members{hungry(300, 300)};
    members[0].credit_ns = -50'000'000;
    int ticks = 0;
    for (; members[0].credit_ns <= 0; ++ticks) members = refill(members, kTickNs, kTickNs, 1000);
    CHECK(ticks == 34);
}

void savings_are_bounded() {
    std::vector<Member> members{hungry(500, 500), hungry(10)};
    members[0].waiting = false;
    for (int tick = 0; tick < 1000; ++tick) members = refill(members, kTickNs, kTickNs, 1000);
    CHECK(members[0].credit_ns == kSavingsNs / 2);
    CHECK(members[1].credit_ns == kTickNs);  // enough to keep all of the GPU busy until the next one
}

void debt_is_bounded() {
    std::vector<Member> members{hungry(1, 1)};
    members[0].credit_ns = -100 * kDebtNs;
    CHECK(refill(members, kTickNs, kTickNs, 1000)[0].credit_ns >= -kDebtNs);
}

void busy_clients_end_up_with_their_shares() {
    // Both spend all they get in kernels of 3 ms.
    std::vector<Member> members{hungry(300), hungry(700)};
    double spent[2] = {0, 0};
    for (int tick = 0; tick < 20000; ++tick) {
        for (int i = 0; i < 2; ++i) {
            while (members[i].credit_ns > 0) {
                members[i].credit_ns -= 3'000'000;
                spent[i] += 3e6;
            }
        }
        members = refill(members, kTickNs, kTickNs, 1000);
    }
    const double total = 20000.0 * kTickNs;
    CHECK(std::fabs(spent[0] / total - 0.3) < 0.001 && std::fabs(spent[1] / total - 0.7) < 0.001);
}

void who_waits_goes_on_early_and_the_late_one_saves_as_much_more() {
    std::vector<Member> members{hungry(300), hungry(700)};
    members[0].credit_ns = -500'000;
    members[0].room_ns = members[1].room_ns = kNoLimit;
    members[1].waiting = false;
    members = advance(members, 100'000, 1000);
    CHECK(members[0].credit_ns == 100'000 && members[1].credit_ns == 1'400'000);
}

void of_those_that_wait_the_one_that_lacks_least_for_its_request_goes_on() {
    std::vector<Member> members{hungry(300), hungry(700)};
    members[0].credit_ns = members[1].credit_ns = -500'000;
    members[0].room_ns = members[1].room_ns = kNoLimit;
    members = advance(members, 200'000, 1000);
    CHECK(members[1].credit_ns == 200'000 && members[0].credit_ns == -200'000);
}

void nothing_is_early_at_a_limit_or_beside_a_stretched_client() {
    std::vector<Member> members{hungry(300, 300)};
    members[0].room_ns = 50'000;
    CHECK(advance(members, 100'000, 1000)[0].credit_ns == 0);
    members[0].room_ns = 100'000;
    CHECK(advance(members, 100'000, 1000)[0].credit_ns == 100'000);
    CHECK(advance(members, 100'000, 999)[0].credit_ns == 0);
    members[0].waiting = false;
    CHECK(advance(members, 100'000, 1000)[0].credit_ns == 0);
}

constexpr std::uint64_t kNow = 1'000'000'000'000;

// A period of 10 us of work, beside others or alone.
BusyLook beside(std::uint64_t wall_ns) { return {wall_ns, 10'000, false, true, true}; }
BusyLook alone(std::uint64_t wall_ns) { return {wall_ns, 10'000, false, true, false}; }

bool is_half(const Pressure& pressure) {
    return pressure.best_effort_permille() >= 499 && pressure.best_effort_permille() <= 501;
}

void stretched_periods_cut_and_calm_ones_restore() {
    Pressure pressure;
    pressure.look(beside(10'000), kNow);
    CHECK(pressure.best_effort_permille() == 1000);
    pressure.look(beside(20'000), kNow);
    CHECK(is_half(pressure));
    pressure.look(beside(14'000), kNow);  // between recovery and emergency: kept
    CHECK(is_half(pressure));
    pressure.look(beside(100'000), kNow);  // so much is not our doing
    CHECK(is_half(pressure));
    for (int i = 0; i < 15; ++i) pressure.look(beside(10'000), kNow);
    CHECK(pressure.best_effort_permille() == 1000);
    for (int i = 0; i < 100; ++i) pressure.look(beside(39'000), kNow);
    CHECK(pressure.best_effort_permille() == 10);  // never to nothing
    pressure.look({0, 0, true, true, true}, kNow);
    CHECK(pressure.best_effort_permille() == 10);
}

void periods_alone_are_the_measure() {
    Pressure pressure;
    pressure.look(alone(10'000), kNow);
    for (int i = 0; i < 15; ++i) pressure.look(alone(20'000), kNow);
    CHECK(pressure.best_effort_permille() == 1000);
    pressure.look({10'000, 0, false, true, false}, kNow);  // nothing is known of its work
    pressure.look(beside(20'000), kNow);
    CHECK(pressure.best_effort_permille() == 1000);
    pressure.look(beside(40'000), kNow);
    CHECK(is_half(pressure));
    for (int i = 0; i < 30; ++i) pressure.look(alone(40'000), kNow);
    CHECK(pressure.best_effort_permille() == 1000);
}

// Such as one in which the host waits for data.
void one_slow_period_alone_is_no_measure() {
    Pressure pressure;
    pressure.look(alone(10'000), kNow);
    pressure.look(alone(60'000), kNow);
    CHECK(pressure.best_effort_permille() == 1000);
    pressure.look(beside(21'000), kNow);
    CHECK(is_half(pressure));
}

// Others that had work in an earlier part of a long period count, those of the time before it do not.
void who_had_work_in_a_period_has_stretched_it() {
    for (const bool busy : {true, false}) {
        Pressure pressure;
        pressure.look(alone(10'000), kNow);
        pressure.look({0, 0, busy, true, true}, kNow);
        pressure.look({0, 0, true, true, false}, kNow);
        pressure.look(alone(20'000), kNow);
        CHECK(busy ? is_half(pressure) : pressure.best_effort_permille() == 1000);
        pressure.look({0, 0, false, true, false}, kNow);
        pressure.look(alone(40'000), kNow);
        CHECK(busy ? is_half(pressure) : pressure.best_effort_permille() == 1000);
    }
}

void who_is_idle_needs_nothing_of_others() {
    Pressure pressure;
    pressure.look(beside(10'000), kNow);
    pressure.look(beside(20'000), kNow);
    pressure.look({0, 0, false, false, true}, kNow + 600'000'000);
    CHECK(is_half(pressure));
    pressure.look({0, 0, true, true, true}, kNow + 600'000'001);
    CHECK(is_half(pressure));
    pressure.look({0, 0, true, false, true}, kNow + 1'200'000'002);
    CHECK(pressure.best_effort_permille() == 1000);
}

}  // namespace

int main() {
    all_busy_get_their_requests();
    requests_beyond_the_gpu_are_scaled();
    what_is_left_goes_by_request_up_to_the_limits();
    idle_clients_leave_their_share();
    active_clients_keep_theirs();
    best_effort_gives_way_to_a_stretched_client();
    less_can_be_handed_out();
    debts_are_carried_over();
    savings_are_bounded();
    debt_is_bounded();
    busy_clients_end_up_with_their_shares();
    who_waits_goes_on_early_and_the_late_one_saves_as_much_more();
    of_those_that_wait_the_one_that_lacks_least_for_its_request_goes_on();
    nothing_is_early_at_a_limit_or_beside_a_stretched_client();
    stretched_periods_cut_and_calm_ones_restore();
    periods_alone_are_the_measure();
    one_slow_period_alone_is_no_measure();
    who_had_work_in_a_period_has_stretched_it();
    who_is_idle_needs_nothing_of_others();
    return check::result();
}
