// The limit of EXPLSCHED_MEMORY (32 MiB here) through every entrance, on a fake GPU of 100 MiB; and with an
// argument, as many trials of a program that takes all it can get beside one that works.

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "tests/kernel/interposer/gate_log.hpp"
#include "tests/kernel/interposer/session.hpp"

using explsched::test::open_context;

namespace {

constexpr std::size_t kMiB = 1 << 20, kLimit = 32 * kMiB, kPiece = 4 * kMiB;

template <typename Function>
Function* found(const char* symbol) {
    return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, symbol));
}

// One way to get a piece of memory and to give it back. `bytes` is what it counts as.
struct Entrance {
    const char* name;
    std::size_t bytes;
    std::function<CUresult(std::uint64_t&)> take;
    std::function<CUresult(std::uint64_t)> give_back;
};

template <typename Make>
auto to_pointer(Make make) {
    return [make](std::uint64_t& made) {
        CUdeviceptr at = 0;
        const CUresult result = make(&at);
        made = at;
        return result;
    };
}

using Async = CUresult(CUdeviceptr*, std::size_t, CUstream);
using FromPool = CUresult(CUdeviceptr*, std::size_t, CUmemoryPool, CUstream);

std::vector<Entrance> entrances() {
    const auto free_now = [](std::uint64_t at) { return cuMemFree(at); };
    const auto free_later = [](std::uint64_t at) { return cuMemFreeAsync(at, nullptr); };
    const auto destroy = [](std::uint64_t at) { return cuArrayDestroy(reinterpret_cast<CUarray>(at)); };
    return {
        {"cuMemAlloc", kPiece, to_pointer([](CUdeviceptr* at) { return cuMemAlloc(at, kPiece); }), free_now},
        {"cuMemAllocPitch", kPiece, to_pointer([](CUdeviceptr* at) {
             std::size_t pitch = 0;
             return cuMemAllocPitch(at, &pitch, 500, kPiece / 512, 4);
         }),
         free_now},
        {"cuMemAllocManaged", kPiece,
         to_pointer([](CUdeviceptr* at) { return cuMemAllocManaged(at, kPiece, CU_MEM_ATTACH_GLOBAL); }),
         free_now},
        {"cuMemAllocAsync", kPiece,
         to_pointer([](CUdeviceptr* at) { return cuMemAllocAsync(at, kPiece, nullptr); }), free_later},
        {"cuMemAllocAsync_ptsz", kPiece, to_pointer([](CUdeviceptr* at) {
             return found<Async>("cuMemAllocAsync_ptsz")(at, kPiece, nullptr);
         }),
         [](std::uint64_t at) {
             return found<CUresult(CUdeviceptr, CUstream)>("cuMemFreeAsync_ptsz")(at, nullptr);
         }},
        {"cuMemAllocFromPoolAsync", kPiece,
         to_pointer([](CUdeviceptr* at) { return cuMemAllocFromPoolAsync(at, kPiece, nullptr, nullptr); }),
         free_later},
        {"cuMemAllocFromPoolAsync_ptsz", kPiece, to_pointer([](CUdeviceptr* at) {
             return found<FromPool>("cuMemAllocFromPoolAsync_ptsz")(at, kPiece, nullptr, nullptr);
         }),
         free_later},
        {"cuArrayCreate", kPiece,
         [](std::uint64_t& made) {
             const CUDA_ARRAY_DESCRIPTOR shape{1024, 1024, CU_AD_FORMAT_HALF, 2};
             return cuArrayCreate(reinterpret_cast<CUarray*>(&made), &shape);
         },
         destroy},
        {"cuArray3DCreate", kPiece,
         [](std::uint64_t& made) {
             const CUDA_ARRAY3D_DESCRIPTOR shape{128, 128, 64, CU_AD_FORMAT_FLOAT, 1, 0};
             return cuArray3DCreate(reinterpret_cast<CUarray*>(&made), &shape);
         },
         destroy},
        {"cuMipmappedArrayCreate", kPiece,
         [](std::uint64_t& made) {
             const CUDA_ARRAY3D_DESCRIPTOR shape{1024, 512, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4, 0};
             return cuMipmappedArrayCreate(reinterpret_cast<CUmipmappedArray*>(&made), &shape, 4);
         },
         [](std::uint64_t at) { return cuMipmappedArrayDestroy(reinterpret_cast<CUmipmappedArray>(at)); }},
        {"cuMemCreate", kPiece,
         [](std::uint64_t& made) {
             CUmemAllocationProp place{};
             place.type = CU_MEM_ALLOCATION_TYPE_PINNED;
             place.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
             CUmemGenericAllocationHandle handle = 0;
             const CUresult result = cuMemCreate(&handle, kPiece, &place, 0);
             made = handle;
             return result;
         },
         [](std::uint64_t handle) { return cuMemRelease(handle); }},
    };
}

