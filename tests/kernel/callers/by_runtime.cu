// Compiled by nvcc, with the shared runtime: <<<...>>>, cudaLaunchKernelEx, and a captured graph. With
// --default-stream per-thread the same source reaches the driver through other entry points.

#include <cuda_runtime.h>

#include <string>

#include "tests/kernel/callers/caller.hpp"

extern "C" __global__ void add(float* x, const float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += y[i];
}

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define SUFFIX "_ptsz"
#else
#define SUFFIX ""
#endif

#define RUNTIME(call) caller::require((call) == cudaSuccess, #call)

int main() {
    constexpr int kValues = 1024;
    caller::clear_trace();
    float* x = nullptr;
    float* y = nullptr;
    RUNTIME(cudaMalloc(&x, kValues * sizeof(float)));
    RUNTIME(cudaMalloc(&y, kValues * sizeof(float)));
    add<<<4, 256>>>(x, y, kValues);

    cudaLaunchConfig_t config{};
    config.gridDim = dim3(2);
    config.blockDim = dim3(512);
    config.dynamicSmemBytes = 1024;
    RUNTIME(cudaLaunchKernelEx(&config, add, x, static_cast<const float*>(y), kValues));

    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    RUNTIME(cudaStreamCreate(&stream));
    RUNTIME(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    add<<<8, 128, 0, stream>>>(x, y, kValues);
    add<<<8, 128, 0, stream>>>(x, y, kValues);
    RUNTIME(cudaStreamEndCapture(stream, &graph));
    RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
    RUNTIME(cudaGraphLaunch(exec, stream));
    RUNTIME(cudaStreamSynchronize(stream));
    RUNTIME(cudaGraphExecDestroy(exec));
    RUNTIME(cudaGraphDestroy(graph));
    RUNTIME(cudaStreamDestroy(stream));
    RUNTIME(cudaDeviceSynchronize());
    RUNTIME(cudaFree(x));
    RUNTIME(cudaFree(y));

    const std::string launch_kernel = "cuLaunchKernel" SUFFIX;
    return caller::verdict(4, {{launch_kernel, "add", "4,1,1", "256,1,1"},
                               {"cuLaunchKernelEx" SUFFIX, "add", "2,1,1", "512,1,1", "1024"},
                               {launch_kernel, "add", "8,1,1", "128,1,1"},
                               {launch_kernel, "add", "8,1,1", "128,1,1"},
                               {"cuGraphLaunch", "graph", "2,1,1", "1,1,1"}});
}
