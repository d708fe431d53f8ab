// Captured launches are free, graphs are paid for at their launch. Run with GATE_COST="1000 400 200": every
// kernel, and every graph as a whole, then has that cost; without it, graphs cost what their kernels do.

#include <dlfcn.h>

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

// cuda.h knows the newest of each under the name of all.
template <typename Function>
Function* found(const char* symbol) {
    void* entry = dlsym(RTLD_DEFAULT, symbol);
    CHECK(entry != nullptr);
    return reinterpret_cast<Function*>(entry);
}

template <typename Begin>
void check_capture_is_free(CUstream stream, CUfunction function, const Begin& begin) {
    CUgraph graph{};
    DO(begin());
    explsched::test::launch(function, 528, stream);
    CHECK_EQUAL(told_to_gate(), std::string());
    DO(cuStreamEndCapture(stream, &graph));
    explsched::test::launch(function, 528, stream);
    CHECK_EQUAL(told_to_gate(), std::string("admit 0 20000 500 1000"));
    DO(cuGraphDestroy(graph));
}

void test_each_way_to_begin_a_capture(CUstream stream, CUfunction function) {
    for (const char* symbol : {"cuStreamBeginCapture", "cuStreamBeginCapture_ptsz"}) {
        const auto begin = found<CUresult(CUstream)>(symbol);
        check_capture_is_free(stream, function, [&] { return begin(stream); });
    }
    for (const char* symbol : {"cuStreamBeginCapture_v2", "cuStreamBeginCapture_v2_ptsz"}) {
        const auto begin = found<CUresult(CUstream, CUstreamCaptureMode)>(symbol);
        check_capture_is_free(stream, function,
                              [&] { return begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED); });
    }
    for (const char* symbol : {"cuStreamBeginCaptureToGraph", "cuStreamBeginCaptureToGraph_ptsz"}) {
        const auto begin = found<decltype(cuStreamBeginCaptureToGraph)>(symbol);
        CUgraph graph{};
        DO(cuGraphCreate(&graph, 0));
        check_capture_is_free(stream, function, [&] {
            return begin(stream, graph, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_RELAXED);
        });
    }
}

void test_recapture_of_a_graph([[maybe_unused]] CUstream stream, [[maybe_unused]] CUfunction function) {
#if CUDA_HEADERS >= 13030
    for (const char* symbol : {"cuStreamBeginRecaptureToGraph", "cuStreamBeginRecaptureToGraph_ptsz"}) {
        const auto begin = found<decltype(cuStreamBeginRecaptureToGraph)>(symbol);
        CUgraph graph{};
        DO(cuGraphCreate(&graph, 0));
        check_capture_is_free(stream, function, [&] {
            return begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED, graph, nullptr, nullptr);
        });
    }
#endif
}

// A null stream means another one to programs compiled with a default stream per thread.
void test_capture_of_the_threads_own_stream(CUfunction function) {
    CUgraph graph{};
    const auto launch_there = found<decltype(cuLaunchKernel)>("cuLaunchKernel_ptsz");
    DO(found<CUresult(CUstream, CUstreamCaptureMode)>("cuStreamBeginCapture_v2_ptsz")(
        nullptr, CU_STREAM_CAPTURE_MODE_RELAXED));
    DO(launch_there(function, 528, 1, 1, 256, 1, 1, 0, nullptr, nullptr, nullptr));
    CHECK_EQUAL(told_to_gate(), std::string());
    DO(found<decltype(cuStreamEndCapture)>("cuStreamEndCapture_ptsz")(nullptr, &graph));
    DO(cuGraphDestroy(graph));
}

