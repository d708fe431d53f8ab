// Waits of the program: moments when timings can be read, and when the GPU is known to be idle for us.

#include "kernel_intercept/gate/gate.hpp"
#include "kernel_intercept/interposer/boundaries.hpp"
#include "kernel_intercept/interposer/driver.hpp"
#include "kernel_intercept/interposer/settings.hpp"
#include "kernel_intercept/interposer/streams.hpp"
#include "kernel_intercept/interposer/timing.hpp"

namespace explsched::intercept {
namespace {

ContextRecord* record_of_wait() noexcept { return mode() == Mode::kOff ? nullptr : launched_context(); }

// Runs the wait and tells the gate if all launches before it are done: it succeeded, the process has no other
// context on the GPU, and nothing was launched meanwhile.
template <typename Wait>
Result wait_for_all(ContextRecord* record, Wait wait) {
    if (record == nullptr) return wait();
    const std::uintptr_t before = record->streams.exchange(kNoStream, std::memory_order_acq_rel);
    const Result result = wait();
    if (result != kSuccess) {
        note_stream(*record, before == kNoStream ? kManyStreams : before);
        return result;
    }
    read_timings(*record);
    const bool idle = record->streams.load(std::memory_order_acquire) == kNoStream;
    if (idle && contexts_on(record->ordinal) == 1) gate::drained(record->ordinal);
    return result;
}

template <typename Wait>
Result wait_for_context(ContextRecord* record, Wait wait) {
    if (record != nullptr) put_all_tails(*record);
    return wait_for_all(record, wait);
}

// A wait for a part of the work: only timings can be read.
template <typename Wait>
Result wait_for_some(ContextRecord* record, Wait wait) {
    const Result result = wait();
    if (record != nullptr && result == kSuccess) read_timings(*record);
    return result;
}

template <Symbol kSymbol>
Result wait_for_stream(Stream stream, NullStream null_stream) {
    const auto wait = [stream] { return call_driver<kSymbol>(stream); };
    put_tail(stream, null_stream);
    ContextRecord* record = record_of_wait();
    const bool only_one = record != nullptr && record->streams.load(std::memory_order_acquire) ==
                                                   stream_identity(stream, null_stream);
    return only_one && stream_identity(stream, null_stream) != kManyStreams ? wait_for_all(record, wait)
                                                                            : wait_for_some(record, wait);
}

}  // namespace

extern "C" {

Result cuCtxSynchronize() {
    return wait_for_context(record_of_wait(), [] { return call_driver<Symbol::cuCtxSynchronize>(); });
}

Result cuCtxSynchronize_v2(Context context) {
    const auto wait = [context] { return call_driver<Symbol::cuCtxSynchronize_v2>(context); };
    ContextRecord* record = record_of_wait();
    const bool current = record != nullptr && (context == nullptr || record->context.load() == context);
    return current ? wait_for_context(record, wait) : wait();
}

Result cuStreamSynchronize(Stream stream) {
    return wait_for_stream<Symbol::cuStreamSynchronize>(stream, NullStream::kLegacy);
}

Result cuStreamSynchronize_ptsz(Stream stream) {
    return wait_for_stream<Symbol::cuStreamSynchronize_ptsz>(stream, NullStream::kPerThread);
}

Result cuEventSynchronize(Event event) {
    return wait_for_some(record_of_wait(),
                         [event] { return call_driver<Symbol::cuEventSynchronize>(event); });
}

}  // extern "C"

}  // namespace explsched::intercept
