#include "kernel_intercept/gate/watchdog.hpp"

#include <pthread.h>
#include <signal.h>

#include "kernel_intercept/gate/admission.hpp"
#include "kernel_intercept/gate/timed_wait.hpp"
#include "kernel_intercept/shared/clock.hpp"

namespace explsched::gate {

namespace {

constexpr std::uint64_t kPeriodNs = 10'000'000;
constexpr std::size_t kStackBytes = std::size_t{1} << 20;  // and thread-local data of the program

enum class State : std::uint8_t { kNone, kStarting, kRunning, kFailed };
std::atomic<State> state{State::kNone};

void watch_link(Link& link, GateWatch& watch, std::uint64_t now_ns) {
    link.open_retired_gates(now_ns);
    shared::Signals* signals = link.signals.load(std::memory_order_acquire);
    if (signals == nullptr) return;
    // A slot that we have lost is another's, and its gate, too, as long as there is somebody to open it.
    const shared::Page* given = link.page.load(std::memory_order_acquire);
    if (given != nullptr && !link.is_tenant(*given) && manager_alive(given->control, now_ns)) return;
    const std::uint32_t slot = link.slot.load(std::memory_order_relaxed);
    std::atomic<std::uint32_t>& gate = signals->clients[slot].gate;
    const bool killed = !shared::is_open(gate.load(std::memory_order_relaxed)) && link.registration_lost();
    shared::Page* page = killed ? nullptr : link.own_page();
    if (watch_gate(watch, gate, page, now_ns) && page != nullptr)
        page->slots[slot].counters.forced.fetch_add(1, std::memory_order_relaxed);
}

void* watch_for_ever(void*) {
    std::array<GateWatch, kMaxGpus> watches{};
    for (;;) {
        timed_wait(kPeriodNs);
        const std::uint64_t now_ns = shared::now_ns();
        for (std::size_t i = 0; i < links.size(); ++i) watch_link(links[i], watches[i], now_ns);
    }
}

// The program's signals are not for this thread.
bool start_thread() {
    pthread_attr_t attributes;
    if (const auto make = &pthread_create; !make || pthread_attr_init(&attributes) != 0) return false;
    pthread_attr_setstacksize(&attributes, kStackBytes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread{};
    const bool started = pthread_create(&thread, &attributes, watch_for_ever, nullptr) == 0;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
    return started;
}

}  // namespace

bool start_watchdog() noexcept {
    State now = state.load(std::memory_order_acquire);
    if (now == State::kNone && state.compare_exchange_strong(now, State::kStarting)) {
        now = start_thread() ? State::kRunning : State::kFailed;
        state.store(now, std::memory_order_release);
    }
    return now == State::kRunning;
}

void forget_watchdog() noexcept { state.store(State::kNone, std::memory_order_release); }

bool watch_gate(GateWatch& watch, std::atomic<std::uint32_t>& gate, const shared::Page* page,
                std::uint64_t now_ns) noexcept {
    const std::uint32_t word = gate.load(std::memory_order_relaxed);
    if (shared::is_open(word)) {
        watch.shut_since_ns = 0;
        return false;
    }
    if (watch.shut_since_ns == 0) watch.shut_since_ns = now_ns;
    const bool orphaned = page == nullptr || !manager_alive(page->control, now_ns);
    const bool too_long = now_ns - watch.shut_since_ns >= kLongestShutNs;
    if (!orphaned && !too_long && now_ns >= watch.forced_until_ns) return false;
    if (too_long) watch.forced_until_ns = now_ns + shared::kForcedOpenNs;
    watch.shut_since_ns = 0;
    return shared::open_gate(gate, word);
}

}  // namespace explsched::gate