std::size_t free_bytes() {
    std::size_t free = 0, total = 0;
    DO(cuMemGetInfo(&free, &total));
    CHECK_EQUAL(total, kLimit);
    return free;
}

void every_entrance_ends_at_the_limit() {
    for (const Entrance& entrance : entrances()) {
        std::vector<std::uint64_t> pieces;
        CUresult result = CUDA_SUCCESS;
        while (result == CUDA_SUCCESS && pieces.size() < 100) {
            CHECK_EQUAL(free_bytes(), kLimit - pieces.size() * entrance.bytes);
            std::uint64_t made = 0;
            result = entrance.take(made);
            if (result == CUDA_SUCCESS) pieces.push_back(made);
        }
        if (result != CUDA_ERROR_OUT_OF_MEMORY || pieces.size() != kLimit / entrance.bytes)
            std::fprintf(stderr, "%s: %zu pieces, then %d\n", entrance.name, pieces.size(), result);
        CHECK_EQUAL(result, CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQUAL(pieces.size(), kLimit / entrance.bytes);
        for (const std::uint64_t piece : pieces) DO(entrance.give_back(piece));
        CHECK_EQUAL(free_bytes(), kLimit);
    }
}

// A block that is mapped is still there when its handle is released.
void mapped_blocks_count_until_they_are_unmapped() {
    CUmemAllocationProp place{};
    place.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    CUmemGenericAllocationHandle first = 0, second = 0, retained = 0;
    constexpr CUdeviceptr kAt = 0x7000'0000'0000;
    DO(cuMemCreate(&first, kPiece, &place, 0));
    DO(cuMemCreate(&second, kPiece, &place, 0));
    DO(cuMemMap(kAt, kPiece, 0, first, 0));
    DO(cuMemMap(kAt + kPiece, kPiece, 0, second, 0));
    DO(cuMemRelease(first));
    DO(cuMemRelease(second));
    CHECK_EQUAL(free_bytes(), kLimit - 2 * kPiece);
    DO(cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(kAt)));
    DO(cuMemUnmap(kAt, 2 * kPiece));
    CHECK_EQUAL(free_bytes(), kLimit - kPiece);
    DO(cuMemRelease(retained));
    CHECK_EQUAL(free_bytes(), kLimit);
    // Memory of the host does not count.
    place.location = {CU_MEM_LOCATION_TYPE_HOST, {0}};
    DO(cuMemCreate(&first, kPiece, &place, 0));
    CHECK_EQUAL(free_bytes(), kLimit);
    DO(cuMemRelease(first));
}

