// Streams that record a graph instead of running.
//
// Launches into such a stream do not run now, so they are neither gated nor charged. While any stream of the
// process captures, calls like cuEventQuery can be illegal in other threads and would spoil the capture: see
// cuThreadExchangeStreamCaptureMode in the driver's manual. So captures are counted before they begin.
#pragma once

#include <atomic>

#include "kernel_intercept/interposer/driver_abi.hpp"

namespace explsched::intercept {

// Which stream a null handle means: it depends on the entry point's variant.
enum class NullStream : std::uint8_t { kLegacy, kPerThread };

extern std::atomic<int> g_captures;

// Lets this thread make calls that captures of others forbid, while it lives: they concern objects of ours
// alone, and are in no capture. Where the driver has no such mode, `granted` is false while anything
// captures.
class RelaxedCaptureMode {
   public:
    RelaxedCaptureMode() noexcept;
    ~RelaxedCaptureMode();
    RelaxedCaptureMode(const RelaxedCaptureMode&) = delete;
    RelaxedCaptureMode& operator=(const RelaxedCaptureMode&) = delete;

    bool granted() const noexcept { return granted_; }

   private:
    int mode_;
    bool exchanged_, granted_;
};

inline bool any_capture() noexcept { return g_captures.load() > 0; }

// Whether launches into this stream are being recorded. Asks the driver only while something captures.
bool is_capturing(Stream stream, NullStream null_stream) noexcept;

// To be called before a stream is destroyed: that ends the capture which began there, but none that it
// joined.
void end_capture_by_destruction(Stream stream) noexcept;

// A context goes, and with it its streams.
void end_captures_of(Context context) noexcept;

}  // namespace explsched::intercept
