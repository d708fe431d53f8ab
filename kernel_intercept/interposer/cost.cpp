#include "kernel_intercept/interposer/cost.hpp"

#include "kernel_intercept/gate/gate.hpp"
#include "kernel_intercept/interposer/epoch.hpp"
#include "kernel_intercept/interposer/handle_table.hpp"
#include "kernel_intercept/shared/layout.hpp"

namespace explsched::intercept {
namespace {

constexpr std::uint32_t kAllBandwidth = 1000;

// Occupancy takes a dozen divisions; remembered per key.
HandleTable<std::uint32_t, 8192> g_compute_permille;

std::uint32_t compute_permille(const ContextRecord& gpu, const FunctionFacts& facts,
                               const KernelKey& key) noexcept {
    const std::uint64_t threads = std::uint64_t{key.block.x} * key.block.y * key.block.z;
    const std::uint64_t shared = std::uint64_t{facts.static_shared_bytes} + key.dynamic_shared_bytes;
    const std::uint64_t blocks = std::uint64_t{key.grid.x} * key.grid.y * key.grid.z;
    // A launch beyond the limits of any GPU fails in the driver; here it only must not overflow.
    const auto clamped = [](std::uint64_t value) {
        return static_cast<std::uint32_t>(value > UINT32_MAX ? UINT32_MAX : value);
    };
    const BlockNeeds needs{clamped(threads), facts.registers_per_thread, clamped(shared)};
    return multiprocessor_permille(blocks, blocks_per_multiprocessor(gpu.limits, needs), gpu.multiprocessors);
}

}  // namespace

KernelCost estimated_cost(const ContextRecord& gpu, const FunctionFacts& facts,
                          const KernelKey& key) noexcept {
    const std::uint64_t hash = shared::hash_of(key);
    // Two GPUs of one capability can differ in their multiprocessors, and a name in its kernels.
    const std::uint32_t epoch = handle_epoch() ^ (gpu.multiprocessors << 16);
    std::uint32_t compute = 0;
    if (const auto known = g_compute_permille.find(hash, epoch)) {
        compute = *known;
    } else {
        compute = compute_permille(gpu, facts, key);
        g_compute_permille.put(hash, epoch, compute);
    }
    return {kUnknownKernelNs, compute, kAllBandwidth};
}

KernelCost expected_cost(const ContextRecord& gpu, const FunctionFacts& facts,
                         const KernelKey& key) noexcept {
    const auto known = gate::lookup(key);
    return known ? *known : estimated_cost(gpu, facts, key);
}

}  // namespace explsched::intercept
