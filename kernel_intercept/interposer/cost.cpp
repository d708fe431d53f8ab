#include "kernel_intercept/interposer/cost.hpp"

#include "kernel_intercept/gate/gate.hpp"
#include "kernel_intercept/interposer/capture.hpp"
#include "kernel_intercept/interposer/epoch.hpp"
#include "kernel_intercept/interposer/handle_table.hpp"

namespace explsched::intercept {
namespace {

constexpr std::uint32_t kAllBandwidth = 1000;

// A program repeats few launches many times. The key is a hash of all that the facts depend on; two of a
// million shapes share one of 2^63 with a chance of one in ten million, and then share an estimate.
HandleTable<LaunchFacts, 8192> g_known;

std::uint32_t compute_permille(const ContextRecord& gpu, const LaunchShape& shape,
                               const FunctionFacts& facts) noexcept {
    const std::uint64_t threads = std::uint64_t{shape.block.x} * shape.block.y * shape.block.z;
    const std::uint64_t shared = std::uint64_t{facts.static_shared_bytes} + shape.shared_bytes;
    const std::uint64_t blocks = std::uint64_t{shape.grid.x} * shape.grid.y * shape.grid.z;
    // A launch beyond the limits of any GPU fails in the driver; here it only must not overflow.
    const auto clamped = [](std::uint64_t value) {
        return static_cast<std::uint32_t>(value > UINT32_MAX ? UINT32_MAX : value);
    };
    const BlockNeeds needs{clamped(threads), facts.registers_per_thread, clamped(shared)};
    return multiprocessor_permille(blocks, blocks_per_multiprocessor(gpu.limits, needs), gpu.multiprocessors);
}

// Independent products, so that they are computed side by side; the table mixes the sum. Odd constants.
constexpr std::uint64_t cheap_hash(const LaunchShape& shape, std::uint64_t function) {
    const auto pair = [](std::uint32_t high, std::uint32_t low) { return (std::uint64_t{high} << 32) | low; };
    return (function * 0x9e3779b97f4a7c15ULL + pair(shape.grid.x, shape.block.x) * 0xc2b2ae3d27d4eb4fULL +
            pair(shape.grid.y, shape.grid.z) * 0x165667b19e3779f9ULL +
            pair(shape.block.y, shape.block.z) * 0xd6e8feb86659fd93ULL +
            shape.shared_bytes * 0xff51afd7ed558ccdULL) |
           1;
}

LaunchFacts facts_of(const ContextRecord& gpu, const LaunchShape& shape) noexcept {
    const FunctionFacts function = function_facts(shape.function, gpu.ordinal);
    LaunchFacts facts{function.name, 0, compute_permille(gpu, shape, function), function.collective};
    facts.key_hash = hash_of(key_of(gpu, shape, facts));
    return facts;
}

}  // namespace

LaunchFacts launch_facts(const ContextRecord& gpu, const LaunchShape& shape) noexcept {
    const std::uint64_t hash = cheap_hash(shape, key_of(shape.function));
    // One function can be launched on several GPUs.
    const std::uint32_t epoch = handle_epoch() ^ (static_cast<std::uint32_t>(gpu.ordinal) << 24);
    LaunchFacts facts;
    if (!g_known.read(hash, epoch, facts)) {
        const bool complete = !any_capture();  // see function_facts
        facts = facts_of(gpu, shape);
        if (complete) g_known.put(hash, epoch, facts);
    }
    return facts;
}

KernelKey key_of(const ContextRecord& gpu, const LaunchShape& shape, const LaunchFacts& facts) noexcept {
    return {facts.name.hash, shape.grid, shape.block, shape.shared_bytes, gpu.compute_capability};
}

KernelCost expected_cost(const LaunchFacts& facts) noexcept {
    return gate::lookup(facts.key_hash, {kUnknownKernelNs, facts.compute_permille, kAllBandwidth});
}

}  // namespace explsched::intercept
