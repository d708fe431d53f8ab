// Executable graphs: made once, launched often, changed in place.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/kernel/fakecuda/capture.hpp"
#include "tests/kernel/fakecuda/graph.hpp"
#include "tests/kernel/fakecuda/launch.hpp"

using fakecuda::DefaultStream;
using fakecuda::kernel_of;

namespace {

CUresult instantiate(CUgraphExec* exec, CUgraph graph) {
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    if (!graph->cut_before.empty()) {  // a driver would run what follows too early
        std::fputs("fakecuda: a graph without one of its edges\n", stderr);
        std::abort();
    }
    *exec = new CUgraphExec_st{std::move(*fakecuda::clone(*graph))};
    return CUDA_SUCCESS;
}

void run_nodes(const CUgraph_st& graph, CUstream stream) {
    for (const auto& node : graph.nodes) {
        if (!node->enabled) continue;
        if (const fakecuda::KernelSpec* kernel = kernel_of(*node)) fakecuda::run(*kernel, stream);
        if (node->memory.kind != fakecuda::gpu::MemoryAccess::Kind::kNone)
            fakecuda::run(node->memory, stream);
        if (node->child != nullptr) run_nodes(*node->child, stream);
    }
}

CUresult launch_graph(CUgraphExec exec, CUstream handle, DefaultStream zero) {
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    if (const CUresult failed = fakecuda::launch_fault()) return failed;
    CUstream stream = fakecuda::resolve(handle, zero);
    if (stream->capture != nullptr) {
        auto node = std::make_unique<CUgraphNode_st>();
        node->type = CU_GRAPH_NODE_TYPE_GRAPH;
        node->child = fakecuda::clone(exec->graph);
        return capture_node(*stream->capture, std::move(node));
    }
    if (stream == stream->context->legacy.get()) {
        if (const CUresult refused = fakecuda::refuse_legacy_stream(stream->context)) return refused;
    }
    run_nodes(exec->graph, stream);
    return CUDA_SUCCESS;
}

// The node of `graph`, or of a graph in it, that was made from `original`.
CUgraphNode_st* made_from(CUgraph_st& graph, const CUgraphNode_st* original) {
    for (const auto& node : graph.nodes) {
        if (node->original == original) return node.get();
        if (node->child == nullptr) continue;
        if (CUgraphNode_st* found = made_from(*node->child, original)) return found;
    }
    return nullptr;
}

bool same_topology(const CUgraph_st& a, const CUgraph_st& b) {
    return std::equal(a.nodes.begin(), a.nodes.end(), b.nodes.begin(), b.nodes.end(),
                      [](const auto& x, const auto& y) { return x->type == y->type; });
}

CUgraphExecUpdateResult update(CUgraphExec exec, CUgraph graph) {
    if (!same_topology(exec->graph, *graph)) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    // The context of memory operations may not be modified (cuda.h, cuGraphExecBatchMemOpNodeSetParams).
    const auto& nodes = exec->graph.nodes;
    if (!std::equal(nodes.begin(), nodes.end(), graph->nodes.begin(),
                    [](const auto& x, const auto& y) { return x->memory_context == y->memory_context; }))
        return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    const std::unique_ptr<CUgraph_st> fresh = fakecuda::clone(*graph);
    for (std::size_t i = 0; i < fresh->nodes.size(); ++i) {
        CUgraphNode_st& node = *exec->graph.nodes[i];
        node.params = fresh->nodes[i]->params;
        node.memory = fresh->nodes[i]->memory;
        node.child = std::move(fresh->nodes[i]->child);
    }
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

CUresult set_kernel(CUgraphExec exec, CUgraphNode original, const CUDA_KERNEL_NODE_PARAMS_v2& params) {
    CUgraphNode_st* node = made_from(exec->graph, original);
    if (node == nullptr || node->type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
    node->params = params;
    return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode*, char*, size_t) {
    return instantiate(exec, graph);
}
CUresult cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode*, char*, size_t) {
    return instantiate(exec, graph);
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long) {
    return instantiate(exec, graph);
}
CUresult cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
    params->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    params->hErrNode_out = nullptr;
    return instantiate(exec, graph);
}
CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* exec, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
    return cuGraphInstantiateWithParams(exec, graph, params);
}

CUresult cuGraphUpload(CUgraphExec, CUstream) { return fakecuda::ready(); }
CUresult cuGraphUpload_ptsz(CUgraphExec, CUstream) { return fakecuda::ready(); }

CUresult cuGraphLaunch(CUgraphExec exec, CUstream s) { return launch_graph(exec, s, DefaultStream::kLegacy); }
CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream s) {
    return launch_graph(exec, s, DefaultStream::kPerThread);
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* error_node,
                           CUgraphExecUpdateResult* result) {
    *error_node = nullptr;
    *result = update(exec, graph);
    return *result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}
CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
    *info = {update(exec, graph), nullptr, nullptr};
    return info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_KERNEL_NODE_PARAMS_v1* old) {
    CUDA_KERNEL_NODE_PARAMS_v2 params{};
    std::memcpy(&params, old, sizeof *old);
    return set_kernel(exec, node, params);
}
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS_v2* params) {
    return set_kernel(exec, node, *params);
}

CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams* any) {
    if (any->type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_NOT_SUPPORTED;
    CUDA_KERNEL_NODE_PARAMS_v2 params{};
    std::memcpy(&params, &any->kernel, sizeof params);
    return set_kernel(exec, node, params);
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode original, CUgraph child) {
    CUgraphNode_st* node = made_from(exec->graph, original);
    if (node == nullptr || node->child == nullptr || !same_topology(*node->child, *child))
        return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t i = 0; i < child->nodes.size(); ++i)
        node->child->nodes[i]->params = child->nodes[i]->params;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode original, unsigned int* enabled) {
    const CUgraphNode_st* node = made_from(exec->graph, original);
    if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *enabled = node->enabled ? 1 : 0;
    return CUDA_SUCCESS;
}
CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode original, unsigned int enabled) {
    CUgraphNode_st* node = made_from(exec->graph, original);
    if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
    node->enabled = enabled != 0;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
    delete exec;
    return CUDA_SUCCESS;
}

}  // extern "C"
