// The calls that test programs make by name, each one call of the driver. Error numbers of the two agree.

#include <cuda_runtime_api.h>

#include "tests/kernel/fakecudart/driver_calls.hpp"

using fakecudart::driver;

namespace {

cudaError_t to_runtime(CUresult result) { return static_cast<cudaError_t>(result); }
CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) { return to_runtime(driver().cuDeviceGetCount(count)); }
cudaError_t cudaDeviceSynchronize() { return to_runtime(driver().cuCtxSynchronize()); }

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
    CUdeviceptr allocated = 0;
    const CUresult result = driver().cuMemAlloc(&allocated, bytes);
    *pointer = reinterpret_cast<void*>(allocated);
    return to_runtime(result);
}
cudaError_t cudaFree(void* pointer) { return to_runtime(driver().cuMemFree(address(pointer))); }
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
    return to_runtime(driver().cuMemcpy(address(to), address(from), bytes));
}
cudaError_t cudaMemcpy_ptds(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
    return to_runtime(driver().cuMemcpy_ptds(address(to), address(from), bytes));
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return to_runtime(driver().cuStreamCreate(stream, 0)); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return to_runtime(driver().cuStreamDestroy(stream)); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return to_runtime(driver().cuStreamSynchronize(stream));
}
cudaError_t cudaStreamSynchronize_ptsz(cudaStream_t stream) {
    return to_runtime(driver().cuStreamSynchronize_ptsz(stream));
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    return to_runtime(driver().cuStreamBeginCapture(stream, static_cast<CUstreamCaptureMode>(mode)));
}
cudaError_t cudaStreamBeginCapture_ptsz(cudaStream_t stream, cudaStreamCaptureMode mode) {
    return to_runtime(driver().cuStreamBeginCapture_ptsz(stream, static_cast<CUstreamCaptureMode>(mode)));
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    return to_runtime(driver().cuStreamEndCapture(stream, graph));
}
cudaError_t cudaStreamEndCapture_ptsz(cudaStream_t stream, cudaGraph_t* graph) {
    return to_runtime(driver().cuStreamEndCapture_ptsz(stream, graph));
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
    return to_runtime(driver().cuGraphInstantiateWithFlags(exec, graph, flags));
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    return to_runtime(driver().cuGraphLaunch(exec, stream));
}
cudaError_t cudaGraphLaunch_ptsz(cudaGraphExec_t exec, cudaStream_t stream) {
    return to_runtime(driver().cuGraphLaunch_ptsz(exec, stream));
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return to_runtime(driver().cuGraphDestroy(graph)); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    return to_runtime(driver().cuGraphExecDestroy(exec));
}

}  // extern "C"
