// Best-effort graphs wait for the gate between their kernels, and stay the program's own. Run with
// GATE_SIGNALS=1 and GATE_GRAPHS_WAIT=1.

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "tests/kernel/interposer/gate_log.hpp"
#include "tests/kernel/interposer/session.hpp"

using explsched::test::launch;
using explsched::test::launch_until_told;
using explsched::test::told_to_gate;

namespace {

constexpr std::size_t kLaunches = 20;

std::size_t nodes_in(CUgraph graph) {
    std::size_t count = 0;
    DO(cuGraphGetNodes(graph, nullptr, &count));
    return count;
}

bool ends(CUstream stream) {
    for (int i = 0; i < 10'000; ++i) {
        const CUresult result = cuStreamQuery(stream);
        if (result != CUDA_ERROR_NOT_READY) return result == CUDA_SUCCESS;
        usleep(1000);
    }
    return false;
}

// Of a driver that takes none the graphs do not wait.
bool takes_waits() {
    const char* fault = std::getenv("FAKECUDA_FAULT");
    return fault == nullptr || std::strcmp(fault, "no_wait_node") != 0;
}

// From such graphs neither nodes nor edges can be removed, so that none may be added.
void a_graph_that_allocates_memory_stays_as_it_is(CUstream stream, CUfunction function) {
    CUgraph graph{};
    CUgraphExec exec{};
    CUgraphExecUpdateResultInfo info{};
    CUdeviceptr memory = 0;
    DO(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    DO(cuMemAllocAsync(&memory, 1 << 20, stream));
    for (std::size_t i = 0; i < kLaunches; ++i) launch(function, 528, stream);
    DO(cuMemFreeAsync(memory, stream));
    DO(cuStreamEndCapture(stream, &graph));
    CHECK_EQUAL(nodes_in(graph), kLaunches + 2);
    DO(cuGraphInstantiate(&exec, graph, 0));
    CHECK_EQUAL(nodes_in(graph), kLaunches + 2);
    DO(cuGraphExecUpdate(exec, graph, &info));
    CHECK_EQUAL(nodes_in(graph), kLaunches + 2);
    DO(cuGraphLaunch(exec, stream));
    CHECK(ends(stream));
    DO(cuGraphExecDestroy(exec));
    DO(cuGraphDestroy(graph));
}

// Also where the driver takes no waits: with FAKECUDA_FAULT=no_wait_node.
void a_graph_is_whole_again(CUstream stream, CUfunction function) {
    CUgraph graph{};
    CUgraphExec exec{};
    CUgraphExecUpdateResultInfo info{};
    DO(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (std::size_t i = 0; i < kLaunches; ++i) launch(function, 528, stream);
    DO(cuStreamEndCapture(stream, &graph));
    DO(cuGraphInstantiate(&exec, graph, 0));
    CHECK_EQUAL(nodes_in(graph), kLaunches);
    DO(cuGraphExecUpdate(exec, graph, &info));
    CHECK_EQUAL(nodes_in(graph), kLaunches);
    DO(cuGraphExecDestroy(exec));
    DO(cuGraphDestroy(graph));
}

CUgraph captured(CUstream stream, const std::vector<CUfunction>& functions) {
    CUgraph graph{};
    DO(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (const CUfunction function : functions) launch(function, 528, stream);
    DO(cuStreamEndCapture(stream, &graph));
    return graph;
}

// A launch tells the gate.
void set_gate(CUfunction function, bool shut) {
    CUstream stream{};
    DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    if (shut) setenv("GATE_SHUT", "1", 1);
    if (!shut) unsetenv("GATE_SHUT");
    launch(function, 528, stream);
    DO(cuStreamDestroy(stream));
}

// The peers of a collective may be there already, and wait: behind the kernels before it, it runs, while what
// follows it waits.
void a_collective_in_a_graph_does_not_wait(CUstream stream, CUmodule module, CUfunction function) {
    const CUfunction collective = explsched::test::function_of(module, "_Z10ncclKernelv");
    CUgraph ends_with_it = captured(stream, {function, function, function, function, collective});
    CUgraph goes_on =
        captured(stream, {function, function, function, function, collective, function, function});
    CUgraphExec without_wait{}, with_wait{};
    CUgraphExecUpdateResultInfo info{};
    DO(cuGraphInstantiate(&without_wait, ends_with_it, 0));
    DO(cuGraphInstantiate(&with_wait, goes_on, 0));
    DO(cuGraphExecUpdate(with_wait, goes_on, &info));
    set_gate(function, true);
    DO(cuGraphLaunch(without_wait, stream));
    CHECK(ends(stream));
    DO(cuGraphLaunch(with_wait, stream));
    if (takes_waits()) CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
    set_gate(function, false);
    CHECK(ends(stream));
    for (CUgraphExec exec : {without_wait, with_wait}) DO(cuGraphExecDestroy(exec));
    for (CUgraph graph : {ends_with_it, goes_on}) DO(cuGraphDestroy(graph));
}

// Wherever it is: in a graph in a graph, and, since the driver does not tell, perhaps behind a condition.
void a_collective_within_a_node_does_not_wait(CUstream stream, CUmodule module, CUfunction function) {
    const CUfunction collective = explsched::test::function_of(module, "_Z10ncclKernelv");
    const auto made = [&](const std::function<void(CUgraph)>& add) {
        CUgraph graph = captured(stream, {function, function, function, function});
        add(graph);
        return graph;
    };
    const auto with_child = [&](CUgraph child) {
        return made([&](CUgraph graph) {
            CUgraphNode node{};
            DO(cuGraphAddChildGraphNode(&node, graph, nullptr, 0, child));
        });
    };
    CUgraphNodeParams condition{};
    condition.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    CUgraph alone = captured(stream, {function, collective});
    CUgraph child = with_child(alone);
    CUgraph nested = with_child(child);
    CUgraph conditional = made([&](CUgraph graph) {
        CUgraphNode node{};
        DO(cuGraphAddNode(&node, graph, nullptr, nullptr, 0, &condition));
    });
    CUgraph plain = captured(stream, {function});
    CUgraph ordinary = with_child(plain);
    for (CUgraph graph : {child, nested, conditional, ordinary}) {
        CUgraphExec exec{};
        DO(cuGraphInstantiate(&exec, graph, 0));
        set_gate(function, true);
        DO(cuGraphLaunch(exec, stream));
        if (graph != ordinary) CHECK(ends(stream));
        if (graph == ordinary && takes_waits()) CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
        set_gate(function, false);
        CHECK(ends(stream));
        DO(cuGraphExecDestroy(exec));
        DO(cuGraphDestroy(graph));
    }
    for (CUgraph graph : {alone, plain}) DO(cuGraphDestroy(graph));
}

// Whichever context is current when the program updates it.
void a_graph_waits_for_the_gate_of_its_own_context(CUstream stream, CUfunction function) {
    CUgraph graph{};
    CUgraphExec exec{};
    CUgraphExecUpdateResultInfo info{};
    CUcontext own{}, other{};
    DO(cuCtxGetCurrent(&own));
    DO(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (std::size_t i = 0; i < kLaunches; ++i) launch(function, 528, stream);
    DO(cuStreamEndCapture(stream, &graph));
    DO(cuGraphInstantiate(&exec, graph, 0));
    DO(cuCtxCreate(&other, nullptr, 0, 0));
    CUstream there{};
    DO(cuStreamCreate(&there, CU_STREAM_NON_BLOCKING));
    launch(explsched::test::function_of(explsched::test::load_module(), "_Z4halfv"), 528, there);
    DO(cuGraphExecUpdate(exec, graph, &info));
    DO(cuCtxDestroy(other));
    DO(cuCtxSetCurrent(own));
    DO(cuGraphLaunch(exec, stream));
    CHECK(ends(stream));
    DO(cuGraphExecDestroy(exec));
    DO(cuGraphDestroy(graph));
}

// More than can be known at a time: those without a place do not wait, since an update must find the same
// nodes.
void each_of_many_graphs_can_be_updated(CUstream stream, CUfunction function) {
    CUgraph graph = captured(stream, std::vector<CUfunction>(6, function));
    std::vector<CUgraphExec> execs(6000);
    CUgraphExecUpdateResultInfo info{};
    for (CUgraphExec& exec : execs) DO(cuGraphInstantiate(&exec, graph, 0));
    for (CUgraphExec exec : execs) DO(cuGraphExecUpdate(exec, graph, &info));
    for (CUgraphExec exec : execs) DO(cuGraphExecDestroy(exec));

    CUgraphExec next{};  // in a place that one of them had
    DO(cuGraphInstantiate(&next, graph, 0));
    set_gate(function, true);
    DO(cuGraphLaunch(next, stream));
    if (takes_waits()) CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
    set_gate(function, false);
    CHECK(ends(stream));
    DO(cuGraphExecDestroy(next));
    DO(cuGraphDestroy(graph));
}

// A launch has adopted another manager, whose memory this context does not know yet.
void a_graph_made_after_a_change_of_managers_waits_for_no_gate_of_others(CUstream stream,
                                                                         CUfunction function) {
    CUgraph graph{};
    CUgraphExec exec{};
    DO(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (std::size_t i = 0; i < kLaunches; ++i) launch(function, 528, stream);
    DO(cuStreamEndCapture(stream, &graph));
    setenv("GATE_SIGNALS", "2", 1);
    DO(cuGraphInstantiate(&exec, graph, 0));
    CHECK_EQUAL(nodes_in(graph), kLaunches);
    DO(cuGraphLaunch(exec, stream));
    CHECK(ends(stream));
    DO(cuGraphExecDestroy(exec));
    DO(cuGraphDestroy(graph));
}

}  // namespace

int main() {
    explsched::test::open_context(0);
    told_to_gate();  // what an earlier run left
    const CUmodule module = explsched::test::load_module();
    const CUfunction function = explsched::test::function_of(module, "_Z4halfv");
    CUstream stream{};
    DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    launch_until_told("signals 0", function, stream);
    a_graph_that_allocates_memory_stays_as_it_is(stream, function);
    a_graph_is_whole_again(stream, function);
    a_collective_in_a_graph_does_not_wait(stream, module, function);
    a_collective_within_a_node_does_not_wait(stream, module, function);
    a_graph_waits_for_the_gate_of_its_own_context(stream, function);
    each_of_many_graphs_can_be_updated(stream, function);
    a_graph_made_after_a_change_of_managers_waits_for_no_gate_of_others(stream, function);
}
