#include "kernel_intercept/interposer/timing.hpp"

#include "kernel_intercept/interposer/driver.hpp"

namespace explsched::intercept {
namespace {

using State = TimedLaunch::State;

Result record_event(Event event, Stream stream, NullStream null_stream) noexcept {
    return null_stream == NullStream::kLegacy ? call_driver<Symbol::cuEventRecord>(event, stream)
                                              : call_driver<Symbol::cuEventRecord_ptsz>(event, stream);
}

bool have_events(TimedLaunch& timed) noexcept {
    for (Event* event : {&timed.start, &timed.end}) {
        if (*event == nullptr && call_driver<Symbol::cuEventCreate>(event, 0U) != kSuccess) {
            *event = nullptr;
            return false;
        }
    }
    return true;
}

void read_one(ContextRecord& record, TimedLaunch& timed) noexcept {
    State expected = State::kPending;
    if (!timed.state.compare_exchange_strong(expected, State::kReading, std::memory_order_acquire)) return;
    const Result done = call_driver<Symbol::cuEventQuery>(timed.end);
    if (done == kErrorNotReady) {
        timed.state.store(State::kPending, std::memory_order_release);
        return;
    }
    float milliseconds = 0;
    if (done == kSuccess &&
        call_driver<Symbol::cuEventElapsedTime>(&milliseconds, timed.start, timed.end) == kSuccess &&
        milliseconds > 0) {
        timed.sample.cost.gpu_ns = static_cast<std::uint64_t>(static_cast<double>(milliseconds) * 1e6);
        gate::record(record.ordinal, timed.sample);
    }
    record.pending.fetch_sub(1, std::memory_order_relaxed);
    timed.state.store(State::kFree, std::memory_order_release);
}

}  // namespace

TimedLaunch* start_timing(ContextRecord& record, Stream stream, NullStream null_stream,
                          const gate::Sample& sample) noexcept {
    for (TimedLaunch& timed : record.timed) {
        State expected = State::kFree;
        if (!timed.state.compare_exchange_strong(expected, State::kRecording, std::memory_order_acquire))
            continue;
        if (!have_events(timed) || record_event(timed.start, stream, null_stream) != kSuccess) {
            timed.state.store(State::kFree, std::memory_order_release);
            return nullptr;
        }
        timed.sample = sample;
        return &timed;
    }
    return nullptr;
}

void end_timing(ContextRecord& record, TimedLaunch& timed, Stream stream, NullStream null_stream,
                Result launched) noexcept {
    const bool recorded = launched == kSuccess && record_event(timed.end, stream, null_stream) == kSuccess;
    if (recorded) record.pending.fetch_add(1, std::memory_order_relaxed);
    timed.state.store(recorded ? State::kPending : State::kFree, std::memory_order_release);
}

void read_timings(ContextRecord& record) noexcept {
    if (record.pending.load(std::memory_order_relaxed) == 0) return;
    const RelaxedCaptureMode relaxed;
    if (!relaxed.granted()) return;
    for (TimedLaunch& timed : record.timed) {
        if (timed.state.load(std::memory_order_relaxed) == State::kPending) read_one(record, timed);
    }
}

}  // namespace explsched::intercept
