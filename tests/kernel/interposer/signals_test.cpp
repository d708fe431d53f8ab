// The gate's memory is made known to the GPU, and streams are counted once the GPU has written there. Run
// with GATE_SIGNALS=1, and again with EXPLSCHED_GATE=host, where nothing of it happens.

#include <cstdlib>
#include <string>

#include "tests/kernel/interposer/gate_log.hpp"
#include "tests/kernel/interposer/session.hpp"

using explsched::test::launch;
using explsched::test::told_to_gate;

// Only the end of the stream in which it began ends a capture.
void a_capture_outlives_a_stream_that_has_joined_it(CUfunction function, CUstream origin) {
    CUstream joined{};
    CUgraph graph{};
    CUevent fork{}, join{};
    DO(cuStreamCreate(&joined, CU_STREAM_NON_BLOCKING));
    DO(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    DO(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    DO(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_RELAXED));
    DO(cuEventRecord(fork, origin));
    DO(cuStreamWaitEvent(joined, fork, 0));
    launch(function, 528, joined);
    DO(cuEventRecord(join, joined));
    DO(cuStreamWaitEvent(origin, join, 0));
    DO(cuStreamDestroy(joined));
    told_to_gate();
    launch(function, 528, origin);
    CHECK_EQUAL(told_to_gate(), std::string());  // it does not run
    std::size_t nodes = 0;
    DO(cuStreamEndCapture(origin, &graph));
    DO(cuGraphGetNodes(graph, nullptr, &nodes));
    CHECK_EQUAL(nodes, std::size_t{2});
    DO(cuGraphDestroy(graph));
    launch(function, 528, origin);
    CHECK(!told_to_gate().empty());
}

// Nothing is told of a stream that goes while it captures: it would be told to the capture, and never to us.
void no_tail_is_put_into_a_capture_that_ends_with_its_stream(CUfunction function) {
    CUstream stream{};
    DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    launch(function, 528, stream);
    DO(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    told_to_gate();
    DO(cuStreamDestroy(stream));
    CHECK_EQUAL(told_to_gate(), std::string());
    launch(function, 528, nullptr);
    CHECK(!told_to_gate().empty());
}

int main() {
    const char* gate = std::getenv("EXPLSCHED_GATE");
    const bool on_device = gate == nullptr || std::string(gate) != "host";
    explsched::test::open_context(0);
    told_to_gate();  // what an earlier run left
    const CUfunction function = explsched::test::function_of(explsched::test::load_module(), "_Z4halfv");
    CUstream capturing{}, stream{}, next{};
    CUgraph graph{};
    DO(cuStreamCreate(&capturing, CU_STREAM_NON_BLOCKING));
    DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DO(cuStreamCreate(&next, CU_STREAM_NON_BLOCKING));
    // Memory is pinned beside a capture without spoiling it, and nothing is put into a stream that captures.
    DO(cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_GLOBAL));
    launch(function, 528, stream);
    launch(function, 528, capturing);
    DO(cuStreamEndCapture(capturing, &graph));
    std::size_t nodes = 0;
    DO(cuGraphGetNodes(graph, nullptr, &nodes));
    CHECK_EQUAL(nodes, std::size_t{1});
    DO(cuGraphDestroy(graph));
    std::string log = told_to_gate();
    CHECK_EQUAL(log.find("pinned 0") != std::string::npos, on_device);
    for (int i = 0; i < 5000 && log.find("signals 0") == std::string::npos && (on_device || i < 20); ++i) {
        launch(function, 528, stream);
        DO(cuCtxSynchronize());
        log = told_to_gate();
    }
    CHECK_EQUAL(log.find("signals 0|stream 0 0") != std::string::npos, on_device);
    launch(function, 528, next);
    CHECK_EQUAL(told_to_gate().find("stream 0 1") != std::string::npos, on_device);
    // A number is given anew when its stream is gone.
    DO(cuStreamDestroy(stream));
    DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    launch(function, 528, stream);
    CHECK_EQUAL(told_to_gate().find("stream 0 0") != std::string::npos, on_device);
    launch(function, 528, nullptr);
    CHECK_EQUAL(told_to_gate().find("stream 0 2") != std::string::npos, on_device);
    a_capture_outlives_a_stream_that_has_joined_it(function, capturing);
    no_tail_is_put_into_a_capture_that_ends_with_its_stream(function);
    DO(cuCtxSynchronize());
}
