// Writes and waits in streams: on a virtual GPU in their turn, else at once.

#include <atomic>

#include "tests/kernel/fakecuda/capture.hpp"
#include "tests/kernel/fakecuda/driver.hpp"
#include "tests/kernel/fakecuda/graph.hpp"

using fakecuda::DefaultStream;
namespace gpu = fakecuda::gpu;

namespace fakecuda {

bool as_access(const CUstreamBatchMemOpParams& operation, gpu::MemoryAccess& access) {
    if (operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64) {
        access = {gpu::MemoryAccess::Kind::kWrite, operation.writeValue.address,
                  operation.writeValue.value64};
        return operation.writeValue.flags == CU_STREAM_WRITE_VALUE_DEFAULT;
    }
    access = {gpu::MemoryAccess::Kind::kWait, operation.waitValue.address, operation.waitValue.value};
    return operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 &&
           operation.waitValue.flags == CU_STREAM_WAIT_VALUE_AND;
}

void run(const gpu::MemoryAccess& access, CUstream stream) {
    if (gpu::VirtualGpu* gpu = stream->context->device->gpu.get()) {
        gpu->access(stream->queue, access, implicit_dependencies(stream));
    } else if (access.kind == gpu::MemoryAccess::Kind::kWrite) {
        reinterpret_cast<std::atomic<std::uint64_t>*>(access.address)->store(access.value);
    }
}

}  // namespace fakecuda

namespace {

CUresult submit(CUstream handle, unsigned count, const CUstreamBatchMemOpParams* operations,
                DefaultStream zero) {
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    CUstream stream = fakecuda::resolve(handle, zero);
    if (stream->capture != nullptr)
        return CUDA_ERROR_NOT_SUPPORTED;  // a part of a program's graph that it did not ask for
    if (stream == stream->context->legacy.get()) {
        if (const CUresult refused = fakecuda::refuse_legacy_stream(stream->context)) return refused;
    }
    for (unsigned i = 0; i < count; ++i) {
        gpu::MemoryAccess access;
        if (!fakecuda::as_access(operations[i], access)) return CUDA_ERROR_NOT_SUPPORTED;
        fakecuda::run(access, stream);
    }
    return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuStreamBatchMemOp_v2(CUstream s, unsigned int count, CUstreamBatchMemOpParams* operations,
                               unsigned int) {
    return submit(s, count, operations, DefaultStream::kLegacy);
}
CUresult cuStreamBatchMemOp_v2_ptsz(CUstream s, unsigned int count, CUstreamBatchMemOpParams* operations,
                                    unsigned int) {
    return submit(s, count, operations, DefaultStream::kPerThread);
}

}  // extern "C"