// Of the host's pools nothing counts, but of managed ones, and what lies on another GPU counts there.
void pools_count_where_they_are() {
    constexpr auto kPinned = CU_MEM_ALLOCATION_TYPE_PINNED;
    constexpr auto kManaged = CU_MEM_ALLOCATION_TYPE_MANAGED;
    const struct {
        CUmemAllocationType type;
        CUmemLocation place;
        int gpu;
    } pools[] = {
        {kPinned, {CU_MEM_LOCATION_TYPE_DEVICE, {0}}, 0},
        {kPinned, {CU_MEM_LOCATION_TYPE_DEVICE, {1}}, 1},
        {kPinned, {CU_MEM_LOCATION_TYPE_HOST, {0}}, -1},
        {kPinned, {CU_MEM_LOCATION_TYPE_HOST_NUMA, {1}}, -1},
        {kManaged, {CU_MEM_LOCATION_TYPE_NONE, {0}}, 0},
        {kManaged, {CU_MEM_LOCATION_TYPE_HOST, {0}}, 0},
        {kManaged, {CU_MEM_LOCATION_TYPE_DEVICE, {1}}, 1},
    };
    CUcontext first{}, second{};
    DO(cuCtxGetCurrent(&first));
    DO(cuDevicePrimaryCtxRetain(&second, 1));
    const auto free_on = [&](int gpu) {
        DO(cuCtxSetCurrent(gpu == 0 ? first : second));
        const std::size_t free = free_bytes();
        DO(cuCtxSetCurrent(first));
        return free;
    };
    for (const auto& [type, place, gpu] : pools) {
        CUmemPoolProps props{};
        CUmemoryPool pool{};
        CUdeviceptr at = 0;
        props.allocType = type;
        props.location = place;
        DO(cuMemPoolCreate(&pool, &props));
        DO(cuMemAllocFromPoolAsync(&at, kPiece, pool, nullptr));
        for (const int other : {0, 1}) CHECK_EQUAL(free_on(other), kLimit - (other == gpu ? kPiece : 0));
        DO(cuMemFreeAsync(at, nullptr));
        for (const int other : {0, 1}) CHECK_EQUAL(free_on(other), kLimit);
        CHECK_EQUAL(cuMemAllocFromPoolAsync(&at, 2 * kLimit, pool, nullptr),
                    gpu >= 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS);
        if (gpu < 0) DO(cuMemFreeAsync(at, nullptr));
        DO(cuMemPoolDestroy(pool));
    }
    DO(cuDevicePrimaryCtxRelease(1));
}

// Whichever GPU is current (cuda.h, cuMemAllocAsync).
void the_default_pool_is_that_of_the_gpu_of_the_stream() {
    CUcontext first{}, second{};
    CUstream stream{};
    DO(cuCtxGetCurrent(&first));
    DO(cuDevicePrimaryCtxRetain(&second, 1));
    DO(cuCtxSetCurrent(second));
    DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (const char* name : {"cuMemAllocAsync", "cuMemAllocAsync_ptsz"}) {
        CUdeviceptr at = 0;
        DO(cuCtxSetCurrent(first));
        DO(found<Async>(name)(&at, kPiece, stream));
        CHECK_EQUAL(free_bytes(), kLimit);
        DO(cuCtxSetCurrent(second));
        CHECK_EQUAL(free_bytes(), kLimit - kPiece);
        DO(cuMemFreeAsync(at, stream));
        CHECK_EQUAL(free_bytes(), kLimit);
    }
    DO(cuStreamDestroy(stream));
    DO(cuCtxSetCurrent(first));
    DO(cuDevicePrimaryCtxRelease(1));
}

// Also by those of graphics interfaces. What has no memory of its own does not count.
void arrays_count_by_their_format() {
    constexpr std::size_t kTexels = kMiB;
    const struct {
        CUarray_format format;
        unsigned channels, flags;
        std::size_t bytes;
    } arrays[] = {
        {CU_AD_FORMAT_UNSIGNED_INT8, 4, 0, 4 * kTexels},
        {CU_AD_FORMAT_FLOAT, 2, 0, 8 * kTexels},
        {CU_AD_FORMAT_UNORM_INT8X4, 4, 0, 4 * kTexels},
        {CU_AD_FORMAT_SNORM_INT16X1, 1, 0, 2 * kTexels},
        {CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE, 0},
        {CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_DEFERRED_MAPPING, 0},
    };
    for (const auto& [format, channels, flags, bytes] : arrays) {
        const CUDA_ARRAY3D_DESCRIPTOR shape{1024, 1024, 0, format, channels, flags};
        CUarray array{};
        DO(cuArray3DCreate(&array, &shape));
        CHECK_EQUAL(free_bytes(), kLimit - bytes);
        DO(cuArrayDestroy(array));
        CHECK_EQUAL(free_bytes(), kLimit);
    }
}

