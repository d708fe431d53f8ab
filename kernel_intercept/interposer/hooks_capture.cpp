#include <algorithm>
#include <array>

#include "kernel_intercept/interposer/boundaries.hpp"
#include "kernel_intercept/interposer/capture.hpp"
#include "kernel_intercept/interposer/driver.hpp"

namespace explsched::intercept {

std::atomic<int> g_captures{0};

namespace {

bool ask_driver(Stream stream, NullStream null_stream) noexcept {
    int status = kNotCapturing;
    const Result result = null_stream == NullStream::kLegacy
                              ? call_driver<Symbol::cuStreamIsCapturing>(stream, &status)
                              : call_driver<Symbol::cuStreamIsCapturing_ptsz>(stream, &status);
    // An error means that this stream may not be used because of a capture elsewhere: hands off as well.
    return result != kSuccess || status != kNotCapturing;
}

void uncount_capture() noexcept {
    int count = g_captures.load(std::memory_order_relaxed);
    while (count > 0 && !g_captures.compare_exchange_weak(count, count - 1, std::memory_order_acq_rel)) {
    }
}

// The streams in which captures have begun, as far as there is room, but for those that cannot be destroyed.
struct Origin {
    std::atomic<Stream> stream;
    std::atomic<Context> context;  // of the stream that was there last
};
std::array<Origin, 64> g_origins{};

void note_origin(Stream stream, Context context) noexcept {
    if (reinterpret_cast<std::uintptr_t>(stream) <= kPerThreadStream) return;
    for (Origin& origin : g_origins) {
        Stream none = nullptr;
        if (!origin.stream.compare_exchange_strong(none, stream)) continue;
        origin.context.store(context);
        return;
    }
}

bool forget_origin(Stream stream) noexcept {
    return stream != nullptr && std::any_of(g_origins.begin(), g_origins.end(), [stream](Origin& origin) {
               Stream held = stream;
               return origin.stream.load() == stream && origin.stream.compare_exchange_strong(held, nullptr);
           });
}

// Counted before the driver begins it: no other thread may find that nothing captures when something does, or
// go on with what it has begun before.
template <typename Begin>
Result begin_capture(Stream stream, Begin begin) {
    Context context = nullptr;
    call_driver<Symbol::cuStreamGetCtx>(stream, &context);
    g_captures.fetch_add(1, std::memory_order_seq_cst);
    await_tails();
    const Result result = begin();
    if (result != kSuccess) {
        uncount_capture();
    } else {
        note_origin(stream, context);
    }
    return result;
}

// A failed end can leave the capture open (wrong stream) or close it (invalidated): the driver knows.
template <Symbol kSymbol, NullStream kNullStream>
Result end_capture(Stream stream, Graph* graph) {
    const bool before = ask_driver(stream, kNullStream);
    const Result result = call_driver<kSymbol>(stream, graph);
    if (before && !ask_driver(stream, kNullStream)) {
        forget_origin(stream);
        uncount_capture();
    }
    return result;
}

}  // namespace

RelaxedCaptureMode::RelaxedCaptureMode() noexcept
    : mode_(kCaptureModeRelaxed),
      exchanged_(call_driver<Symbol::cuThreadExchangeStreamCaptureMode>(&mode_) == kSuccess),
      granted_(exchanged_ || !any_capture()) {}

RelaxedCaptureMode::~RelaxedCaptureMode() {
    if (exchanged_) call_driver<Symbol::cuThreadExchangeStreamCaptureMode>(&mode_);
}

void end_capture_by_destruction(Stream stream) noexcept {
    if (forget_origin(stream)) uncount_capture();
}

void end_captures_of(Context context) noexcept {
    for (Origin& origin : g_origins) {
        if (origin.context.load() == context && origin.stream.exchange(nullptr) != nullptr) uncount_capture();
    }
}

bool is_capturing(Stream stream, NullStream null_stream) noexcept {
    return any_capture() && ask_driver(stream, null_stream);
}

extern "C" {

Result cuStreamBeginCapture(Stream stream) {
    return begin_capture(stream, [&] { return call_driver<Symbol::cuStreamBeginCapture>(stream); });
}

Result cuStreamBeginCapture_ptsz(Stream stream) {
    return begin_capture(stream, [&] { return call_driver<Symbol::cuStreamBeginCapture_ptsz>(stream); });
}

Result cuStreamBeginCapture_v2(Stream stream, int mode) {
    return begin_capture(stream, [&] { return call_driver<Symbol::cuStreamBeginCapture_v2>(stream, mode); });
}

Result cuStreamBeginCapture_v2_ptsz(Stream stream, int mode) {
    return begin_capture(stream,
                         [&] { return call_driver<Symbol::cuStreamBeginCapture_v2_ptsz>(stream, mode); });
}

Result cuStreamBeginCaptureToGraph(Stream stream, Graph graph, const GraphNode* dependencies,
                                   const void* edges, std::size_t count, int mode) {
    return begin_capture(stream, [&] {
        return call_driver<Symbol::cuStreamBeginCaptureToGraph>(stream, graph, dependencies, edges, count,
                                                                mode);
    });
}

Result cuStreamBeginCaptureToGraph_ptsz(Stream stream, Graph graph, const GraphNode* dependencies,
                                        const void* edges, std::size_t count, int mode) {
    return begin_capture(stream, [&] {
        return call_driver<Symbol::cuStreamBeginCaptureToGraph_ptsz>(stream, graph, dependencies, edges,
                                                                     count, mode);
    });
}

Result cuStreamBeginRecaptureToGraph(Stream stream, int mode, Graph graph, Handle callback, void* data) {
    return begin_capture(stream, [&] {
        return call_driver<Symbol::cuStreamBeginRecaptureToGraph>(stream, mode, graph, callback, data);
    });
}

Result cuStreamBeginRecaptureToGraph_ptsz(Stream stream, int mode, Graph graph, Handle callback, void* data) {
    return begin_capture(stream, [&] {
        return call_driver<Symbol::cuStreamBeginRecaptureToGraph_ptsz>(stream, mode, graph, callback, data);
    });
}

Result cuStreamEndCapture(Stream stream, Graph* graph) {
    return end_capture<Symbol::cuStreamEndCapture, NullStream::kLegacy>(stream, graph);
}

Result cuStreamEndCapture_ptsz(Stream stream, Graph* graph) {
    return end_capture<Symbol::cuStreamEndCapture_ptsz, NullStream::kPerThread>(stream, graph);
}

}  // extern "C"

}  // namespace explsched::intercept
