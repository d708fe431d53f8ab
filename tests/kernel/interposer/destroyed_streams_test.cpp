// A thread waits for the context, for which the end of every stream's work is told, while another has streams
// of its own: none is told of after its destruction, where the double aborts, nor in a capture that has begun
// meanwhile, of which it would be a part. Run with GATE_SIGNALS=1 and FAKECUDA_FAULT=slow_signal. Argument:
// how many streams, and captures.

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "tests/kernel/interposer/gate_log.hpp"
#include "tests/kernel/interposer/session.hpp"

using explsched::test::launch;
using explsched::test::launch_until_told;
using explsched::test::told_to_gate;

int main(int, char** argv) {
    const CUcontext context = explsched::test::open_context(0);
    told_to_gate();  // what an earlier run left
    const CUfunction function = explsched::test::function_of(explsched::test::load_module(), "_Z4halfv");
    CUstream stream{};
    DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    launch_until_told("signals 0", function, stream);
    std::atomic<bool> done{false};
    std::atomic<int> waits{0};
    std::thread waiting([&] {
        DO(cuCtxSetCurrent(context));
        for (; !done; ++waits) DO(cuCtxSynchronize());
    });
    for (int i = std::atoi(argv[1]); i > 0 || waits == 0; --i) {
        DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        launch(function, 528, stream);
        DO(cuStreamDestroy(stream));
    }
    DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = std::atoi(argv[1]); i > 0; --i) {
        CUgraph graph{};
        std::size_t nodes = 0;
        launch(function, 528, stream);
        DO(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        usleep(2000);  // long enough for what the other thread has begun
        launch(function, 528, stream);
        DO(cuStreamEndCapture(stream, &graph));
        DO(cuGraphGetNodes(graph, nullptr, &nodes));
        CHECK_EQUAL(nodes, std::size_t{1});
        DO(cuGraphDestroy(graph));
    }
    done = true;
    waiting.join();
}
