// Launches: each passes a CUkernel where the driver declares a CUfunction, as NVIDIA's runtime does since
// CUDA 12.

#include "tests/kernel/fakecudart/driver_calls.hpp"
#include "tests/kernel/fakecudart/registration.hpp"

using fakecudart::driver;
using fakecudart::kernel_of;

namespace {

// cudaKernel_t is the same type.
CUfunction in_disguise(CUkernel kernel) { return reinterpret_cast<CUfunction>(kernel); }
cudaError_t to_runtime(CUresult result) { return static_cast<cudaError_t>(result); }  // the numbers agree

cudaError_t launch(PFN_cuLaunchKernel_v4000 call, CUfunction function, dim3 grid, dim3 block,
                   void** arguments, size_t shared, cudaStream_t stream) {
    return to_runtime(call(function, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                           static_cast<unsigned>(shared), stream, arguments, nullptr));
}

cudaError_t launch_ex(PFN_cuLaunchKernelEx_v11060 call, const cudaLaunchConfig_t& c,
                      const void* host_function, void** arguments) {
    CUkernel kernel = kernel_of(host_function);
    if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
    const CUlaunchConfig config{c.gridDim.x,
                                c.gridDim.y,
                                c.gridDim.z,
                                c.blockDim.x,
                                c.blockDim.y,
                                c.blockDim.z,
                                static_cast<unsigned>(c.dynamicSmemBytes),
                                c.stream,
                                reinterpret_cast<CUlaunchAttribute*>(c.attrs),
                                c.numAttrs};
    return to_runtime(call(&config, in_disguise(kernel), arguments, nullptr));
}

}  // namespace

extern "C" {

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                               cudaStream_t stream) {
    return launch(driver().cuLaunchKernel, in_disguise(kernel), grid, block, arguments, shared, stream);
}
cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                                    size_t shared, cudaStream_t stream) {
    return launch(driver().cuLaunchKernel_ptsz, in_disguise(kernel), grid, block, arguments, shared, stream);
}

cudaError_t cudaLaunchKernel(const void* host_function, dim3 grid, dim3 block, void** arguments,
                             size_t shared, cudaStream_t stream) {
    return launch(driver().cuLaunchKernel, in_disguise(kernel_of(host_function)), grid, block, arguments,
                  shared, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* host_function,
                                void** arguments) {
    return launch_ex(driver().cuLaunchKernelEx, *config, host_function, arguments);
}
cudaError_t cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t* config, const void* host_function,
                                     void** arguments) {
    return launch_ex(driver().cuLaunchKernelEx_ptsz, *config, host_function, arguments);
}

}  // extern "C"
