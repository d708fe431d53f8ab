// Device memory is host memory here. Copies happen at once: kernels compute nothing, so there is nothing to
// wait for but time.

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

#include "tests/kernel/fakecuda/capture.hpp"
#include "tests/kernel/fakecuda/driver.hpp"
#include "tests/kernel/fakecuda/fault.hpp"

using fakecuda::DefaultStream;

namespace {

constexpr DefaultStream kLegacy = DefaultStream::kLegacy;
constexpr DefaultStream kPerThread = DefaultStream::kPerThread;

void* host(CUdeviceptr pointer) { return reinterpret_cast<void*>(pointer); }
CUdeviceptr device(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

// Host memory, by its address, and the context that has registered it; null once that is gone.
struct Registered {
    std::size_t bytes;
    CUcontext context;
};
std::mutex registered_mutex;
std::map<CUdeviceptr, Registered> registered;

constexpr std::uint64_t kMebibyte = 1 << 20;

// Of each GPU, for all processes together.
std::uint64_t capacity() {
    const char* mebibytes = std::getenv("FAKECUDA_MEMORY_MIB");
    return (mebibytes == nullptr ? 141 * 1024 : std::strtoull(mebibytes, nullptr, 10)) * kMebibyte;
}

// What lies on which GPU.
struct Held {
    fakecuda::gpu::VirtualGpu* gpu;
    std::uint64_t bytes;
};
std::mutex held_mutex;
std::map<std::uint64_t, Held> held;

fakecuda::gpu::VirtualGpu* current_gpu() { return fakecuda::current_context()->device->gpu.get(); }

// Memory on a GPU, or of the host; its number is an address of the host's.
CUresult take(CUdeviceptr* number, std::size_t bytes, fakecuda::gpu::VirtualGpu* gpu) {
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (gpu != nullptr && !gpu->take_memory(bytes, capacity())) return CUDA_ERROR_OUT_OF_MEMORY;
    void* memory = std::malloc(bytes);
    if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    *number = device(memory);
    const std::lock_guard lock(held_mutex);
    held[*number] = {gpu, bytes};
    return CUDA_SUCCESS;
}

CUresult put_back(std::uint64_t number) {
    const std::lock_guard lock(held_mutex);
    const auto found = held.find(number);
    if (found == held.end()) return CUDA_ERROR_INVALID_VALUE;
    if (found->second.gpu != nullptr) found->second.gpu->return_memory(found->second.bytes);
    held.erase(found);
    std::free(host(number));
    return CUDA_SUCCESS;
}

CUresult allocate(CUdeviceptr* pointer, std::size_t bytes) {
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    return take(pointer, bytes, current_gpu());
}

template <typename Array>
CUresult allocate_array(Array* array, std::size_t bytes) {
    CUdeviceptr number = 0;
    const CUresult result = allocate(&number, bytes);
    if (result == CUDA_SUCCESS) *array = reinterpret_cast<Array>(number);
    return result;
}

std::size_t texels(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
    return shape.Width * std::max<std::size_t>(shape.Height, 1) * std::max<std::size_t>(shape.Depth, 1) *
           shape.NumChannels * 4;
}

// Blocks of cuMemCreate, and where they are mapped. They end when nobody holds them and they are mapped
// nowhere.
std::map<CUmemGenericAllocationHandle, int> holders;
std::map<CUdeviceptr, CUmemGenericAllocationHandle> mappings;

CUresult drop(CUmemGenericAllocationHandle handle) {
    const auto found = holders.find(handle);
    if (found == holders.end()) return CUDA_ERROR_INVALID_VALUE;
    if (--found->second != 0) return CUDA_SUCCESS;
    holders.erase(found);
    return put_back(handle);
}

// A node of this type in the graph, if the stream captures; else nothing.
CUresult captured_as(CUgraphNodeType type, CUstream stream, bool& captured) {
    captured = stream->capture != nullptr;
    if (!captured) return CUDA_SUCCESS;
    auto node = std::make_unique<CUgraphNode_st>();
    node->type = type;
    return capture_node(*stream->capture, std::move(node));
}

fakecuda::gpu::VirtualGpu* gpu_of(CUmemoryPool pool) {
    if (pool == nullptr || pool->props.location.type == CU_MEM_LOCATION_TYPE_INVALID) return current_gpu();
    const bool on_gpu = pool->props.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    return on_gpu ? fakecuda::device(pool->props.location.id)->gpu.get() : nullptr;
}

// In a capture: an address for a node, behind which nothing is before the graph runs.
CUresult allocate_in(CUstream stream, DefaultStream zero, CUdeviceptr* pointer, std::size_t bytes,
                     CUmemoryPool pool) {
    static std::atomic<CUdeviceptr> next{0x6000'0000'0000};
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    bool captured = false;
    const CUresult result =
        captured_as(CU_GRAPH_NODE_TYPE_MEM_ALLOC, fakecuda::resolve(stream, zero), captured);
    if (!captured) return take(pointer, bytes, gpu_of(pool));
    *pointer = next.fetch_add(bytes);
    return result;
}

CUresult free_in(CUstream stream, DefaultStream zero, CUdeviceptr pointer) {
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    bool captured = false;
    const CUresult result =
        captured_as(CU_GRAPH_NODE_TYPE_MEM_FREE, fakecuda::resolve(stream, zero), captured);
    return captured ? result : put_back(pointer);
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

namespace fakecuda {

void forget_registered_memory(CUcontext context) {
    const std::lock_guard lock(registered_mutex);
    for (auto& [address, place] : registered) {
        if (place.context == context) place.context = nullptr;
    }
}

void check_registered(CUdeviceptr address) {
    const std::lock_guard lock(registered_mutex);
    const auto behind = registered.upper_bound(address);
    if (behind == registered.begin()) return;
    const auto& [begin, place] = *std::prev(behind);
    if (address - begin >= place.bytes || place.context != nullptr) return;
    std::fputs("fakecuda: access to memory that was registered by a context which is gone\n", stderr);
    std::abort();
}

}  // namespace fakecuda

extern "C" {

CUresult cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total_bytes) {
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    fakecuda::gpu::VirtualGpu* gpu = fakecuda::current_context()->device->gpu.get();
    *total_bytes = capacity();
    *free_bytes = capacity() - (gpu == nullptr ? 0 : gpu->memory_bytes());
    return CUDA_SUCCESS;
}

// Device and host share addresses.
CUresult cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned int) {
    if (const CUresult refused = fakecuda::refuse_unsafe_call()) return refused;
    if (memory == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard lock(registered_mutex);
    Registered& place = registered[device(memory)];
    if (place.context != nullptr) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    place = {bytes, fakecuda::current_context()};
    return CUDA_SUCCESS;
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
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    if (const CUresult refused = fakecuda::refuse_unsafe_call()) return refused;
    fakecuda::synchronise(fakecuda::current_context());  // as seen on an H100
    return put_back(pointer);
}
CUresult cuMemAllocHost_v2(void** pointer, std::size_t bytes) {
    *pointer = std::malloc(bytes);
    return *pointer == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
CUresult cuMemFreeHost(void* pointer) {
    std::free(pointer);
    return CUDA_SUCCESS;
}
CUresult cuMemAllocAsync(CUdeviceptr* pointer, std::size_t bytes, CUstream stream) {
    return allocate_in(stream, kLegacy, pointer, bytes, nullptr);
}
CUresult cuMemAllocAsync_ptsz(CUdeviceptr* pointer, std::size_t bytes, CUstream stream) {
    return allocate_in(stream, kPerThread, pointer, bytes, nullptr);
}
CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) { return free_in(stream, kLegacy, pointer); }
CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    return free_in(stream, kPerThread, pointer);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* pointer, std::size_t* pitch, std::size_t row_bytes, std::size_t rows,
                            unsigned int) {
    *pitch = (row_bytes + 511) / 512 * 512;
    return allocate(pointer, *pitch * rows);
}
CUresult cuMemAllocManaged(CUdeviceptr* pointer, std::size_t bytes, unsigned int) {
    return allocate(pointer, bytes);
}
// Null is the default pool, which says nothing.
CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* props) {
    if (const CUresult not_ready = fakecuda::initialised()) return not_ready;
    *pool = new CUmemPoolHandle_st{*props};
    return CUDA_SUCCESS;
}
CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    delete pool;
    return CUDA_SUCCESS;
}
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    if (pool == nullptr || fakecuda::fault == fakecuda::Fault::kNoPoolPlaces) return CUDA_ERROR_INVALID_VALUE;
    switch (static_cast<int>(attribute)) {  // CU_MEMPOOL_ATTR_*, which older headers do not name
        case 9:
            *static_cast<CUmemAllocationType*>(value) = pool->props.allocType;
            return CUDA_SUCCESS;
        case 11:
            *static_cast<int*>(value) = pool->props.location.id;
            return CUDA_SUCCESS;
        case 12:
            *static_cast<CUmemLocationType*>(value) = pool->props.location.type;
            return CUDA_SUCCESS;
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* pointer, std::size_t bytes, CUmemoryPool pool,
                                 CUstream stream) {
    return allocate_in(stream, kLegacy, pointer, bytes, pool);
}
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* pointer, std::size_t bytes, CUmemoryPool pool,
                                      CUstream stream) {
    return allocate_in(stream, kPerThread, pointer, bytes, pool);
}
CUresult cuArrayCreate_v2(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* shape) {
    return allocate_array(array,
                          texels({shape->Width, shape->Height, 1, shape->Format, shape->NumChannels, 0}));
}
CUresult cuArray3DCreate_v2(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* shape) {
    return allocate_array(array, texels(*shape));
}
CUresult cuMipmappedArrayCreate(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* shape, unsigned int) {
    return allocate_array(array, texels(*shape));
}
CUresult cuArrayDestroy(CUarray array) { return put_back(reinterpret_cast<std::uint64_t>(array)); }
CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    return put_back(reinterpret_cast<std::uint64_t>(array));
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp*,
                     unsigned long long) {
    CUdeviceptr number = 0;
    const CUresult result = allocate(&number, bytes);
    if (result != CUDA_SUCCESS) return result;
    *handle = number;
    holders[number] = 1;
    return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) { return drop(handle); }
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
    const auto found = mappings.find(device(address));
    if (found == mappings.end()) return CUDA_ERROR_INVALID_VALUE;
    ++holders[*handle = found->second];
    return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr at, std::size_t, std::size_t, CUmemGenericAllocationHandle handle,
                  unsigned long long) {
    if (holders.count(handle) == 0) return CUDA_ERROR_INVALID_VALUE;
    ++holders[handle];
    mappings[at] = handle;
    return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr at, std::size_t bytes) {
    for (auto found = mappings.lower_bound(at); found != mappings.end() && found->first < at + bytes;) {
        drop(found->second);
        found = mappings.erase(found);
    }
    return CUDA_SUCCESS;
}

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
