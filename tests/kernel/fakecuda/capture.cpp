#include "tests/kernel/fakecuda/capture.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "tests/kernel/fakecuda/driver.hpp"
#include "tests/kernel/fakecuda/fault.hpp"

namespace fakecuda {
namespace {

std::mutex mutex;
std::vector<std::shared_ptr<Capture>> active;  // guarded by mutex
std::atomic<int> active_count{0};              // so that launches without captures take no lock

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

// The table of cuThreadExchangeStreamCaptureMode's documentation.
bool forbids(const Capture& capture) {
    const bool own = capture.thread == std::this_thread::get_id();
    switch (thread_mode) {
        case CU_STREAM_CAPTURE_MODE_GLOBAL:
            return own ? capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED
                       : capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        case CU_STREAM_CAPTURE_MODE_THREAD_LOCAL:
            return own && capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        default:
            return false;
    }
}

template <typename Predicate>
bool spoil_if(Predicate concerned) {
    if (active_count.load(std::memory_order_relaxed) == 0) return false;
    const std::lock_guard lock(mutex);
    bool any = false;
    for (const auto& capture : active) {
        if (!concerned(*capture)) continue;
        capture->invalid = any = true;
    }
    return any;
}

}  // namespace

CUresult begin_capture(CUstream stream, CUgraph into, CUstreamCaptureMode mode) {
    if (stream == stream->context->legacy.get()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    std::unique_lock lock(mutex);
    if (stream->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
    static cuuint64_t last_id = 0;
    const bool is_new = into == nullptr;
    stream->capture = std::make_shared<Capture>(Capture{is_new ? new CUgraph_st : into,
                                                        is_new,
                                                        mode,
                                                        stream,
                                                        std::this_thread::get_id(),
                                                        ++last_id,
                                                        false,
                                                        {stream}});
    active.push_back(stream->capture);
    ++active_count;
    lock.unlock();
    if (fault == Fault::kSlowCapture) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return CUDA_SUCCESS;
}

CUresult end_capture(CUstream stream, CUgraph* graph) {
    const std::lock_guard lock(mutex);
    const std::shared_ptr<Capture> capture = stream->capture;
    *graph = nullptr;
    if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (capture->thread != std::this_thread::get_id() && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    for (CUstream member : capture->streams) member->capture = nullptr;
    active.erase(std::remove(active.begin(), active.end(), capture), active.end());
    --active_count;
    if (capture->invalid) {
        if (capture->graph_is_new) delete capture->graph;
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    *graph = capture->graph;
    return CUDA_SUCCESS;
}

CUstreamCaptureStatus capture_status(CUstream stream) {
    const std::lock_guard lock(mutex);
    if (stream->capture == nullptr) return CU_STREAM_CAPTURE_STATUS_NONE;
    return stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult capture_node(Capture& capture, std::unique_ptr<CUgraphNode_st> node) {
    const std::lock_guard lock(mutex);
    if (capture.invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    capture.graph->nodes.push_back(std::move(node));
    return CUDA_SUCCESS;
}

bool captured_memory_operation(CUstream stream) {
    const std::lock_guard lock(mutex);
    if (stream->capture == nullptr) return false;
    auto node = std::make_unique<CUgraphNode_st>();
    node->type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    stream->capture->graph->nodes.push_back(std::move(node));
    return true;
}

void join_capture(CUstream stream, const std::shared_ptr<Capture>& capture) {
    const std::lock_guard lock(mutex);
    if (stream->capture == capture) return;
    stream->capture = capture;
    capture->streams.push_back(stream);
}

CUresult refuse_unsafe_call() {
    return spoil_if(forbids) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult refuse_legacy_stream(CUcontext context) {
    const auto blocks = [&](const Capture& capture) {
        return capture.origin->context == context && capture.origin->waits_for_legacy;
    };
    return spoil_if(blocks) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

bool legacy_stream_is_blocked(CUcontext context) {
    const std::lock_guard lock(mutex);
    return std::any_of(active.begin(), active.end(), [&](const auto& capture) {
        return capture->origin->context == context && capture->origin->waits_for_legacy;
    });
}

CUresult refuse_capturing(CUstream stream) {
    const auto own = [&](const Capture& capture) { return stream->capture.get() == &capture; };
    return spoil_if(own) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

}  // namespace fakecuda

using fakecuda::DefaultStream;
using fakecuda::resolve;

namespace {

CUresult begin(CUstream handle, CUgraph into, CUstreamCaptureMode mode, DefaultStream zero) {
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    return fakecuda::begin_capture(resolve(handle, zero), into, mode);
}

CUresult end(CUstream handle, CUgraph* graph, DefaultStream zero) {
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    return fakecuda::end_capture(resolve(handle, zero), graph);
}

CUresult info(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, DefaultStream zero) {
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    CUstream stream = resolve(handle, zero);
    *status = fakecuda::capture_status(stream);
    if (id != nullptr && *status != CU_STREAM_CAPTURE_STATUS_NONE) *id = stream->capture->id;
    return CUDA_SUCCESS;
}

// The question does not spoil the capture, other than work on the legacy stream would.
CUresult is_capturing(CUstream handle, CUstreamCaptureStatus* status, DefaultStream zero) {
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    CUcontext context = fakecuda::current_context();
    const bool legacy = resolve(handle, zero) == context->legacy.get();
    if (legacy && fakecuda::legacy_stream_is_blocked(context)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    return info(handle, status, nullptr, zero);
}

constexpr CUstreamCaptureMode kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;
constexpr DefaultStream kLegacy = DefaultStream::kLegacy;
constexpr DefaultStream kPerThread = DefaultStream::kPerThread;

}  // namespace

extern "C" {

CUresult cuStreamBeginCapture(CUstream s) { return begin(s, nullptr, kGlobal, kLegacy); }
CUresult cuStreamBeginCapture_ptsz(CUstream s) { return begin(s, nullptr, kGlobal, kPerThread); }
CUresult cuStreamBeginCapture_v2(CUstream s, CUstreamCaptureMode mode) {
    return begin(s, nullptr, mode, kLegacy);
}
CUresult cuStreamBeginCapture_v2_ptsz(CUstream s, CUstreamCaptureMode mode) {
    return begin(s, nullptr, mode, kPerThread);
}
CUresult cuStreamBeginCaptureToGraph(CUstream s, CUgraph graph, const CUgraphNode*, const CUgraphEdgeData*,
                                     size_t, CUstreamCaptureMode mode) {
    return begin(s, graph, mode, kLegacy);
}
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream s, CUgraph graph, const CUgraphNode*,
                                          const CUgraphEdgeData*, size_t, CUstreamCaptureMode mode) {
    return begin(s, graph, mode, kPerThread);
}
#if CUDA_HEADERS >= 13030
CUresult cuStreamBeginRecaptureToGraph(CUstream s, CUstreamCaptureMode mode, CUgraph graph,
                                       CUgraphRecaptureCallback, void*) {
    return begin(s, graph, mode, kLegacy);
}
CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream s, CUstreamCaptureMode mode, CUgraph graph,
                                            CUgraphRecaptureCallback, void*) {
    return begin(s, graph, mode, kPerThread);
}
#endif
CUresult cuStreamEndCapture(CUstream s, CUgraph* graph) { return end(s, graph, kLegacy); }
CUresult cuStreamEndCapture_ptsz(CUstream s, CUgraph* graph) { return end(s, graph, kPerThread); }
CUresult cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus* status) {
    return is_capturing(s, status, kLegacy);
}
CUresult cuStreamIsCapturing_ptsz(CUstream s, CUstreamCaptureStatus* status) {
    return is_capturing(s, status, kPerThread);
}
CUresult cuStreamGetCaptureInfo(CUstream s, CUstreamCaptureStatus* status, cuuint64_t* id) {
    return info(s, status, id, kLegacy);
}
CUresult cuStreamGetCaptureInfo_ptsz(CUstream s, CUstreamCaptureStatus* status, cuuint64_t* id) {
    return info(s, status, id, kPerThread);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    std::swap(fakecuda::thread_mode, *mode);
    return CUDA_SUCCESS;
}

}  // extern "C"
