// Contexts: primary ones, which the runtime uses, and created ones.

#include "tests/kernel/fakecuda/capture.hpp"
#include "tests/kernel/fakecuda/driver.hpp"
#include "tests/kernel/fakecuda/fault.hpp"

using fakecuda::current_context;
using fakecuda::Device;
using fakecuda::device;
using fakecuda::initialised;

namespace {

CUcontext make_context(Device& device) {
    auto* context = new CUctx_st{&device, std::make_unique<CUstream_st>(), {}, {}, {}, {}};
    context->legacy->context = context;
    context->legacy->queue = device.gpu == nullptr ? fakecuda::gpu::kNone : device.gpu->open_stream();
    context->legacy->waits_for_legacy = false;
    return context;
}

void destroy_context(CUcontext context) {
    fakecuda::synchronise(context);
    for (const auto& stream : context->streams) {  // captures end with their streams
        CUgraph graph = nullptr;
        if (stream->capture != nullptr) fakecuda::end_capture(stream.get(), &graph);
        delete graph;
    }
    if (fakecuda::gpu::VirtualGpu* gpu = context->device->gpu.get()) {
        gpu->close_stream(context->legacy->queue);
        for (const auto& stream : context->streams) gpu->close_stream(stream->queue);
        for (const auto& stream : context->destroyed_streams) {
            if (stream->queue != fakecuda::gpu::kNone) gpu->close_stream(stream->queue);
        }
        for (const auto& event : context->events) {
            if (event->slot != fakecuda::gpu::kNone) gpu->close_event(event->slot);
        }
    }
    fakecuda::forget_registered_memory(context);
    fakecuda::forget_context(context);
    delete context;
}

// Streams outlive their green context, as cuda.h says of cuGreenCtxDestroy, until they are destroyed, and are
// of no use.
void detach_streams(CUcontext context) {
    static auto* const detached = new std::vector<std::unique_ptr<CUstream_st>>;
    fakecuda::synchronise(context);
    for (auto& stream : context->streams) {
        CUgraph graph = nullptr;
        if (stream->capture != nullptr) fakecuda::end_capture(stream.get(), &graph);
        delete graph;
        if (context->device->gpu != nullptr) context->device->gpu->close_stream(stream->queue);
        stream->detached = true;
        detached->push_back(std::move(stream));
    }
    context->streams.clear();
}

CUresult create(CUcontext* context, CUdevice ordinal) {
    if (initialised() != CUDA_SUCCESS) return CUDA_ERROR_NOT_INITIALIZED;
    if (device(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    *context = make_context(*device(ordinal));
    fakecuda::push_context(*context);
    return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice ordinal) {
    if (initialised() != CUDA_SUCCESS) return CUDA_ERROR_NOT_INITIALIZED;
    Device* owner = device(ordinal);
    if (owner == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (owner->primary == nullptr) {
        owner->primary = make_context(*owner);
    } else if (fakecuda::fault == fakecuda::Fault::kFailedContext) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    ++owner->primary_users;
    *context = owner->primary;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
    Device* owner = device(ordinal);
    if (owner == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (owner->primary_users == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--owner->primary_users == 0) {
        destroy_context(owner->primary);
        owner->primary = nullptr;
    }
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
    Device* owner = device(ordinal);
    if (owner == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (owner->primary != nullptr) destroy_context(owner->primary);
    owner->primary = nullptr;
    owner->primary_users = 0;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal) { return cuDevicePrimaryCtxRelease_v2(ordinal); }
CUresult cuDevicePrimaryCtxReset(CUdevice ordinal) { return cuDevicePrimaryCtxReset_v2(ordinal); }

CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int* flags, int* active) {
    if (device(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    *flags = 0;
    *active = device(ordinal)->primary != nullptr ? 1 : 0;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned int) {
    return device(ordinal) == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext* context, unsigned int, CUdevice ordinal) {
    return create(context, ordinal);
}
CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam*, int, unsigned int, CUdevice ordinal) {
    return create(context, ordinal);
}
CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams*, unsigned int, CUdevice ordinal) {
    return create(context, ordinal);
}

CUresult cuCtxDestroy_v2(CUcontext context) {
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    destroy_context(context);
    return CUDA_SUCCESS;
}
CUresult cuCtxDestroy(CUcontext context) { return cuCtxDestroy_v2(context); }

CUresult cuCtxPushCurrent_v2(CUcontext context) {
    fakecuda::push_context(context);
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
    CUcontext popped = fakecuda::pop_context();
    if (popped == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (context != nullptr) *context = popped;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
    if (initialised() != CUDA_SUCCESS) return CUDA_ERROR_NOT_INITIALIZED;
    fakecuda::pop_context();
    if (context != nullptr) fakecuda::push_context(context);
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
    if (initialised() != CUDA_SUCCESS) return CUDA_ERROR_NOT_INITIALIZED;
    *context = current_context();
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice_v2(CUdevice* ordinal, CUcontext context) {
    if (context == nullptr) context = current_context();
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    *ordinal = context->device->ordinal;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* ordinal) { return cuCtxGetDevice_v2(ordinal, nullptr); }

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize_v2(CUcontext context) {
    if (context == nullptr) context = current_context();
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (const CUresult refused = fakecuda::refuse_unsafe_call()) return refused;
    if (fakecuda::fault == fakecuda::Fault::kFailedContext) return CUDA_ERROR_ILLEGAL_ADDRESS;
    fakecuda::synchronise(context);
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() { return cuCtxSynchronize_v2(nullptr); }

// A green context is a context of its own here; its share of the SMs is not modelled.
CUresult cuGreenCtxCreate(CUgreenCtx* green, CUdevResourceDesc, CUdevice ordinal, unsigned int) {
    if (initialised() != CUDA_SUCCESS) return CUDA_ERROR_NOT_INITIALIZED;
    if (device(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    *green = new CUgreenCtx_st{make_context(*device(ordinal))};
    return CUDA_SUCCESS;
}

CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx green) {
    *context = green->context;
    return CUDA_SUCCESS;
}

CUresult cuGreenCtxDestroy(CUgreenCtx green) {
    detach_streams(green->context);
    destroy_context(green->context);
    delete green;
    return CUDA_SUCCESS;
}

}  // extern "C"
