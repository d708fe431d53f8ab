// Captures in eight threads beside launches that are timed: none is spoiled by our own calls. Run with
// GATE_SAMPLE=1. Argument: rounds of all threads together.

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/kernel/interposer/session.hpp"

using explsched::test::launch;

namespace {

constexpr int kThreads = 8;

std::atomic<int> rounds_left{0};
std::atomic<int> spoiled{0};

void capture_for_ever(CUcontext context, CUfunction function, int thread) {
    CUstream stream{};
    DO(cuCtxSetCurrent(context));
    DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    const auto mode = thread % 2 == 0 ? CU_STREAM_CAPTURE_MODE_GLOBAL : CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    while (rounds_left.fetch_sub(1) > 0) {
        CUgraph graph{};
        DO(cuStreamBeginCapture(stream, mode));
        launch(function, 528, stream);
        std::this_thread::yield();
        if (cuStreamEndCapture(stream, &graph) != CUDA_SUCCESS) {
            ++spoiled;
        } else {
            DO(cuGraphDestroy(graph));
        }
        std::this_thread::sleep_for(
            std::chrono::milliseconds(thread % 4));  // so that now and then nothing captures
    }
}

}  // namespace

int main(int, char** argv) {
    const CUcontext context = explsched::test::open_context(0);
    const CUfunction function = explsched::test::function_of(explsched::test::load_module(), "_Z4halfv");
    rounds_left = std::atoi(argv[1]);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) threads.emplace_back(capture_for_ever, context, function, i);
    CUstream stream{};
    DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    while (rounds_left > 0) {
        for (int i = 0; i < 64; ++i) launch(function, 528, stream);
        std::this_thread::yield();
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQUAL(spoiled.load(), 0);
    // A stream that is destroyed while it captures takes its capture along: what follows is timed again.
    CUstream doomed{};
    DO(cuStreamCreate(&doomed, CU_STREAM_NON_BLOCKING));
    DO(cuStreamBeginCapture(doomed, CU_STREAM_CAPTURE_MODE_RELAXED));
    DO(cuStreamDestroy(doomed));
}
