// A driver of CUDA 11.4: no cuLaunchKernelEx, no libraries, no five-argument cuGetProcAddress. What it lacks
// must stay missing under an interposer, and what it has must work.

#include <dlfcn.h>

#include "tests/kernel/callers/caller.hpp"

int main() {
    caller::clear_trace();
    for (const char* missing :
         {"cuLaunchKernelEx", "cuLibraryGetKernel", "cuGetProcAddress_v2", "cuFuncGetName"}) {
        caller::require(caller::from_dlopen(missing) == nullptr, missing);
        dlerror();
        caller::require(dlsym(RTLD_DEFAULT, missing) == nullptr && dlerror() != nullptr, missing);
    }
    caller::launch_three(caller::from_dlopen);
    const auto get = reinterpret_cast<CUresult (*)(const char*, void**, int, cuuint64_t)>(
        caller::from_dlopen("cuGetProcAddress"));
    REQUIRE(get != nullptr);
    void* function = nullptr;
    REQUIRE(get("cuLaunchKernelEx", &function, 11040, 0) == CUDA_ERROR_NOT_FOUND);
    CHECK(get("cuLaunchKernel", &function, 11040, 0));
    caller::launch_three([&](const char* base) {
        void* found = nullptr;
        CHECK(get(base, &found, 11040, 0));
        return found;
    });
    std::vector<caller::Launched> expected = caller::three("cuLaunchKernel");
    const std::vector<caller::Launched> again = caller::three("cuLaunchKernel");
    expected.insert(expected.end(), again.begin(), again.end());
    return caller::verdict(6, expected);
}
