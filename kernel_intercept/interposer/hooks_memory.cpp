// Device memory comes and goes. Without a limit all of it goes straight to the driver.

#include <algorithm>

#include "kernel_intercept/gate/gate.hpp"
#include "kernel_intercept/interposer/driver.hpp"
#include "kernel_intercept/interposer/handle_table.hpp"
#include "kernel_intercept/interposer/memory.hpp"
#include "kernel_intercept/interposer/settings.hpp"
#include "kernel_intercept/interposer/streams.hpp"

namespace explsched::intercept {
namespace {

constexpr std::uint64_t kPitch = 512;  // rows of pitched memory are padded to this, on all GPUs so far

bool is_limited() noexcept { return mode() != Mode::kOff && memory_limit() != 0; }

// -1 if there is none that we count for.
Device current_gpu() noexcept {
    Device gpu = -1;
    const bool known = call_driver<Symbol::cuCtxGetDevice>(&gpu) == kSuccess;
    return known && gpu >= 0 && gpu < gate::kMaxGpus ? gpu : -1;
}

// As pools were made.
constexpr std::uint32_t kAlways = 1;
HandleTable<MemoryPlace, 256> g_pools;

// A host's counts for none, but if it is managed: that is the current GPU's, as of cuMemAllocManaged.
Device gpu_of(const MemoryPlace& place) noexcept {
    if (place.location == kLocationDevice) return place.gpu < gate::kMaxGpus ? place.gpu : -1;
    return place.type == kTypeManaged ? current_gpu() : -1;
}

// Of the default pool, which is that of the stream's GPU, or of one that has been seen, or that says where it
// is.
Device gpu_of_pool(Stream stream) noexcept {
    const InContext current(context_of(stream));
    return current_gpu();
}
Device gpu_of_pool(Stream /*any*/, Handle pool) noexcept {
    MemoryPlace place{};
    if (g_pools.read(key_of(pool), kAlways, place)) return gpu_of(place);
    const auto ask = [&](int attribute, int& value) {
        return call_driver<Symbol::cuMemPoolGetAttribute>(pool, attribute, &value) == kSuccess;
    };
    const bool told = ask(kPoolType, place.type) && ask(kPoolLocationType, place.location) &&
                      ask(kPoolLocationId, place.gpu);
    return told ? gpu_of(place) : current_gpu();  // older drivers do not say
}

using intercept::key_of;
std::uint64_t key_of(DevicePointer address) noexcept { return address; }

template <Symbol kSymbol, typename Made, typename... Arguments>
Result allocate_on(Device gpu, Context owner, MemoryKind kind, std::uint64_t bytes, Made* made,
                   Arguments... arguments) {
    if (gpu < 0 || made == nullptr) return call_driver<kSymbol>(made, arguments...);
    if (!reserve_memory(gpu, bytes)) return kErrorOutOfMemory;
    const Result result = call_driver<kSymbol>(made, arguments...);
    if (result != kSuccess) {
        return_memory(gpu, bytes);
    } else {
        keep_memory({kind, gpu, key_of(*made), bytes, owner, 0, 1});
    }
    return result;
}

Context current() noexcept {
    Context context = nullptr;
    call_driver<Symbol::cuCtxGetCurrent>(&context);
    return context;
}

template <Symbol kSymbol, typename Made, typename... Arguments>
Result allocate(std::uint64_t bytes, Made* made, Arguments... arguments) {
    const Device gpu = is_limited() ? current_gpu() : -1;
    return allocate_on<kSymbol>(gpu, gpu < 0 ? nullptr : current(), MemoryKind::kAllocation, bytes, made,
                                arguments...);
}

// Memory of a pool, which is no context's. In a capture it becomes a node of a graph, which has memory while
// it runs, and is not counted.
template <Symbol kSymbol, typename... Arguments>
Result allocate_in(Stream stream, std::uint64_t bytes, DevicePointer* at, Arguments... arguments) {
    if (is_limited() && is_capturing(stream, null_stream_of(kSymbol)))
        return call_driver<kSymbol>(at, bytes, arguments..., stream);
    const Device gpu = is_limited() ? gpu_of_pool(stream, arguments...) : -1;
    return allocate_on<kSymbol>(gpu, nullptr, MemoryKind::kAllocation, bytes, at, bytes, arguments...,
                                stream);
}

// Taken out first: as soon as the driver has freed it another thread may get the same address.
template <Symbol kSymbol, typename Made, typename... Arguments>
Result release(Made freed, Arguments... arguments) {
    if (!is_limited()) return call_driver<kSymbol>(freed, arguments...);
    const auto record = take_allocation(key_of(freed));
    const Result result = call_driver<kSymbol>(freed, arguments...);
    if (!record) return result;
    if (result == kSuccess) {
        return_memory(record->gpu, record->bytes);
    } else {
        keep_memory(*record);
    }
    return result;
}

std::uint64_t bytes_per_channel(int format) noexcept {
    if (format == kFormatUint8 || format == kFormatInt8) return 1;
    if (format == kFormatUint16 || format == kFormatInt16 || format == kFormatHalf) return 2;
    if (format >= kFormatNormal && format <= kFormatLastNormal)
        return (format - kFormatNormal) / 3 % 2 == 0 ? 1 : 2;
    return 4;
}

// What is mapped into an array without memory of its own counts as a block, until that is released.
std::uint64_t bytes_of(const ArrayShape& shape) noexcept {
    if ((shape.flags & (kArraySparse | kArrayDeferred)) != 0) return 0;
    return std::max<std::uint64_t>(shape.width, 1) * std::max<std::uint64_t>(shape.height, 1) *
           std::max<std::uint64_t>(shape.depth, 1) * std::max(shape.channels, 1U) *
           bytes_per_channel(shape.format);
}

std::uint64_t bytes_of_pitched(std::size_t row_bytes, std::size_t rows) noexcept {
    return (row_bytes + kPitch - 1) / kPitch * kPitch * rows;
}

}  // namespace

extern "C" {

Result cuMemAlloc_v2(DevicePointer* at, std::size_t bytes) {
    return allocate<Symbol::cuMemAlloc_v2>(bytes, at, bytes);
}
Result cuMemAllocPitch_v2(DevicePointer* at, std::size_t* pitch, std::size_t row_bytes, std::size_t rows,
                          unsigned element) {
    return allocate<Symbol::cuMemAllocPitch_v2>(bytes_of_pitched(row_bytes, rows), at, pitch, row_bytes, rows,
                                                element);
}
Result cuMemAllocManaged(DevicePointer* at, std::size_t bytes, unsigned flags) {
    return allocate<Symbol::cuMemAllocManaged>(bytes, at, bytes, flags);
}
Result cuMemAllocAsync(DevicePointer* at, std::size_t bytes, Stream stream) {
    return allocate_in<Symbol::cuMemAllocAsync>(stream, bytes, at);
}
Result cuMemAllocAsync_ptsz(DevicePointer* at, std::size_t bytes, Stream stream) {
    return allocate_in<Symbol::cuMemAllocAsync_ptsz>(stream, bytes, at);
}
Result cuMemPoolCreate(Handle* pool, const MemoryPlace* props) {
    const Result result = call_driver<Symbol::cuMemPoolCreate>(pool, props);
    if (result == kSuccess && is_limited()) g_pools.put(key_of(*pool), kAlways, *props);
    return result;
}
Result cuMemPoolDestroy(Handle pool) {
    if (is_limited()) g_pools.forget(key_of(pool));
    return call_driver<Symbol::cuMemPoolDestroy>(pool);
}
Result cuMemAllocFromPoolAsync(DevicePointer* at, std::size_t bytes, Handle pool, Stream stream) {
    return allocate_in<Symbol::cuMemAllocFromPoolAsync>(stream, bytes, at, pool);
}
Result cuMemAllocFromPoolAsync_ptsz(DevicePointer* at, std::size_t bytes, Handle pool, Stream stream) {
    return allocate_in<Symbol::cuMemAllocFromPoolAsync_ptsz>(stream, bytes, at, pool);
}
Result cuMemFree_v2(DevicePointer at) { return release<Symbol::cuMemFree_v2>(at); }
Result cuMemFreeAsync(DevicePointer at, Stream stream) { return release<Symbol::cuMemFreeAsync>(at, stream); }
Result cuMemFreeAsync_ptsz(DevicePointer at, Stream stream) {
    return release<Symbol::cuMemFreeAsync_ptsz>(at, stream);
}

Result cuArrayCreate_v2(Handle* array, const FlatArrayShape* shape) {
    const std::uint64_t bytes =
        shape == nullptr ? 0 : bytes_of({shape->width, shape->height, 1, shape->format, shape->channels, 0});
    return allocate<Symbol::cuArrayCreate_v2>(bytes, array, shape);
}
Result cuArray3DCreate_v2(Handle* array, const ArrayShape* shape) {
    return allocate<Symbol::cuArray3DCreate_v2>(shape == nullptr ? 0 : bytes_of(*shape), array, shape);
}
// All levels beyond the first together are at most as large as it is (one dimension).
Result cuMipmappedArrayCreate(Handle* array, const ArrayShape* shape, unsigned levels) {
    const std::uint64_t first = shape == nullptr ? 0 : bytes_of(*shape);
    return allocate<Symbol::cuMipmappedArrayCreate>(levels > 1 ? 2 * first : first, array, shape, levels);
}
Result cuArrayDestroy(Handle array) { return release<Symbol::cuArrayDestroy>(array); }
Result cuMipmappedArrayDestroy(Handle array) { return release<Symbol::cuMipmappedArrayDestroy>(array); }

Result cuMemCreate(DevicePointer* handle, std::size_t bytes, const MemoryPlace* place, std::uint64_t flags) {
    const Device gpu = is_limited() && place != nullptr ? gpu_of(*place) : -1;
    return allocate_on<Symbol::cuMemCreate>(gpu, nullptr, MemoryKind::kBlock, bytes, handle, bytes, place,
                                            flags);
}
Result cuMemRelease(DevicePointer handle) {
    const Result result = call_driver<Symbol::cuMemRelease>(handle);
    if (result == kSuccess && is_limited()) release_block(handle);
    return result;
}
Result cuMemRetainAllocationHandle(DevicePointer* handle, void* address) {
    const Result result = call_driver<Symbol::cuMemRetainAllocationHandle>(handle, address);
    if (result == kSuccess && is_limited()) hold_block(*handle);
    return result;
}
Result cuMemMap(DevicePointer at, std::size_t bytes, std::size_t offset, DevicePointer handle,
                std::uint64_t flags) {
    const Result result = call_driver<Symbol::cuMemMap>(at, bytes, offset, handle, flags);
    if (result == kSuccess && is_limited()) map_block(at, bytes, handle);
    return result;
}
Result cuMemUnmap(DevicePointer at, std::size_t bytes) {
    const Result result = call_driver<Symbol::cuMemUnmap>(at, bytes);
    if (result == kSuccess && is_limited()) unmap_blocks(at, bytes);
    return result;
}

// Frameworks size their caches by this.
Result cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total_bytes) {
    const Result result = call_driver<Symbol::cuMemGetInfo_v2>(free_bytes, total_bytes);
    const Device gpu = result == kSuccess && is_limited() ? current_gpu() : -1;
    if (gpu < 0 || free_bytes == nullptr || total_bytes == nullptr) return result;
    const std::uint64_t limit = memory_limit();
    *total_bytes = std::min<std::size_t>(*total_bytes, limit);
    *free_bytes = std::min<std::size_t>(*free_bytes, limit - std::min(limit, memory_used(gpu)));
    return result;
}

}  // extern "C"

}  // namespace explsched::intercept
