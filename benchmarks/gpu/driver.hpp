// The driver of the machine, loaded at run time: these programs need nothing else of CUDA.
#pragma once

#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>

#include "kernel_intercept/interposer/driver_abi.hpp"

namespace gpu_bench {

using namespace explsched::intercept;

inline double now_us() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

// Ends the process with the members that say what failed.
[[noreturn]] inline void fail(const char* call, Result result) {
    std::printf("\"failed\": \"%s\", \"error\": %d", call, result);
    std::fflush(stdout);
    _exit(0);
}

inline void* entry_of(const char* name) {
    static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
    return driver == nullptr ? nullptr : dlsym(driver, name);
}

// Calls a function of the driver.
template <typename... Arguments>
Result result_of(const char* name, Arguments... arguments) {
    void* const entry = entry_of(name);
    if (entry == nullptr) return kErrorSymbolNotFound;
    return reinterpret_cast<Result (*)(Arguments...)>(entry)(arguments...);
}

// The same; the process ends if it fails.
template <typename... Arguments>
void call(const char* name, Arguments... arguments) {
    const Result result = result_of(name, arguments...);
    if (result != kSuccess) fail(name, result);
}

}  // namespace gpu_bench
