// Events. In instant mode they take the real time at which they are recorded; on a virtual GPU, its time.

#include <algorithm>

#include "tests/kernel/fakecuda/capture.hpp"
#include "tests/kernel/fakecuda/driver.hpp"
#include "tests/kernel/fakecuda/fault.hpp"

using fakecuda::DefaultStream;
using fakecuda::resolve;
namespace gpu = fakecuda::gpu;

namespace {

gpu::VirtualGpu* gpu_of(CUevent event) { return event->context->device->gpu.get(); }

CUresult record(CUevent event, CUstream handle, DefaultStream zero) {
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    CUstream stream = resolve(handle, zero);
    event->capture = stream->capture;
    if (event->capture != nullptr) return CUDA_SUCCESS;
    event->recorded = true;
    event->recorded_ns = gpu::monotonic_ns();
    if (gpu::VirtualGpu* gpu = gpu_of(event)) {
        if (event->slot == gpu::kNone) event->slot = gpu->open_event();
        event->mark = {stream->queue,
                       gpu->mark(stream->queue, event->slot, fakecuda::implicit_dependencies(stream))};
    }
    return CUDA_SUCCESS;
}

CUresult refuse(CUevent event) {
    if (event->capture != nullptr) return CUDA_ERROR_CAPTURED_EVENT;
    if (fakecuda::fault == fakecuda::Fault::kFailedContext) return CUDA_ERROR_ILLEGAL_ADDRESS;
    return fakecuda::refuse_unsafe_call();
}

std::int64_t time_ns(CUevent event) {
    gpu::VirtualGpu* gpu = gpu_of(event);
    return gpu == nullptr ? event->recorded_ns : gpu->event_time_ns(event->slot).value();
}

bool has_ended(CUevent event) {
    gpu::VirtualGpu* gpu = gpu_of(event);
    return gpu == nullptr || !event->recorded || gpu->event_time_ns(event->slot).has_value();
}

}  // namespace

extern "C" {

CUresult cuEventCreate(CUevent* handle, unsigned int) {
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    CUcontext context = fakecuda::current_context();
    auto event = std::make_unique<CUevent_st>();
    event->context = context;
    *handle = event.get();
    const std::lock_guard lock(context->mutex);
    context->events.push_back(std::move(event));
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event) {
    CUcontext context = event->context;
    if (event->slot != gpu::kNone) {
        // The mark may still be in the queue, and would write to the slot's next owner.
        gpu_of(event)->wait_until_ended(event->mark.stream, event->mark.count);
        gpu_of(event)->close_event(event->slot);
    }
    const std::lock_guard lock(context->mutex);
    auto& events = context->events;
    events.erase(
        std::remove_if(events.begin(), events.end(), [&](const auto& other) { return other.get() == event; }),
        events.end());
    return CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent event) { return cuEventDestroy_v2(event); }

CUresult cuEventRecord(CUevent event, CUstream s) { return record(event, s, DefaultStream::kLegacy); }
CUresult cuEventRecord_ptsz(CUevent event, CUstream s) { return record(event, s, DefaultStream::kPerThread); }
CUresult cuEventRecordWithFlags(CUevent event, CUstream s, unsigned int) {
    return record(event, s, DefaultStream::kLegacy);
}
CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream s, unsigned int) {
    return record(event, s, DefaultStream::kPerThread);
}

CUresult cuEventQuery(CUevent event) {
    if (const CUresult refused = refuse(event)) return refused;
    return has_ended(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
    if (const CUresult refused = refuse(event)) return refused;
    if (!has_ended(event)) gpu_of(event)->wait_until_ended(event->mark.stream, event->mark.count);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
    if (!start->recorded || !end->recorded) return CUDA_ERROR_INVALID_HANDLE;
    if (!has_ended(start) || !has_ended(end)) return CUDA_ERROR_NOT_READY;
    *milliseconds = static_cast<float>(static_cast<double>(time_ns(end) - time_ns(start)) / 1e6);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime_v2(milliseconds, start, end);
}

}  // extern "C"
