// The driver's entries for launches: many, for one thing.

#include <atomic>

#include "tests/kernel/fakecuda/capture.hpp"
#include "tests/kernel/fakecuda/function.hpp"
#include "tests/kernel/fakecuda/launch.hpp"

using fakecuda::DefaultStream;
using fakecuda::launch;
using fakecuda::LaunchShape;

namespace {

constexpr DefaultStream kLegacy = DefaultStream::kLegacy;
constexpr DefaultStream kPerThread = DefaultStream::kPerThread;

std::atomic<int> launch_priority{0};

LaunchShape shape_of(const CUlaunchConfig& c) {
    LaunchShape shape{
        {c.gridDimX, c.gridDimY, c.gridDimZ}, {c.blockDimX, c.blockDimY, c.blockDimZ}, c.sharedMemBytes};
    for (unsigned i = 0; i < c.numAttrs; ++i) {
        if (c.attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
            shape.cooperative = c.attrs[i].value.cooperative != 0;
        if (c.attrs[i].id == CU_LAUNCH_ATTRIBUTE_PRIORITY) launch_priority = c.attrs[i].value.priority;
    }
    return shape;
}

LaunchShape shape_of(const CUDA_LAUNCH_PARAMS& p) {
    return {{p.gridDimX, p.gridDimY, p.gridDimZ},
            {p.blockDimX, p.blockDimY, p.blockDimZ},
            p.sharedMemBytes,
            true};
}

CUresult launch_host_function(CUstream handle, CUhostFn function, void* data, DefaultStream zero) {
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    CUstream stream = fakecuda::resolve(handle, zero);
    if (stream->capture != nullptr) {
        auto node = std::make_unique<CUgraphNode_st>();
        node->type = CU_GRAPH_NODE_TYPE_HOST;
        return capture_node(*stream->capture, std::move(node));
    }
    fakecuda::synchronise(
        stream);  // in its turn, but the caller waits: the double has no thread to call it from
    function(data);
    return CUDA_SUCCESS;
}

CUresult add_callback(CUstream handle, CUstreamCallback callback, void* data, DefaultStream zero) {
    struct Call {
        CUstream stream;
        CUstreamCallback callback;
        void* data;
    } call{handle, callback, data};
    const auto function = [](void* at) {
        const auto* of = static_cast<const Call*>(at);
        of->callback(of->stream, CUDA_SUCCESS, of->data);
    };
    return launch_host_function(handle, function, &call, zero);
}

// cuLaunch and its kind take the shape of the block from the function.
CUresult launch_grid(CUfunction function, int width, int height, CUstream stream) {
    const fakecuda::Launchable* found = fakecuda::launchable(function);
    if (found == nullptr || found->kind != fakecuda::HandleKind::kFunction) return CUDA_ERROR_INVALID_HANDLE;
    const fakecuda::Dim grid{static_cast<unsigned>(width), static_cast<unsigned>(height), 1};
    return launch(function, {grid, function->block, function->dynamic_shared_bytes}, stream, kLegacy);
}

}  // namespace

extern "C" {

int fakecuda_launch_priority() { return launch_priority; }

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, CUstream stream, void**, void**) {
    return launch(f, {{gx, gy, gz}, {bx, by, bz}, shared}, stream, kLegacy);
}
CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                             unsigned bz, unsigned shared, CUstream stream, void**, void**) {
    return launch(f, {{gx, gy, gz}, {bx, by, bz}, shared}, stream, kPerThread);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void**, void**) {
    if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return launch(f, shape_of(*config), config->hStream, kLegacy);
}
CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction f, void**, void**) {
    return launch(f, shape_of(*config), config->hStream, kPerThread);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                   unsigned by, unsigned bz, unsigned shared, CUstream stream, void**) {
    return launch(f, {{gx, gy, gz}, {bx, by, bz}, shared, true}, stream, kLegacy);
}
CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                        unsigned by, unsigned bz, unsigned shared, CUstream stream, void**) {
    return launch(f, {{gx, gy, gz}, {bx, by, bz}, shared, true}, stream, kPerThread);
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* launches, unsigned int count,
                                              unsigned int) {
    if (launches == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; ++i) {
        const CUresult result =
            launch(launches[i].function, shape_of(launches[i]), launches[i].hStream, kLegacy);
        if (result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
}

CUresult cuLaunch(CUfunction f) { return launch_grid(f, 1, 1, nullptr); }
CUresult cuLaunchGrid(CUfunction f, int width, int height) { return launch_grid(f, width, height, nullptr); }
CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream s) {
    return launch_grid(f, width, height, s);
}

CUresult cuLaunchHostFunc(CUstream s, CUhostFn function, void* data) {
    return launch_host_function(s, function, data, kLegacy);
}
CUresult cuLaunchHostFunc_ptsz(CUstream s, CUhostFn function, void* data) {
    return launch_host_function(s, function, data, kPerThread);
}
#if CUDA_HEADERS >= 13030
CUresult cuLaunchHostFunc_v2(CUstream s, CUhostFn function, void* data, unsigned int mode) {
    return mode > CU_HOST_TASK_SPINWAIT ? CUDA_ERROR_INVALID_VALUE
                                        : launch_host_function(s, function, data, kLegacy);
}
CUresult cuLaunchHostFunc_v2_ptsz(CUstream s, CUhostFn function, void* data, unsigned int mode) {
    return mode > CU_HOST_TASK_SPINWAIT ? CUDA_ERROR_INVALID_VALUE
                                        : launch_host_function(s, function, data, kPerThread);
}
#endif
CUresult cuStreamAddCallback(CUstream s, CUstreamCallback callback, void* data, unsigned int) {
    return add_callback(s, callback, data, kLegacy);
}
CUresult cuStreamAddCallback_ptsz(CUstream s, CUstreamCallback callback, void* data, unsigned int) {
    return add_callback(s, callback, data, kPerThread);
}

}  // extern "C"
