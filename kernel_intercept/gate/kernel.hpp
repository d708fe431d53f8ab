// What a kernel launch is, and what it costs.
#pragma once

#include <cstdint>

namespace explsched {

struct Dim3 {
    std::uint32_t x{1};
    std::uint32_t y{1};
    std::uint32_t z{1};
};

// Launches with equal keys are expected to cost the same on the same kind of GPU.
struct KernelKey {
    std::uint64_t name_hash;  // 64-bit FNV-1a of the mangled name
    Dim3 grid;
    Dim3 block;
    std::uint32_t dynamic_shared_bytes;
    std::uint32_t compute_capability;  // 10 * major + minor
};

// What a launch takes from a GPU while it runs there alone.
struct KernelCost {
    std::uint64_t gpu_ns;              // running time
    std::uint32_t compute_permille;    // share of the SMs' throughput, 0..1000
    std::uint32_t bandwidth_permille;  // share of the memory bandwidth, 0..1000
};

}  // namespace explsched
