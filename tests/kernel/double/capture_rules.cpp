// What the fake driver refuses while a stream captures. The tests of the interposer rest on it: a double that
// let everything pass would prove nothing.

#include <thread>

#include "tests/kernel/callers/session.hpp"

namespace {

struct Fixture {
    caller::Session session{caller::open_session()};
    CUstream stream{nullptr};
    CUevent event{nullptr};

    Fixture() {
        CHECK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
        CHECK(cuEventCreate(&event, 0));
        CHECK(cuEventRecord(event, nullptr));
    }
};

// Captures in `mode`, makes `call` meanwhile, and tells whether that spoilt the capture.
template <typename Call>
bool spoils(const Fixture& f, CUstreamCaptureMode mode, Call call) {
    CHECK(cuStreamBeginCapture(f.stream, mode));
    caller::launch(f.session.add, 1, f.stream);
    call();
    CUgraph graph = nullptr;
    const CUresult ended = cuStreamEndCapture(f.stream, &graph);
    REQUIRE(ended == CUDA_SUCCESS || ended == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    REQUIRE((graph != nullptr) == (ended == CUDA_SUCCESS));
    return ended != CUDA_SUCCESS;
}

template <typename Call>
auto in_thread(Call call) {
    return [call] { std::thread(call).join(); };
}

}  // namespace

int main() {
    const Fixture f;
    const auto synchronise = [&] {
        REQUIRE(cuStreamSynchronize(f.stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    };
    const auto query = [&] { REQUIRE(cuEventQuery(f.event) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); };
    const auto allowed_query = [&] { CHECK(cuEventQuery(f.event)); };
    const auto on_legacy_stream = [&] {
        REQUIRE(cuLaunchKernel(f.session.add, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr) ==
                CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    };
    constexpr CUstreamCaptureMode kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;
    constexpr CUstreamCaptureMode kThreadLocal = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    constexpr CUstreamCaptureMode kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;

    REQUIRE(!spoils(f, kGlobal, [] {}));
    for (const CUstreamCaptureMode mode : {kGlobal, kThreadLocal, kRelaxed})
        REQUIRE(spoils(f, mode, synchronise));
    REQUIRE(spoils(f, kGlobal, query));
    REQUIRE(spoils(f, kThreadLocal, query));
    REQUIRE(!spoils(f, kRelaxed, allowed_query));
    REQUIRE(spoils(f, kGlobal, in_thread(query)));
    REQUIRE(!spoils(f, kThreadLocal, in_thread(allowed_query)));
    REQUIRE(spoils(f, kGlobal, on_legacy_stream));
    REQUIRE(cuStreamBeginCapture(nullptr, kGlobal) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);

    CHECK(cuStreamBeginCapture(f.stream, kGlobal));
    CHECK(cuEventRecord(f.event, f.stream));
    REQUIRE(cuEventQuery(f.event) == CUDA_ERROR_CAPTURED_EVENT);
    return 0;
}
