#include "tests/kernel/fakecuda/launch.hpp"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/kernel/fakecuda/capture.hpp"
#include "tests/kernel/fakecuda/fault.hpp"
#include "tests/kernel/fakecuda/function.hpp"

namespace fakecuda {
namespace {

std::atomic<std::uint64_t> kernels_run{0};

// As in CUDA: each launch returns when the kernel has ended.
bool launches_block() {
    static const char* const value = std::getenv("CUDA_LAUNCH_BLOCKING");
    return value != nullptr && std::strcmp(value, "1") == 0;
}

CUresult capture(Capture& into, CUfunction function, const LaunchShape& shape) {
    auto node = std::make_unique<CUgraphNode_st>();
    node->type = CU_GRAPH_NODE_TYPE_KERNEL;
    node->params = node_params(function, shape);
    node->cooperative = shape.cooperative;
    return capture_node(into, std::move(node));
}

}  // namespace

bool is_possible(const KernelSpec& spec, const LaunchShape& shape) {
    constexpr std::uint64_t kMostThreads = 1024;
    constexpr std::uint64_t kMostSharedBytes = 227 * 1024;
    const Dim& grid = shape.grid;
    const Dim& block = shape.block;
    const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
    return grid.x != 0 && grid.y != 0 && grid.z != 0 && threads != 0 && threads <= kMostThreads &&
           spec.static_shared_bytes + std::uint64_t{shape.dynamic_shared_bytes} <= kMostSharedBytes;
}

CUDA_KERNEL_NODE_PARAMS_v2 node_params(CUfunction function, const LaunchShape& shape) {
    const Dim& grid = shape.grid;
    const Dim& block = shape.block;
    CUDA_KERNEL_NODE_PARAMS_v2 params{};
    if (launchable(function)->kind == HandleKind::kKernel) {
        params.kern = reinterpret_cast<CUkernel>(function);
    } else {
        params.func = function;
    }
    params.gridDimX = grid.x;
    params.gridDimY = grid.y;
    params.gridDimZ = grid.z;
    params.blockDimX = block.x;
    params.blockDimY = block.y;
    params.blockDimZ = block.z;
    params.sharedMemBytes = shape.dynamic_shared_bytes;
    return params;
}

CUresult launch_fault() {
    if (fault == Fault::kLaunchError) return CUDA_ERROR_LAUNCH_FAILED;
    if (fault == Fault::kSlowCall) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return CUDA_SUCCESS;
}

void run(const KernelSpec& spec, CUstream stream) {
    kernels_run.fetch_add(1, std::memory_order_relaxed);
    if (gpu::VirtualGpu* gpu = stream->context->device->gpu.get()) {
        const std::uint64_t count = gpu->submit(stream->queue, spec.work, implicit_dependencies(stream));
        if (launches_block()) gpu->wait_until_ended(stream->queue, count);
    }
}

CUresult launch(CUfunction function, const LaunchShape& shape, CUstream handle, DefaultStream zero_means) {
    if (const CUresult not_ready = ready()) return not_ready;
    if (launchable(function) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    const KernelSpec& spec = *launchable(function)->spec;
    if (!is_possible(spec, shape)) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult failed = launch_fault()) return failed;
    CUstream stream = resolve(handle, zero_means);
    if (stream->capture != nullptr) return capture(*stream->capture, function, shape);
    if (stream == stream->context->legacy.get()) {
        if (const CUresult refused = refuse_legacy_stream(stream->context)) return refused;
    }
    run(spec, stream);
    return CUDA_SUCCESS;
}

}  // namespace fakecuda

PFN_cuLaunchKernel_v4000 fakecuda_own_launch() { return cuLaunchKernel; }

std::uint64_t fakecuda_kernels_run() { return fakecuda::kernels_run.load(); }
