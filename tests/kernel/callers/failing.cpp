// Errors of the driver reach the program unchanged. With FAKECUDA_FAULT=launch_error.

#include "tests/kernel/callers/session.hpp"

int main() {
    caller::clear_trace();
    const caller::Session session = caller::open_session();
    REQUIRE(cuLaunchKernel(session.add, 1, 1, 1, 256, 1, 1, 0, nullptr, nullptr, nullptr) ==
            CUDA_ERROR_LAUNCH_FAILED);
    REQUIRE(cuLaunchKernel(session.add, 1, 1, 1, 4096, 1, 1, 0, nullptr, nullptr, nullptr) ==
            CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuLaunchKernel(nullptr, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr) ==
            CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuCtxSetCurrent(nullptr));
    REQUIRE(cuLaunchKernel(session.add, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr) ==
            CUDA_ERROR_INVALID_CONTEXT);
    return caller::kernels_run() == 0 ? 0 : 1;
}
