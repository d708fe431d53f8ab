// The rule for sharing a GPU, without a page or a clock.

#include "kernel_intercept/policy/group.hpp"

#include "tests/kernel/gate/check.hpp"

using namespace explsched::policy;

namespace {

constexpr Caps kCaps{950, 950};
constexpr std::uint64_t kMs = 1'000'000;

void sums_stay_within_the_caps() {
    CHECK(fits({500, 200}, {450, 700}, kCaps));
    CHECK(!fits({500, 200}, {451, 100}, kCaps));
    CHECK(!fits({500, 200}, {100, 751}, kCaps));
    CHECK(fits({0, 0}, {1000, 1000}, kCaps));  // alone, it may exceed them
    CHECK(!fits({1, 0}, {1000, 0}, kCaps));
}

// A client with requests of 20 ms, of which best-effort work may risk 2.5 %: 500 us.
HighPriority idle(std::uint64_t since_ns) { return {since_ns, true, since_ns, 20 * kMs, 500'000}; }

void an_idle_client_bounds_what_is_outstanding() {
    const std::uint64_t now = 1000 * kMs;
    const HighPriority high = idle(now - 50 * kMs);
    CHECK(spares(high, now, now, now + 500'000, 25).allowed);
    CHECK(spares(high, now, now + 300'000, now + 500'000, 25).allowed);
    const Verdict second = spares(high, now, now + 300'000, now + 600'000, 25);
    CHECK(!second.allowed);
    CHECK(second.retry_ns == now + 100'000);                   // when only the bound is left outstanding
    CHECK(spares(high, now, now, now + 3 * kMs, 25).allowed);  // a longer one goes alone
    CHECK(!spares(high, now, now + 1, now + 3 * kMs, 25).allowed);
}

void a_client_is_idle_only_after_a_while() {
    const std::uint64_t now = 1000 * kMs;
    const Verdict early = spares(idle(now - 1000), now, now, now + 3 * kMs, 25);
    CHECK(!early.allowed);
    CHECK(early.retry_ns == now - 1000 + kGraceNs);
    CHECK(spares(idle(now - kGraceNs), now, now, now + 3 * kMs, 25).allowed);
}

void a_busy_client_is_not_outlasted_by_more_than_its_exposure() {
    const std::uint64_t now = 1000 * kMs;
    const HighPriority high{now + 2 * kMs, false, 0, 20 * kMs, 300'000};
    CHECK(spares(high, now, now, now + 2 * kMs, 25).allowed);
    const Verdict longer = spares(high, now, now, now + 2 * kMs + 300'000, 25);
    CHECK(longer.allowed && longer.exposed_ns == 300'000);
    CHECK(!spares(high, now, now, now + 2 * kMs + 300'001, 25).allowed);
}

void a_client_that_has_not_said_it_is_done_counts_as_busy() {
    const std::uint64_t now = 1000 * kMs;
    const HighPriority overdue{now - kMs, false, 0, 20 * kMs, 0};
    CHECK(!spares(overdue, now, now, now + 100'000, 25).allowed);
    const std::uint64_t later = now + 20 * kMs / kOverdueDivisor + 2 * kGraceNs;
    CHECK(spares(overdue, later, later, later + 100'000, 25).allowed);
}

void those_that_leave_the_most_room_go_first() {
    const std::vector<Want> wants{{0, {400, 100}, 900}, {1, {100, 300}, 950}, {2, {300, 300}, 800}};
    const auto ordered = order(wants, {500, 100}, kCaps, 1000, 500);
    CHECK(ordered[0].slot == 1 && ordered[1].slot == 2 && ordered[2].slot == 0);
}

void those_that_waited_long_go_before_all() {
    const std::vector<Want> wants{{0, {10, 10}, 900}, {1, {900, 900}, 100}, {2, {800, 800}, 50}};
    const auto ordered = order(wants, {0, 0}, kCaps, 1000, 500);
    CHECK(ordered[0].slot == 2 && ordered[1].slot == 1 && ordered[2].slot == 0);
}

}  // namespace

int main() {
    sums_stay_within_the_caps();
    an_idle_client_bounds_what_is_outstanding();
    a_client_is_idle_only_after_a_while();
    a_busy_client_is_not_outlasted_by_more_than_its_exposure();
    a_client_that_has_not_said_it_is_done_counts_as_busy();
    those_that_leave_the_most_room_go_first();
    those_that_waited_long_go_before_all();
    return check::result();
}
