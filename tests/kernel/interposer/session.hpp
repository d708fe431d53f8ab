// A program's first steps with the driver, linked directly: a context and some kernels.
#pragma once

#include <cuda.h>

#include "tests/kernel/interposer/check.hpp"

namespace explsched::test {

#define DO(call) CHECK_EQUAL(static_cast<int>(call), static_cast<int>(CUDA_SUCCESS))

inline CUcontext open_context(int ordinal) {
    DO(cuInit(0));
    CUdevice device{};
    CUcontext context{};
    DO(cuDeviceGet(&device, ordinal));
    DO(cuDevicePrimaryCtxRetain(&context, device));
    DO(cuCtxSetCurrent(context));
    return context;
}

inline CUmodule load_module() {
    CUmodule module{};
    DO(cuModuleLoadData(&module, "image"));
    return module;
}

inline CUfunction function_of(CUmodule module, const char* name) {
    CUfunction function{};
    DO(cuModuleGetFunction(&function, module, name));
    return function;
}

inline void launch(CUfunction function, unsigned blocks, CUstream stream) {
    DO(cuLaunchKernel(function, blocks, 1, 1, 256, 1, 1, 0, stream, nullptr, nullptr));
}

}  // namespace explsched::test
