// Building graphs node by node.

#include "tests/kernel/fakecuda/graph.hpp"

#include <algorithm>
#include <cstring>

#include "tests/kernel/fakecuda/driver.hpp"
#include "tests/kernel/fakecuda/fault.hpp"
#include "tests/kernel/fakecuda/function.hpp"

namespace fakecuda {

std::unique_ptr<CUgraph_st> clone(const CUgraph_st& graph) {
    auto copy = std::make_unique<CUgraph_st>();
    for (const auto& node : graph.nodes) {
        auto made = std::make_unique<CUgraphNode_st>();
        made->type = node->type;
        made->params = node->params;
        made->cooperative = node->cooperative;
        made->child = node->child == nullptr ? nullptr : clone(*node->child);
        made->original = node.get();
        made->enabled = node->enabled;
        made->memory = node->memory;
        made->memory_context = node->memory_context;
        copy->nodes.push_back(std::move(made));
    }
    return copy;
}

const KernelSpec* kernel_of(const CUgraphNode_st& node) {
    if (node.type != CU_GRAPH_NODE_TYPE_KERNEL) return nullptr;
    if (node.params.func != nullptr) return launchable(node.params.func)->spec;
    return launchable(reinterpret_cast<CUfunction>(node.params.kern))->spec;
}

}  // namespace fakecuda

namespace {

CUresult add(CUgraphNode* handle, CUgraph graph, std::unique_ptr<CUgraphNode_st> node) {
    *handle = node.get();
    graph->nodes.push_back(std::move(node));
    return CUDA_SUCCESS;
}

std::unique_ptr<CUgraphNode_st> node_of(CUgraphNodeType type) {
    auto node = std::make_unique<CUgraphNode_st>();
    node->type = type;
    return node;
}

// The first ABI of kernel nodes ends before `kern`.
CUDA_KERNEL_NODE_PARAMS_v2 from_v1(const CUDA_KERNEL_NODE_PARAMS_v1& old) {
    CUDA_KERNEL_NODE_PARAMS_v2 params{};
    std::memcpy(&params, &old, sizeof old);
    return params;
}

CUresult set_kernel(CUgraphNode_st& node, const CUDA_KERNEL_NODE_PARAMS_v2& params) {
    if (params.func == nullptr && params.kern == nullptr) return CUDA_ERROR_INVALID_VALUE;
    node.params = params;
    return fakecuda::kernel_of(node) == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult add_kernel(CUgraphNode* handle, CUgraph graph, const CUDA_KERNEL_NODE_PARAMS_v2& params) {
    auto node = node_of(CU_GRAPH_NODE_TYPE_KERNEL);
    if (const CUresult bad = set_kernel(*node, params)) return bad;
    return add(handle, graph, std::move(node));
}

// As cuda.h says of graphs with such nodes: nodes and edges can be added to them, and none be removed.
bool keeps_all(const CUgraph_st& graph) {
    return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const auto& node) {
        return node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->type == CU_GRAPH_NODE_TYPE_MEM_FREE;
    });
}

CUresult add_child(CUgraphNode* handle, CUgraph graph, CUgraph child) {
    auto node = node_of(CU_GRAPH_NODE_TYPE_GRAPH);
    node->child = fakecuda::clone(*child);
    return add(handle, graph, std::move(node));
}

CUresult add_any(CUgraphNode* handle, CUgraph graph, const CUgraphNodeParams& params) {
    if (params.type == CU_GRAPH_NODE_TYPE_GRAPH) return add_child(handle, graph, params.graph.graph);
    if (params.type != CU_GRAPH_NODE_TYPE_KERNEL) return add(handle, graph, node_of(params.type));
    CUDA_KERNEL_NODE_PARAMS_v2 kernel{};
    static_assert(sizeof kernel <= sizeof params.kernel);
    std::memcpy(&kernel, &params.kernel, sizeof kernel);
    return add_kernel(handle, graph, kernel);
}

}  // namespace

