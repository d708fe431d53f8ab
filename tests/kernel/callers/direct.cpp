// Linked with libcuda.so.1, as Triton's launchers are.

#include "tests/kernel/callers/caller.hpp"

int main() {
    caller::clear_trace();
    CUcontext context = nullptr;
    CUmodule module = nullptr;
    CUfunction add = nullptr;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuModuleLoadData(&module, "image"));
    CHECK(cuModuleGetFunction(&add, module, "add"));
    for (int i = 0; i < 3; ++i) CHECK(cuLaunchKernel(add, 4, 1, 1, 256, 1, 1, 0, nullptr, nullptr, nullptr));
    CHECK(cuStreamSynchronize(nullptr));
    return caller::verdict(3, caller::three("cuLaunchKernel"));
}
