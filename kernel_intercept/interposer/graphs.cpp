#include "kernel_intercept/interposer/graphs.hpp"

#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include "kernel_intercept/gate/gate.hpp"
#include "kernel_intercept/interposer/driver.hpp"
#include "kernel_intercept/interposer/handle_table.hpp"
#include "kernel_intercept/interposer/names.hpp"

namespace explsched::intercept {
namespace {

constexpr int kMaxDepth = 16;  // of child graphs in child graphs
constexpr std::uint32_t kAlways = 1;

// Sums over kernels, from which nodes can be taken out again. The shares are weighted by time.
struct Tally {
    std::uint64_t identity;  // the sum of the keys' hashes
    std::uint64_t gpu_ns;
    std::uint64_t compute;    // permille * ns
    std::uint64_t bandwidth;  // permille * ns
    std::uint64_t kernels;
    bool collective;
};

struct GraphRecord {
    Tally tally;
    KernelName name;
    std::uint64_t content;  // a number of its own for each time that a graph was instantiated or updated
};

HandleTable<GraphRecord, 4096> g_graphs;
HandleTable<Tally, 8192> g_changed_nodes;  // what the last change of a node left it at
std::atomic<std::uint64_t> g_last_content{0};

void add(Tally& sum, const Tally& part) noexcept {
    sum.identity += part.identity;
    sum.gpu_ns += part.gpu_ns;
    sum.compute += part.compute;
    sum.bandwidth += part.bandwidth;
    sum.kernels += part.kernels;
    sum.collective = sum.collective || part.collective;
}

// Whether the rest holds collectives is not known: what was forbidden stays so.
void subtract(Tally& sum, const Tally& part) noexcept {
    const auto less = [](std::uint64_t& value, std::uint64_t by) { value = value > by ? value - by : 0; };
    sum.identity -= part.identity;
    less(sum.gpu_ns, part.gpu_ns);
    less(sum.compute, part.compute);
    less(sum.bandwidth, part.bandwidth);
    less(sum.kernels, part.kernels);
}

bool is_cooperative(GraphNode node) noexcept {
    LaunchAttributeValue value{};
    return call_driver<Symbol::cuGraphKernelNodeGetAttribute>(node, kAttributeCooperative, &value) ==
               kSuccess &&
           value.cooperative != 0;
}

Tally tally_of_kernel(const KernelNodeParams& params, const ContextRecord& gpu) noexcept {
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

Tally tally_of_node(GraphNode node, const ContextRecord& gpu) noexcept {
    KernelNodeParams params{};  // the first version fills in a part
    if (call_driver<Symbol::cuGraphKernelNodeGetParams_v2>(node, &params) != kSuccess &&
        call_driver<Symbol::cuGraphKernelNodeGetParams>(node, &params) != kSuccess) {
        return {};
    }
    Tally tally = tally_of_kernel(params, gpu);
    tally.collective = tally.collective || is_cooperative(node);
    return tally;
}

Tally tally_of_graph(Graph graph, const ContextRecord& gpu, int depth) noexcept {
    Tally sum{};
    std::size_t count = 0;
    if (call_driver<Symbol::cuGraphGetNodes>(graph, nullptr, &count) != kSuccess || count == 0) return sum;
    auto* nodes = static_cast<GraphNode*>(std::calloc(count, sizeof(GraphNode)));
    if (nodes == nullptr) return sum;
    if (call_driver<Symbol::cuGraphGetNodes>(graph, nodes, &count) != kSuccess) count = 0;
    for (std::size_t i = 0; i < count; ++i) {
        int type = -1;
        Graph child = nullptr;
        if (call_driver<Symbol::cuGraphNodeGetType>(nodes[i], &type) != kSuccess) continue;
        if (type == kNodeKernel) {
            add(sum, tally_of_node(nodes[i], gpu));
        } else if (type == kNodeChildGraph && depth < kMaxDepth &&
                   call_driver<Symbol::cuGraphChildGraphNodeGetGraph>(nodes[i], &child) == kSuccess) {
            add(sum, tally_of_graph(child, gpu, depth + 1));
        }
    }
    std::free(nodes);
    return sum;
}

void keep(GraphExec exec, const Tally& tally, std::uint64_t content) noexcept {
    char name[32];
    std::snprintf(name, sizeof name, "graph:%016" PRIx64, tally.identity);
    g_graphs.put(key_of(exec), kAlways, {tally, kept_name(name), content});
}

KernelCost cost_of(const Tally& tally) noexcept {
    // Without kernels (copies only) there is nothing to pay for.
    if (tally.gpu_ns == 0) return {0, 0, 0};
    return {tally.gpu_ns, static_cast<std::uint32_t>(tally.compute / tally.gpu_ns),
            static_cast<std::uint32_t>(tally.bandwidth / tally.gpu_ns)};
}

}  // namespace

void note_graph(GraphExec exec, Graph graph, const ContextRecord& gpu) noexcept {
    keep(exec, tally_of_graph(graph, gpu, 0), g_last_content.fetch_add(1, std::memory_order_relaxed) + 1);
}

void note_node(GraphExec exec, GraphNode node, const KernelNodeParams& params,
               const ContextRecord& gpu) noexcept {
    const auto graph = g_graphs.find(key_of(exec), kAlways);
    if (!graph) return;
    // The node itself keeps its first parameters; the executable graph's are only in our memory, and hold
    // until all of it is given others.
    const std::uint64_t node_key = mixed(graph->content) + key_of(node);
    const auto changed = g_changed_nodes.find(node_key, kAlways);
    const Tally before = changed ? *changed : tally_of_node(node, gpu);
    const Tally after = tally_of_kernel(params, gpu);
    Tally sum = graph->tally;
    subtract(sum, before);
    add(sum, after);
    keep(exec, sum, graph->content);
    g_changed_nodes.put(node_key, kAlways, after);
}

GraphLaunch graph_launch(GraphExec exec, const ContextRecord& gpu) noexcept {
    const auto graph = g_graphs.find(key_of(exec), kAlways);
    const KernelName name = graph ? graph->name : kept_name("graph:?");
    const std::uint64_t kernels = graph ? graph->tally.kernels : 1;
    const KernelKey key{
        name.hash, {static_cast<std::uint32_t>(kernels), 1, 1}, {1, 1, 1}, 0, gpu.compute_capability};
    const std::uint64_t key_hash = hash_of(key);
    const KernelCost estimate = graph ? cost_of(graph->tally) : KernelCost{kUnknownKernelNs, 1000, 1000};
    return {{key, gate::lookup(key_hash, estimate), name.text},
            key_hash,
            graph && graph->tally.collective ? Waiting::kForbidden : Waiting::kAllowed};
}

}  // namespace explsched::intercept
