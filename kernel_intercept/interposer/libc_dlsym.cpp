#include "kernel_intercept/interposer/libc_dlsym.hpp"

#include <dlfcn.h>

#include <atomic>

namespace explsched::intercept {
namespace {

std::atomic<Dlsym> g_dlsym{nullptr};

// dlsym has the version of the release that moved it into libc (2.34), and that of its architecture's first
// release for programs built before.
#if defined(__x86_64__)
constexpr const char* kVersions[] = {"GLIBC_2.34", "GLIBC_2.2.5"};
#elif defined(__aarch64__)
constexpr const char* kVersions[] = {"GLIBC_2.34", "GLIBC_2.17"};
#else
#error "the CUDA driver exists for x86_64 and aarch64 only"
#endif

}  // namespace

Dlsym libc_dlsym() noexcept {
    Dlsym found = g_dlsym.load(std::memory_order_relaxed);
    for (const char* version : kVersions) {
        const auto find = &dlvsym;
        if (found != nullptr || find == nullptr) break;
        found = reinterpret_cast<Dlsym>(find(RTLD_NEXT, "dlsym", version));
    }
    g_dlsym.store(found, std::memory_order_relaxed);
    return found;
}

}  // namespace explsched::intercept
