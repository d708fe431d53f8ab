// A thread waits for the context, for which the end of every stream's work is told, while another has streams
// of its own: none is told of after its destruction. Run with GATE_SIGNALS=1 and FAKECUDA_FAULT=slow_signal;
// the double aborts. Argument: how many streams.

#include <sched.h>

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
    done = true;
    waiting.join();
}
