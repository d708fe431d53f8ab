// Which stream a handle means, and what it waits for.

#include <map>

#include "tests/kernel/fakecuda/driver.hpp"

namespace fakecuda {
namespace {

CUstream per_thread_stream(CUcontext context) {
    thread_local std::map<CUcontext, CUstream> own;
    CUstream& stream = own[context];
    if (stream == nullptr) {
        gpu::VirtualGpu* gpu = context->device->gpu.get();
        auto made = std::make_unique<CUstream_st>();
        made->context = context;
        made->queue = gpu == nullptr ? gpu::kNone : gpu->open_stream();
        made->waits_for_legacy = true;
        stream = made.get();
        const std::lock_guard lock(context->mutex);
        context->streams.push_back(std::move(made));
    }
    return stream;
}

}  // namespace

CUstream resolve(CUstream handle, DefaultStream zero_means) {
    if (handle == nullptr)
        handle = zero_means == DefaultStream::kLegacy ? CU_STREAM_LEGACY : CU_STREAM_PER_THREAD;
    if (handle == CU_STREAM_LEGACY) return current_context()->legacy.get();
    if (handle == CU_STREAM_PER_THREAD) return per_thread_stream(current_context());
    return handle;
}

std::vector<std::int32_t> implicit_dependencies(CUstream stream) {
    CUcontext context = stream->context;
    if (stream != context->legacy.get()) {
        return stream->waits_for_legacy ? std::vector{context->legacy->queue} : std::vector<std::int32_t>{};
    }
    std::vector<std::int32_t> queues;
    const std::lock_guard lock(context->mutex);
    for (const auto& other : context->streams) {
        if (other->waits_for_legacy) queues.push_back(other->queue);
    }
    return queues;
}

void synchronise(CUstream stream) {
    gpu::VirtualGpu* gpu = stream->context->device->gpu.get();
    if (gpu == nullptr) return;
    gpu->wait_until_ended(stream->queue, gpu->submitted(stream->queue));
    if (stream != stream->context->legacy.get()) return;
    for (const std::int32_t queue : implicit_dependencies(stream)) {
        gpu->wait_until_ended(queue, gpu->submitted(queue));
    }
}

void synchronise(CUcontext context) {
    gpu::VirtualGpu* gpu = context->device->gpu.get();
    if (gpu == nullptr) return;
    std::vector<std::int32_t> queues{context->legacy->queue};
    std::vector<gpu::Dependency> work;
    {
        const std::lock_guard lock(context->mutex);
        for (const auto& stream : context->streams) queues.push_back(stream->queue);
        for (const auto& stream : context->destroyed_streams) {
            if (stream->queue != gpu::kNone) queues.push_back(stream->queue);
        }
        work = gpu->all_of(queues);  // while none of them is another stream's
    }
    for (const auto& [queue, count] : work) gpu->wait_until_ended(queue, count);
}

}  // namespace fakecuda
