#include "kernel_intercept/interposer/occupancy.hpp"

namespace explsched::intercept {
namespace {

constexpr std::uint32_t kKib = 1024;
constexpr std::uint32_t kWarpThreads = 32;
constexpr std::uint32_t kMaxBlockThreads = 1024;
// A multiprocessor's 65536 registers lie in four partitions, each serving the warps it holds; a warp gets
// them in units of 256.
constexpr std::uint32_t kPartitions = 4;
constexpr std::uint32_t kRegistersPerPartition = 65536 / kPartitions;
constexpr std::uint32_t kRegisterUnit = 256;

constexpr std::uint32_t divided_up(std::uint32_t value, std::uint32_t unit) {
    return (value + unit - 1) / unit;
}
constexpr std::uint32_t rounded_up(std::uint32_t value, std::uint32_t unit) {
    return divided_up(value, unit) * unit;
}
constexpr std::uint32_t smaller(std::uint32_t a, std::uint32_t b) { return a < b ? a : b; }

struct Row {
    std::uint32_t compute_capability;
    MultiprocessorLimits limits;
};

// The last row whose capability is not above the asked one counts.
constexpr Row kRows[] = {
    {70, {2048, 32, 96 * kKib, 0, 256}},      {75, {1024, 16, 64 * kKib, 0, 256}},
    {80, {2048, 32, 164 * kKib, kKib, 128}},  {86, {1536, 16, 100 * kKib, kKib, 128}},
    {87, {1536, 16, 164 * kKib, kKib, 128}},  {89, {1536, 24, 100 * kKib, kKib, 128}},
    {90, {2048, 32, 228 * kKib, kKib, 128}},  {100, {2048, 32, 228 * kKib, kKib, 128}},
    {101, {1536, 24, 228 * kKib, kKib, 128}}, {103, {2048, 32, 228 * kKib, kKib, 128}},
    {110, {1536, 24, 228 * kKib, kKib, 128}}, {120, {1536, 24, 100 * kKib, kKib, 128}},
};

std::uint32_t register_limit(std::uint32_t registers_per_thread, std::uint32_t block_warps) noexcept {
    if (registers_per_thread == 0) return UINT32_MAX;
    const std::uint32_t warp_registers = rounded_up(registers_per_thread * kWarpThreads, kRegisterUnit);
    return kPartitions * (kRegistersPerPartition / warp_registers) / block_warps;
}

std::uint32_t shared_limit(const MultiprocessorLimits& limits, std::uint32_t shared_bytes) noexcept {
    const std::uint32_t taken =
        rounded_up(shared_bytes + limits.reserved_shared_bytes_per_block, limits.shared_granularity_bytes);
    return taken == 0 ? UINT32_MAX : limits.shared_bytes / taken;
}

}  // namespace

MultiprocessorLimits multiprocessor_limits(std::uint32_t compute_capability) noexcept {
    MultiprocessorLimits found = kRows[0].limits;
    for (const Row& row : kRows) {
        if (row.compute_capability <= compute_capability) found = row.limits;
    }
    return found;
}

std::uint32_t blocks_per_multiprocessor(const MultiprocessorLimits& limits,
                                        const BlockNeeds& needs) noexcept {
    if (needs.threads == 0 || needs.threads > kMaxBlockThreads) return 0;
    if (needs.shared_bytes > limits.shared_bytes) return 0;
    const std::uint32_t block_warps = divided_up(needs.threads, kWarpThreads);
    std::uint32_t blocks = smaller(limits.blocks, limits.threads / kWarpThreads / block_warps);
    blocks = smaller(blocks, register_limit(needs.registers_per_thread, block_warps));
    return smaller(blocks, shared_limit(limits, needs.shared_bytes));
}

std::uint32_t multiprocessor_permille(std::uint64_t grid_blocks, std::uint32_t blocks_per_sm,
                                      std::uint32_t multiprocessors) noexcept {
    if (multiprocessors == 0) return 1000;
    const std::uint64_t per_sm = blocks_per_sm == 0 ? 1 : blocks_per_sm;
    const std::uint64_t busy = (grid_blocks + per_sm - 1) / per_sm;
    if (busy >= multiprocessors) return 1000;
    const auto permille = static_cast<std::uint32_t>(busy * 1000 / multiprocessors);
    return permille == 0 ? 1 : permille;
}

}  // namespace explsched::intercept
