// A CUkernel passes for a CUfunction in launches, and nowhere else.

#include <cstring>

#include "tests/kernel/callers/session.hpp"

int main() {
    const caller::Session session = caller::open_session();
    CUfunction disguised = reinterpret_cast<CUfunction>(session.library_add);
    caller::launch(disguised, 1, nullptr);
    REQUIRE(caller::kernels_run() == 1);

    int value = 0;
    const char* name = nullptr;
    REQUIRE(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, disguised) == CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(cuFuncGetName(&name, disguised) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, session.library_add, 0));
    REQUIRE(value == 32);
    CHECK(cuKernelGetName(&name, session.library_add));
    REQUIRE(std::strcmp(name, "add") == 0);
    CUfunction function = nullptr;
    CHECK(cuKernelGetFunction(&function, session.library_add));
    CHECK(cuFuncGetName(&name, function));
    REQUIRE(std::strcmp(name, "add") == 0);
    CUfunction missing = nullptr;
    REQUIRE(cuKernelGetFunction(&missing, reinterpret_cast<CUkernel>(session.add)) ==
            CUDA_ERROR_INVALID_HANDLE);
    return 0;
}
