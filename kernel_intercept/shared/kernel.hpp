// What a kernel launch is, and what it costs.
#pragma once

#include <array>
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

// Names a key in tables. Never 0.
constexpr std::uint64_t hash_of(const KernelKey& key) {
    std::uint64_t hash = key.name_hash;
    const std::array<std::uint64_t, 5> words{
        std::uint64_t{key.grid.x} << 32 | key.grid.y, std::uint64_t{key.grid.z} << 32 | key.block.x,
        std::uint64_t{key.block.y} << 32 | key.block.z, key.dynamic_shared_bytes, key.compute_capability};
    for (const std::uint64_t word : words) {  // each step as in splitmix64 (Steele et al. 2014)
        hash = (hash ^ word) + 0x9e3779b97f4a7c15U;
        hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9U;
        hash = (hash ^ hash >> 27) * 0x94d049bb133111ebU;
        hash ^= hash >> 31;
    }
    return hash == 0 ? 1 : hash;
}

// What a launch takes from a GPU while it runs there alone.
struct KernelCost {
    std::uint64_t gpu_ns;              // running time
    std::uint32_t compute_permille;    // share of the SMs' throughput, 0..1000
    std::uint32_t bandwidth_permille;  // share of the memory bandwidth, 0..1000
};

}  // namespace explsched
