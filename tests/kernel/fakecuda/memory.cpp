// Device memory is host memory here. Copies happen at once: kernels compute nothing, so there is nothing to
// wait for but time.

#include <cstdlib>
#include <cstring>

#include "tests/kernel/fakecuda/capture.hpp"
#include "tests/kernel/fakecuda/driver.hpp"

using fakecuda::DefaultStream;

namespace {

constexpr DefaultStream kLegacy = DefaultStream::kLegacy;
constexpr DefaultStream kPerThread = DefaultStream::kPerThread;

void* host(CUdeviceptr pointer) { return reinterpret_cast<void*>(pointer); }
CUdeviceptr device(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

CUresult allocate(CUdeviceptr* pointer, std::size_t bytes) {
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    void* memory = std::malloc(bytes);
    if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    *pointer = device(memory);
    return CUDA_SUCCESS;
}

// A node of this type in the graph, if the stream captures; else nothing.
CUresult captured_as(CUgraphNodeType type, CUstream stream, bool& captured) {
    captured = stream->capture != nullptr;
    if (!captured) return CUDA_SUCCESS;
    auto node = std::make_unique<CUgraphNode_st>();
    node->type = type;
    return capture_node(*stream->capture, std::move(node));
}

CUresult copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, DefaultStream zero) {
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    CUstream stream = fakecuda::resolve(nullptr, zero);
    if (const CUresult refused = fakecuda::refuse_legacy_stream(stream->context)) return refused;
    fakecuda::synchronise(stream);
    std::memmove(host(to), host(from), bytes);
    return CUDA_SUCCESS;
}

CUresult copy_async(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream handle,
                    DefaultStream zero) {
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    bool captured = false;
    const CUresult result = captured_as(CU_GRAPH_NODE_TYPE_MEMCPY, fakecuda::resolve(handle, zero), captured);
    if (!captured) std::memmove(host(to), host(from), bytes);
    return result;
}

CUresult set_async(CUdeviceptr to, unsigned char value, std::size_t bytes, CUstream handle,
                   DefaultStream zero) {
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    bool captured = false;
    const CUresult result = captured_as(CU_GRAPH_NODE_TYPE_MEMSET, fakecuda::resolve(handle, zero), captured);
    if (!captured) std::memset(host(to), value, bytes);
    return result;
}

}  // namespace

extern "C" {

CUresult cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total_bytes) {
    *free_bytes = *total_bytes = 141ULL << 30;
    return CUDA_SUCCESS;
}

// Device and host share addresses.
CUresult cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned int) {
    if (const CUresult refused = fakecuda::refuse_unsafe_call()) return refused;
    return memory == nullptr || bytes == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuMemHostUnregister(void*) { return fakecuda::refuse_unsafe_call(); }
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* pointer, void* memory, unsigned int) {
    *pointer = device(memory);
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr* pointer, std::size_t bytes) {
    if (const CUresult refused = fakecuda::refuse_unsafe_call()) return refused;
    return allocate(pointer, bytes);
}
CUresult cuMemFree_v2(CUdeviceptr pointer) {
    if (const CUresult refused = fakecuda::refuse_unsafe_call()) return refused;
    std::free(host(pointer));
    return CUDA_SUCCESS;
}
CUresult cuMemAllocHost_v2(void** pointer, std::size_t bytes) {
    *pointer = std::malloc(bytes);
    return *pointer == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
CUresult cuMemFreeHost(void* pointer) {
    std::free(pointer);
    return CUDA_SUCCESS;
}
CUresult cuMemAllocAsync(CUdeviceptr* pointer, std::size_t bytes, CUstream) {
    return allocate(pointer, bytes);
}
CUresult cuMemAllocAsync_ptsz(CUdeviceptr* pointer, std::size_t bytes, CUstream) {
    return allocate(pointer, bytes);
}
CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream) {
    std::free(host(pointer));
    return CUDA_SUCCESS;
}
CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) { return cuMemFreeAsync(pointer, stream); }

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, std::size_t n) { return copy(to, from, n, kLegacy); }
CUresult cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, std::size_t n) {
    return copy(to, from, n, kPerThread);
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t n) {
    return copy(to, device(from), n, kLegacy);
}
CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void* from, std::size_t n) {
    return copy(to, device(from), n, kPerThread);
}
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t n) {
    return copy(device(to), from, n, kLegacy);
}
CUresult cuMemcpyDtoH_v2_ptds(void* to, CUdeviceptr from, std::size_t n) {
    return copy(device(to), from, n, kPerThread);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t n, CUstream s) {
    return copy_async(to, from, n, s, kLegacy);
}
CUresult cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, std::size_t n, CUstream s) {
    return copy_async(to, from, n, s, kPerThread);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t n, CUstream s) {
    return copy_async(to, device(from), n, s, kLegacy);
}
CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void* from, std::size_t n, CUstream s) {
    return copy_async(to, device(from), n, s, kPerThread);
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t n, CUstream s) {
    return copy_async(device(to), from, n, s, kLegacy);
}
CUresult cuMemcpyDtoHAsync_v2_ptsz(void* to, CUdeviceptr from, std::size_t n, CUstream s) {
    return copy_async(device(to), from, n, s, kPerThread);
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, std::size_t n) {
    return set_async(to, value, n, nullptr, kLegacy);
}
CUresult cuMemsetD8_v2_ptds(CUdeviceptr to, unsigned char value, std::size_t n) {
    return set_async(to, value, n, nullptr, kPerThread);
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t n, CUstream s) {
    return set_async(to, value, n, s, kLegacy);
}
CUresult cuMemsetD8Async_ptsz(CUdeviceptr to, unsigned char value, std::size_t n, CUstream s) {
    return set_async(to, value, n, s, kPerThread);
}

}  // extern "C"
