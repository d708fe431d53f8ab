// Timing of single launches by event pairs on the launch's own stream, read later without waiting.
#pragma once

#include "kernel_intercept/interposer/capture.hpp"
#include "kernel_intercept/interposer/contexts.hpp"

namespace explsched::intercept {

// Records the first event. Null if no pair is free or the driver refuses; the launch is then not timed.
TimedLaunch* start_timing(ContextRecord& record, Stream stream, NullStream null_stream,
                          const gate::Sample& sample) noexcept;

// Records the second event, after a launch that succeeded; a failed one is dropped.
void end_timing(ContextRecord& record, TimedLaunch& timed, Stream stream, NullStream null_stream,
                Result launched) noexcept;

// Hands what is done to the gate. Spoils no capture. Needs the context to be current.
void read_timings(ContextRecord& record) noexcept;

}  // namespace explsched::intercept
