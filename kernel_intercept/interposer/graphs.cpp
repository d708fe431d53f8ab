#include "kernel_intercept/interposer/graphs.hpp"

#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "kernel_intercept/gate/gate.hpp"
#include "kernel_intercept/interposer/driver.hpp"
#include "kernel_intercept/interposer/graph_cost.hpp"
#include "kernel_intercept/interposer/handle_table.hpp"
#include "kernel_intercept/interposer/names.hpp"

namespace explsched::intercept {
namespace {

constexpr int kMaxDepth = 16;  // of child graphs in child graphs
constexpr std::uint32_t kAlways = 1;

// Both numbers are given once: an executable graph at the same address is another one.
struct GraphRecord {
    GraphCost total;
    KernelName name;
    std::uint64_t content;   // since it was instantiated or updated
    std::uint64_t original;  // the content it was instantiated with
    Context waits_in;
};

HandleTable<GraphRecord, 4096> g_graphs;

// Nodes are named by those of the graph that was instantiated. These keep their parameters, or are given
// others, whatever becomes of the executable graph's, for which the driver cannot be asked.
HandleTable<GraphCost, 32768> g_nodes;       // by content and node: what it costs in the executable graph
HandleTable<GraphNode, 32768> g_node_order;  // by original content and place: which node it is
std::atomic<std::uint64_t> g_last_content{0};

HandleTable<GraphCost, 4096> g_disabled;  // by content and node: what it costs when it is enabled again

std::uint64_t key_of_node(std::uint64_t content, GraphNode node) noexcept {
    return mixed(content) + key_of(node);
}

std::uint64_t key_of_place(std::uint64_t original, std::uint64_t place) noexcept {
    return mixed(original) + place;
}

// Calls `visit` with each kernel node, in the order in which they were added.
template <typename Visit>
void each_kernel_node(Graph graph, int depth, const Visit& visit) noexcept {
    std::size_t count = 0;
    if (call_driver<Symbol::cuGraphGetNodes>(graph, nullptr, &count) != kSuccess || count == 0) return;
    auto* nodes = static_cast<GraphNode*>(std::calloc(count, sizeof(GraphNode)));
    if (nodes == nullptr) return;
    if (call_driver<Symbol::cuGraphGetNodes>(graph, nodes, &count) != kSuccess) count = 0;
    for (std::size_t i = 0; i < count; ++i) {
        int type = -1;
        Graph child = nullptr;
        if (call_driver<Symbol::cuGraphNodeGetType>(nodes[i], &type) != kSuccess) continue;
        if (type == kNodeKernel) {
            visit(nodes[i]);
        } else if (type == kNodeChildGraph && depth < kMaxDepth &&
                   call_driver<Symbol::cuGraphChildGraphNodeGetGraph>(nodes[i], &child) == kSuccess) {
            each_kernel_node(child, depth + 1, visit);
        }
    }
    std::free(nodes);
}

std::uint64_t new_content() noexcept { return g_last_content.fetch_add(1, std::memory_order_relaxed) + 1; }

std::optional<GraphRecord> record_of(GraphExec exec) noexcept { return g_graphs.find(key_of(exec), kAlways); }

// False if there is no room for one more.
bool keep(GraphExec exec, const GraphCost& total, std::uint64_t content, std::uint64_t original,
          Context waits_in) noexcept {
    char name[32];
    std::snprintf(name, sizeof name, "graph:%016" PRIx64, total.identity);
    return g_graphs.put_if_room(key_of(exec), kAlways, {total, kept_name(name), content, original, waits_in});
}

GraphCost node_cost(const GraphRecord& graph, GraphNode node, const ContextRecord& gpu) noexcept {
    const auto known = g_nodes.find(key_of_node(graph.content, node), kAlways);
    return known ? *known : graph_cost_of_node(node, gpu);
}

// What is given to a disabled node counts from when it is enabled.
void change_node(GraphExec exec, const GraphRecord& graph, GraphNode node, const GraphCost& after,
                 const ContextRecord& gpu) noexcept {
    const std::uint64_t node_key = key_of_node(graph.content, node);
    if (g_disabled.find(node_key, kAlways)) {
        g_disabled.put(node_key, kAlways, after);
        return;
    }
    GraphCost sum = graph.total;
    subtract(sum, node_cost(graph, node, gpu));
    add(sum, after);
    keep(exec, sum, graph.content, graph.original, graph.waits_in);
    g_nodes.put(node_key, kAlways, after);
}

}  // namespace

bool note_graph(GraphExec exec, Graph graph, Context waits_in, const ContextRecord& gpu) noexcept {
    const std::uint64_t content = new_content();
    GraphCost sum{};
    std::uint64_t place = 0;
    each_kernel_node(graph, 0, [&](GraphNode node) {
        const GraphCost total = graph_cost_of_node(node, gpu);
        add(sum, total);
        g_nodes.put(key_of_node(content, node), kAlways, total);
        g_node_order.put(key_of_place(content, place++), kAlways, node);
    });
    return keep(exec, sum, content, content, waits_in);
}

void note_update(GraphExec exec, Graph graph, const ContextRecord& gpu) noexcept {
    const auto before = record_of(exec);
    const std::uint64_t original = before ? before->original : 0;
    const std::uint64_t content = new_content();
    GraphCost sum{};
    std::uint64_t place = 0;
    each_kernel_node(graph, 0, [&](GraphNode node) {
        const GraphCost total = graph_cost_of_node(node, gpu);
        add(sum, total);
        // The driver takes graphs only that were made in the same order.
        const auto updated = g_node_order.find(key_of_place(original, place++), kAlways);
        if (updated) g_nodes.put(key_of_node(content, *updated), kAlways, total);
    });
    keep(exec, sum, content, original, before ? before->waits_in : nullptr);
}

void note_node(GraphExec exec, GraphNode node, const KernelNodeParams& params,
               const ContextRecord& gpu) noexcept {
    if (const auto graph = record_of(exec))
        change_node(exec, *graph, node, graph_cost_of_kernel(params, gpu), gpu);
}

void note_child(GraphExec exec, GraphNode node, Graph child, const ContextRecord& gpu) noexcept {
    Graph original = nullptr;
    if (!record_of(exec) || call_driver<Symbol::cuGraphChildGraphNodeGetGraph>(node, &original) != kSuccess)
        return;
    const std::uint64_t order = new_content();
    std::uint64_t place = 0;
    each_kernel_node(original, 0,
                     [&](GraphNode one) { g_node_order.put(key_of_place(order, place++), kAlways, one); });
    place = 0;
    each_kernel_node(child, 0, [&](GraphNode one) {
        const auto changed = g_node_order.find(key_of_place(order, place++), kAlways);
        const auto graph = record_of(exec);
        if (changed && graph) change_node(exec, *graph, *changed, graph_cost_of_node(one, gpu), gpu);
    });
}

void note_enabled(GraphExec exec, GraphNode node, bool enabled, const ContextRecord& gpu) noexcept {
    const auto graph = record_of(exec);
    if (!graph) return;
    const std::uint64_t node_key = key_of_node(graph->content, node);
    const auto disabled = g_disabled.find(node_key, kAlways);
    if (disabled.has_value() != enabled) return;
    if (enabled) {
        g_disabled.forget(node_key);
        change_node(exec, *graph, node, *disabled, gpu);
    } else {
        const GraphCost cost = node_cost(*graph, node, gpu);
        change_node(exec, *graph, node, {}, gpu);
        g_disabled.put(node_key, kAlways, cost);
    }
}

const ContextRecord* waiting_context(GraphExec exec) noexcept {
    const auto graph = record_of(exec);
    return graph && graph->waits_in != nullptr ? known_context(graph->waits_in) : nullptr;
}

void forget_graph(GraphExec exec) noexcept { g_graphs.forget(key_of(exec)); }

GraphLaunch graph_launch(GraphExec exec, const ContextRecord& gpu) noexcept {
    const auto graph = record_of(exec);
    const KernelName name = graph ? graph->name : kept_name("graph:?");
    const std::uint64_t kernels = graph ? graph->total.kernels : 1;
    const KernelKey key{
        name.hash, {static_cast<std::uint32_t>(kernels), 1, 1}, {1, 1, 1}, 0, gpu.compute_capability};
    const std::uint64_t key_hash = hash_of(key);
    const KernelCost estimate = graph ? cost_of(graph->total) : KernelCost{kUnknownKernelNs, 1000, 1000};
    return {gate::lookup(key_hash, estimate),
            {key, estimate, name.text},
            key_hash,
            graph && graph->total.collective ? gate::Patience::kMustNotWait : gate::Patience::kMayWait};
}

}  // namespace explsched::intercept
