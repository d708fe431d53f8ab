// What every kind of launch comes down to.
#pragma once

#include <cstdint>

#include "tests/kernel/fakecuda/driver.hpp"

namespace fakecuda {

// Checks the arguments, then captures or runs the kernel.
CUresult launch(CUfunction function, const LaunchShape& shape, CUstream handle, DefaultStream zero_means);

// Whether a GPU could run this at all.
bool is_possible(const KernelSpec& spec, const LaunchShape& shape);

// Puts the kernel on its way: counts it, and queues it on the virtual GPU if there is one.
void run(const KernelSpec& spec, CUstream stream);

// Before a launch of any kind: the injected fault, if it is one of launches.
CUresult launch_fault();

CUDA_KERNEL_NODE_PARAMS_v2 node_params(CUfunction function, const LaunchShape& shape);

}  // namespace fakecuda

// For tests: what reached the driver. Kernels of graphs count one each.
extern "C" std::uint64_t fakecuda_kernels_run();
// For benchmarks: the driver's own cuLaunchKernel, whatever lies before it.
extern "C" PFN_cuLaunchKernel_v4000 fakecuda_own_launch();

// What the last launch with a priority of its own asked for.
extern "C" int fakecuda_launch_priority();
