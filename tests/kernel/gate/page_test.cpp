// The shared page: its words, its timelines, and reservations by several processes at once.

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>
#include <vector>

#include "kernel_intercept/gate/launch.hpp"
#include "tests/kernel/gate/check.hpp"

using namespace explsched;
using namespace explsched::shared;

namespace {

constexpr std::uint64_t kUs = 1000, kMs = 1'000'000;
constexpr std::uint64_t kNow = 1'000'000'000'000;

// In memory of its own kind, as the clients see it.
struct SharedPage {
    SharedPage()
        : at(mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
          page(*new (at) Page{}) {
        page.control.policy = Policy::kGroup;
        page.control.cap_compute_permille = 950;
        page.control.cap_bandwidth_permille = 950;
        page.control.high_share_permille = 25;
        page.control.ahead_ns = 2 * kMs;
    }
    ~SharedPage() { munmap(at, sizeof(Page)); }
    SharedPage(const SharedPage&) = delete;
    SharedPage& operator=(const SharedPage&) = delete;

    void occupy(std::uint32_t slot, Class priority = Class::kBestEffort) {
        page.control.occupied.fetch_or(std::uint64_t{1} << slot);
        if (priority == Class::kHigh) page.control.high.fetch_or(std::uint64_t{1} << slot);
    }

    void* at;
    Page& page;
};

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

void reservations_respect_caps_and_are_withdrawn() {
    SharedPage memory;
    memory.occupy(0);
    memory.occupy(1);
    Page& page = memory.page;
    CHECK(try_reserve(page, 0, {100 * kUs, 500, 100}, kNow).reserved);
    CHECK(page.slots[0].timeline.reserved != 0);
    const Attempt second = try_reserve(page, 1, {100 * kUs, 500, 100}, kNow);
    CHECK(!second.reserved && !second.held_by_high && second.retry_ns >= kNow + 100 * kUs);
    CHECK(page.slots[1].timeline.reserved == 0);
    CHECK(try_reserve(page, 1, {100 * kUs, 400, 100}, kNow).reserved);
    CHECK(!try_reserve(page, 1, {100 * kUs, 10, 10}, kNow).reserved);  // one at a time
}

void a_busy_high_priority_client_holds_what_does_not_fit_beside_it() {
    SharedPage memory;
    memory.occupy(0, Class::kHigh);
    memory.occupy(1);
    Page& page = memory.page;
    gate::announce(page, 0, {kMs, 600, 200}, kNow);
    gate::announce(page, 0, {kMs, 200, 600}, kNow);
    CHECK(try_reserve(page, 1, {kMs, 300, 100}, kNow).reserved);
    page.slots[1].timeline.reserved = 0;
    const Attempt blocked = try_reserve(page, 1, {kMs / 2, 500, 100}, kNow);
    CHECK(!blocked.reserved && blocked.held_by_high);
    CHECK(blocked.retry_ns >= kNow + kMs && blocked.retry_ns < kNow + kMs + 10 * kUs);
    CHECK(try_reserve(page, 1, {kMs / 2, 500, 100}, blocked.retry_ns).reserved);
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

bool about(std::uint64_t time_ns, std::uint64_t expected_ns) {
    return time_ns >= expected_ns && time_ns <= expected_ns + 2 * 256;  // ends are kept in ticks
}

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

// Eight processes reserve at once: the summed load of what they hold never exceeds the caps.
void processes_never_exceed_the_caps_together() {
    constexpr int kProcesses = 8, kTries = 20'000;
    constexpr std::uint32_t kLoad = 300;  // three fit, four do not
    SharedPage memory;
    struct Tally {
        std::atomic<std::uint32_t> started, held, most, reserved, errors;
    };
    void* at = mmap(nullptr, sizeof(Tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    auto& tally = *new (at) Tally{};
    for (std::uint32_t slot = 0; slot < kProcesses; ++slot) memory.occupy(slot);
    for (std::uint32_t slot = 0; slot < kProcesses; ++slot) {
        if (fork() != 0) continue;
        tally.started.fetch_add(1);
        while (tally.started.load() < kProcesses) usleep(100);
        Timeline& line = memory.page.slots[slot].timeline;
        for (int i = 0; i < kTries; ++i) {
            if (!try_reserve(memory.page, slot, {kMs, kLoad, 10}, kNow).reserved) continue;
            const std::uint32_t held = tally.held.fetch_add(1) + 1;
            std::uint32_t most = tally.most.load();
            while (held > most && !tally.most.compare_exchange_weak(most, held)) {
            }
            tally.reserved.fetch_add(1);
            if (i % 64 == 0) sched_yield();
            tally.held.fetch_sub(1);
            line.reserved.store(0);
        }
        _exit(0);
    }
    for (int status = 0; wait(&status) > 0;) CHECK(status == 0);
    CHECK(tally.started == kProcesses);
    CHECK(tally.most <= 3);
    CHECK(tally.most >= 1 && tally.reserved > 1000);
    for (std::uint32_t slot = 0; slot < kProcesses; ++slot)
        CHECK(memory.page.slots[slot].timeline.reserved == 0);
    munmap(at, sizeof(Tally));
}

// Eight processes spend from one credit, with refills at the same time: nothing is lost or made.
void credit_is_conserved() {
    constexpr int kProcesses = 8, kTries = 50'000;
    SharedPage memory;
    Slot& slot = memory.page.slots[0];
    slot.door.credit_ns = 1'000'000;
    std::int64_t added = 1'000'000;
    for (int i = 0; i < kProcesses; ++i) {
        if (fork() != 0) continue;
        for (int n = 0; n < kTries; ++n)
            gate::try_quota(slot, {100 + static_cast<std::uint64_t>(n % 7), 1000, 0}, kNow);
        _exit(0);
    }
    for (int n = 0; n < 2000; ++n) {
        slot.door.credit_ns.fetch_add(10'000);
        added += 10'000;
        if (n % 16 == 0) usleep(50);
    }
    for (int status = 0; wait(&status) > 0;) CHECK(status == 0);
    CHECK(slot.counters.launches > 0);
    CHECK(static_cast<std::int64_t>(slot.counters.charged_ns) + slot.door.credit_ns == added);
    CHECK(slot.counters.gpu_ns == slot.counters.charged_ns);
}

}  // namespace

int main() {
    words_hold_what_was_put_in();
    keys_differ_in_every_part();
    a_timeline_tells_what_runs_when();
    a_full_timeline_understates_nothing();
    old_spans_are_not_taken_for_future_ones();
    lateness_is_learnt_and_bounded();
    reservations_respect_caps_and_are_withdrawn();
    a_busy_high_priority_client_holds_what_does_not_fit_beside_it();
    the_length_of_busy_periods_is_learnt();
    all_end_later_for_the_company_a_high_priority_launch_meets();
    company_that_fits_delays_nothing();
    processes_never_exceed_the_caps_together();
    credit_is_conserved();
    return check::result();
}
