// How many blocks of a kernel one multiprocessor holds at a time.
//
// Rules and limits: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", and the
// toolkit's occupancy calculator, which the tests compare with where a toolkit is installed.
#pragma once

#include <cstdint>

namespace explsched::intercept {

struct MultiprocessorLimits {
    std::uint32_t threads;
    std::uint32_t blocks;
    std::uint32_t shared_bytes;
    std::uint32_t reserved_shared_bytes_per_block;
    std::uint32_t shared_granularity_bytes;
};

struct BlockNeeds {
    std::uint32_t threads;
    std::uint32_t registers_per_thread;
    std::uint32_t shared_bytes;  // static and dynamic
};

// `compute_capability` is 10 * major + minor, 70 to 12x. Of a later one, the limits of the latest known.
MultiprocessorLimits multiprocessor_limits(std::uint32_t compute_capability) noexcept;

// 0 if not even one block fits.
std::uint32_t blocks_per_multiprocessor(const MultiprocessorLimits& limits, const BlockNeeds& needs) noexcept;

// The share of the GPU's multiprocessors that a grid keeps busy, 1..1000 permille. A kernel whose blocks
// do not fit (`blocks_per_sm` 0) counts as if one did.
std::uint32_t multiprocessor_permille(std::uint64_t grid_blocks, std::uint32_t blocks_per_sm,
                                      std::uint32_t multiprocessors) noexcept;

}  // namespace explsched::intercept
