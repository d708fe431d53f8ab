// A time and a load in one 64-bit word, so that both change together without a lock.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernel_intercept/shared/kernel.hpp"

namespace explsched::shared {

// What runs on a GPU, as shares of its throughput. Sums may exceed 1000.
struct Load {
    std::uint32_t compute_permille{0};
    std::uint32_t bandwidth_permille{0};

    constexpr Load operator+(Load other) const {
        return {compute_permille + other.compute_permille, bandwidth_permille + other.bandwidth_permille};
    }
    constexpr bool none() const { return compute_permille == 0 && bandwidth_permille == 0; }
};

constexpr Load larger(Load a, Load b) {
    return {std::max(a.compute_permille, b.compute_permille),
            std::max(a.bandwidth_permille, b.bandwidth_permille)};
}

constexpr Load load_of(const KernelCost& cost) {
    return {std::min<std::uint32_t>(cost.compute_permille, 1000),
            std::min<std::uint32_t>(cost.bandwidth_permille, 1000)};
}

constexpr std::uint64_t kTimeBits = 44;
constexpr std::uint64_t kTimeMask = (std::uint64_t{1} << kTimeBits) - 1;

constexpr std::uint64_t pack(std::uint64_t time, Load load) {
    return (time & kTimeMask) << 20 | std::uint64_t{load.compute_permille & 0x3ffU} << 10 |
           (load.bandwidth_permille & 0x3ffU);
}

constexpr std::uint64_t packed_time(std::uint64_t word) { return word >> 20; }

constexpr Load packed_load(std::uint64_t word) {
    return {static_cast<std::uint32_t>(word >> 10 & 0x3ff), static_cast<std::uint32_t>(word & 0x3ff)};
}

// A cost in one word: running times up to 4.8 hours.
constexpr std::uint64_t pack_cost(const KernelCost& cost) {
    return pack(std::min(cost.gpu_ns, kTimeMask), load_of(cost));
}

constexpr KernelCost unpack_cost(std::uint64_t word) {
    const Load load = packed_load(word);
    return {packed_time(word), load.compute_permille, load.bandwidth_permille};
}

}  // namespace explsched::shared
