// Timed launches reach the gate, and it hears when all is done, and only then. Run with GATE_SAMPLE=1. A
// kernel of the virtual GPU takes 10 us.

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/kernel/interposer/gate_log.hpp"
#include "tests/kernel/interposer/session.hpp"

using explsched::test::launch;
using explsched::test::told_to_gate;

namespace {

// The fake driver's clock is real, so a duration is at least the kernel's and has no upper bound.
std::string without_durations(const std::string& log) {
    std::string text;
    for (std::size_t at = 0; at < log.size();) {
        const std::size_t end = std::min(log.find('|', at), log.size());
        std::string line = log.substr(at, end - at);
        if (line.rfind("record ", 0) == 0) {
            const std::size_t last = line.rfind(' ');
            CHECK(std::stol(line.substr(last)) >= 10'000);
            line.resize(last);
        }
        text += (text.empty() ? "" : "|") + line;
        at = end + 1;
    }
    return text;
}

void test_context_wait(CUfunction function) {
    launch(function, 528, nullptr);
    told_to_gate();
    DO(cuCtxSynchronize());
    CHECK_EQUAL(without_durations(told_to_gate()), std::string("record 0 _Z4halfv|drained 0"));
}

void test_only_stream(CUfunction function, CUstream a, CUstream b) {
    launch(function, 528, a);
    told_to_gate();
    DO(cuStreamSynchronize(b));
    CHECK(told_to_gate().find("drained") == std::string::npos);
    DO(cuStreamSynchronize(a));
    CHECK(told_to_gate().find("drained 0") != std::string::npos);
}

// Pollers, and programs that read a result back, never wait for a stream.
void test_looks_and_copies_tell_the_end(CUfunction function, CUstream stream) {
    for (const char* symbol : {"cuStreamQuery", "cuStreamQuery_ptsz"}) {
        const auto query = reinterpret_cast<decltype(&cuStreamQuery)>(dlsym(RTLD_DEFAULT, symbol));
        launch(function, 528, stream);
        while (query(stream) == CUDA_ERROR_NOT_READY)
            CHECK(told_to_gate().find("drained") == std::string::npos);
        CHECK(told_to_gate().find("drained 0") != std::string::npos);
    }
    CUdeviceptr at{};
    char result = 0;
    DO(cuMemAlloc(&at, 1));
    launch(function, 528, nullptr);
    DO(cuMemcpyDtoH(&result, at, 1));
    CHECK(told_to_gate().find("drained 0") != std::string::npos);
    launch(function, 528, stream);  // for which the copy does not wait
    DO(cuMemcpyDtoH(&result, at, 1));
    CHECK(told_to_gate().find("drained") == std::string::npos);
    DO(cuStreamSynchronize(stream));
    DO(cuMemFree(at));
    told_to_gate();
}

void test_two_streams(CUfunction function, CUstream a, CUstream b) {
    launch(function, 528, a);
    launch(function, 528, b);
    DO(cuStreamSynchronize(a));
    DO(cuStreamSynchronize(b));
    CHECK(told_to_gate().find("drained") == std::string::npos);
    DO(cuCtxSynchronize());
    CHECK(told_to_gate().find("drained 0") != std::string::npos);
}

// More launches than event pairs: those without a pair go untimed, none is lost or waited for. Looking costs,
// so only every 32nd launch looks for those that are done, and the wait at the end.
void test_more_than_the_pool(CUfunction function) {
    for (int i = 0; i < 100; ++i) launch(function, 528, nullptr);
    DO(cuCtxSynchronize());
    const std::string log = told_to_gate();
    std::size_t records = 0;
    std::size_t admits = 0;
    for (std::size_t at = 0; (at = log.find("record ", at)) != std::string::npos; ++at) ++records;
    for (std::size_t at = 0; (at = log.find("admit ", at)) != std::string::npos; ++at) ++admits;
    CHECK_EQUAL(admits, std::size_t{100});
    CHECK(records >= 16);
    std::size_t looks = 0;
    for (std::size_t at = 0; (at = log.find("|record ", at)) != std::string::npos; ++at) {
        if (log.compare(log.rfind('|', at - 1) + 1, 6, "admit ") == 0) ++looks;
    }
    CHECK(looks <= 5);
}

// Event queries break the captures of others, which fail at their end, unless they are made in the mode for
// it. What is launched meanwhile is not timed.
void test_captures_are_not_spoiled(CUfunction function, CUstream a, CUstream b) {
    CUgraph graph{};
    launch(function, 528, b);
    DO(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i < 64; ++i) launch(function, 528, b);
    launch(function, 528, a);
    DO(cuStreamEndCapture(a, &graph));
    DO(cuCtxSynchronize());
    const std::string log = told_to_gate();
    CHECK(log.find("record 0 _Z4halfv") != std::string::npos);
    CHECK(log.find("record 0 _Z4halfv") == log.rfind("record 0 _Z4halfv"));
    DO(cuGraphDestroy(graph));
}

void test_graph(CUfunction function, CUstream stream) {
    CUgraph graph{};
    CUgraphExec exec{};
    DO(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    launch(function, 528, stream);
    DO(cuStreamEndCapture(stream, &graph));
    DO(cuGraphInstantiate(&exec, graph, 0));
    DO(cuGraphLaunch(exec, stream));
    DO(cuStreamSynchronize(stream));
    CHECK(told_to_gate().find("record 0 graph:") != std::string::npos);
    DO(cuGraphExecDestroy(exec));
    DO(cuGraphDestroy(graph));
}

// The shares that go with a graph's timing are those of its kernels, not what the manager holds of the graph:
// else what was a guess once would stay for good.
void test_graph_shares_follow_its_kernels(CUfunction function, CUstream stream) {
    CUgraph graph{};
    CUgraphExec exec{};
    DO(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    launch(function, 528, stream);
    DO(cuStreamEndCapture(stream, &graph));
    DO(cuGraphInstantiate(&exec, graph, 0));
    setenv("GATE_COST", "5000 77 88", 1);
    setenv("GATE_SHARES", "1", 1);
    DO(cuGraphLaunch(exec, stream));
    DO(cuStreamSynchronize(stream));
    const std::string log = told_to_gate();
    CHECK(log.find("admit 0 5000 77 88") != std::string::npos &&
          log.find("shares 500 1000") != std::string::npos);
    unsetenv("GATE_COST");
    unsetenv("GATE_SHARES");
    DO(cuGraphExecDestroy(exec));
    DO(cuGraphDestroy(graph));
}

bool told(const char* what) { return told_to_gate().find(what) != std::string::npos; }

// The wait for a part of the work says nothing of the rest, but what was timed is read.
void test_event_wait(CUfunction function, CUstream a) {
    CUevent event{};
    DO(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    launch(function, 528, a);
    DO(cuEventRecord(event, a));
    launch(function, 528, a);
    told_to_gate();
    DO(cuEventSynchronize(event));
    const std::string log = told_to_gate();
    CHECK(log.find("record 0 _Z4halfv") != std::string::npos && log.find("drained") == std::string::npos);
    DO(cuEventDestroy(event));
    DO(cuCtxSynchronize());
}

// What has not ended when it is looked at is looked at again.
void test_read_too_early(CUfunction function, CUstream a) {
    constexpr int kPairs = 16;  // of events, for launches that are timed at the same time
    CUevent event{};
    DO(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    DO(cuEventRecord(event, a));
    DO(cuCtxSynchronize());
    told_to_gate();
    for (int i = 0; i < kPairs; ++i) launch(function, 528, a);
    DO(cuEventSynchronize(event));  // has been reached long ago
    DO(cuCtxSynchronize());
    const std::string log = told_to_gate();
    int records = 0;
    for (std::size_t at = 0; (at = log.find("record ", at)) != std::string::npos; ++at) ++records;
    CHECK_EQUAL(records, kPairs);
    DO(cuEventDestroy(event));
}

// After a wait that failed nothing is known to be done, and what was launched before it counts on.
void test_failed_wait(CUfunction function, CUstream a, CUstream b) {
    CUgraph graph{};
    DO(cuCtxSynchronize());
    launch(function, 528, b);
    told_to_gate();
    DO(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(cuCtxSynchronize() != CUDA_SUCCESS);
    CHECK(cuStreamEndCapture(a, &graph) != CUDA_SUCCESS);
    CHECK(!told("drained"));
    launch(function, 528, a);
    DO(cuStreamSynchronize(a));
    CHECK(!told("drained"));
    DO(cuCtxSynchronize());
    CHECK(told("drained 0"));
}

// A capture that did not begin does not end, and must not keep launches from being timed.
void test_failed_capture(CUfunction function) {
    CHECK(cuStreamBeginCapture(CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_GLOBAL) != CUDA_SUCCESS);
    launch(function, 528, nullptr);
    DO(cuCtxSynchronize());
    CHECK(told("record 0 _Z4halfv"));
}

// Events around it would keep it from overlapping with the kernel before it, which is what it is for. An
// attribute that is there but not set changes nothing.
void test_programmatic_launch_is_not_timed(CUfunction function) {
    CUevent event{};
    DO(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (const bool set : {true, false}) {
        CUlaunchAttribute attributes[2]{};
        attributes[0].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attributes[0].value.programmaticStreamSerializationAllowed = set ? 1 : 0;
        attributes[1].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT;
        attributes[1].value.programmaticEvent.event = set ? event : nullptr;
        for (CUlaunchAttribute& attribute : attributes) {
            CUlaunchConfig config{};
            config.gridDimX = 528;
            config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
            config.blockDimX = 256;
            config.attrs = &attribute;
            config.numAttrs = 1;
            DO(cuLaunchKernelEx(&config, function, nullptr, nullptr));
            DO(cuCtxSynchronize());
            CHECK(told("record") != set);
        }
    }
    DO(cuEventDestroy(event));
}

void test_failed_launch_is_not_timed() {
    CHECK(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) != CUDA_SUCCESS);
    DO(cuCtxSynchronize());
    CHECK(!told("record"));
}

// Only all contexts of a process together tell that it has nothing left on the GPU.
void test_two_contexts(CUfunction function, CUcontext context) {
    const auto synchronise =
        reinterpret_cast<CUresult (*)(CUcontext)>(dlsym(RTLD_DEFAULT, "cuCtxSynchronize_v2"));
    CUcontext other{};
    DO(cuCtxCreate(&other, nullptr, 0, 0));
    DO(cuCtxSetCurrent(context));
    launch(function, 528, nullptr);
    told_to_gate();
    DO(synchronise(other));
    CHECK(!told("drained"));
    DO(synchronise(context));
    CHECK(told("drained 0"));
    launch(function, 528, nullptr);
    DO(cuCtxSetCurrent(other));
    launch(explsched::test::function_of(explsched::test::load_module(), "_Z4halfv"), 528, nullptr);
    DO(cuCtxSynchronize());
    CHECK(!told("drained"));
    DO(cuCtxDestroy(other));
    DO(cuCtxSetCurrent(context));
    DO(cuCtxSynchronize());
    CHECK(told("drained 0"));
}

// A library that lets go of the primary context does not end it for the others.
void test_primary_context_with_another_user(CUfunction function, CUstream a, CUstream b) {
    CUcontext same{};
    launch(function, 528, a);
    DO(cuDevicePrimaryCtxRetain(&same, 0));
    DO(cuDevicePrimaryCtxRelease(0));
    launch(function, 528, b);
    told_to_gate();
    DO(cuStreamSynchronize(b));
    CHECK(!told("drained"));
    DO(cuCtxSynchronize());
    CHECK(told("drained 0"));
}

// After its end its events are gone, and what was launched on which streams, even if the next one has its
// address. Ends what `main` has opened.
void test_primary_context_used_again() {
    for (int i = 0; i < 8; ++i) {
        launch(explsched::test::function_of(explsched::test::load_module(), "_Z4halfv"), 528, nullptr);
        DO(i % 2 == 0 ? cuDevicePrimaryCtxReset(0) : cuDevicePrimaryCtxRelease(0));
        explsched::test::open_context(0);
        told_to_gate();
        CUstream only{};
        DO(cuStreamCreate(&only, CU_STREAM_NON_BLOCKING));
        launch(explsched::test::function_of(explsched::test::load_module(), "_Z4halfv"), 528, only);
        CHECK(told("attach 0 "));
        DO(cuStreamSynchronize(only));
        CHECK_EQUAL(without_durations(told_to_gate()), std::string("record 0 _Z4halfv|drained 0"));
    }
}

// Events of a destroyed context are gone with it.
void test_context_used_again() {
    for (int i = 0; i < 4; ++i) {
        CUcontext context{};
        DO(cuCtxCreate(&context, nullptr, 0, 0));
        launch(explsched::test::function_of(explsched::test::load_module(), "_Z4halfv"), 528, nullptr);
        if (i % 2 == 0) DO(cuCtxSynchronize());
        DO(cuCtxDestroy(context));
    }
    CHECK(told_to_gate().find("record 0 _Z4halfv") != std::string::npos);
}

void test_fork() {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    int status = -1;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
    CHECK_EQUAL(told_to_gate(), std::string("reset"));
}

// Its capture ends with it: what follows is timed again.
void test_context_that_goes_while_it_captures(CUfunction function, CUcontext context) {
    CUcontext other{};
    CUstream stream{};
    DO(cuCtxCreate(&other, nullptr, 0, 0));
    DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DO(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    DO(cuCtxDestroy(other));
    DO(cuCtxSetCurrent(context));
    told_to_gate();
    launch(function, 528, nullptr);
    DO(cuCtxSynchronize());
    CHECK(told_to_gate().find("record 0 _Z4halfv") != std::string::npos);
}

}  // namespace

int main() {
    const CUcontext context = explsched::test::open_context(0);
    told_to_gate();  // what an earlier run left
    const CUfunction function = explsched::test::function_of(explsched::test::load_module(), "_Z4halfv");
    CUstream a{};
    CUstream b{};
    DO(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    DO(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    test_context_wait(function);
    test_only_stream(function, a, b);
    test_looks_and_copies_tell_the_end(function, a);
    test_two_streams(function, a, b);
    test_more_than_the_pool(function);
    test_captures_are_not_spoiled(function, a, b);
    test_graph(function, a);
    test_graph_shares_follow_its_kernels(function, a);
    test_event_wait(function, a);
    test_read_too_early(function, a);
    test_failed_wait(function, a, b);
    test_failed_capture(function);
    test_programmatic_launch_is_not_timed(function);
    test_failed_launch_is_not_timed();
    test_primary_context_with_another_user(function, a, b);
    test_two_contexts(function, context);
    test_context_used_again();
    DO(cuCtxSetCurrent(context));
    launch(function, 528, nullptr);
    DO(cuCtxSynchronize());
    told_to_gate();
    test_context_that_goes_while_it_captures(function, context);
    test_fork();
    test_primary_context_used_again();
}
