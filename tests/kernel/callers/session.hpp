// A context with a module, for callers that are linked with the driver.
#pragma once

#include "tests/kernel/callers/caller.hpp"

namespace caller {

struct Session {
    CUcontext context{nullptr};
    CUmodule module{nullptr};
    CUlibrary library{nullptr};
    CUfunction add{nullptr};        // of the module
    CUkernel library_add{nullptr};  // of the library
};

inline Session open_session() {
    Session s;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&s.context, 0));
    CHECK(cuCtxSetCurrent(s.context));
    CHECK(cuModuleLoadData(&s.module, "image"));
    CHECK(cuModuleGetFunction(&s.add, s.module, "add"));
    CHECK(cuLibraryLoadData(&s.library, "image", nullptr, nullptr, 0, nullptr, nullptr, 0));
    CHECK(cuLibraryGetKernel(&s.library_add, s.library, "add"));
    return s;
}

// A kernel node of `blocks` blocks of 256 threads.
inline CUDA_KERNEL_NODE_PARAMS node_params(CUfunction function, unsigned blocks) {
    CUDA_KERNEL_NODE_PARAMS params{};
    params.func = function;
    params.gridDimX = blocks;
    params.gridDimY = params.gridDimZ = params.blockDimY = params.blockDimZ = 1;
    params.blockDimX = 256;
    return params;
}

inline void launch(CUfunction function, unsigned blocks, CUstream stream) {
    CHECK(cuLaunchKernel(function, blocks, 1, 1, 256, 1, 1, 0, stream, nullptr, nullptr));
}

inline Launched launched(const std::string& entry, unsigned blocks) {
    return {entry, "add", std::to_string(blocks) + ",1,1", "256,1,1"};
}

inline Launched graph_launched(const std::string& entry, unsigned kernels) {
    return {entry, "graph", std::to_string(kernels) + ",1,1", "1,1,1"};
}

}  // namespace caller
