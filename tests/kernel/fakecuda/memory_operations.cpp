// Writes and waits in streams: on a virtual GPU in their turn, else at once. Semaphores of other interfaces
// are never waited for.

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "tests/kernel/fakecuda/capture.hpp"
#include "tests/kernel/fakecuda/driver.hpp"
#include "tests/kernel/fakecuda/fault.hpp"
#include "tests/kernel/fakecuda/graph.hpp"

using fakecuda::DefaultStream;
namespace gpu = fakecuda::gpu;

namespace fakecuda {

using Kind = gpu::MemoryAccess::Kind;

// Of waits those for a bit of the lower half are known.
bool as_access(const CUstreamBatchMemOpParams& operation, gpu::MemoryAccess& access) {
    const auto& write = operation.writeValue;
    const auto& wait = operation.waitValue;
    switch (operation.operation) {
        case CU_STREAM_MEM_OP_WRITE_VALUE_32:
            access = {Kind::kWrite32, write.address, write.value};
            return write.flags == CU_STREAM_WRITE_VALUE_DEFAULT;
        case CU_STREAM_MEM_OP_WRITE_VALUE_64:
            access = {Kind::kWrite, write.address, write.value64};
            return write.flags == CU_STREAM_WRITE_VALUE_DEFAULT;
        case CU_STREAM_MEM_OP_WAIT_VALUE_32:
            access = {Kind::kWait, wait.address, wait.value};
            return wait.flags == CU_STREAM_WAIT_VALUE_AND;
        case CU_STREAM_MEM_OP_WAIT_VALUE_64:
            access = {Kind::kWait, wait.address, wait.value64};
            return wait.flags == CU_STREAM_WAIT_VALUE_AND && wait.value64 <= UINT32_MAX;
        default:
            return false;
    }
}

void run(const gpu::MemoryAccess& access, CUstream stream) {
    check_registered(access.address);
    if (gpu::VirtualGpu* gpu = stream->context->device->gpu.get()) {
        gpu->access(stream->queue, access, implicit_dependencies(stream));
    } else if (access.kind == Kind::kWrite) {
        reinterpret_cast<std::atomic<std::uint64_t>*>(access.address)->store(access.value);
    }
}

}  // namespace fakecuda

namespace {

CUresult submit(CUstream handle, unsigned count, const CUstreamBatchMemOpParams* operations,
                DefaultStream zero) {
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    CUstream stream = fakecuda::resolve(handle, zero);
    if (fakecuda::fault == fakecuda::Fault::kSlowSignal)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (stream->destroyed) {  // a driver works on what is there now
        std::fputs("fakecuda: a memory operation in a destroyed stream\n", stderr);
        std::abort();
    }
    if (stream->detached) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (fakecuda::captured_memory_operation(stream)) return CUDA_SUCCESS;
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

template <CUstreamBatchMemOpType kType, DefaultStream kZero>
CUresult submit_one(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
    CUstreamBatchMemOpParams one{};
    one.operation = kType;
    one.waitValue.address = address;
    one.waitValue.value64 = value;
    one.waitValue.flags = flags;
    return submit(stream, 1, &one, kZero);
}

}  // namespace

extern "C" {

// The first versions, before CUDA 11.7, do the same.
#define MEMORY_OPERATION(name, type, value_type)                                         \
    CUresult name(CUstream s, CUdeviceptr at, value_type value, unsigned flags) {        \
        return submit_one<type, DefaultStream::kLegacy>(s, at, value, flags);            \
    }                                                                                    \
    CUresult name##_ptsz(CUstream s, CUdeviceptr at, value_type value, unsigned flags) { \
        return submit_one<type, DefaultStream::kPerThread>(s, at, value, flags);         \
    }
MEMORY_OPERATION(cuStreamWaitValue32, CU_STREAM_MEM_OP_WAIT_VALUE_32, cuuint32_t)
MEMORY_OPERATION(cuStreamWaitValue32_v2, CU_STREAM_MEM_OP_WAIT_VALUE_32, cuuint32_t)
MEMORY_OPERATION(cuStreamWaitValue64, CU_STREAM_MEM_OP_WAIT_VALUE_64, cuuint64_t)
MEMORY_OPERATION(cuStreamWaitValue64_v2, CU_STREAM_MEM_OP_WAIT_VALUE_64, cuuint64_t)
MEMORY_OPERATION(cuStreamWriteValue32, CU_STREAM_MEM_OP_WRITE_VALUE_32, cuuint32_t)
MEMORY_OPERATION(cuStreamWriteValue32_v2, CU_STREAM_MEM_OP_WRITE_VALUE_32, cuuint32_t)
MEMORY_OPERATION(cuStreamWriteValue64, CU_STREAM_MEM_OP_WRITE_VALUE_64, cuuint64_t)
MEMORY_OPERATION(cuStreamWriteValue64_v2, CU_STREAM_MEM_OP_WRITE_VALUE_64, cuuint64_t)
#undef MEMORY_OPERATION

#define BATCH(name, zero)                                                                       \
    CUresult name(CUstream s, unsigned count, CUstreamBatchMemOpParams* operations, unsigned) { \
        return submit(s, count, operations, zero);                                              \
    }
BATCH(cuStreamBatchMemOp, DefaultStream::kLegacy)
BATCH(cuStreamBatchMemOp_ptsz, DefaultStream::kPerThread)
BATCH(cuStreamBatchMemOp_v2, DefaultStream::kLegacy)
BATCH(cuStreamBatchMemOp_v2_ptsz, DefaultStream::kPerThread)
#undef BATCH

#define SEMAPHORES(name, params_type)                                                   \
    CUresult name(const CUexternalSemaphore*, const params_type*, unsigned, CUstream) { \
        return fakecuda::ready();                                                       \
    }
SEMAPHORES(cuSignalExternalSemaphoresAsync, CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS)
SEMAPHORES(cuSignalExternalSemaphoresAsync_ptsz, CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS)
SEMAPHORES(cuWaitExternalSemaphoresAsync, CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS)
SEMAPHORES(cuWaitExternalSemaphoresAsync_ptsz, CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS)
#undef SEMAPHORES

}  // extern "C"
