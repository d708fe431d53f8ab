// Whatever dies, no gate stays shut.

#include "kernel_intercept/gate/watchdog.hpp"

#include <memory>

#include "tests/kernel/gate/check.hpp"

using namespace explsched;
using gate::GateWatch;
using gate::watch_gate;

namespace {

constexpr std::uint64_t kMs = 1'000'000, kNow = 1'000'000 * kMs;

struct Site {
    std::unique_ptr<shared::Page> page{std::make_unique<shared::Page>()};
    std::atomic<std::uint32_t> gate{shared::kOpen};
    GateWatch watch{};

    Site() {
        page->control.policy = shared::Policy::kGroup;
        page->control.beat_interval_ns = 5 * kMs;
        page->control.high = 2;
    }
    // Looks every 10 ms, with a manager that is alive until `dies_at_ms`. Returns when the gate was opened, 0
    // for never.
    std::uint64_t opened_ms(std::uint64_t until_ms, std::uint64_t dies_at_ms) {
        for (std::uint64_t ms = 0; ms <= until_ms; ms += 10) {
            if (ms < dies_at_ms) page->control.heartbeat_ns = kNow + ms * kMs;
            watch_gate(watch, gate, page.get(), kNow + ms * kMs);
            if (shared::is_open(gate)) return ms;
        }
        return 0;
    }
};

void a_gate_that_is_shut_for_a_request_stays_shut() {
    Site site;
    shared::close_gate(site.gate);
    CHECK(site.opened_ms(190, 1000) == 0);
}

void without_a_manager_it_opens_within_50_ms() {
    Site site;
    shared::close_gate(site.gate);
    const std::uint64_t opened_ms = site.opened_ms(1000, 1);
    CHECK(opened_ms >= 20 && opened_ms <= 50);
    shared::close_gate(site.gate);
    CHECK(watch_gate(site.watch, site.gate, nullptr, kNow + 1000 * kMs) && shared::is_open(site.gate));
}

void whoever_keeps_it_shut_it_opens_for_a_while() {
    Site site;
    shared::close_gate(site.gate);
    CHECK(site.opened_ms(1000, 2000) == 200);
    shared::close_gate(site.gate);  // and is not shut again at once
    CHECK(watch_gate(site.watch, site.gate, site.page.get(), kNow + 220 * kMs) && shared::is_open(site.gate));
    site.page->control.heartbeat_ns = kNow + 260 * kMs;
    shared::close_gate(site.gate);
    CHECK(!watch_gate(site.watch, site.gate, site.page.get(), kNow + 260 * kMs) &&
          !shared::is_open(site.gate));
}

void who_opens_sees_that_it_was_shut_anew() {
    std::atomic<std::uint32_t> gate{shared::kOpen};
    shared::close_gate(gate);
    const std::uint32_t seen = gate;
    shared::close_gate(gate);  // by another one, for another reason
    CHECK(!shared::open_gate(gate, seen) && !shared::is_open(gate));
    CHECK(shared::open_gate(gate, gate) && shared::is_open(gate));
}

// As of programs with large libraries: a thread's stack holds them, too.
thread_local volatile char many_bytes[256 * 1024];

void a_program_with_many_thread_local_bytes_has_a_watchdog() {
    many_bytes[0] = 1;
    CHECK(gate::start_watchdog() && many_bytes[0] == 1);
}

}  // namespace

int main() {
    a_gate_that_is_shut_for_a_request_stays_shut();
    without_a_manager_it_opens_within_50_ms();
    whoever_keeps_it_shut_it_opens_for_a_while();
    who_opens_sees_that_it_was_shut_anew();
    a_program_with_many_thread_local_bytes_has_a_watchdog();
    return check::result();
}
