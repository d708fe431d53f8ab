#include "tests/kernel/fakecudart/driver_calls.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace fakecudart {
namespace {

[[noreturn]] void give_up(const char* what) {
    std::fprintf(stderr, "fake CUDA runtime: %s\n", what);
    std::abort();
}

void* look_up(PFN_cuGetProcAddress_v12000 get, const char* base, int version, std::string_view suffix) {
    void* function = nullptr;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    const cuuint64_t flags =
        suffix.empty() ? CU_GET_PROC_ADDRESS_LEGACY_STREAM : CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if (get(base, &function, version, flags, &status) != CUDA_SUCCESS || function == nullptr) give_up(base);
    return function;
}

DriverCalls load() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) give_up(dlerror());
    const auto first = reinterpret_cast<PFN_cuGetProcAddress_v12000>(dlsym(library, "cuGetProcAddress_v2"));
    if (first == nullptr) give_up("no cuGetProcAddress_v2");
    // The real runtime tries an empty name first, and then asks the function for itself.
    void* nothing = nullptr;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    if (first("", &nothing, 0, 0, &status) != CUDA_SUCCESS)
        give_up("the probe of cuGetProcAddress_v2 failed");
    const auto get =
        reinterpret_cast<PFN_cuGetProcAddress_v12000>(look_up(first, "cuGetProcAddress", 12000, ""));
    DriverCalls calls{};
#define DRIVER(base, version, suffix) \
    calls.base##suffix =              \
        reinterpret_cast<PFN_##base##_v##version##suffix>(look_up(get, #base, version, #suffix));
#include "tests/kernel/fakecudart/driver_calls.def"
#undef DRIVER
    return calls;
}

CUcontext start(const DriverCalls& calls) {
    CUcontext context = nullptr;
    if (calls.cuInit(0) != CUDA_SUCCESS) give_up("cuInit failed");
    if (calls.cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS) give_up("no primary context");
    return context;
}

}  // namespace

const DriverCalls& driver() {
    static const DriverCalls calls = load();
    static CUcontext const context = start(calls);
    CUcontext current = nullptr;
    if (calls.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == nullptr) calls.cuCtxSetCurrent(context);
    return calls;
}

}  // namespace fakecudart
