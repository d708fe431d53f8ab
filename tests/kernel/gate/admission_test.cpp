// What a launch does to the memory that clients, manager and GPU share, without a wait and without a clock.

#include "kernel_intercept/gate/admission.hpp"

#include <memory>

#include "tests/kernel/gate/check.hpp"

using namespace explsched;
using gate::Boundary;
using gate::CountedStream;
using gate::Patience;

namespace {

constexpr std::uint64_t kUs = 1000, kNow = 1'000'000'000'000;
constexpr KernelCost kKernel{10 * kUs, 300, 200};
constexpr std::uint32_t kLow = 0, kHigh = 1, kOther = 2;

struct Site {
    std::unique_ptr<shared::Page> page{std::make_unique<shared::Page>()};
    std::unique_ptr<shared::Signals> signals{std::make_unique<shared::Signals>()};
    std::unique_ptr<CountedStream> stream{std::make_unique<CountedStream>()};

    explicit Site(std::uint64_t high = std::uint64_t{1} << kHigh) {
        page->control.occupied = 7;
        page->control.high = high;
        page->control.batch_ns = 50 * kUs;
        for (shared::ClientSignals& client : signals->clients) client.gate = shared::kOpen;
    }
    Boundary launch(std::uint32_t slot, const KernelCost& cost = kKernel,
                    Patience patience = Patience::kMayWait, int number = 0, std::uint64_t now_ns = kNow) {
        return gate::enter(*page, *signals, slot, number, *stream, cost, patience, now_ns);
    }
    bool room(std::uint32_t slot, int number = 0) {
        return gate::has_room(*page, *signals, slot, number, *stream);
    }
    bool open(std::uint32_t slot) { return shared::is_open(signals->clients[slot].gate); }
};

void best_effort_launches_wait_batch_by_batch() {
    Site site;
    CHECK(site.launch(kLow).waits);
    for (int i = 1; i < 5; ++i) CHECK(!site.launch(kLow).writes);
    CHECK(site.launch(kLow).waits);
    CHECK(site.signals->clients[kLow].lines[0].issued == 60 * kUs);
    // What is done is told less often than waited for.
    Boundary told;
    for (int i = 6; !told.writes && i < 100; ++i) told = site.launch(kLow);
    CHECK(told.waits && told.done_ns == 200 * kUs);
    // Short ones by their number, and a long one has a batch of its own.
    Site many;
    int waits = 0;
    for (int i = 0; i < 256; ++i) waits += many.launch(kLow, {100, 10, 10}).waits;
    CHECK(waits == 4);
    CHECK(many.launch(kLow, {1000 * kUs, 10, 10}).waits && many.launch(kLow).waits);
}

void what_must_not_wait_does_not() {
    Site site;
    CHECK(!site.launch(kLow, kKernel, Patience::kMustNotWait).waits);
    CHECK(!site.launch(kLow, kKernel, Patience::kMustNotWait, gate::kUncounted).writes);
    CHECK(site.launch(kLow).waits);  // and who may, does after it
}

void without_high_priority_clients_nothing_waits() {
    Site site(0);
    for (int i = 0; i < 1000; ++i) CHECK(!site.launch(kLow).waits && site.room(kLow));
}

// So a high-priority client that frees memory or synchronises waits for its own work alone.
void high_priority_launches_never_wait() {
    Site site;
    shared::close_gate(site.signals->clients[kHigh].gate);
    for (int i = 0; i < 1000; ++i) CHECK(!site.launch(kHigh).waits && site.room(kHigh));
}

void the_first_high_priority_launch_shuts_the_gates() {
    Site site;
    site.page->control.beside = std::uint64_t{1} << kOther;
    CHECK(!site.launch(kHigh).waits);
    CHECK(!site.open(kLow) && site.open(kOther) && site.open(kHigh));
    CHECK(site.page->slots[kHigh].client.busy == shared::kGatesShut);
    CHECK(site.page->slots[kHigh].counters.busy_since_ns == kNow);
    const std::uint32_t word = site.signals->clients[kLow].gate;
    site.launch(kHigh);
    CHECK(site.signals->clients[kLow].gate == word);  // later ones do not
}

void gates_stay_open_for_the_allowance() {
    Site site;
    site.page->control.allowance_ns = 30 * kUs;
    for (const std::uint64_t after_us : {0, 29}) {
        site.launch(kHigh, kKernel, Patience::kMayWait, 0, kNow + after_us * kUs);
        CHECK(site.open(kLow) && site.page->slots[kHigh].client.busy == shared::kBegun);
    }
    site.launch(kHigh, kKernel, Patience::kMayWait, 0, kNow + 30 * kUs);
    CHECK(!site.open(kLow) && site.page->slots[kHigh].client.busy == shared::kGatesShut);
}

void progress_is_told_now_and_then_and_at_the_end() {
    Site site;
    int writes = 0;
    for (int i = 0; i < 500; ++i) writes += site.launch(kHigh).writes;
    CHECK(writes == 4);  // of 5 ms of work
    const Boundary tail = site.stream->batches.tail();
    CHECK(tail.writes && !tail.waits && tail.done_ns == 5000 * kUs);
    CHECK(!site.stream->batches.tail().writes);
}

void launches_go_ahead_as_far_as_the_driver_takes_them() {
    Site site;
    shared::Line& line = site.signals->clients[kLow].lines[0];
    std::uint64_t launched = 0, first_ns = 0;
    for (; site.room(kLow) && launched < 10'000; ++launched) {
        const Boundary boundary = site.launch(kLow);
        if (boundary.done_ns != 0 && first_ns == 0) first_ns = boundary.done_ns;
    }
    CHECK(launched == gate::kMostAhead);
    line.done = first_ns;  // the GPU has come to the first boundary
    CHECK(site.room(kLow));
}

// Long kernels wait one by one, and the driver takes a thousand operations of a stream, whatever they are: it
// would hold up a thread for which the stream itself waits, for ever. For such a thread some are left.
void a_thread_that_its_stream_waits_for_finds_room_in_the_driver() {
    Site site;
    constexpr KernelCost kLong{60 * kUs, 500, 500};
    int launches = 0, operations = 0;
    const auto launch = [&] {
        const Boundary boundary = site.launch(kLow, kLong);
        operations += 1 + boundary.writes + boundary.waits;
        ++launches;
    };
    while (site.room(kLow) && launches < 10'000) launch();
    site.stream->stuck_at = 0;
    while (launches < 600) launch();
    CHECK(operations < 1'000);
}

// A stream that waits for the thread that launches: as much as the driver takes, in long batches, until it
// goes on.
void a_stream_that_stands_still_is_not_waited_for() {
    Site site;
    while (site.room(kLow)) site.launch(kLow);
    site.stream->stuck_at = 0;
    int boundaries = 0;
    for (std::uint32_t i = 0; i < 2 * gate::kMostLaunches; ++i) {
        CHECK(site.room(kLow));
        boundaries += site.launch(kLow).waits;
    }
    CHECK(boundaries == 2);
    site.signals->clients[kLow].lines[0].done = 1;
    CHECK(!site.room(kLow));
}

void a_stream_without_a_number_waits_on_the_host() {
    Site site;
    CHECK(site.room(kLow, gate::kUncounted));
    shared::close_gate(site.signals->clients[kLow].gate);
    CHECK(!site.room(kLow, gate::kUncounted) && site.room(kLow) && site.room(kHigh, gate::kUncounted));
    CHECK(!site.launch(kLow, kKernel, Patience::kMayWait, gate::kUncounted).writes);
}

// The manager's guess of who fits beside whom knows no short kernels.
void the_largest_shares_are_remembered() {
    Site site;
    site.launch(kLow, {50 * kUs, 300, 100});
    site.launch(kLow, {50 * kUs, 100, 400});
    site.launch(kLow, {2 * kUs, 900, 900});
    CHECK(site.page->slots[kLow].counters.peak == shared::pack_cost({0, 300, 400}));
}

void quota_is_paid_of_credit_or_by_debt() {
    Site site;
    shared::Slot& slot = site.page->slots[kLow];
    slot.client.credit_ns = 5 * static_cast<std::int64_t>(kUs);
    CHECK(gate::pay(slot, {20 * kUs, 500, 250}));
    CHECK(slot.client.credit_ns == -5 * static_cast<std::int64_t>(kUs) &&
          slot.counters.charged_ns == 10 * kUs);
    CHECK(!gate::pay(slot, kKernel));
}

// A thread that finds another one in the stream launches without a batch, and is counted.
void a_taken_stream_holds_up_nobody() {
    Site site;
    site.stream->taken = true;
    CHECK(site.room(kLow) && !site.launch(kLow).writes);
    CHECK(site.signals->clients[kLow].lines[0].issued == 10 * kUs &&
          site.page->slots[kLow].counters.launches == 1);
}

}  // namespace

int main() {
    best_effort_launches_wait_batch_by_batch();
    what_must_not_wait_does_not();
    without_high_priority_clients_nothing_waits();
    high_priority_launches_never_wait();
    the_first_high_priority_launch_shuts_the_gates();
    gates_stay_open_for_the_allowance();
    progress_is_told_now_and_then_and_at_the_end();
    launches_go_ahead_as_far_as_the_driver_takes_them();
    a_thread_that_its_stream_waits_for_finds_room_in_the_driver();
    a_stream_that_stands_still_is_not_waited_for();
    a_stream_without_a_number_waits_on_the_host();
    the_largest_shares_are_remembered();
    quota_is_paid_of_credit_or_by_debt();
    a_taken_stream_holds_up_nobody();
    return check::result();
}
