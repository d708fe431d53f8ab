#include "kernel_intercept/interposer/graph_cost.hpp"

#include "kernel_intercept/interposer/driver.hpp"

namespace explsched::intercept {
namespace {

bool is_cooperative(GraphNode node) noexcept {
    LaunchAttributeValue value{};
    return call_driver<Symbol::cuGraphKernelNodeGetAttribute>(node, kAttributeCooperative, &value) ==
               kSuccess &&
           value.cooperative != 0;
}

}  // namespace

void add(GraphCost& sum, const GraphCost& part) noexcept {
    sum.identity += part.identity;
    sum.gpu_ns += part.gpu_ns;
    sum.compute += part.compute;
    sum.bandwidth += part.bandwidth;
    sum.kernels += part.kernels;
    sum.collective = sum.collective || part.collective;
}

void subtract(GraphCost& sum, const GraphCost& part) noexcept {
    const auto less = [](std::uint64_t& value, std::uint64_t by) { value = value > by ? value - by : 0; };
    sum.identity -= part.identity;
    less(sum.gpu_ns, part.gpu_ns);
    less(sum.compute, part.compute);
    less(sum.bandwidth, part.bandwidth);
    less(sum.kernels, part.kernels);
}

GraphCost graph_cost_of_kernel(const KernelNodeParams& params, const ContextRecord& gpu) noexcept {
    const Function function = params.function != nullptr ? params.function : params.kernel;
    if (function == nullptr) return {};
    const LaunchShape shape{function,
                            {params.grid_x, params.grid_y, params.grid_z},
                            {params.block_x, params.block_y, params.block_z},
                            params.shared_bytes};
    const LaunchFacts facts = launch_facts(gpu, shape);
    const KernelCost cost = expected_cost(facts);
    return {facts.key_hash,
            cost.gpu_ns,
            cost.gpu_ns * cost.compute_permille,
            cost.gpu_ns * cost.bandwidth_permille,
            1,
            facts.collective};
}

GraphCost graph_cost_of_node(GraphNode node, const ContextRecord& gpu) noexcept {
    KernelNodeParams params{};  // the first version fills in a part
    if (call_driver<Symbol::cuGraphKernelNodeGetParams_v2>(node, &params) != kSuccess &&
        call_driver<Symbol::cuGraphKernelNodeGetParams>(node, &params) != kSuccess) {
        return {};
    }
    GraphCost total = graph_cost_of_kernel(params, gpu);
    total.collective = total.collective || is_cooperative(node);
    return total;
}

KernelCost cost_of(const GraphCost& total) noexcept {
    // Without kernels (copies only) there is nothing to pay for.
    if (total.gpu_ns == 0) return {0, 0, 0};
    return {total.gpu_ns, static_cast<std::uint32_t>(total.compute / total.gpu_ns),
            static_cast<std::uint32_t>(total.bandwidth / total.gpu_ns)};
}

}  // namespace explsched::intercept
