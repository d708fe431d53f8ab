// What is remembered of a stream's launches: where its last boundary lies, and what follows it.
//
// A boundary is one or two memory operations in the stream. One writes how much is done, now and then. The
// other, for best-effort clients, waits until the gate is open: launches go ahead into the stream, and no
// more than one batch of them runs on when a high-priority client starts.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "kernel_intercept/gate/gate.hpp"

namespace explsched::gate {

constexpr std::uint32_t kMostLaunches = 64;  // in a batch
constexpr std::uint64_t kReportEvery = 16;   // launches that wait
// Of work, where nothing needs to wait: a report takes 3 us of an H100.
constexpr std::uint64_t kReportEveryNs = 1'000'000;
// Launches in a stream: 660 operations at most, with a wait each. A driver takes 1,000 and then holds up the
// launching thread; the rest is for streams that wait for that very thread.
constexpr std::uint64_t kMostAhead = 320;

class StreamBatches {
   public:
    // Before a best-effort launch: a boundary if it begins a batch.
    Boundary before_waiting(std::uint64_t gpu_ns, std::uint64_t batch_ns) {
        const bool full = batch_work_ns_ + gpu_ns > batch_ns || batch_launches_ >= kMostLaunches;
        if (gated_ && !full) return {};
        gated_ = true;
        batch_work_ns_ = 0;
        batch_launches_ = 0;
        if (untold_launches_ < kReportEvery) return {false, true, 0};
        return {true, true, cut()};
    }

    // Before any other.
    Boundary before_reporting() {
        gated_ = false;
        if (untold_ns_ < kReportEveryNs) return {};
        return {true, false, cut()};
    }

    // After the last launch for now. Nothing if the end of the last one is told already.
    Boundary tail() {
        if (untold_launches_ == 0) return {};
        gated_ = false;
        return {true, false, cut()};
    }

    // Returns what has been issued with it.
    std::uint64_t launched(std::uint64_t gpu_ns) {
        issued_ns_ += gpu_ns;
        untold_ns_ += gpu_ns;
        ++untold_launches_;
        batch_work_ns_ += gpu_ns;
        ++batch_launches_;
        ++launches_;
        return issued_ns_;
    }

    // Launches that are not known to be done.
    std::uint64_t ahead(std::uint64_t done_ns) {
        while (oldest_ != newest_ && cuts_[oldest_ % kCuts].issued_ns <= done_ns) {
            done_launches_ = cuts_[oldest_ % kCuts].launches;
            ++oldest_;
        }
        return launches_ - done_launches_;
    }

    // For a stream that comes anew in its place.
    void start_at(std::uint64_t issued_ns) {
        *this = StreamBatches{};
        issued_ns_ = issued_ns;
    }

   private:
    struct Cut {
        std::uint64_t issued_ns, launches;
    };
    static constexpr std::uint64_t kCuts = 512;  // more than launches can be ahead

    std::uint64_t cut() {
        untold_ns_ = 0;
        untold_launches_ = 0;
        if (newest_ - oldest_ == kCuts) ++oldest_;
        cuts_[newest_++ % kCuts] = {issued_ns_, launches_};
        return issued_ns_;
    }

    std::uint64_t issued_ns_{0}, untold_ns_{0}, batch_work_ns_{0};
    std::uint64_t launches_{0}, untold_launches_{0}, batch_launches_{0}, done_launches_{0};
    std::uint64_t oldest_{0}, newest_{0};
    bool gated_{false};  // the batch waits for the gate
    std::array<Cut, kCuts> cuts_{};
};

// Threads rarely launch into one stream at the same time. One that finds another one there for long goes on
// without: its launch is counted, and belongs to no batch.
class StreamLock {
   public:
    explicit StreamLock(std::atomic<bool>& taken) : taken_(taken), held_(false) {
        for (int tries = 0; tries < 100 && !held_; ++tries)
            held_ = !taken.exchange(true, std::memory_order_acquire);
    }
    ~StreamLock() {
        if (held_) taken_.store(false, std::memory_order_release);
    }
    StreamLock(const StreamLock&) = delete;
    StreamLock& operator=(const StreamLock&) = delete;

    bool held() const { return held_; }

   private:
    std::atomic<bool>& taken_;
    bool held_;
};

struct CountedStream {
    std::atomic<bool> taken{false};
    StreamBatches batches;
    // What was done when a launch had waited in vain, though the gate was open: the stream waits for
    // something else, the launching thread perhaps. Until it goes on nothing is held up for it, and batches
    // are long, so that the driver does not hold it up either.
    std::atomic<std::uint64_t> stuck_at{UINT64_MAX};

    bool is_stuck(std::uint64_t done_ns) const { return done_ns == stuck_at.load(std::memory_order_relaxed); }
};

}  // namespace explsched::gate
