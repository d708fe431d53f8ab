// Kernels by the address of their host stub.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace fakecudart {

// The driver's handle of the kernel behind a host stub, loading its library if need be; nullptr if it is not
// registered.
CUkernel kernel_of(const void* host_function);

}  // namespace fakecudart
