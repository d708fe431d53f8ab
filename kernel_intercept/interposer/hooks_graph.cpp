// Graphs: their costs follow their making and changing, and a launch pays for all of a graph at once.

#include <cstring>

#include "kernel_intercept/interposer/driver.hpp"
#include "kernel_intercept/interposer/graph_waits.hpp"
#include "kernel_intercept/interposer/graphs.hpp"
#include "kernel_intercept/interposer/settings.hpp"
#include "kernel_intercept/interposer/trace.hpp"

namespace explsched::intercept {
namespace {

ContextRecord* gpu_of_graphs() noexcept { return mode() == Mode::kOff ? nullptr : current_context(); }

// With waits, and if the driver does not take them, without: graphs that are launched on the device have
// none.
template <typename Instantiate>
Result instantiate(const GraphExec* exec, Graph graph, Instantiate call) noexcept {
    const ContextRecord* gpu = gpu_of_graphs();
    if (gpu == nullptr) return call();
    Context waits_in = nullptr;
    Result result = kSuccess;
    {
        GraphWaits added(graph, new_graphs_wait(*gpu) ? gpu : nullptr);
        result = call();
        if (result != kSuccess && added.any()) {
            added.remove();
            result = call();
        }
        if (added.any()) waits_in = gpu->context.load(std::memory_order_relaxed);
    }
    if (result != kSuccess || exec == nullptr || note_graph(*exec, graph, waits_in, *gpu)) return result;
    if (waits_in == nullptr) return result;
    call_driver<Symbol::cuGraphExecDestroy>(*exec);  // made anew without waits, it can be updated unknown
    return call();
}

template <typename Update>
Result update(GraphExec exec, Graph graph, Update call) noexcept {
    const ContextRecord* gpu = gpu_of_graphs();
    if (gpu == nullptr) return call();
    Result result = kSuccess;
    {
        const GraphWaits added(graph, waiting_context(exec));
        result = call();
    }
    if (result == kSuccess) note_update(exec, graph, *gpu);
    return result;
}

Result node_changed(Result result, GraphExec exec, GraphNode node, const KernelNodeParams& params) noexcept {
    if (result != kSuccess) return result;
    if (const ContextRecord* gpu = gpu_of_graphs()) note_node(exec, node, params, *gpu);
    return result;
}

// The first version of the parameters ends before the kernel handle.
KernelNodeParams first_version(const KernelNodeParams& params) noexcept {
    KernelNodeParams read{};
    std::memcpy(&read, &params, offsetof(KernelNodeParams, kernel));
    return read;
}

template <Symbol kSymbol, NullStream kNullStream>
Result launch_graph(GraphExec exec, Stream stream) {
    const char* entry = kSymbolNames[static_cast<std::size_t>(kSymbol)].data();
    Launch launch{entry, stream, kNullStream};
    if (mode() == Mode::kOff) return call_driver<kSymbol>(exec, stream);
    ContextRecord* context = managed_context(launch);
    if (context == nullptr) {
        if (mode() == Mode::kTracing) trace({entry, "graph", {}, {}, 0, false});
        return call_driver<kSymbol>(exec, stream);
    }
    const GraphLaunch graph = graph_launch(exec, *context);
    launch.patience = graph.patience;
    const Admitted admitted = admit(launch, graph.cost, graph.estimate, graph.key_hash, *context);
    const Result result = call_driver<kSymbol>(exec, stream);
    launched(admitted, launch, result);
    return result;
}

}  // namespace

extern "C" {

Result cuGraphInstantiate(GraphExec* exec, Graph graph, GraphNode* error_node, char* log, std::size_t size) {
    return instantiate(exec, graph, [&] {
        return call_driver<Symbol::cuGraphInstantiate>(exec, graph, error_node, log, size);
    });
}

Result cuGraphInstantiate_v2(GraphExec* exec, Graph graph, GraphNode* error_node, char* log,
                             std::size_t size) {
    return instantiate(exec, graph, [&] {
        return call_driver<Symbol::cuGraphInstantiate_v2>(exec, graph, error_node, log, size);
    });
}

Result cuGraphInstantiateWithFlags(GraphExec* exec, Graph graph, std::uint64_t flags) {
    return instantiate(exec, graph,
                       [&] { return call_driver<Symbol::cuGraphInstantiateWithFlags>(exec, graph, flags); });
}

Result cuGraphInstantiateWithParams(GraphExec* exec, Graph graph, void* params) {
    return instantiate(
        exec, graph, [&] { return call_driver<Symbol::cuGraphInstantiateWithParams>(exec, graph, params); });
}

Result cuGraphInstantiateWithParams_ptsz(GraphExec* exec, Graph graph, void* params) {
    return instantiate(exec, graph, [&] {
        return call_driver<Symbol::cuGraphInstantiateWithParams_ptsz>(exec, graph, params);
    });
}

Result cuGraphExecUpdate(GraphExec exec, Graph graph, GraphNode* error_node, int* result) {
    return update(exec, graph,
                  [&] { return call_driver<Symbol::cuGraphExecUpdate>(exec, graph, error_node, result); });
}

Result cuGraphExecUpdate_v2(GraphExec exec, Graph graph, void* result) {
    return update(exec, graph,
                  [&] { return call_driver<Symbol::cuGraphExecUpdate_v2>(exec, graph, result); });
}

Result cuGraphExecDestroy(GraphExec exec) {
    forget_graph(exec);
    return call_driver<Symbol::cuGraphExecDestroy>(exec);
}

Result cuGraphExecKernelNodeSetParams(GraphExec exec, GraphNode node, const KernelNodeParams* params) {
    const Result result = call_driver<Symbol::cuGraphExecKernelNodeSetParams>(exec, node, params);
    return params == nullptr ? result : node_changed(result, exec, node, first_version(*params));
}

Result cuGraphExecKernelNodeSetParams_v2(GraphExec exec, GraphNode node, const KernelNodeParams* params) {
    const Result result = call_driver<Symbol::cuGraphExecKernelNodeSetParams_v2>(exec, node, params);
    return params == nullptr ? result : node_changed(result, exec, node, *params);
}

Result cuGraphExecNodeSetParams(GraphExec exec, GraphNode node, GraphNodeParams* params) {
    const Result result = call_driver<Symbol::cuGraphExecNodeSetParams>(exec, node, params);
    const bool is_kernel = params != nullptr && params->type == kNodeKernel;
    return is_kernel ? node_changed(result, exec, node, params->kernel) : result;
}

Result cuGraphExecChildGraphNodeSetParams(GraphExec exec, GraphNode node, Graph child) {
    const Result result = call_driver<Symbol::cuGraphExecChildGraphNodeSetParams>(exec, node, child);
    const ContextRecord* gpu = result == kSuccess ? gpu_of_graphs() : nullptr;
    if (gpu != nullptr) note_child(exec, node, child, *gpu);
    return result;
}

Result cuGraphNodeSetEnabled(GraphExec exec, GraphNode node, unsigned enabled) {
    const Result result = call_driver<Symbol::cuGraphNodeSetEnabled>(exec, node, enabled);
    const ContextRecord* gpu = result == kSuccess ? gpu_of_graphs() : nullptr;
    if (gpu != nullptr) note_enabled(exec, node, enabled != 0, *gpu);
    return result;
}

Result cuGraphLaunch(GraphExec exec, Stream stream) {
    return launch_graph<Symbol::cuGraphLaunch, NullStream::kLegacy>(exec, stream);
}

Result cuGraphLaunch_ptsz(GraphExec exec, Stream stream) {
    return launch_graph<Symbol::cuGraphLaunch_ptsz, NullStream::kPerThread>(exec, stream);
}

}  // extern "C"

}  // namespace explsched::intercept
