// Stream capture in the strictest mode: any call that CUDA forbids meanwhile (waiting, event queries, work on
// the legacy stream) would spoil it, also one that an interposer makes on its own.

#include <thread>

#include "tests/kernel/callers/session.hpp"

namespace {

using caller::launch;

// Launches on the stream, and on another that joins and leaves by events: a fork and a join.
void submit(const caller::Session& session, CUstream stream, CUstream other) {
    CUevent forked = nullptr;
    CUevent joined = nullptr;
    CHECK(cuEventCreate(&forked, CU_EVENT_DISABLE_TIMING));
    CHECK(cuEventCreate(&joined, CU_EVENT_DISABLE_TIMING));
    launch(session.add, 1, stream);
    CHECK(cuEventRecord(forked, stream));
    CHECK(cuStreamWaitEvent(other, forked, 0));
    launch(reinterpret_cast<CUfunction>(session.library_add), 2, other);
    CHECK(cuEventRecord(joined, other));
    CHECK(cuStreamWaitEvent(stream, joined, 0));
    for (int i = 0; i < 100; ++i) launch(session.add, 3, stream);
}

void launch_elsewhere(const caller::Session& session, CUstream stream) {
    CHECK(cuCtxSetCurrent(session.context));
    launch(session.add, 4, stream);
}

}  // namespace

int main() {
    caller::clear_trace();
    const caller::Session session = caller::open_session();
    CUstream stream = nullptr;
    CUstream other = nullptr;
    CUstream busy = nullptr;
    for (CUstream* made : {&stream, &other, &busy}) CHECK(cuStreamCreate(made, CU_STREAM_NON_BLOCKING));
    // So that an interposer has events of its own under way when the capture begins.
    for (int i = 0; i < 100; ++i) launch(session.add, 4, busy);

    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    submit(session, stream, other);
    std::thread(launch_elsewhere, session, busy).join();  // another stream, meanwhile, from another thread
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CHECK(cuStreamIsCapturing(stream, &status));
    REQUIRE(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CUgraph graph = nullptr;
    CHECK(cuStreamEndCapture(stream, &graph));
    size_t nodes = 0;
    CHECK(cuGraphGetNodes(graph, nullptr, &nodes));
    REQUIRE(nodes == 102);  // the program's launches, and nothing that anybody added
    REQUIRE(caller::kernels_run() == 101);

    CUgraphExec exec = nullptr;
    CHECK(cuGraphInstantiate(&exec, graph, 0));
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));

    std::vector<caller::Launched> expected(100, caller::launched("cuLaunchKernel", 4));
    expected.push_back(caller::launched("cuLaunchKernel", 1));
    expected.push_back(caller::launched("cuLaunchKernel", 2));
    expected.insert(expected.end(), 100, caller::launched("cuLaunchKernel", 3));
    expected.push_back(caller::launched("cuLaunchKernel", 4));
    expected.push_back(caller::graph_launched("cuGraphLaunch", 102));
    return caller::verdict(203, expected);
}
