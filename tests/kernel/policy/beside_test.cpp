// Who may run beside high-priority work, by what was measured.

#include "kernel_intercept/policy/beside.hpp"

#include <array>

#include "tests/kernel/gate/check.hpp"

using explsched::policy::BesideRule;

namespace {

constexpr std::uint64_t kOne = 1, kTwo = 2, kBoth = 3;

// Runs periods of 1 ms of work in which client 0 costs nothing and client 1 a fifth. Counts who was left
// running.
struct Counts {
    int alone{0}, first{0}, second{0};
};

Counts run(BesideRule& rule, int periods, std::uint64_t expected) {
    Counts counts;
    std::uint64_t beside = 0;
    for (int i = 0; i < periods; ++i) {
        const double clock = i % 100 < 50 ? 1 : 1.2;  // it changes, slower than periods follow each other
        const double wall_ns = 1e6 * clock * (beside == kTwo ? 1.2 : 1);
        rule.ended({beside, 0, 0, static_cast<std::uint64_t>(wall_ns), 1'000'000});
        beside = rule.next(kBoth, expected);
        counts.alone += beside == 0;
        counts.first += beside == kOne;
        counts.second += beside == kTwo;
    }
    return counts;
}

void nothing_runs_beside_before_there_is_something_to_compare_with() {
    BesideRule rule;
    CHECK(rule.next(kBoth, kBoth) == 0);
}

void without_a_guess_it_is_found_out_seldom() {
    BesideRule rule;
    const Counts first = run(rule, 2000, 0);
    CHECK(first.first + first.second >= 4 && first.first + first.second <= 2000 / 200);
    run(rule, 6000, 0);
    const Counts later = run(rule, 1000, 0);
    CHECK(later.first > 800 && later.second <= 5 && later.alone > 50);
    CHECK(rule.stretch(0) < 1.02 && rule.stretch(1) > 1.1);
}

void all_are_tried_and_left_running_in_turns() {
    constexpr std::uint64_t kFour = 0x1e;
    BesideRule trying, following;
    std::array<int, 64> tried{}, followed{};
    const auto count = [](std::array<int, 64>& counts, std::uint64_t beside) {
        if (beside != 0) ++counts[static_cast<std::size_t>(__builtin_ctzll(beside))];
    };
    for (int i = 0; i < 16'384; ++i) {
        trying.ended({0, 0, 0, 1'000'000, 1'000'000});
        count(tried, trying.next(kFour, 0));
        following.ended({0, 0, 0, 1'000'000, 1'000'000});
        count(followed, following.next(kFour, kFour));
    }
    for (std::size_t client = 1; client <= 4; ++client) {
        CHECK(tried[client] >= 15 && tried[client] <= 17);
        CHECK(followed[client] > 3000);
    }
}

void a_guess_is_followed_until_it_is_known_better() {
    BesideRule rule;
    const Counts first = run(rule, 14, kTwo);  // six of them are measured
    CHECK(first.second >= 5);
    run(rule, 32, kTwo);
    const Counts later = run(rule, 1000, kTwo);
    CHECK(later.second < 20);
}

void what_does_harm_is_tried_less_and_less() {
    BesideRule rule;
    std::array<int, 3> tried{};
    std::uint64_t beside = 0;
    for (int i = 0; i < 24'000; ++i) {
        rule.ended({beside, 0, 0, beside == 0 ? 1'000'000U : 1'800'000U, 1'000'000});
        beside = rule.next(kOne, 0);
        tried[static_cast<std::size_t>(i / 8000)] += beside != 0;
    }
    CHECK(tried[0] >= 4 && tried[0] <= 6 && tried[1] + tried[2] == 1);
}

// Half of what high-priority work loses is the most that is worth it. It is known after a few periods, and
// looked at again now and then: it may have changed.
void who_costs_more_than_it_gets_is_kept_no_more() {
    BesideRule rule;
    double lost = 0.8;
    const auto kept_in = [&](int periods) {
        int kept = 0;
        for (int i = 0; i < periods; ++i) {
            const bool keep = !rule.measures_alone() && rule.keeps(0);
            kept += keep;
            const double wall_ns = 1e6 + (keep ? 200'000 * lost : 0);
            rule.ended({0, keep ? kOne : 0, 200'000, static_cast<std::uint64_t>(wall_ns), 1'000'000});
            rule.next(0, 0);
        }
        return kept;
    };
    CHECK(kept_in(32) <= 3);
    const int seldom = kept_in(4000);
    CHECK(seldom >= 1 && seldom <= 5);
    lost = 0.1;
    kept_in(40'000);
    CHECK(kept_in(1600) == 1500);
}

void who_comes_anew_is_measured_anew() {
    BesideRule rule;
    run(rule, 8000, 0);
    rule.forget(0);
    CHECK(run(rule, 100, 0).first <= 1);
}

// A fifth of the time for which the first is kept is lost, and half of it with the second.
void what_is_lost_while_a_client_is_kept_is_found_out() {
    BesideRule rule;
    CHECK(rule.loss(0) == 0.5);
    for (int i = 0; i < 4000; ++i) {
        const std::uint64_t kept = rule.measures_alone() ? 0 : i % 7 < 4 ? kOne : kTwo;
        const double clock = i % 100 < 50 ? 1 : 1.2;
        const double lost_ns = 300'000 * (kept == kOne ? 0.2 : kept == kTwo ? 0.5 : 0);
        rule.ended({0, kept, 300'000, static_cast<std::uint64_t>(1e6 * clock + lost_ns), 1'000'000});
        rule.next(0, 0);
    }
    CHECK(rule.loss(0) > 0.15 && rule.loss(0) < 0.3);
    CHECK(rule.loss(1) > 0.4 && rule.loss(1) < 0.6);
    rule.forget(1);
    CHECK(rule.loss(1) == 0.5);
}

}  // namespace

int main() {
    nothing_runs_beside_before_there_is_something_to_compare_with();
    without_a_guess_it_is_found_out_seldom();
    all_are_tried_and_left_running_in_turns();
    a_guess_is_followed_until_it_is_known_better();
    what_does_harm_is_tried_less_and_less();
    who_costs_more_than_it_gets_is_kept_no_more();
    who_comes_anew_is_measured_anew();
    what_is_lost_while_a_client_is_kept_is_found_out();
    return check::result();
}
