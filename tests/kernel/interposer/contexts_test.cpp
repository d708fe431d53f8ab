// Several contexts of a process on one GPU: what was the memory of one that is gone is no other's. Run with
// GATE_SIGNALS=1; the double aborts.

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "tests/kernel/interposer/gate_log.hpp"
#include "tests/kernel/interposer/session.hpp"

using explsched::test::launch;
using explsched::test::launch_until_told;
using explsched::test::told_to_gate;

namespace {

int mappings() {
    std::ifstream file("/proc/self/maps");
    int count = 0;
    for (std::string line; std::getline(file, line);) ++count;
    return count;
}

std::atomic<std::uint64_t> word{1};

struct Session {
    CUcontext context{};
    CUfunction function{};
    CUstream stream{};

    Session() {
        DO(cuCtxCreate(&context, nullptr, 0, 0));
        function = explsched::test::function_of(explsched::test::load_module(), "_Z4halfv");
        DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    }
    // Waits until the gate counts the stream, of which the GPU tells what it has done.
    void report() const { launch_until_told("stream 0", function, stream); }
};

void a_context_goes_on_when_the_first_one_is_gone() {
    const Session first;
    first.report();
    const Session second;
    second.report();
    DO(cuCtxDestroy(first.context));
    DO(cuCtxSetCurrent(second.context));
    for (int i = 0; i < 10; ++i) launch(second.function, 528, second.stream);
    DO(cuCtxSynchronize());
    DO(cuCtxDestroy(second.context));
}

void contexts_that_come_and_go_leave_no_mappings_behind() {
    const Session lasting;
    lasting.report();
    int before = 0;
    for (int round = 0; round < 50; ++round) {
        const Session passing;
        passing.report();
        DO(cuCtxDestroy(passing.context));
        if (round == 9) before = mappings();
    }
    CHECK(mappings() < before + 10);
    DO(cuCtxDestroy(lasting.context));
}

// It could be gone before the GPU comes there.
void no_work_of_a_context_writes_to_the_memory_of_another() {
    const Session first;
    first.report();
    const Session second;  // is current from now on
    second.report();
    told_to_gate();
    DO(cuStreamSynchronize(first.stream));
    DO(cuStreamWaitValue64(first.stream, reinterpret_cast<CUdeviceptr>(&word), 1, CU_STREAM_WAIT_VALUE_AND));
    CHECK_EQUAL(told_to_gate(), std::string());
    DO(cuCtxDestroy(second.context));
    DO(cuCtxSetCurrent(first.context));
    told_to_gate();
    DO(cuStreamSynchronize(first.stream));
    CHECK_EQUAL(told_to_gate().find("tail"), std::size_t{0});
    DO(cuCtxDestroy(first.context));
}

// What the GPU was to tell of a stream that it takes nothing for any more, nobody is to wait for.
void a_stream_that_has_lost_its_green_context_is_given_up() {
    const Session lasting;  // is current
    lasting.report();
    CUgreenCtx green{};
    CUstream stream{};
    DO(cuGreenCtxCreate(&green, nullptr, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    DO(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    told_to_gate();
    launch(lasting.function, 528, stream);
    CHECK(told_to_gate().find("stream 0 1") != std::string::npos);
    DO(cuGreenCtxDestroy(green));
    told_to_gate();
    DO(cuStreamDestroy(stream));
    CHECK_EQUAL(told_to_gate(), std::string("tail 0 1|abandon 0 1"));
    launch(lasting.function, 528, lasting.stream);
    DO(cuCtxDestroy(lasting.context));
}

// Streams get numbers that those of a context which goes had, or have. Built with -DEXPLSCHED_SANITIZE=thread
// this finds what does not show otherwise; so does the next one.
void a_context_goes_while_streams_of_another_come_and_go() {
    const Session lasting;
    lasting.report();
    std::atomic<bool> done{false};
    std::atomic<int> streams{0};
    std::thread beside([&] {
        DO(cuCtxSetCurrent(lasting.context));
        for (; !done; ++streams) {
            CUstream stream{};
            DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
            launch(lasting.function, 1, stream);
            DO(cuStreamSynchronize(stream));
            DO(cuStreamDestroy(stream));
        }
    });
    for (int round = 0; round < 100 || streams < 100; ++round) {
        const Session passing;
        launch(passing.function, 1, passing.stream);
        DO(cuCtxDestroy(passing.context));
    }
    done = true;
    beside.join();
    DO(cuCtxDestroy(lasting.context));
}

void a_context_fails_while_streams_of_another_come_and_go(const Session& failed) {
    const Session other;
    std::atomic<bool> done{false};
    std::atomic<int> looks{0};
    std::thread beside([&] {
        DO(cuCtxSetCurrent(failed.context));
        for (; !done; ++looks) CHECK(cuStreamQuery(failed.stream) != CUDA_SUCCESS);
    });
    for (int i = 0; i < 100 || looks < 100; ++i) {
        CUstream stream{};
        DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        launch(other.function, 1, stream);
        DO(cuStreamDestroy(stream));
    }
    done = true;
    beside.join();
}

// Nobody waits for what a failed context was to tell: the process may live on. With FAKECUDA_FAULT: which
// calls show it.
void a_failed_context_is_given_up(bool launches_fail) {
    const Session session;
    CUevent event{};
    DO(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    DO(cuEventRecord(event, session.stream));
    const auto launch_one = [&] {
        return cuLaunchKernel(session.function, 528, 1, 1, 128, 1, 1, 0, session.stream, nullptr, nullptr);
    };
    std::string log;
    for (int i = 0; i < 5000 && log.find("stream 0 0") == std::string::npos; ++i) {
        CHECK_EQUAL(launch_one() != CUDA_SUCCESS, launches_fail);
        log = told_to_gate();
    }
    const auto shows = [](const char* call, CUresult answer, bool fails) {
        CHECK_EQUAL(std::string(call) + (answer == CUDA_SUCCESS ? " works" : " fails"),
                    std::string(call) + (fails ? " fails" : " works"));
        CHECK_EQUAL(told_to_gate().find("abandon 0 0") != std::string::npos, fails);
    };
    told_to_gate();
    shows("launch", launch_one(), launches_fail);
    shows("stream", cuStreamSynchronize(session.stream), !launches_fail);
    shows("look at stream", cuStreamQuery(session.stream), !launches_fail);
    shows("context", cuCtxSynchronize(), !launches_fail);
    shows("event", cuEventSynchronize(event), !launches_fail);
    shows("look at event", cuEventQuery(event), !launches_fail);
    if (!launches_fail) a_context_fails_while_streams_of_another_come_and_go(session);
}

// A program may reset its device then, and go on in a new context, perhaps at the old one's address.
void a_reset_ends_the_failed_context() {
    for (int i = 0; i < 3; ++i) {
        explsched::test::open_context(0);
        const CUfunction function = explsched::test::function_of(explsched::test::load_module(), "_Z4halfv");
        told_to_gate();
        launch(function, 528, nullptr);
        CHECK_EQUAL(told_to_gate().find("attach 0 "), std::size_t{0});
        DO(cuDevicePrimaryCtxReset(0));
    }
}

}  // namespace

int main() {
    DO(cuInit(0));
    told_to_gate();  // what an earlier run left
    if (const char* fault = std::getenv("FAKECUDA_FAULT")) {
        const bool launches_fail = std::string(fault) == "launch_error";
        a_failed_context_is_given_up(launches_fail);
        if (!launches_fail) a_reset_ends_the_failed_context();
        return 0;
    }
    a_context_goes_on_when_the_first_one_is_gone();
    contexts_that_come_and_go_leave_no_mappings_behind();
    no_work_of_a_context_writes_to_the_memory_of_another();
    a_stream_that_has_lost_its_green_context_is_given_up();
    a_context_goes_while_streams_of_another_come_and_go();
}
