// Kernel names, kept for the life of the process: a module may be unloaded before its sample is read.
#pragma once

#include <cstdint>

namespace explsched::intercept {

struct KernelName {
    const char* text;    // "?" if the driver tells none
    std::uint64_t hash;  // 64-bit FNV-1a of the mangled name
};

// A kept copy, the same for equal names. After 16384 different names no more are kept: the text is then
// "?", the hash still that of the name.
KernelName kept_name(const char* name) noexcept;

}  // namespace explsched::intercept
