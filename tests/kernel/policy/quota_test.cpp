// Requests and limits, without a page or a clock.

#include "kernel_intercept/policy/quota.hpp"

#include <cmath>

#include "tests/kernel/gate/check.hpp"

using namespace explsched::policy;

namespace {

constexpr std::uint64_t kTickNs = 5'000'000;

bool near(double a, double b) { return std::fabs(a - b) < 0.01; }

Member hungry(std::uint32_t request, std::uint32_t limit = 1000) {
    return {request, limit, false, true, 0, 0, 0};
}
Member idle(std::uint32_t request) { return {request, 1000, false, false, 0, 1'000'000, 0}; }

void all_busy_get_their_requests() {
    const auto rate = rates({hungry(300), hungry(700)}, 1000);
    CHECK(near(rate[0], 300) && near(rate[1], 700));
}

void requests_beyond_the_gpu_are_scaled() {
    const auto rate = rates({hungry(1000), hungry(1000), hungry(500)}, 1000);
    CHECK(near(rate[0], 400) && near(rate[1], 400) && near(rate[2], 200));
}

void what_is_left_goes_by_request_up_to_the_limits() {
    auto rate = rates({hungry(100), hungry(300)}, 1000);
    CHECK(near(rate[0], 250) && near(rate[1], 750));
    rate = rates({hungry(100, 150), hungry(300)}, 1000);
    CHECK(near(rate[0], 150) && near(rate[1], 850));
    CHECK(near(rates({hungry(200, 500)}, 1000)[0], 500));  // alone, still within the limit
}

void idle_clients_leave_their_share() {
    const auto rate = rates({hungry(300), idle(700)}, 1000);
    CHECK(rate[0] > 950 && rate[1] < 50);  // what is kept back lets the idle one start
}

void best_effort_gives_way_to_a_stretched_client() {
    Member high = hungry(500);
    high.high = true;
    const auto rate = rates({high, hungry(500)}, 400);
    CHECK(near(rate[0], 500) && near(rate[1], 200));
}

void debts_are_carried_over() {
    // One kernel of 50 ms at a share of 30 %: no credit for 167 ms.
    std::vector<Member> members{hungry(300, 300)};
    members[0].credit_ns = -50'000'000;
    int ticks = 0;
    for (; members[0].credit_ns <= 0; ++ticks) members = refill(members, kTickNs, 1000);
    CHECK(ticks == 34);
}

void credit_does_not_pile_up() {
    std::vector<Member> members{hungry(500, 500)};
    members[0].waiting = false;
    for (int tick = 0; tick < 1000; ++tick) members = refill(members, kTickNs, 1000);
    CHECK(members[0].credit_ns > 0 && members[0].credit_ns <= kBurstNs / 2);
}

void debt_is_bounded() {
    std::vector<Member> members{hungry(1, 1)};
    members[0].credit_ns = -100 * kDebtNs;
    CHECK(refill(members, kTickNs, 1000)[0].credit_ns >= -kDebtNs);
}

void busy_clients_end_up_with_their_shares() {
    // Both spend all they get in kernels of 3 ms.
    std::vector<Member> members{hungry(300), hungry(700)};
    double spent[2] = {0, 0};
    for (int tick = 0; tick < 20000; ++tick) {
        for (int i = 0; i < 2; ++i) {
            while (members[i].credit_ns > 0) {
                members[i].credit_ns -= 3'000'000;
                members[i].charged_ns += 3'000'000;
                spent[i] += 3e6;
            }
        }
        members = refill(members, kTickNs, 1000);
    }
    const double total = 20000.0 * kTickNs;
    CHECK(std::fabs(spent[0] / total - 0.3) < 0.001 && std::fabs(spent[1] / total - 0.7) < 0.001);
}

void stretched_periods_cut_and_calm_ones_restore() {
    Pressure pressure;
    pressure.period(10'000, 10'000);
    CHECK(pressure.best_effort_permille() == 1000);
    pressure.period(20'000, 10'000);
    CHECK(pressure.best_effort_permille() >= 499 && pressure.best_effort_permille() <= 501);
    pressure.period(14'000, 10'000);  // between recovery and emergency: kept
    CHECK(pressure.best_effort_permille() >= 499 && pressure.best_effort_permille() <= 501);
    pressure.period(100'000, 10'000);  // so much is not our doing
    CHECK(pressure.best_effort_permille() >= 499 && pressure.best_effort_permille() <= 501);
    for (int i = 0; i < 15; ++i) pressure.period(10'000, 10'000);
    CHECK(pressure.best_effort_permille() == 1000);
    for (int i = 0; i < 100; ++i) pressure.period(39'000, 10'000);
    CHECK(pressure.best_effort_permille() == 10);  // never to nothing
    pressure.period(0, 0);
    CHECK(pressure.best_effort_permille() == 10);
}

}  // namespace

int main() {
    all_busy_get_their_requests();
    requests_beyond_the_gpu_are_scaled();
    what_is_left_goes_by_request_up_to_the_limits();
    idle_clients_leave_their_share();
    best_effort_gives_way_to_a_stretched_client();
    debts_are_carried_over();
    credit_does_not_pile_up();
    debt_is_bounded();
    busy_clients_end_up_with_their_shares();
    stretched_periods_cut_and_calm_ones_restore();
    return check::result();
}
