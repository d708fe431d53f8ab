// What stands between launches in a stream: which calls tell the gate that what was launched before them is
// done, and which make it wait for the word of the GPU that it has passed them. Run with GATE_SIGNALS=1.

#include <dlfcn.h>

#include <atomic>
#include <functional>
#include <vector>

#include "tests/kernel/interposer/gate_log.hpp"
#include "tests/kernel/interposer/session.hpp"

using explsched::test::launch;
using explsched::test::launch_until_told;
using explsched::test::told_to_gate;

namespace {

// Nothing is asked of the driver by name: there the names without a suffix mean other versions.
template <typename Function>
Function* entry(const std::string& symbol) {
    void* found = dlsym(RTLD_DEFAULT, symbol.c_str());
    CHECK(found != nullptr);
    return reinterpret_cast<Function*>(found);
}

std::atomic<std::uint64_t> word{0};
CUdeviceptr word_at{};

using Value32 = CUresult(CUstream, CUdeviceptr, cuuint32_t, unsigned);
using Value64 = CUresult(CUstream, CUdeviceptr, cuuint64_t, unsigned);
using Batch = CUresult(CUstream, unsigned, CUstreamBatchMemOpParams*, unsigned);
using HostFunction = CUresult(CUstream, CUhostFn, void*);
using Callback = CUresult(CUstream, CUstreamCallback, void*, unsigned);
using Signal = CUresult(const CUexternalSemaphore*, const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS*, unsigned,
                        CUstream);
using Wait = CUresult(const CUexternalSemaphore*, const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS*, unsigned,
                      CUstream);

CUstreamBatchMemOpParams write_of(cuuint32_t value) {
    CUstreamBatchMemOpParams one{};
    one.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    one.writeValue.address = word_at;
    one.writeValue.value = value;
    return one;
}

CUstreamBatchMemOpParams wait_of(cuuint32_t bits) {
    CUstreamBatchMemOpParams one{};
    one.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    one.waitValue.address = word_at;
    one.waitValue.value = bits;
    one.waitValue.flags = CU_STREAM_WAIT_VALUE_AND;
    return one;
}

const std::string kTail = "tail 0 0", kPast = "charge 0 1 0 0|tail 0 0";

struct Call {
    std::string symbol, told;
    std::function<CUresult(const std::string&, CUstream)> run;
};

std::vector<Call> calls() {
    std::vector<Call> all;
    const auto add = [&](const std::string& symbol, const std::string& told,
                         const std::function<CUresult(const std::string&, CUstream)>& run) {
        for (const char* suffix : {"", "_ptsz"}) all.push_back({symbol + suffix, told, run});
    };
    for (const std::string version : {"", "_v2"}) {
        add("cuStreamWriteValue32" + version, kTail, [](const std::string& symbol, CUstream stream) {
            return entry<Value32>(symbol)(stream, word_at, 1, 0);
        });
        add("cuStreamWriteValue64" + version, kTail, [](const std::string& symbol, CUstream stream) {
            return entry<Value64>(symbol)(stream, word_at, 1, 0);
        });
        add("cuStreamWaitValue32" + version, kPast, [](const std::string& symbol, CUstream stream) {
            return entry<Value32>(symbol)(stream, word_at, 1, CU_STREAM_WAIT_VALUE_AND);
        });
        add("cuStreamWaitValue64" + version, kPast, [](const std::string& symbol, CUstream stream) {
            return entry<Value64>(symbol)(stream, word_at, 1, CU_STREAM_WAIT_VALUE_AND);
        });
        add("cuStreamBatchMemOp" + version, kTail, [](const std::string& symbol, CUstream stream) {
            CUstreamBatchMemOpParams one = write_of(1);
            return entry<Batch>(symbol)(stream, 1, &one, 0);
        });
        add("cuStreamBatchMemOp" + version, kTail + "|" + kPast,
            [](const std::string& symbol, CUstream stream) {
                CUstreamBatchMemOpParams both[] = {write_of(1), wait_of(1)};
                return entry<Batch>(symbol)(stream, 2, both, 0);
            });
    }
    add("cuLaunchHostFunc", kTail + "|" + kPast, [](const std::string& symbol, CUstream stream) {
        return entry<HostFunction>(symbol)(
            stream, [](void*) {}, nullptr);
    });
#if CUDA_HEADERS >= 13030
    // Its fourth argument arrives: the double refuses a mode that there is not.
    add("cuLaunchHostFunc_v2", kTail + "|" + kPast, [](const std::string& symbol, CUstream stream) {
        using WithMode = CUresult(CUstream, CUhostFn, void*, unsigned);
        const auto nothing = [](void*) {};
        CHECK_EQUAL(entry<WithMode>(symbol)(stream, nothing, nullptr, CU_HOST_TASK_SPINWAIT), CUDA_SUCCESS);
        told_to_gate();
        return entry<WithMode>(symbol)(stream, nothing, nullptr, CU_HOST_TASK_BLOCKING);
    });
#endif
    add("cuStreamAddCallback", kTail + "|" + kPast, [](const std::string& symbol, CUstream stream) {
        return entry<Callback>(symbol)(
            stream, [](CUstream, CUresult, void*) {}, nullptr, 0);
    });
    add("cuSignalExternalSemaphoresAsync", kTail, [](const std::string& symbol, CUstream stream) {
        return entry<Signal>(symbol)(nullptr, nullptr, 0, stream);
    });
    add("cuWaitExternalSemaphoresAsync", kPast, [](const std::string& symbol, CUstream stream) {
        return entry<Wait>(symbol)(nullptr, nullptr, 0, stream);
    });
    return all;
}

void test_calls_that_tell_and_calls_that_hold(CUfunction function, CUstream stream) {
    for (const Call& call : calls()) {
        word = 1;
        launch(function, 528, stream);
        told_to_gate();
        DO(call.run(call.symbol, stream));
        CHECK_EQUAL(call.symbol + ": " + told_to_gate(), call.symbol + ": " + call.told);
        DO(cuCtxSynchronize());
    }
}

// Into a stream that records a graph nothing of ours is put, and the capture is not spoiled.
void test_captured_calls_are_left_alone(CUfunction function, CUstream stream) {
    CUgraph graph{};
    told_to_gate();
    DO(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    launch(function, 528, stream);
    DO(cuLaunchHostFunc(
        stream, [](void*) {}, nullptr));
    DO(cuStreamEndCapture(stream, &graph));
    std::size_t nodes = 0;
    DO(cuGraphGetNodes(graph, nullptr, &nodes));
    CHECK_EQUAL(nodes, std::size_t{2});
    CHECK_EQUAL(told_to_gate(), std::string(""));
    DO(cuGraphDestroy(graph));
}

// A stream that is done is done at every look: what we put there to know would be seen by the second one.
void test_looks_find_what_is_true(CUfunction function, CUstream stream, CUstream other) {
    for (const char* symbol : {"cuStreamQuery", "cuStreamQuery_ptsz"}) {
        const auto query = entry<CUresult(CUstream)>(symbol);
        launch(function, 528, other);
        launch(function, 528, stream);
        while (query(stream) == CUDA_ERROR_NOT_READY) continue;
        for (int i = 0; i < 100; ++i) DO(query(stream));
        DO(cuCtxSynchronize());
        DO(query(stream));
    }
    told_to_gate();
    // Behind a wait that nobody ends, nothing is done, whatever was launched before.
    word = 0;
    DO(entry<Value32>("cuStreamWaitValue32_v2")(stream, word_at, 1, CU_STREAM_WAIT_VALUE_AND));
    CUevent event{};
    DO(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    launch(function, 528, stream);
    DO(cuEventRecord(event, stream));
    DO(cuStreamWaitEvent(other, event, 0));
    launch(function, 528, other);
    for (int i = 0; i < 20; ++i) {
        CHECK_EQUAL(static_cast<int>(cuEventQuery(event)), static_cast<int>(CUDA_ERROR_NOT_READY));
        CHECK_EQUAL(static_cast<int>(cuStreamQuery(other)), static_cast<int>(CUDA_ERROR_NOT_READY));
    }
    CHECK(told_to_gate().find("drained") == std::string::npos);
    word = 1;
    DO(cuCtxSynchronize());
    DO(cuEventQuery(event));
    DO(cuEventDestroy(event));
}

// An event behind everything tells the end of everything, by a wait or by a look; one with launches behind it
// or in another stream does not, nor does the next event that gets its handle.
void test_events_tell_the_end(CUfunction function, CUstream stream, CUstream other) {
    for (const char* symbol : {"cuEventSynchronize", "cuEventQuery"}) {
        const auto look = entry<CUresult(CUevent)>(symbol);
        const auto drained_after = [&](CUevent event) {
            told_to_gate();
            while (look(event) == CUDA_ERROR_NOT_READY)
                CHECK(told_to_gate().find("drained") == std::string::npos);
            return told_to_gate().find("drained 0") != std::string::npos;
        };
        CUevent event{};
        DO(cuCtxSynchronize());
        DO(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
        launch(function, 528, stream);
        DO(cuEventRecord(event, stream));
        CHECK(drained_after(event));
        launch(function, 528, stream);
        CHECK(!drained_after(event));
        DO(cuEventRecord(event, stream));
        DO(cuEventDestroy(event));
        DO(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
        CHECK(!drained_after(event));
        DO(cuEventRecord(event, stream));
        launch(function, 528, other);
        DO(cuEventRecord(event, other));
        CHECK(!drained_after(event));
        DO(cuEventDestroy(event));
    }
}

// On several GPUs what a stream waits for may be counted elsewhere.
void test_events_of_other_gpus_hold(CUfunction function, CUstream stream) {
    CUevent event{};
    DO(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    DO(cuEventRecord(event, stream));
    const auto told = [&](const char* symbol) {
        launch(function, 528, stream);
        told_to_gate();
        DO(entry<CUresult(CUstream, CUevent, unsigned)>(symbol)(stream, event, 0));
        return told_to_gate();
    };
    for (const char* symbol : {"cuStreamWaitEvent", "cuStreamWaitEvent_ptsz"})
        CHECK_EQUAL(told(symbol), std::string(""));
    CUcontext own{};
    DO(cuCtxGetCurrent(&own));
    explsched::test::open_context(1);
    launch(explsched::test::function_of(explsched::test::load_module(), "_Z4halfv"), 528, nullptr);
    DO(cuCtxSetCurrent(own));
    for (const char* symbol : {"cuStreamWaitEvent", "cuStreamWaitEvent_ptsz"})
        CHECK_EQUAL(told(symbol), kPast);
    DO(cuEventDestroy(event));
}

// Whichever GPU is current.
void test_a_wait_concerns_the_gpu_of_its_stream(CUfunction function, CUstream stream) {
    CUcontext own{}, current{};
    DO(cuCtxGetCurrent(&own));
    DO(cuCtxSynchronize());
    const CUcontext other = explsched::test::open_context(1);
    for (const char* symbol :
         {"cuStreamSynchronize", "cuStreamSynchronize_ptsz", "cuStreamQuery", "cuStreamQuery_ptsz"}) {
        DO(cuCtxSetCurrent(own));
        launch(function, 528, stream);
        DO(cuCtxSetCurrent(other));
        told_to_gate();
        while (entry<CUresult(CUstream)>(symbol)(stream) == CUDA_ERROR_NOT_READY) {
        }
        const std::string told = told_to_gate();
        CHECK_EQUAL(told.find("tail 0 0"), std::size_t{0});
        CHECK_EQUAL(told.rfind("|drained 0") + 10, told.size());
        DO(cuCtxGetCurrent(&current));
        CHECK(current == other);
    }
    DO(cuCtxSetCurrent(own));
}

// It is in the record of the context that it was launched in, though its stream says another one.
void test_a_wait_for_work_in_a_green_context_tells_its_end(CUfunction function) {
    CUgreenCtx green{};
    CUstream stream{};
    DO(cuCtxSynchronize());
    DO(cuGreenCtxCreate(&green, nullptr, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    DO(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    for (const char* symbol :
         {"cuStreamSynchronize", "cuStreamSynchronize_ptsz", "cuStreamQuery", "cuStreamQuery_ptsz"}) {
        launch(function, 528, stream);
        told_to_gate();
        while (entry<CUresult(CUstream)>(symbol)(stream) == CUDA_ERROR_NOT_READY) {
        }
        const std::string told = told_to_gate();
        CHECK_EQUAL(told.find("tail 0 "), std::size_t{0});
        CHECK_EQUAL(told.rfind("|drained 0") + 10, told.size());
    }
    DO(cuStreamDestroy(stream));
    DO(cuGreenCtxDestroy(green));
}

// Handles that no name was asked for.
void test_handles_of_lists_and_libraries() {
    CUlibrary library{};
    unsigned count = 0;
    DO(cuLibraryLoadData(&library, "image", nullptr, nullptr, 0, nullptr, nullptr, 0));
    DO(cuLibraryGetKernelCount(&count, library));
    CHECK(count > 0);
    std::vector<CUkernel> kernels(count);
    DO(cuLibraryEnumerateKernels(kernels.data(), count, library));
    for (unsigned i = 0; i < count; ++i) {
        CUfunction function{};
        DO(cuKernelGetFunction(&function, kernels[i]));
        const auto told = [](CUfunction what) {
            told_to_gate();
            launch(what, 528, nullptr);
            const std::string log = told_to_gate();
            return log.substr(log.find("admit"));
        };
        // The same cost, whichever handle: registers, shared memory and threads are those of the kernel.
        CHECK_EQUAL(told(reinterpret_cast<CUfunction>(kernels[i])), told(function));
    }
    DO(cuCtxSynchronize());
    DO(cuLibraryUnload(library));
}

// A best-effort program's streams do not outrank others', in green contexts as elsewhere; and what is known
// of such a context ends with it.
void test_green_contexts() {
    CUcontext own{}, context{};
    DO(cuCtxGetCurrent(&own));
    for (int i = 0; i < 4; ++i) {
        CUgreenCtx green{};
        CUstream stream{};
        int priority = 0;
        DO(cuGreenCtxCreate(&green, nullptr, 0, CU_GREEN_CTX_DEFAULT_STREAM));
        DO(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, -5));
        DO(cuStreamGetPriority(stream, &priority));
        CHECK_EQUAL(priority, std::getenv("GATE_BEST_EFFORT") != nullptr ? 0 : -5);
        DO(cuCtxFromGreenCtx(&context, green));
        DO(cuCtxSetCurrent(context));
        told_to_gate();
        launch(explsched::test::function_of(explsched::test::load_module(), "_Z4halfv"), 528, stream);
        CHECK(told_to_gate().find("attach 0 ") != std::string::npos);  // known anew each time
        DO(cuStreamSynchronize(stream));
        DO(cuCtxSetCurrent(own));
        DO(cuGreenCtxDestroy(green));
    }
}

}  // namespace

int main() {
    const std::string kernels = std::string(std::getenv("GATE_LOG")) + ".kernels";
    std::ofstream(kernels) << "_Z4halfv 32 0 10000 500 500\nnarrow 255 49000 10000 100 100\n";
    setenv("FAKECUDA_KERNELS", kernels.c_str(), 1);
    explsched::test::open_context(0);
    told_to_gate();  // what an earlier run left
    const CUfunction function = explsched::test::function_of(explsched::test::load_module(), "_Z4halfv");
    word_at = reinterpret_cast<CUdeviceptr>(&word);
    CUstream stream{}, other{};
    DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DO(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    launch_until_told("stream 0 0", function, stream);  // so that the stream has number 0
    test_calls_that_tell_and_calls_that_hold(function, stream);
    test_captured_calls_are_left_alone(function, stream);
    test_looks_find_what_is_true(function, stream, other);
    test_events_tell_the_end(function, stream, other);
    test_handles_of_lists_and_libraries();
    test_green_contexts();
    test_events_of_other_gpus_hold(function, stream);
    test_a_wait_concerns_the_gpu_of_its_stream(function, stream);
    test_a_wait_for_work_in_a_green_context_tells_its_end(function);
}
