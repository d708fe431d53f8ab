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

// Calls a function of the driver; the process ends if it fails.
template <typename... Arguments>
void call(const char* name, Arguments... arguments) {
    static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
    void* entry = driver == nullptr ? nullptr : dlsym(driver, name);
    if (entry == nullptr) fail(name, kErrorSymbolNotFound);
    const Result result = reinterpret_cast<Result (*)(Arguments...)>(entry)(arguments...);
    if (result != kSuccess) fail(name, result);
}

}  // namespace gpu_bench
