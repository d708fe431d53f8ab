// What kernel nodes of graphs cost, added up.
#pragma once

#include <cstdint>

#include "kernel_intercept/interposer/launch.hpp"

namespace explsched::intercept {

// Sums over kernels, from which nodes can be taken out again. The shares are weighted by time.
struct GraphCost {
    std::uint64_t identity;  // the sum of the keys' hashes
    std::uint64_t gpu_ns;
    std::uint64_t compute;    // permille * ns
    std::uint64_t bandwidth;  // permille * ns
    std::uint64_t kernels;
    bool collective;
};

void add(GraphCost& sum, const GraphCost& part) noexcept;

// Whether the rest holds collectives is not known: what was forbidden stays so.
void subtract(GraphCost& sum, const GraphCost& part) noexcept;

GraphCost graph_cost_of_kernel(const KernelNodeParams& params, const ContextRecord& gpu) noexcept;
GraphCost graph_cost_of_node(GraphNode node, const ContextRecord& gpu) noexcept;

KernelCost cost_of(const GraphCost& total) noexcept;

}  // namespace explsched::intercept
