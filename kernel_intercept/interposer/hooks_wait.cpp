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
        heed_failure(*record, result);
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
    if (record == nullptr) return result;
    if (result == kSuccess) read_timings(*record);
    heed_failure(*record, result);
    return result;
}

// The wait for an event is one for everything if nothing was launched since it was recorded.
template <Symbol kSymbol>
Result wait_for_event(Event event) {
    ContextRecord* record = record_of_wait();
    const Result result = wait_for_some(record, [event] { return call_driver<kSymbol>(event); });
    if (result != kSuccess || record == nullptr || record->last_event.load() != event) return result;
    if (contexts_on(record->ordinal) == 1) gate::drained(record->ordinal);
    return result;
}

template <Symbol kSymbol>
Result destroy_event(Event event) {
    forget_event(event);
    return call_driver<kSymbol>(event);
}

// Whatever succeeds only when the stream's work is done: a wait, a look at it, or a copy to the host.
template <typename Wait>
Result end_of_stream(Stream stream, NullStream null_stream, Wait wait) {
    ContextRecord* record = record_of_wait();
    const bool only_one = record != nullptr && record->streams.load(std::memory_order_acquire) ==
                                                   stream_identity(stream, null_stream);
    return only_one && stream_identity(stream, null_stream) != kManyStreams ? wait_for_all(record, wait)
                                                                            : wait_for_some(record, wait);
}

// Of a process that launches on several GPUs the stream may be another one's than the current. On the same
// one it may be a green context's, whose launches are in the record of the context they were made in.
Context context_to_wait_in(Stream stream) noexcept {
    if (!several_gpus()) return nullptr;
    const Context own = context_of(stream);
    const ContextRecord *const there = known_context(own), *const here = launched_context();
    return there != nullptr && (here == nullptr || here->ordinal != there->ordinal) ? own : nullptr;
}

template <typename Wait>
Result wait_for_stream(Stream stream, NullStream null_stream, Wait wait) {
    const InContext current(context_to_wait_in(stream));
    put_tail(stream, null_stream);
    return end_of_stream(stream, null_stream, wait);
}

template <Symbol kSymbol>
Result query(Stream stream) {
    const InContext current(context_to_wait_in(stream));
    const Look look(stream, null_stream_of(kSymbol));
    const Result result =
        end_of_stream(stream, null_stream_of(kSymbol), [stream] { return call_driver<kSymbol>(stream); });
    look.ended(result == kSuccess);
    return result;
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
    return wait_for_stream(stream, NullStream::kLegacy,
                           [&] { return call_driver<Symbol::cuStreamSynchronize>(stream); });
}

Result cuStreamSynchronize_ptsz(Stream stream) {
    return wait_for_stream(stream, NullStream::kPerThread,
                           [&] { return call_driver<Symbol::cuStreamSynchronize_ptsz>(stream); });
}

Result cuStreamQuery(Stream stream) { return query<Symbol::cuStreamQuery>(stream); }
Result cuStreamQuery_ptsz(Stream stream) { return query<Symbol::cuStreamQuery_ptsz>(stream); }

Result cuMemcpyDtoH_v2(void* to, DevicePointer from, std::size_t bytes) {
    return wait_for_stream(nullptr, NullStream::kLegacy,
                           [&] { return call_driver<Symbol::cuMemcpyDtoH_v2>(to, from, bytes); });
}

Result cuMemcpyDtoH_v2_ptds(void* to, DevicePointer from, std::size_t bytes) {
    return wait_for_stream(nullptr, NullStream::kPerThread,
                           [&] { return call_driver<Symbol::cuMemcpyDtoH_v2_ptds>(to, from, bytes); });
}

Result cuEventSynchronize(Event event) { return wait_for_event<Symbol::cuEventSynchronize>(event); }
Result cuEventQuery(Event event) { return wait_for_event<Symbol::cuEventQuery>(event); }
Result cuEventDestroy(Event event) { return destroy_event<Symbol::cuEventDestroy>(event); }
Result cuEventDestroy_v2(Event event) { return destroy_event<Symbol::cuEventDestroy_v2>(event); }

}  // extern "C"

}  // namespace explsched::intercept
