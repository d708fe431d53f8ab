// Several figures in one 64-bit word, so that they change together without a lock.
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

constexpr std::uint64_t kTimeMask = (std::uint64_t{1} << 44) - 1;

// Running times up to 4.8 hours.
constexpr std::uint64_t pack_cost(const KernelCost& cost) {
    const Load load = load_of(cost);
    return std::min(cost.gpu_ns, kTimeMask) << 20 | std::uint64_t{load.compute_permille} << 10 |
           load.bandwidth_permille;
}

constexpr KernelCost unpack_cost(std::uint64_t word) {
    return {word >> 20, static_cast<std::uint32_t>(word >> 10 & 0x3ff),
            static_cast<std::uint32_t>(word & 0x3ff)};
}

// From the first launch to the end of all, and the predicted running time of what was launched. The packed
// can be added and subtracted up to 275 s; what is longer counts as nothing.
struct BusyTime {
    std::uint64_t wall_ns, work_ns;
};
constexpr std::uint64_t pack_busy(const BusyTime& of) {
    return std::max(of.wall_ns, of.work_ns) / 64 > UINT32_MAX ? 0 : of.wall_ns / 64 << 32 | of.work_ns / 64;
}
constexpr BusyTime unpack_busy(std::uint64_t word) { return {(word >> 32) * 64, (word & UINT32_MAX) * 64}; }

}  // namespace explsched::shared
