// The words of the shared page and its timelines.

#include <vector>

#include "kernel_intercept/gate/launch.hpp"
#include "tests/kernel/gate/check.hpp"
#include "tests/kernel/gate/shared_page.hpp"

using namespace explsched;
using namespace page_under_test;

namespace {

void words_hold_what_was_put_in() {
    const std::uint64_t word = pack(kTimeMask - 5, {1000, 3});
    CHECK(packed_time(word) == kTimeMask - 5);
    CHECK((packed_load(word) == Load{1000, 3}));
    const KernelCost cost = unpack_cost(pack_cost({123'456'789'012, 5000, 77}));
    CHECK(cost.gpu_ns == 123'456'789'012 && cost.compute_permille == 1000 && cost.bandwidth_permille == 77);
    for (const std::uint64_t end : {kNow, kNow - 3600 * 1000 * kMs, kNow + 3600 * 1000 * kMs}) {
        CHECK(end_ns_of(pack(tick_of(end), {}), kNow) / 256 == end / 256);
    }
}

void keys_differ_in_every_part() {
    const KernelKey base{7, {1, 2, 3}, {4, 5, 6}, 8, 90};
    std::vector<KernelKey> keys(10, base);
    keys[1].name_hash = 9;
    keys[2].grid.x = 9;
    keys[3].grid.y = 9;
    keys[4].grid.z = 9;
    keys[5].block.x = 9;
    keys[6].block.y = 9;
    keys[7].block.z = 9;
    keys[8].dynamic_shared_bytes = 9;
    keys[9].compute_capability = 9;
    for (std::size_t i = 0; i < keys.size(); ++i) {
        for (std::size_t j = 0; j < i; ++j) CHECK(hash_of(keys[i]) != hash_of(keys[j]));
    }
}

void a_timeline_tells_what_runs_when() {
    const SharedPage memory;
    Timeline& line = memory.page.slots[0].timeline;
    CHECK(peak(line, kNow, kNow + kMs).load.none());
    push(line, {100 * kUs, 500, 100}, kNow);
    push(line, {100 * kUs, 100, 600}, kNow);
    push(line, {100 * kUs, 300, 300}, kNow);
    CHECK(line.busy_until_ns == kNow + 300 * kUs);
    CHECK((peak(line, kNow, kNow + 50 * kUs).load == Load{500, 100}));
    CHECK((peak(line, kNow, kNow + 150 * kUs).load == Load{500, 600}));
    CHECK((peak(line, kNow + 120 * kUs, kNow + 150 * kUs).load == Load{100, 600}));
    CHECK((peak(line, kNow + 250 * kUs, kNow + kMs).load == Load{300, 300}));
    CHECK(peak(line, kNow + 301 * kUs, kNow + kMs).load.none());
    const std::uint64_t eases = peak(line, kNow, kNow + kMs).eases_ns;
    CHECK(eases >= kNow + 100 * kUs && eases <= kNow + 101 * kUs);
    settle(line, kNow + 20 * kUs);
    CHECK(peak(line, kNow + 20 * kUs, kNow + kMs).load.none());
    CHECK(drained(line));
}

void a_full_timeline_understates_nothing() {
    const SharedPage memory;
    Timeline& line = memory.page.slots[0].timeline;
    push(line, {10 * kMs, 900, 10}, kNow);
    for (std::uint32_t i = 0; i < 5 * kSpans; ++i) push(line, {kUs, 10, 20}, kNow);
    CHECK((peak(line, kNow, kNow + 100 * kMs).load == Load{900, 20}));
    CHECK(line.busy_until_ns == kNow + 10 * kMs + 5 * kSpans * kUs);
}

void old_spans_are_not_taken_for_future_ones() {
    const SharedPage memory;
    Timeline& line = memory.page.slots[0].timeline;
    push(line, {kMs, 900, 900}, kNow);
    for (std::uint64_t day = 0; day < 120; ++day) {
        const std::uint64_t later = kNow + kMs * 2 + day * 24 * 3600 * 1000 * kMs;
        CHECK(peak(line, later, later + kMs).load.none());
    }
}

void lateness_is_learnt_and_bounded() {
    const SharedPage memory;
    Timeline& line = memory.page.slots[0].timeline;
    std::uint64_t now = kNow;
    for (int i = 0; i < 100; ++i) {
        push(line, {16 * kMs, 100, 100}, now);
        now += 16 * kMs + 500 * kUs;
        settle(line, now);
    }
    CHECK(line.lag_ns > 450 * kUs && line.lag_ns <= 500 * kUs);
    for (int i = 0; i < 100; ++i) {
        push(line, {16 * kMs, 100, 100}, now);
        now += 1000 * kMs;  // the host asked late
        settle(line, now);
    }
    CHECK(line.lag_ns <= kMs);
}

}  // namespace

int main() {
    words_hold_what_was_put_in();
    keys_differ_in_every_part();
    a_timeline_tells_what_runs_when();
    a_full_timeline_understates_nothing();
    old_spans_are_not_taken_for_future_ones();
    lateness_is_learnt_and_bounded();
    return check::result();
}
