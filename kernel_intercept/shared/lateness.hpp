// When a client's launches really begin and end, as far as its process can tell.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "kernel_intercept/shared/timeline.hpp"

namespace explsched::shared {

// A process may be held up between the announcement of a launch and the driver's call for it, by loading its
// module, say. Beyond this, others do not wait for it.
constexpr std::uint64_t kLongestStartNs = 5'000'000;
constexpr std::uint64_t kSoonNs = 2'000'000;
constexpr std::uint64_t kShortNs = 20'000;
constexpr std::uint64_t kMostUnsureNs = 1'000'000;

// How much later than its timeline says everything of this client happens, for a launch that the driver has
// not got yet.
inline std::uint64_t start_delay_ns(const Timeline& line, std::uint64_t now_ns) {
    const std::uint64_t since_ns = line.starting_ns.load(std::memory_order_relaxed);
    if (since_ns == 0 || now_ns <= since_ns) return 0;
    return std::min(now_ns - since_ns, kLongestStartNs);
}

// A launch is announced that is to begin at `begin_ns`. If that is soon, it begins no earlier than when the
// driver gets it, and all that follows it later. A short one is over anyhow when the next is announced, which
// begins then.
inline void starting(Timeline& line, std::uint64_t begin_ns, const KernelCost& cost, std::uint64_t now_ns) {
    if (cost.gpu_ns <= kShortNs || begin_ns > now_ns + kSoonNs) return;
    if (line.starting_ns.load(std::memory_order_relaxed) != 0) return;
    line.starting_ns.store(begin_ns, std::memory_order_relaxed);
}

// Lets the spans from `index` on end later.
inline void put_off_from(Timeline& line, std::uint64_t index, std::uint64_t by_ns, std::uint64_t near_ns) {
    const std::uint64_t head = line.head.load(std::memory_order_relaxed);
    line.busy_until_ns.fetch_add(by_ns, std::memory_order_seq_cst);
    for (; index != head; ++index) put_off(line, index, by_ns, near_ns);
}

// The driver has it. Returns the span that begins only now, if that is later than announced. If two threads
// launch at the same time, their lateness may count twice, or not at all.
inline std::optional<std::uint64_t> started(Timeline& line, std::uint64_t now_ns) {
    const std::uint64_t since_ns = line.starting_ns.load(std::memory_order_relaxed);
    line.starting_ns.store(0, std::memory_order_relaxed);
    if (since_ns == 0 || now_ns <= since_ns || drained(line)) return std::nullopt;
    const std::uint64_t head = line.head.load(std::memory_order_relaxed);
    const std::uint64_t open = open_spans(line);
    std::uint64_t back = 1;
    for (; back <= open; ++back) {
        const std::uint64_t word = line.spans[(head - back) % kSpans].load(std::memory_order_relaxed);
        if (end_ns_of(word, since_ns) <= since_ns + 256) break;  // the one before, rounded up
    }
    if (back == 1) return std::nullopt;
    put_off_from(line, head - back + 1, now_ns - since_ns, since_ns);
    return head - back + 1;
}

// The driver's call for the last launch took `call_ns`: a short time, or else nobody knows when in it the
// kernel began. Unless the call may have waited for the kernel itself, as it does with CUDA_LAUNCH_BLOCKING.
inline void returned(Timeline& line, std::uint64_t call_ns, std::uint64_t kernel_ns) {
    if (call_ns >= kernel_ns) return;
    const std::uint64_t unsure_ns = line.unsure_ns.load(std::memory_order_relaxed) + call_ns;
    line.unsure_ns.store(std::min(unsure_ns, kMostUnsureNs), std::memory_order_relaxed);
}

// Marks all that was pushed as done at `now_ns`. How much later this was than predicted tells how far the
// prediction may be off in the middle, too. But most of the time the host has only woken up late. So this
// follows the lower lateness at once and the higher slowly, and counts at most a sixteenth of the work.
inline void settle(Timeline& line, std::uint64_t now_ns) {
    const std::uint64_t pushed_ns = line.pushed_ns.load(std::memory_order_relaxed);
    const std::uint64_t work_ns = pushed_ns - line.settled_ns.exchange(pushed_ns, std::memory_order_relaxed);
    const std::uint64_t predicted_ns = line.busy_until_ns.load(std::memory_order_relaxed);
    const std::uint64_t late_ns = now_ns > predicted_ns ? std::min(now_ns - predicted_ns, work_ns / 16) : 0;
    const std::uint64_t lag_ns = line.lag_ns.load(std::memory_order_relaxed);
    line.lag_ns.store(late_ns < lag_ns ? late_ns : lag_ns + (late_ns - lag_ns) / 16,
                      std::memory_order_relaxed);
    if (line.latency_ns.load(std::memory_order_relaxed) == 0)  // a first estimate
        line.latency_ns.store(line.period_work_ns.load(std::memory_order_relaxed), std::memory_order_relaxed);
    line.drain_wall_ns.store(now_ns - line.began_ns.load(std::memory_order_relaxed),
                             std::memory_order_relaxed);
    line.drain_work_ns.store(work_ns, std::memory_order_relaxed);
    line.settled.store(line.head.load(std::memory_order_relaxed), std::memory_order_relaxed);
    line.starting_ns.store(0, std::memory_order_relaxed);
    line.unsure_ns.store(0, std::memory_order_relaxed);
    line.busy_until_ns.store(now_ns, std::memory_order_seq_cst);
    line.idle_since_ns.store(now_ns, std::memory_order_relaxed);
}

}  // namespace explsched::shared
