// Timed launches reach the gate, and it hears when all is done, and only then. Run with GATE_SAMPLE=1. A
// kernel of the virtual GPU takes 10 us.

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

void test_two_streams(CUfunction function, CUstream a, CUstream b) {
    launch(function, 528, a);
    launch(function, 528, b);
    DO(cuStreamSynchronize(a));
    DO(cuStreamSynchronize(b));
    CHECK(told_to_gate().find("drained") == std::string::npos);
    DO(cuCtxSynchronize());
    CHECK(told_to_gate().find("drained 0") != std::string::npos);
}

// More launches than event pairs: those without a pair go untimed, none is lost or waited for.
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
}

// Event queries and records would break the capture, which would fail at its end.
void test_none_while_capturing(CUfunction function, CUstream a, CUstream b) {
    CUgraph graph{};
    launch(function, 528, b);
    DO(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i < 64; ++i) launch(function, 528, b);
    launch(function, 528, a);
    CHECK(told_to_gate().find("record") == std::string::npos);
    DO(cuStreamEndCapture(a, &graph));
    DO(cuCtxSynchronize());
    CHECK(told_to_gate().find("record 0 _Z4halfv") != std::string::npos);
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
    test_two_streams(function, a, b);
    test_more_than_the_pool(function);
    test_none_while_capturing(function, a, b);
    test_graph(function, a);
    test_context_used_again();
    DO(cuCtxSetCurrent(context));
    launch(function, 528, nullptr);
    DO(cuCtxSynchronize());
    told_to_gate();
    test_fork();
}
