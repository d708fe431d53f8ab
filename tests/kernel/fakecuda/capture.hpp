// Stream capture: launches become nodes of a graph instead of work. While it goes on, much is forbidden, and
// a forbidden call spoils the capture: what an interposer must never do.
#pragma once

#include <memory>
#include <thread>

#include "tests/kernel/fakecuda/objects.hpp"

namespace fakecuda {

struct Capture {
    CUgraph graph;
    bool graph_is_new;  // false with cuStreamBeginCaptureToGraph
    CUstreamCaptureMode mode;
    CUstream origin;
    std::thread::id thread;
    cuuint64_t id;
    bool invalid{false};
    std::vector<CUstream> streams;  // origin first; the others joined by waiting for an event
};

CUresult begin_capture(CUstream stream, CUgraph into,
                       CUstreamCaptureMode mode);  // into: nullptr for a new graph
CUresult end_capture(CUstream stream, CUgraph* graph);
CUstreamCaptureStatus capture_status(CUstream stream);

// Adds a node for work submitted to a capturing stream. CUDA_ERROR_STREAM_CAPTURE_INVALIDATED if the capture
// is spoilt.
CUresult capture_node(Capture& capture, std::unique_ptr<CUgraphNode_st> node);

// The same for a memory operation, also by a thread that has not begun the capture. False if the stream does
// not capture.
bool captured_memory_operation(CUstream stream);

// Another stream joins the capture in which `event` was recorded.
void join_capture(CUstream stream, const std::shared_ptr<Capture>& capture);

// For calls that CUDA calls "potentially unsafe" during captures, and for those on the legacy stream:
// CUDA_SUCCESS, or the error after spoiling the captures concerned.
CUresult refuse_unsafe_call();
CUresult refuse_legacy_stream(CUcontext context);
bool legacy_stream_is_blocked(CUcontext context);
// For calls that no capturing stream can take (synchronise, query).
CUresult refuse_capturing(CUstream stream);

}  // namespace fakecuda