extern "C" {

CUresult cuGraphCreate(CUgraph* graph, unsigned int) {
    if (const CUresult not_ready = fakecuda::initialised()) return not_ready;
    *graph = new CUgraph_st;
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
    delete graph;
    return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph* copy, CUgraph graph) {
    *copy = fakecuda::clone(*graph).release();
    return CUDA_SUCCESS;
}

CUresult cuGraphAddKernelNode(CUgraphNode* node, CUgraph graph, const CUgraphNode*, size_t,
                              const CUDA_KERNEL_NODE_PARAMS_v1* params) {
    return add_kernel(node, graph, from_v1(*params));
}
CUresult cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode*, size_t,
                                 const CUDA_KERNEL_NODE_PARAMS_v2* params) {
    return add_kernel(node, graph, *params);
}
CUresult cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode*, size_t) {
    return add(node, graph, node_of(CU_GRAPH_NODE_TYPE_EMPTY));
}
CUresult cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph, const CUgraphNode*, size_t,
                                  CUgraph child) {
    return add_child(node, graph, child);
}
CUresult cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode*, size_t,
                        CUgraphNodeParams* params) {
    return add_any(node, graph, *params);
}
CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode*, const CUgraphEdgeData*,
                           size_t, CUgraphNodeParams* params) {
    return add_any(node, graph, *params);
}

// With a null list: how many there are.
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
    if (nodes == nullptr) {
        *count = graph->nodes.size();
        return CUDA_SUCCESS;
    }
    const size_t room = *count;
    *count = std::min(room, graph->nodes.size());
    for (size_t i = 0; i < room; ++i) nodes[i] = i < *count ? graph->nodes[i].get() : nullptr;
    return CUDA_SUCCESS;
}

// As the nodes run: each after the one before it.
CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
    const size_t edges = graph->nodes.empty() ? 0 : graph->nodes.size() - 1;
    if (from == nullptr || to == nullptr) {
        *count = edges;
        return CUDA_SUCCESS;
    }
    *count = std::min(*count, edges);
    for (size_t i = 0; i < *count; ++i) {
        from[i] = graph->nodes[i].get();
        to[i] = graph->nodes[i + 1].get();
    }
    return CUDA_SUCCESS;
}

// A node that others are to follow is moved to before the first of them.
CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
    auto& nodes = graph->nodes;
    const auto place_of = [&](CUgraphNode node) {
        return std::find_if(nodes.begin(), nodes.end(),
                            [&](const auto& other) { return other.get() == node; });
    };
    for (size_t i = 0; i < count; ++i) {
        const auto moved = place_of(from[i]), before = place_of(to[i]);
        if (moved == nodes.end() || before == nodes.end()) return CUDA_ERROR_INVALID_VALUE;
        if (before < moved) std::rotate(before, moved, moved + 1);
        graph->cut_before.erase(to[i]);
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode*, const CUgraphNode* to, size_t count) {
    if (keeps_all(*graph)) return CUDA_ERROR_INVALID_VALUE;
    graph->cut_before.insert(to, to + count);
    return CUDA_SUCCESS;
}

CUresult cuGraphAddBatchMemOpNode(CUgraphNode* node, CUgraph graph, const CUgraphNode*, size_t,
                                  const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
    if (fakecuda::fault == fakecuda::Fault::kNoWaitNode) return CUDA_ERROR_NOT_SUPPORTED;
    auto made = node_of(CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
    if (params->count != 1 || !fakecuda::as_access(params->paramArray[0], made->memory))
        return CUDA_ERROR_NOT_SUPPORTED;
    made->memory_context = params->ctx;
    made->graph = graph;
    return add(node, graph, std::move(made));
}

CUresult cuGraphDestroyNode(CUgraphNode node) {
    if (keeps_all(*node->graph)) return CUDA_ERROR_INVALID_VALUE;
    auto& nodes = node->graph->nodes;
    nodes.erase(
        std::remove_if(nodes.begin(), nodes.end(), [&](const auto& other) { return other.get() == node; }),
        nodes.end());
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
    *type = node->type;
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* params) {
    if (node->type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(params, &node->params, sizeof *params);
    if (params->func == nullptr) params->func = reinterpret_cast<CUfunction>(node->params.kern);
    return CUDA_SUCCESS;
}
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2* params) {
    if (node->type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
    *params = node->params;
    return CUDA_SUCCESS;
}
CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
    return set_kernel(*node, from_v1(*params));
}
CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2* params) {
    return set_kernel(*node, *params);
}

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, CUkernelNodeAttrID attribute,
                                       CUkernelNodeAttrValue* value) {
    if (node->type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
    *value = {};
    if (attribute == CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE) value->cooperative = node->cooperative ? 1 : 0;
    return CUDA_SUCCESS;
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* graph) {
    if (node->type != CU_GRAPH_NODE_TYPE_GRAPH) return CUDA_ERROR_INVALID_VALUE;
    *graph = node->child.get();
    return CUDA_SUCCESS;
}

}  // extern "C"
