// What a launch needs to know of its kernel, asked of the driver once.
#pragma once

#include <cstdint>

#include "kernel_intercept/interposer/driver_abi.hpp"
#include "kernel_intercept/interposer/names.hpp"

namespace explsched::intercept {

struct FunctionFacts {
    KernelName name;
    std::uint32_t static_shared_bytes;
    std::uint16_t registers_per_thread;
    std::uint16_t max_threads_per_block;
    bool collective;  // communicates with other GPUs' kernels, by its name: must never wait
};

enum class HandleKind : std::uint8_t { kFunction, kKernel };  // CUfunction, CUkernel

// Lock-free and a few nanoseconds when known. While a stream captures, the driver is not asked for unknown
// functions: the facts then are the noted name alone, and not kept.
FunctionFacts function_facts(Function function, Device device) noexcept;

// Remembers the name under which a handle was looked up, and what it is.
void note_handle(Function handle, HandleKind kind, const char* name) noexcept;

// That name; null if there is none.
const char* noted_name(Function handle) noexcept;

// The shape set by the deprecated cuFuncSetBlockShape and cuFuncSetSharedSize.
struct BlockShape {
    std::uint32_t x{1}, y{1}, z{1};
    std::uint32_t shared_bytes{0};
};
BlockShape block_shape(Function function) noexcept;
void note_block_shape(Function function, const BlockShape& shape) noexcept;

}  // namespace explsched::intercept
