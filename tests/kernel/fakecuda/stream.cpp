// Streams.

#include <algorithm>

#include "tests/kernel/fakecuda/capture.hpp"
#include "tests/kernel/fakecuda/driver.hpp"
#include "tests/kernel/fakecuda/fault.hpp"

using fakecuda::DefaultStream;
using fakecuda::resolve;
namespace gpu = fakecuda::gpu;

namespace {

constexpr DefaultStream kLegacy = DefaultStream::kLegacy;
constexpr DefaultStream kPerThread = DefaultStream::kPerThread;

// The work of a destroyed stream goes on, as cuda.h says of cuStreamDestroy; what it took is free when that
// ends.
void close_ended(CUcontext context, gpu::VirtualGpu& gpu) {
    const std::lock_guard lock(context->mutex);
    for (const auto& stream : context->destroyed_streams) {
        if (stream->queue == gpu::kNone || !gpu.has_ended(stream->queue, gpu.submitted(stream->queue)))
            continue;
        gpu.close_stream(stream->queue);
        stream->queue = gpu::kNone;
    }
}

CUresult create(CUstream* handle, CUcontext context, unsigned flags, int priority) {
    gpu::VirtualGpu* gpu = context->device->gpu.get();
    if (gpu != nullptr) close_ended(context, *gpu);
    auto stream = std::make_unique<CUstream_st>();
    stream->context = context;
    stream->queue = gpu == nullptr ? gpu::kNone : gpu->open_stream();
    stream->waits_for_legacy = (flags & CU_STREAM_NON_BLOCKING) == 0;
    stream->priority = priority;
    *handle = stream.get();
    const std::lock_guard lock(context->mutex);
    context->streams.push_back(std::move(stream));
    return CUDA_SUCCESS;
}

CUresult query(CUstream handle, DefaultStream zero) {
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    CUstream stream = resolve(handle, zero);
    if (const CUresult refused = fakecuda::refuse_capturing(stream)) return refused;
    if (fakecuda::fault == fakecuda::Fault::kFailedContext) return CUDA_ERROR_ILLEGAL_ADDRESS;
    gpu::VirtualGpu* gpu = stream->context->device->gpu.get();
    if (gpu == nullptr || gpu->has_ended(stream->queue, gpu->submitted(stream->queue))) return CUDA_SUCCESS;
    return CUDA_ERROR_NOT_READY;
}

CUresult synchronise(CUstream handle, DefaultStream zero) {
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    CUstream stream = resolve(handle, zero);
    if (const CUresult refused = fakecuda::refuse_capturing(stream)) return refused;
    if (fakecuda::fault == fakecuda::Fault::kFailedContext) return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (stream == stream->context->legacy.get()) {
        if (const CUresult refused = fakecuda::refuse_legacy_stream(stream->context)) return refused;
    }
    fakecuda::synchronise(stream);
    return CUDA_SUCCESS;
}

CUresult wait_for(CUstream handle, CUevent event, DefaultStream zero) {
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    CUstream stream = resolve(handle, zero);
    if (event->capture != nullptr) {
        fakecuda::join_capture(stream, event->capture);
        return CUDA_SUCCESS;
    }
    gpu::VirtualGpu* gpu = stream->context->device->gpu.get();
    if (gpu != nullptr && event->recorded) gpu->wait_for(stream->queue, event->mark);
    return CUDA_SUCCESS;
}

template <typename Value, typename Get>
CUresult get(CUstream handle, Value* value, DefaultStream zero, Get property) {
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    *value = property(*resolve(handle, zero));
    return CUDA_SUCCESS;
}

int priority_of(const CUstream_st& stream) { return stream.priority; }
CUcontext context_of(const CUstream_st& stream) { return stream.context; }
unsigned flags_of(const CUstream_st& stream) {
    return stream.waits_for_legacy ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
}

}  // namespace

extern "C" {

CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    return create(stream, fakecuda::current_context(), flags, 0);
}
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    return create(stream, fakecuda::current_context(), flags, std::clamp(priority, -5, 0));
}
CUresult cuGreenCtxStreamCreate(CUstream* stream, CUgreenCtx green, unsigned int flags, int priority) {
    return create(stream, green->context, flags, std::clamp(priority, -5, 0));
}

CUresult cuStreamDestroy_v2(CUstream stream) {
    if (stream->detached) return CUDA_SUCCESS;
    if (stream->capture != nullptr) {  // ends with its stream
        CUgraph graph = nullptr;
        fakecuda::end_capture(stream, &graph);
        delete graph;
    }
    CUcontext context = stream->context;
    const std::lock_guard lock(context->mutex);
    auto& streams = context->streams;
    const auto found = std::find_if(streams.begin(), streams.end(),
                                    [&](const auto& other) { return other.get() == stream; });
    stream->destroyed = true;
    context->destroyed_streams.push_back(std::move(*found));
    streams.erase(found);
    return CUDA_SUCCESS;
}
CUresult cuStreamDestroy(CUstream stream) { return cuStreamDestroy_v2(stream); }

CUresult cuStreamQuery(CUstream s) { return query(s, kLegacy); }
CUresult cuStreamQuery_ptsz(CUstream s) { return query(s, kPerThread); }
CUresult cuStreamSynchronize(CUstream s) { return synchronise(s, kLegacy); }
CUresult cuStreamSynchronize_ptsz(CUstream s) { return synchronise(s, kPerThread); }
CUresult cuStreamWaitEvent(CUstream s, CUevent event, unsigned int) { return wait_for(s, event, kLegacy); }
CUresult cuStreamWaitEvent_ptsz(CUstream s, CUevent event, unsigned int) {
    return wait_for(s, event, kPerThread);
}
CUresult cuStreamSetAttribute(CUstream s, CUstreamAttrID attribute, const CUstreamAttrValue* value) {
    if (attribute == CU_STREAM_ATTRIBUTE_PRIORITY) fakecuda::resolve(s, kLegacy)->priority = value->priority;
    return CUDA_SUCCESS;
}
CUresult cuStreamSetAttribute_ptsz(CUstream s, CUstreamAttrID attribute, const CUstreamAttrValue* value) {
    return cuStreamSetAttribute(s, attribute, value);
}
CUresult cuStreamGetPriority(CUstream s, int* priority) { return get(s, priority, kLegacy, priority_of); }
CUresult cuStreamGetPriority_ptsz(CUstream s, int* priority) {
    return get(s, priority, kPerThread, priority_of);
}
CUresult cuStreamGetFlags(CUstream s, unsigned int* flags) { return get(s, flags, kLegacy, flags_of); }
CUresult cuStreamGetFlags_ptsz(CUstream s, unsigned int* flags) {
    return get(s, flags, kPerThread, flags_of);
}
CUresult cuStreamGetCtx(CUstream s, CUcontext* context) { return get(s, context, kLegacy, context_of); }
CUresult cuStreamGetCtx_ptsz(CUstream s, CUcontext* context) {
    return get(s, context, kPerThread, context_of);
}

}  // extern "C"
