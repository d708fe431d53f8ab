#include "kernel_intercept/gate/nap.hpp"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>

#include "kernel_intercept/shared/clock.hpp"
#include "kernel_intercept/shared/futex.hpp"
#include "kernel_intercept/shared/spin_pause.hpp"

namespace explsched::gate {

namespace {

// A core that has gone idle takes its time to wake up, up to a hundred microseconds where it is a virtual
// one. So a prompt wait ends awake: as long before its end as sleeps of this process have ended late, half as
// much again to be sure, at most this long, and with at most a fifth of a core for it. Unless the core was
// taken away meanwhile, or a sleep ended so late that somebody else must have had the core: then others need
// it, and nobody stays awake for ten times as long as was lost.
constexpr std::uint64_t kLongestAwakeNs = 150'000;
constexpr std::uint64_t kLeastAwakeNs = 2'000;
constexpr std::uint64_t kRestFactor = 4;
constexpr std::uint64_t kTakenAwayNs = 30'000;
constexpr std::uint64_t kLossFactor = 10;
constexpr std::uint64_t kLongestRestNs = 10'000'000;

std::atomic<std::uint64_t> asleep_until_ns{0};                // nobody stays awake before
std::atomic<std::uint64_t> lateness_ns{kLongestAwakeNs / 2};  // of sleeps, running mean
std::atomic<int> cores{0};                                    // that this process may use; 0 = not asked yet

// Awake on the only core, a client would keep from it whoever it waits for.
bool only_one_core() {
    int count = cores.load(std::memory_order_relaxed);
    if (count == 0) {
        cpu_set_t set;
        count = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 2;  // more than 1024 cores
        cores.store(count, std::memory_order_relaxed);
    }
    return count == 1;
}

// How long before `until_ns` to be awake.
std::uint64_t awake_ns(std::uint64_t until_ns, Promptness promptness) {
    if (promptness == Promptness::kAnyTime || only_one_core()) return 0;
    const std::uint64_t late_ns = lateness_ns.load(std::memory_order_relaxed);
    const std::uint64_t awake_ns = std::clamp(late_ns + late_ns / 2, kLeastAwakeNs, kLongestAwakeNs);
    return until_ns - awake_ns < asleep_until_ns.load(std::memory_order_relaxed) ? 0 : awake_ns;
}

void rest_until(std::uint64_t until_ns) {
    if (until_ns > asleep_until_ns.load(std::memory_order_relaxed))
        asleep_until_ns.store(until_ns, std::memory_order_relaxed);
}

void rest_for_loss(std::uint64_t lost_ns, std::uint64_t now_ns) {
    rest_until(now_ns + std::min(kLossFactor * lost_ns, kLongestRestNs));
}

void learn_lateness(std::uint64_t late_ns, std::uint64_t now_ns) {
    if (late_ns > kLongestAwakeNs) return rest_for_loss(late_ns, now_ns);
    const auto mean = static_cast<std::int64_t>(lateness_ns.load(std::memory_order_relaxed));
    const auto late = static_cast<std::int64_t>(late_ns);
    lateness_ns.store(static_cast<std::uint64_t>(mean + (late - mean) / 8), std::memory_order_relaxed);
}

}  // namespace

void stay_awake(const std::atomic<std::uint32_t>& gate, std::uint32_t waiting,
                std::uint64_t spin_ns) noexcept {
    const std::uint64_t began_ns = shared::now_ns();
    std::uint64_t before_ns = began_ns;
    while (gate.load(std::memory_order_acquire) == waiting && before_ns < began_ns + spin_ns) {
        shared::spin_pause();
        const std::uint64_t now_ns = shared::now_ns();
        if (now_ns - before_ns > kTakenAwayNs) rest_for_loss(now_ns - before_ns, now_ns);
        before_ns = now_ns;
    }
    rest_until(before_ns + kRestFactor * (before_ns - began_ns));
}

void nap(std::atomic<std::uint32_t>& gate, std::uint32_t waiting, std::uint64_t until_ns,
         Promptness promptness) noexcept {
    std::uint64_t now_ns = shared::now_ns();
    const std::uint64_t sleep_until_ns = until_ns - awake_ns(until_ns, promptness);
    if (now_ns < sleep_until_ns) {
        shared::futex_wait(gate, waiting, sleep_until_ns - now_ns);
        now_ns = shared::now_ns();
        if (now_ns >= sleep_until_ns) learn_lateness(now_ns - sleep_until_ns, now_ns);
    }
    if (now_ns >= sleep_until_ns && now_ns < until_ns) stay_awake(gate, waiting, until_ns - now_ns);
}

SharpTimer::SharpTimer() noexcept : slack_ns_(prctl(PR_GET_TIMERSLACK)) { prctl(PR_SET_TIMERSLACK, 1); }
SharpTimer::~SharpTimer() { prctl(PR_SET_TIMERSLACK, slack_ns_); }

}  // namespace explsched::gate
