// Captured launches are free, graphs are paid for at their launch. Run with GATE_COST="1000 400 200": every
// kernel, and every graph as a whole, then has that cost; without it, graphs cost what their kernels do.

#include <cstring>

#include "tests/kernel/interposer/gate_log.hpp"
#include "tests/kernel/interposer/session.hpp"

using explsched::test::told_to_gate;

namespace {

CUDA_KERNEL_NODE_PARAMS node_of(CUfunction function, unsigned blocks) {
    CUDA_KERNEL_NODE_PARAMS params{};
    params.func = function;
    params.gridDimX = blocks;
    params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = 256;
    params.blockDimY = params.blockDimZ = 1;
    return params;
}

CUgraph captured(CUstream stream, CUfunction function, int launches, unsigned blocks) {
    CUgraph graph{};
    DO(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < launches; ++i) explsched::test::launch(function, blocks, stream);
    DO(cuStreamEndCapture(stream, &graph));
    return graph;
}

void launch(CUgraphExec exec, CUstream stream) { DO(cuGraphLaunch(exec, stream)); }

void test_capture_is_free(CUstream stream, CUfunction function) {
    explsched::test::launch(function, 528, stream);
    told_to_gate();
    const CUgraph graph = captured(stream, function, 3, 528);
    CHECK_EQUAL(told_to_gate(), std::string());
    explsched::test::launch(function, 528, stream);
    CHECK_EQUAL(told_to_gate(), std::string("admit 0 20000 500 1000"));
    DO(cuGraphDestroy(graph));
}

void test_failed_end_keeps_capturing(CUstream stream, CUfunction function) {
    CUstream other{};
    CUgraph graph{};
    DO(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    DO(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuStreamEndCapture(other, &graph) != CUDA_SUCCESS);
    explsched::test::launch(function, 528, stream);
    CHECK_EQUAL(told_to_gate(), std::string());
    explsched::test::launch(function, 528, other);  // not captured: runs now
    CHECK_EQUAL(told_to_gate(), std::string("admit 0 20000 500 1000"));
    DO(cuStreamEndCapture(stream, &graph));
    DO(cuGraphDestroy(graph));
    DO(cuStreamDestroy(other));
}

void test_sum_of_kernels(CUstream stream, CUfunction function) {
    const CUgraph graph = captured(stream, function, 3, 528);
    CUgraphExec exec{};
    DO(cuGraphInstantiate(&exec, graph, 0));
    launch(exec, stream);
    CHECK_EQUAL(told_to_gate(), std::string("admit 0 60000 500 1000"));

    // One of three kernels shrinks to one block, 1/132 of the GPU: 7 permille. (500 + 500 + 7) / 3.
    std::size_t count = 3;
    CUgraphNode nodes[3];
    DO(cuGraphGetNodes(graph, nodes, &count));
    const CUDA_KERNEL_NODE_PARAMS small = node_of(function, 1);
    DO(cuGraphExecKernelNodeSetParams(exec, nodes[0], &small));
    launch(exec, stream);
    CHECK_EQUAL(told_to_gate(), std::string("admit 0 60000 335 1000"));
    // And back: the change before counts, not the node's first parameters.
    const CUDA_KERNEL_NODE_PARAMS half = node_of(function, 528);
    DO(cuGraphExecKernelNodeSetParams(exec, nodes[0], &half));
    launch(exec, stream);
    CHECK_EQUAL(told_to_gate(), std::string("admit 0 60000 500 1000"));

    const CUgraph whole = captured(stream, function, 3, 100'000);
    CUgraphExecUpdateResultInfo result{};
    DO(cuGraphExecUpdate(exec, whole, &result));
    launch(exec, stream);
    CHECK_EQUAL(told_to_gate(), std::string("admit 0 60000 1000 1000"));

    DO(cuGraphExecDestroy(exec));
    DO(cuGraphDestroy(whole));
    DO(cuGraphDestroy(graph));
}

void test_child_graphs_and_collectives(CUmodule module, CUstream stream, CUfunction function) {
    const CUgraph child = captured(stream, function, 2, 528);
    CUgraph parent{};
    CUgraphNode node{};
    DO(cuGraphCreate(&parent, 0));
    DO(cuGraphAddChildGraphNode(&node, parent, nullptr, 0, child));
    CUgraphExec exec{};
    DO(cuGraphInstantiate(&exec, parent, 0));
    launch(exec, stream);
    CHECK_EQUAL(told_to_gate(), std::string("admit 0 40000 500 1000"));
    DO(cuGraphExecDestroy(exec));

    const CUDA_KERNEL_NODE_PARAMS params =
        node_of(explsched::test::function_of(module, "_Z10ncclKernelv"), 528);
    DO(cuGraphAddKernelNode(&node, parent, nullptr, 0, &params));
    DO(cuGraphInstantiate(&exec, parent, 0));
    launch(exec, stream);
    CHECK_EQUAL(told_to_gate(), std::string("charge 0 60000 500 1000"));
    DO(cuGraphExecDestroy(exec));
    DO(cuGraphDestroy(parent));
    DO(cuGraphDestroy(child));
}

// A figure for the graph as a whole goes before the sum.
void test_measured(CUstream stream, CUfunction function) {
    const CUgraph graph = captured(stream, function, 3, 528);
    CUgraphExec exec{};
    DO(cuGraphInstantiate(&exec, graph, 0));
    told_to_gate();
    launch(exec, stream);
    CHECK_EQUAL(told_to_gate(), std::string("admit 0 1000 400 200"));
    DO(cuGraphExecDestroy(exec));
    DO(cuGraphDestroy(graph));
}

}  // namespace

int main() {
    explsched::test::open_context(0);
    told_to_gate();  // what an earlier run left
    CUmodule module = explsched::test::load_module();
    const CUfunction function = explsched::test::function_of(module, "_Z4halfv");
    CUstream stream{};
    DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    if (std::getenv("GATE_COST") != nullptr) {
        test_measured(stream, function);
        return 0;
    }
    test_capture_is_free(stream, function);
    test_failed_end_keeps_capturing(stream, function);
    test_sum_of_kernels(stream, function);
    test_child_graphs_and_collectives(module, stream, function);
}
