// Streams that record a graph instead of running.
//
// Launches into such a stream do not run now, so they are neither gated nor charged. While any stream of the
// process captures, calls like cuEventQuery can be illegal in other threads and would spoil the capture: see
// cuThreadExchangeStreamCaptureMode in the driver's manual. So nothing is timed or asked then.
#pragma once

#include <atomic>

#include "kernel_intercept/interposer/driver_abi.hpp"

namespace explsched::intercept {

// Which stream a null handle means: it depends on the entry point's variant.
enum class NullStream : std::uint8_t { kLegacy, kPerThread };

extern std::atomic<int> g_captures;

inline bool any_capture() noexcept { return g_captures.load(std::memory_order_acquire) > 0; }

// Whether launches into this stream are being recorded. Asks the driver only while something captures.
bool is_capturing(Stream stream, NullStream null_stream) noexcept;

}  // namespace explsched::intercept
