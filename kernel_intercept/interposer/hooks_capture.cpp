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

Result begun(Result result) noexcept {
    if (result == kSuccess) g_captures.fetch_add(1, std::memory_order_acq_rel);
    return result;
}

// A failed end can leave the capture open (wrong stream) or close it (invalidated): the driver knows.
template <Symbol kSymbol, NullStream kNullStream>
Result end_capture(Stream stream, Graph* graph) {
    const bool before = ask_driver(stream, kNullStream);
    const Result result = call_driver<kSymbol>(stream, graph);
    if (before && !ask_driver(stream, kNullStream)) {
        int count = g_captures.load(std::memory_order_relaxed);
        while (count > 0 && !g_captures.compare_exchange_weak(count, count - 1, std::memory_order_acq_rel)) {
        }
    }
    return result;
}

}  // namespace

bool is_capturing(Stream stream, NullStream null_stream) noexcept {
    return any_capture() && ask_driver(stream, null_stream);
}

extern "C" {

Result cuStreamBeginCapture(Stream stream) {
    return begun(call_driver<Symbol::cuStreamBeginCapture>(stream));
}

Result cuStreamBeginCapture_ptsz(Stream stream) {
    return begun(call_driver<Symbol::cuStreamBeginCapture_ptsz>(stream));
}

Result cuStreamBeginCapture_v2(Stream stream, int mode) {
    return begun(call_driver<Symbol::cuStreamBeginCapture_v2>(stream, mode));
}

Result cuStreamBeginCapture_v2_ptsz(Stream stream, int mode) {
    return begun(call_driver<Symbol::cuStreamBeginCapture_v2_ptsz>(stream, mode));
}

Result cuStreamBeginCaptureToGraph(Stream stream, Graph graph, const GraphNode* dependencies,
                                   const void* edges, std::size_t count, int mode) {
    return begun(
        call_driver<Symbol::cuStreamBeginCaptureToGraph>(stream, graph, dependencies, edges, count, mode));
}

Result cuStreamBeginCaptureToGraph_ptsz(Stream stream, Graph graph, const GraphNode* dependencies,
                                        const void* edges, std::size_t count, int mode) {
    return begun(call_driver<Symbol::cuStreamBeginCaptureToGraph_ptsz>(stream, graph, dependencies, edges,
                                                                       count, mode));
}

Result cuStreamEndCapture(Stream stream, Graph* graph) {
    return end_capture<Symbol::cuStreamEndCapture, NullStream::kLegacy>(stream, graph);
}

Result cuStreamEndCapture_ptsz(Stream stream, Graph* graph) {
    return end_capture<Symbol::cuStreamEndCapture_ptsz, NullStream::kPerThread>(stream, graph);
}

}  // extern "C"

}  // namespace explsched::intercept