void what_the_driver_refuses_does_not_count() {
    CUdeviceptr at = 0;
    CHECK_EQUAL(cuMemAlloc(&at, 0), CUDA_ERROR_INVALID_VALUE);
    DO(cuMemAlloc(&at, kPiece));
    CHECK_EQUAL(cuMemFree(at + 1), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(free_bytes(), kLimit - kPiece);
    DO(cuMemFree(at));
    CHECK_EQUAL(free_bytes(), kLimit);
}

// They have memory while the graph runs, if it ever does.
void memory_nodes_of_graphs_do_not_count() {
    CUstream stream{};
    CUgraph graph{};
    CUdeviceptr at = 0;
    DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DO(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (const char* name : {"cuMemAllocAsync", "cuMemAllocAsync_ptsz"}) {
        DO(found<Async>(name)(&at, kPiece, stream));
        CHECK_EQUAL(free_bytes(), kLimit);
    }
    for (const char* name : {"cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz"}) {
        DO(found<FromPool>(name)(&at, kPiece, nullptr, stream));
        CHECK_EQUAL(free_bytes(), kLimit);
    }
    DO(cuMemFreeAsync(at, stream));
    DO(cuStreamEndCapture(stream, &graph));
    DO(cuGraphDestroy(graph));
    DO(cuStreamDestroy(stream));
    CHECK_EQUAL(free_bytes(), kLimit);
}

void many_small_ones_are_found_again() {
    std::vector<CUdeviceptr> all(20'000);
    for (CUdeviceptr& at : all) DO(cuMemAlloc(&at, 256));
    CHECK_EQUAL(free_bytes(), kLimit - all.size() * 256);
    for (std::size_t i = 0; i < all.size(); ++i) DO(cuMemFree(all[i * 7919 % all.size()]));
    CHECK_EQUAL(free_bytes(), kLimit);
}

// The driver refuses all there. Until it does, nobody is waited for who has not come along.
void a_forked_child_waits_for_no_thread_of_its_parent(int children, const std::function<void()>& work) {
    std::atomic<bool> done{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
        threads.emplace_back([&] {
            while (!done) work();
        });
    }
    int status = 0;
    for (int i = 0; i < children && status == 0; ++i) {
        const pid_t child = fork();
        if (child == 0) {
            alarm(5);
            _exit(cuMemFree(256) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
        }
        CHECK_EQUAL(waitpid(child, &status, 0), child);
    }
    done = true;
    for (std::thread& thread : threads) thread.join();
    CHECK_EQUAL(status, 0);
}

// As a server does that starts its workers before it uses the GPU.
void a_child_from_before_the_driver_started_has_the_limit() {
    const auto free_too_early = [] { CHECK_EQUAL(cuMemFree(256), CUDA_ERROR_NOT_INITIALIZED); };
    free_too_early();
    a_forked_child_waits_for_no_thread_of_its_parent(30, free_too_early);
    const pid_t child = fork();
    if (child == 0) {
        CUdeviceptr at = 0;
        open_context(0);
        CHECK_EQUAL(free_bytes(), kLimit);
        CHECK_EQUAL(cuMemAlloc(&at, 2 * kLimit), CUDA_ERROR_OUT_OF_MEMORY);
        _exit(0);
    }
    int status = -1;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
}

// A program of its own, since the driver does not outlive a fork: takes what it can get, and lets go.
int over_allocate() {
    open_context(0);
    CUdeviceptr at = 0;
    std::size_t taken = 0;
    CUresult result = CUDA_SUCCESS;
    while ((result = cuMemAlloc(&at, kPiece)) == CUDA_SUCCESS) taken += kPiece;
    CHECK_EQUAL(result, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(taken, kLimit);
    return 0;
}

// The neighbour has no limit of its own and needs most of the GPU in each step.
int neighbour(const char* program, int trials) {
    open_context(0);
    constexpr std::size_t kNeeds = 60 * kMiB;
    int steps_lost = 0;
    for (int i = 0; i < trials; ++i) {
        const pid_t greedy = fork();
        if (greedy == 0) {
            setenv("EXPLSCHED_MEMORY", "32M", 1);
            execl(program, program, "greedy", nullptr);
            _exit(127);
        }
        int status = -1;
        for (pid_t ended = 0; ended == 0; ended = waitpid(greedy, &status, WNOHANG)) {
            CUdeviceptr at = 0;
            if (cuMemAlloc(&at, kNeeds) != CUDA_SUCCESS || cuMemFree(at) != CUDA_SUCCESS) ++steps_lost;
            usleep(100);
        }
        CHECK_EQUAL(status, 0);
    }
    CHECK_EQUAL(steps_lost, 0);
    std::printf("{\"trials\": %d, \"neighbours_steps_lost\": %d}\n", trials, steps_lost);
    return 0;
}

// But not what it had of a pool, which is no context's (cuda.h, cuCtxDestroy; cuda_runtime_api.h,
// cudaDeviceReset), nor what another one has.
void what_a_context_held_is_gone_with_it(CUcontext primary) {
    CUcontext other{};
    CUdeviceptr plain = 0, pooled = 0;
    DO(cuCtxCreate(&other, nullptr, 0, 0));
    DO(cuMemAlloc(&plain, kPiece));
    DO(cuMemAllocAsync(&pooled, kPiece, nullptr));
    CHECK_EQUAL(free_bytes(), kLimit - 2 * kPiece);
    DO(cuCtxDestroy(other));
    DO(cuCtxSetCurrent(primary));
    CHECK_EQUAL(free_bytes(), kLimit - kPiece);
    DO(cuMemFreeAsync(pooled, nullptr));
    CHECK_EQUAL(free_bytes(), kLimit);
    DO(cuMemAlloc(&plain, kPiece));
    DO(cuMemAllocAsync(&pooled, kPiece, nullptr));
    DO(cuCtxCreate(&other, nullptr, 0, 0));
    DO(cuMemAlloc(&plain, kPiece));
    DO(cuDevicePrimaryCtxRelease(0));
    CHECK_EQUAL(free_bytes(), kLimit - 2 * kPiece);
    DO(cuMemFree(plain));
    DO(cuMemFreeAsync(pooled, nullptr));
    CHECK_EQUAL(free_bytes(), kLimit);
    DO(cuCtxDestroy(other));
}

// Such a context is the primary one, but for its multiprocessors (cuda.h, cuCtxFromGreenCtx).
void what_a_green_context_held_stays(CUcontext primary) {
    CUgreenCtx green{};
    CUcontext context{};
    CUdeviceptr at = 0;
    DO(cuGreenCtxCreate(&green, nullptr, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    DO(cuCtxFromGreenCtx(&context, green));
    DO(cuCtxSetCurrent(context));
    DO(cuMemAlloc(&at, kPiece));
    DO(cuCtxSetCurrent(primary));
    DO(cuGreenCtxDestroy(green));
    CHECK_EQUAL(free_bytes(), kLimit - kPiece);
    DO(cuMemFree(at));
    CHECK_EQUAL(free_bytes(), kLimit);
}

// Said once, however much is asked for.
int what_cannot_be_read_is_told() {
    open_context(0);
    explsched::test::told_to_gate();
    CUdeviceptr at = 0;
    for (int i = 0; i < 2; ++i) DO(cuMemAlloc(&at, 2 * kLimit / 3));
    const std::string told = explsched::test::told_to_gate();
    CHECK(told.find("EXPLSCHED_MEMORY: found '32MiB'") != std::string::npos);
    CHECK_EQUAL(told.find("EXPLSCHED_MEMORY"), told.rfind("EXPLSCHED_MEMORY"));
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc == 2 && std::string(argv[1]) == "unread") return what_cannot_be_read_is_told();
    if (argc == 2 && std::string(argv[1]) == "greedy") return over_allocate();
    if (argc == 2) return neighbour(argv[0], std::atoi(argv[1]));
    a_child_from_before_the_driver_started_has_the_limit();
    const CUcontext context = open_context(0);
    every_entrance_ends_at_the_limit();
    mapped_blocks_count_until_they_are_unmapped();
    pools_count_where_they_are();
    the_default_pool_is_that_of_the_gpu_of_the_stream();
    arrays_count_by_their_format();
    what_the_driver_refuses_does_not_count();
    memory_nodes_of_graphs_do_not_count();
    many_small_ones_are_found_again();
    a_forked_child_waits_for_no_thread_of_its_parent(200, [context] {
        CUdeviceptr at = 0;
        DO(cuCtxSetCurrent(context));
        DO(cuMemAlloc(&at, 256));
        DO(cuMemFree(at));
    });
    what_a_green_context_held_stays(context);
    what_a_context_held_is_gone_with_it(context);
    return 0;
}