// While a stream that waits for it captures, the legacy stream refuses work: there is nothing to pay for.
void test_legacy_stream_beside_a_capture(CUfunction function) {
    CUstream blocking{};
    CUgraph graph{};
    DO(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    DO(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuLaunchKernel(function, 528, 1, 1, 256, 1, 1, 0, nullptr, nullptr, nullptr) != CUDA_SUCCESS);
    CHECK_EQUAL(told_to_gate(), std::string());
    CHECK(cuStreamEndCapture(blocking, &graph) != CUDA_SUCCESS);
    DO(cuStreamDestroy(blocking));
}

// The driver is not asked for its attributes then, but its name has been seen.
void test_collective_met_first_beside_a_capture(CUmodule module, CUstream stream) {
    CUstream other{};
    CUgraph graph{};
    const CUfunction collective = explsched::test::function_of(module, "_Z15ncclFirstMetNowv");
    DO(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    DO(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    explsched::test::launch(collective, 528, other);
    CHECK_EQUAL(told_to_gate().substr(0, 7), std::string("charge "));
    DO(cuStreamEndCapture(stream, &graph));
    explsched::test::launch(collective, 528, other);  // what was not asked then is asked now
    CHECK_EQUAL(told_to_gate(), std::string("charge 0 20000 500 1000"));
    DO(cuGraphDestroy(graph));
    DO(cuStreamDestroy(other));
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

// What was changed of a graph that is gone says nothing of the next one at its address.
void test_changes_end_with_their_graph(CUstream stream, CUfunction function) {
    const CUgraph graph = captured(stream, function, 3, 528);
    std::size_t count = 3;
    CUgraphNode nodes[3];
    DO(cuGraphGetNodes(graph, nodes, &count));
    const CUDA_KERNEL_NODE_PARAMS small = node_of(function, 1);
    for (int i = 0; i < 8; ++i) {
        CUgraphExec exec{};
        DO(cuGraphInstantiate(&exec, graph, 0));
        DO(cuGraphExecKernelNodeSetParams(exec, nodes[0], &small));
        launch(exec, stream);
        CHECK_EQUAL(told_to_gate(), std::string("admit 0 60000 335 1000"));
        DO(cuGraphExecDestroy(exec));
    }
    DO(cuGraphDestroy(graph));
}

CUgraphNode node_at(CUgraph graph, int place) {
    std::size_t count = 3;
    CUgraphNode nodes[3];
    DO(cuGraphGetNodes(graph, nodes, &count));
    return nodes[place];
}

// A node is named by that of the graph that was instantiated, but what it costs comes from the update.
void test_change_after_an_update(CUstream stream, CUfunction function) {
    const CUgraph graph = captured(stream, function, 3, 528);
    const CUgraph mixed = captured(stream, function, 3, 1);
    const CUDA_KERNEL_NODE_PARAMS whole = node_of(function, 100'000);
    DO(cuGraphKernelNodeSetParams(node_at(mixed, 1), &whole));
    const CUDA_KERNEL_NODE_PARAMS half = node_of(function, 528);
    CUgraphExec exec{};
    DO(cuGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 2; ++i) {
        CUgraphExecUpdateResultInfo result{};
        DO(cuGraphExecUpdate(exec, mixed, &result));
        launch(exec, stream);
        CHECK_EQUAL(told_to_gate(), std::string("admit 0 60000 338 1000"));  // (7 + 1000 + 7) / 3
        DO(cuGraphExecKernelNodeSetParams(exec, node_at(graph, 1), &half));
        launch(exec, stream);
        CHECK_EQUAL(told_to_gate(), std::string("admit 0 60000 171 1000"));  // (7 + 500 + 7) / 3
    }
    DO(cuGraphExecDestroy(exec));
    DO(cuGraphDestroy(mixed));
    DO(cuGraphDestroy(graph));
}

// The graph that was instantiated may be changed, too: programs keep both alike.
void test_change_of_both_graphs(CUstream stream, CUfunction function) {
    const CUgraph graph = captured(stream, function, 3, 528);
    const CUDA_KERNEL_NODE_PARAMS one = node_of(function, 1);
    CUgraphExec exec{};
    DO(cuGraphInstantiate(&exec, graph, 0));
    DO(cuGraphKernelNodeSetParams(node_at(graph, 0), &one));
    launch(exec, stream);
    CHECK_EQUAL(told_to_gate(), std::string("admit 0 60000 500 1000"));
    DO(cuGraphExecKernelNodeSetParams(exec, node_at(graph, 0), &one));
    launch(exec, stream);
    CHECK_EQUAL(told_to_gate(), std::string("admit 0 60000 335 1000"));
    DO(cuGraphExecDestroy(exec));
    DO(cuGraphDestroy(graph));
}

void test_each_way_to_change_a_graph(CUstream stream, CUfunction function) {
    const CUgraph graph = captured(stream, function, 1, 528);
    std::size_t count = 1;
    CUgraphNode node{};
    DO(cuGraphGetNodes(graph, &node, &count));
    CUgraphExec exec{};
    DO(cuGraphInstantiate(&exec, graph, 0));
    const auto costs = [&](const char* permille) {
        launch(exec, stream);
        CHECK_EQUAL(told_to_gate(), "admit 0 20000 " + std::string(permille) + " 1000");
    };
    CUDA_KERNEL_NODE_PARAMS params = node_of(function, 1);
    DO(found<decltype(cuGraphExecKernelNodeSetParams)>("cuGraphExecKernelNodeSetParams")(exec, node,
                                                                                         &params));
    costs("7");
    CUgraphNodeParams general{};
    general.type = CU_GRAPH_NODE_TYPE_KERNEL;
    general.kernel.func = function;
    general.kernel.gridDimX = 264;
    general.kernel.gridDimY = general.kernel.gridDimZ = 1;
    general.kernel.blockDimX = 256;
    general.kernel.blockDimY = general.kernel.blockDimZ = 1;
    DO(cuGraphExecNodeSetParams(exec, node, &general));
    costs("250");
    const CUgraph whole = captured(stream, function, 1, 100'000);
    CUgraphNode foreign{};
    DO(cuGraphGetNodes(whole, &foreign, &count));
    CHECK(cuGraphExecKernelNodeSetParams(exec, foreign, &params) != CUDA_SUCCESS);
    costs("250");  // as before
    CUgraphNode error_node{};
    int result = -1;
    DO(found<CUresult(CUgraphExec, CUgraph, CUgraphNode*, int*)>("cuGraphExecUpdate")(exec, whole,
                                                                                      &error_node, &result));
    costs("1000");
    DO(cuGraphExecDestroy(exec));
    DO(cuGraphDestroy(whole));
    DO(cuGraphDestroy(graph));
}

// Its blocks wait for each other: held up with the rest of the graph, it would be held up whole, but the
// graph may wait for other GPUs, too.
void test_cooperative_kernel_in_a_graph(CUstream stream, CUfunction function) {
    CUgraph graph{};
    CUgraphExec exec{};
    DO(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    DO(cuLaunchCooperativeKernel(function, 528, 1, 1, 256, 1, 1, 0, stream, nullptr));
    DO(cuStreamEndCapture(stream, &graph));
    DO(cuGraphInstantiate(&exec, graph, 0));
    launch(exec, stream);
    CHECK_EQUAL(told_to_gate(), std::string("charge 0 20000 500 1000"));
    DO(cuGraphExecDestroy(exec));
    DO(cuGraphDestroy(graph));
}

void test_graph_without_kernels_is_free(CUstream stream) {
    CUgraph graph{};
    CUgraphNode node{};
    CUgraphExec exec{};
    DO(cuGraphCreate(&graph, 0));
    DO(cuGraphAddEmptyNode(&node, graph, nullptr, 0));
    DO(cuGraphInstantiate(&exec, graph, 0));
    launch(exec, stream);
    CHECK_EQUAL(told_to_gate(), std::string("admit 0 0 0 0"));
    DO(cuGraphExecDestroy(exec));
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

void test_disabled_nodes_are_not_paid_for(CUstream stream, CUfunction function) {
    const CUgraph graph = captured(stream, function, 3, 528);
    CUgraphNode nodes[3];
    std::size_t count = 3;
    CUgraphExec exec{};
    DO(cuGraphGetNodes(graph, nodes, &count));
    DO(cuGraphInstantiate(&exec, graph, 0));
    const auto costs = [&](const char* expected) {
        told_to_gate();
        launch(exec, stream);
        CHECK_EQUAL(told_to_gate(), std::string(expected));
    };
    for (int twice = 0; twice < 2; ++twice) DO(cuGraphNodeSetEnabled(exec, nodes[1], 0));
    costs("admit 0 40000 500 1000");
    const CUDA_KERNEL_NODE_PARAMS whole = node_of(function, 100'000);
    DO(cuGraphExecKernelNodeSetParams(exec, nodes[1], &whole));
    costs("admit 0 40000 500 1000");
    for (int twice = 0; twice < 2; ++twice) DO(cuGraphNodeSetEnabled(exec, nodes[1], 1));
    costs("admit 0 60000 666 1000");
    DO(cuGraphExecDestroy(exec));
    DO(cuGraphDestroy(graph));
}

void test_child_graphs_are_changed(CUstream stream, CUfunction function) {
    const CUgraph child = captured(stream, function, 2, 528), other = captured(stream, function, 2, 100'000);
    CUgraph parent{};
    CUgraphNode node{};
    CUgraphExec exec{};
    DO(cuGraphCreate(&parent, 0));
    DO(cuGraphAddChildGraphNode(&node, parent, nullptr, 0, child));
    DO(cuGraphInstantiate(&exec, parent, 0));
    DO(cuGraphExecChildGraphNodeSetParams(exec, node, other));
    told_to_gate();
    launch(exec, stream);
    CHECK_EQUAL(told_to_gate(), std::string("admit 0 40000 1000 1000"));
    DO(cuGraphExecDestroy(exec));
    for (const CUgraph graph : {parent, child, other}) DO(cuGraphDestroy(graph));
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
    test_each_way_to_begin_a_capture(stream, function);
    test_recapture_of_a_graph(stream, function);
    test_capture_of_the_threads_own_stream(function);
    test_legacy_stream_beside_a_capture(function);
    test_collective_met_first_beside_a_capture(module, stream);
    test_failed_end_keeps_capturing(stream, function);
    test_sum_of_kernels(stream, function);
    test_changes_end_with_their_graph(stream, function);
    test_change_after_an_update(stream, function);
    test_change_of_both_graphs(stream, function);
    test_each_way_to_change_a_graph(stream, function);
    test_cooperative_kernel_in_a_graph(stream, function);
    test_graph_without_kernels_is_free(stream);
    test_child_graphs_and_collectives(module, stream, function);
    test_disabled_nodes_are_not_paid_for(stream, function);
    test_child_graphs_are_changed(stream, function);
}
