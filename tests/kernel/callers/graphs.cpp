// Graphs: built by hand, changed and updated after they were instantiated, with children, launched on both
// default streams.

#include "tests/kernel/callers/session.hpp"

namespace {

using caller::Launched;
using caller::node_params;

using LaunchGraph = CUresult(CUgraphExec, CUstream);

CUgraph chain_of(CUfunction function, unsigned kernels) {
    CUgraph graph = nullptr;
    CHECK(cuGraphCreate(&graph, 0));
    const CUDA_KERNEL_NODE_PARAMS params = node_params(function, 4);
    CUgraphNode last = nullptr;
    for (unsigned i = 0; i < kernels; ++i) {
        CUgraphNode node = nullptr;
        CHECK(cuGraphAddKernelNode(&node, graph, i == 0 ? nullptr : &last, i == 0 ? 0 : 1, &params));
        last = node;
    }
    return graph;
}

}  // namespace

int main() {
    caller::clear_trace();
    const caller::Session session = caller::open_session();
    std::vector<Launched> expected;
    std::uint64_t kernels = 0;
    const auto launch = [&](CUgraphExec exec, const std::string& entry, unsigned of_kernels) {
        CHECK(reinterpret_cast<LaunchGraph*>(caller::from_dlopen(entry.c_str()))(exec, nullptr));
        expected.push_back(caller::graph_launched(entry, of_kernels));
        kernels += of_kernels;
    };

    CUgraph two = chain_of(session.add, 2);
    CUgraphExec exec = nullptr;
    CHECK(cuGraphInstantiate(&exec, two, 0));
    launch(exec, "cuGraphLaunch", 2);
    launch(exec, "cuGraphLaunch_ptsz", 2);

    // A child graph, and a node that names its kernel by a CUkernel.
    CUgraph three = chain_of(session.add, 0);
    CUgraphNode node = nullptr;
    CHECK(cuGraphAddChildGraphNode(&node, three, nullptr, 0, two));
    CUDA_KERNEL_NODE_PARAMS by_kernel = node_params(nullptr, 4);
    by_kernel.kern = session.library_add;
    CHECK(cuGraphAddKernelNode(&node, three, nullptr, 0, &by_kernel));
    CUgraphExec larger = nullptr;
    CUDA_GRAPH_INSTANTIATE_PARAMS how{};
    CHECK(cuGraphInstantiateWithParams(&larger, three, &how));
    launch(larger, "cuGraphLaunch", 3);

    // Another grid for one node, then the whole graph anew: as many kernels as before.
    const CUDA_KERNEL_NODE_PARAMS wider = node_params(session.add, 64);
    CHECK(cuGraphExecKernelNodeSetParams(larger, node, &wider));
    launch(larger, "cuGraphLaunch", 3);
    CUgraphExecUpdateResultInfo info{};
    CHECK(cuGraphExecUpdate(exec, chain_of(session.add, 2), &info));
    REQUIRE(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
    REQUIRE(cuGraphExecUpdate(exec, chain_of(session.add, 3), &info) == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    launch(exec, "cuGraphLaunch", 2);

    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphExecDestroy(larger));
    return caller::verdict(kernels, expected);
}
