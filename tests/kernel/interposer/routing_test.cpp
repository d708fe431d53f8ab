// The look-ups give out our functions where we have one, and the driver's own otherwise.

#include <cuda.h>
#include <dlfcn.h>

#include <cstring>

#include "tests/kernel/interposer/check.hpp"
#include "tests/kernel/interposer/middle.hpp"

namespace {

using GetProc4 = int (*)(const char*, void**, int, unsigned long long);
using GetProc5 = int (*)(const char*, void**, int, unsigned long long, int*);

std::string library_of(void* address) {
    Dl_info info{};
    CHECK(dladdr(address, &info) != 0);
    const char* slash = std::strrchr(info.dli_fname, '/');
    return slash == nullptr ? info.dli_fname : slash + 1;
}

bool is_ours(void* address) { return library_of(address).rfind("libexplsched_intercept", 0) == 0; }
bool is_drivers(void* address) { return library_of(address) == "libcuda.so.1"; }

void* found(GetProc5 look_up, const char* name, int version, unsigned long long flags) {
    void* entry = nullptr;
    look_up(name, &entry, version, flags, nullptr);  // a null status is allowed
    return entry;
}

void test_dlsym(void* driver, bool intercepting) {
    for (const char* name : {"cuLaunchKernel", "cuLaunchKernel_ptsz", "cuGetProcAddress",
                             "cuGetProcAddress_v2", "cuGraphLaunch", "cuStreamSynchronize"}) {
        void* entry = dlsym(driver, name);
        CHECK(intercepting ? is_ours(entry) : is_drivers(entry));
    }
    CHECK(is_drivers(dlsym(driver, "cuInit")));
    CHECK(is_drivers(dlsym(driver, "cuMemcpyHtoD_v2")));
    CHECK(dlsym(driver, "cuNoSuchCall") == nullptr);
    CHECK(dlsym(driver, "cuLaunchKernelX") == nullptr);
    CHECK(dlerror() != nullptr);
}

void test_get_proc_address(void* driver) {
    const auto look_up = reinterpret_cast<GetProc5>(dlsym(driver, "cuGetProcAddress_v2"));
    void* legacy = found(look_up, "cuLaunchKernel", 13000, 0);
    void* per_thread = found(look_up, "cuLaunchKernel", 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    CHECK(legacy == dlsym(driver, "cuLaunchKernel"));
    CHECK(per_thread == dlsym(driver, "cuLaunchKernel_ptsz"));
    CHECK(legacy != per_thread);
    // One name, two types: the version decides, and the pointer tells.
    CHECK(found(look_up, "cuGetProcAddress", 11030, 0) == dlsym(driver, "cuGetProcAddress"));
    CHECK(found(look_up, "cuGetProcAddress", 12000, 0) == dlsym(driver, "cuGetProcAddress_v2"));
    CHECK(found(look_up, "cuGraphExecUpdate", 11000, 0) == dlsym(driver, "cuGraphExecUpdate"));
    CHECK(found(look_up, "cuGraphExecUpdate", 12000, 0) == dlsym(driver, "cuGraphExecUpdate_v2"));
    CHECK(is_drivers(found(look_up, "cuMemcpyHtoD", 13000, 0)));
    CHECK(found(look_up, "", 0, 0) == nullptr);  // the runtime's probe
    CHECK(found(look_up, "cuNoSuchCall", 13000, 0) == nullptr);
    int status = -1;
    void* entry = nullptr;
    CHECK_EQUAL(look_up("cuLaunchKernel", &entry, 13000, 0, &status), 0);
    CHECK_EQUAL(status, static_cast<int>(CU_GET_PROC_ADDRESS_SUCCESS));
    const auto look_up_4 = reinterpret_cast<GetProc4>(dlsym(driver, "cuGetProcAddress"));
    CHECK_EQUAL(look_up_4("cuLaunchKernel", &entry, 11030, 0), 0);
    CHECK(entry == legacy);
}

// Python raises its AttributeError with the text of dlerror(), and crashes where there is none.
bool is_absent(void* handle, const char* name) {
    dlerror();
    if (dlsym(handle, name) != nullptr) return false;
    const char* message = dlerror();
    return message != nullptr && std::strstr(message, name) != nullptr;
}

// The middle library looks for what comes after it. With a dlsym that is not entered by a jump, it would find
// its own function, and call it for ever.
void test_search_from_middle_library(void* driver) {
    CHECK_EQUAL(middle_labs(-4), 4L);
    CHECK(middle_next("cuLaunchKernel") == dlsym(driver, "cuLaunchKernel"));
    CHECK(dlsym(RTLD_DEFAULT, "cuLaunchKernel") == dlsym(driver, "cuLaunchKernel"));
}

}  // namespace

int main(int argc, char** argv) {
    CHECK_EQUAL(argc, 2);
    const bool intercepting = std::strcmp(argv[1], "off") != 0;
    // Before there is a driver, our exports must not pass for one.
    if (intercepting) {
        CHECK(is_absent(RTLD_DEFAULT, "cuLaunchKernel"));
        void* program = dlopen(nullptr, RTLD_NOW);  // with all that it was loaded with
        for (const char* name : {"cuLaunchKernel", "cuMemAlloc_v2", "cuGetProcAddress", "cuInit"})
            CHECK(is_absent(program, name));
        CHECK(dlsym(program, "dlsym") != nullptr);
    }
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(driver != nullptr);
    test_dlsym(driver, intercepting);
    if (!intercepting) return 0;
    test_get_proc_address(driver);
    test_search_from_middle_library(driver);
}
