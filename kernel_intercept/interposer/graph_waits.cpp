#include "kernel_intercept/interposer/graph_waits.hpp"

#include <algorithm>
#include <cstdlib>

#include "kernel_intercept/interposer/boundaries.hpp"
#include "kernel_intercept/interposer/driver.hpp"
#include "kernel_intercept/interposer/graph_cost.hpp"

namespace explsched::intercept {
namespace {

constexpr std::size_t kKernelsPerPiece = 4;
constexpr std::size_t kMostNodes = 1 << 20;

// Memory for some elements of a type, zeroed; the library has no C++ runtime.
template <typename Element>
struct Elements {
    explicit Elements(std::size_t count) noexcept
        : all(static_cast<Element*>(std::calloc(std::max<std::size_t>(count, 1), sizeof(Element)))) {}
    ~Elements() { std::free(all); }
    Elements(const Elements&) = delete;
    Elements& operator=(const Elements&) = delete;

    Element* all;
};

struct Placed {
    GraphNode node;
    std::size_t place;
};

// What crosses the border behind a node: how many edges, and the exclusive or of their numbers (from 1),
// which is the number if there is one.
struct Border {
    std::ptrdiff_t edges;
    std::size_t number;
};

int type_of(GraphNode node) noexcept {
    int type = -1;
    return call_driver<Symbol::cuGraphNodeGetType>(node, &type) == kSuccess ? type : -1;
}

// Also where that is not known, as of what depends on a condition.
bool may_be_collective(GraphNode node, const ContextRecord& gpu) noexcept {
    const int type = type_of(node);
    if (type != kNodeChildGraph) return type == kNodeConditional || graph_cost_of_node(node, gpu).collective;
    Graph child = nullptr;
    std::size_t count = 0;
    if (call_driver<Symbol::cuGraphChildGraphNodeGetGraph>(node, &child) != kSuccess ||
        call_driver<Symbol::cuGraphGetNodes>(child, nullptr, &count) != kSuccess)
        return true;
    const Elements<GraphNode> nodes(count);
    if (nodes.all == nullptr) return true;
    if (count != 0 && call_driver<Symbol::cuGraphGetNodes>(child, nodes.all, &count) != kSuccess) return true;
    return std::any_of(nodes.all, nodes.all + count,
                       [&](GraphNode one) { return may_be_collective(one, gpu); });
}

// Fills in the borders. False if an edge leads back: then places say nothing.
bool find_borders(const GraphNode* nodes, std::size_t count, const GraphNode* from, const GraphNode* to,
                  std::size_t edges, Border* borders) noexcept {
    const Elements<Placed> sorted(count);
    if (sorted.all == nullptr) return false;
    for (std::size_t i = 0; i < count; ++i) sorted.all[i] = {nodes[i], i};
    const auto less = [](const Placed& a, const Placed& b) { return a.node < b.node; };
    std::sort(sorted.all, sorted.all + count, less);
    const auto place_of = [&](GraphNode node) {
        return std::lower_bound(sorted.all, sorted.all + count, Placed{node, 0}, less)->place;
    };
    for (std::size_t i = 0; i < edges; ++i) {
        const std::size_t first = place_of(from[i]), second = place_of(to[i]);
        if (first >= second) return false;
        ++borders[first].edges;
        borders[first].number ^= i + 1;
        --borders[second].edges;
        borders[second].number ^= i + 1;
    }
    for (std::size_t i = 1; i < count; ++i) {
        borders[i].edges += borders[i - 1].edges;
        borders[i].number ^= borders[i - 1].number;
    }
    return true;
}

}  // namespace

bool new_graphs_wait(const ContextRecord& gpu) noexcept {
    return gpu.signals_work.load(std::memory_order_acquire) && gate::graphs_wait(gpu.ordinal);
}

GraphWaits::GraphWaits(Graph graph, const ContextRecord* gpu) noexcept : graph_(graph) {
    std::size_t count = 0, edges = 0;
    if (gpu == nullptr || call_driver<Symbol::cuGraphGetNodes>(graph, nullptr, &count) != kSuccess) return;
    if (call_driver<Symbol::cuGraphGetEdges>(graph, nullptr, nullptr, &edges) != kSuccess) return;
    if (count <= kKernelsPerPiece || count > kMostNodes || edges > kMostNodes) return;
    const Elements<GraphNode> nodes(count), from(edges), to(edges);
    const Elements<Border> borders(count);
    cuts_ = static_cast<Cut*>(std::calloc(count / kKernelsPerPiece + 1, sizeof(Cut)));
    if (nodes.all == nullptr || from.all == nullptr || to.all == nullptr || borders.all == nullptr ||
        cuts_ == nullptr)
        return;
    if (call_driver<Symbol::cuGraphGetNodes>(graph, nodes.all, &count) != kSuccess) return;
    // Edges with data of their own, as of programmatic launches, are refused here; such graphs stay whole.
    if (call_driver<Symbol::cuGraphGetEdges>(graph, from.all, to.all, &edges) != kSuccess) return;
    if (!find_borders(nodes.all, count, from.all, to.all, edges, borders.all)) return;
    std::size_t kernels = 0;
    for (std::size_t i = 0; i + 1 < count; ++i) {
        kernels += type_of(nodes.all[i]) == kNodeKernel ? 1 : 0;
        if (kernels < kKernelsPerPiece || borders.all[i].edges != 1) continue;
        const std::size_t edge = borders.all[i].number - 1;
        if (may_be_collective(to.all[edge], *gpu)) continue;  // its peers may be there already
        if (!add(*gpu, from.all[edge], to.all[edge])) {
            remove();  // an edge may be cut, and nothing in its place
            return;
        }
        kernels = 0;
    }
}

bool GraphWaits::add(const ContextRecord& gpu, GraphNode before, GraphNode after) noexcept {
    MemoryOperation wait = wait_for_gate(gpu);
    const MemoryNodeParams params{gpu.context.load(std::memory_order_relaxed), 1, &wait, 0};
    Cut cut{before, after, nullptr};
    // First what may be refused: from graphs that allocate or free memory nothing can be taken away again.
    if (call_driver<Symbol::cuGraphRemoveDependencies>(graph_, &cut.before, &cut.after, std::size_t{1}) !=
        kSuccess)
        return false;
    const bool added = call_driver<Symbol::cuGraphAddBatchMemOpNode>(&cut.wait, graph_, &cut.before,
                                                                     std::size_t{1}, &params) == kSuccess &&
                       call_driver<Symbol::cuGraphAddDependencies>(graph_, &cut.wait, &cut.after,
                                                                   std::size_t{1}) == kSuccess;
    cuts_[count_++] = cut;
    return added;
}

void GraphWaits::remove() noexcept {
    while (count_ != 0) {
        const Cut& cut = cuts_[--count_];
        if (cut.wait != nullptr) call_driver<Symbol::cuGraphDestroyNode>(cut.wait);
        call_driver<Symbol::cuGraphAddDependencies>(graph_, &cut.before, &cut.after, std::size_t{1});
    }
    std::free(cuts_);
    cuts_ = nullptr;
}

}  // namespace explsched::intercept
