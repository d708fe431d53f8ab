// Streams: what a program records or copies at the end of its work shows that the end is near.

#include <algorithm>

#include "kernel_intercept/interposer/boundaries.hpp"
#include "kernel_intercept/interposer/driver.hpp"
#include "kernel_intercept/interposer/settings.hpp"

namespace explsched::intercept {
namespace {

template <Symbol kSymbol>
Result destroy(Stream stream) {
    end_capture_by_destruction(stream);
    put_tail(stream, NullStream::kLegacy);
    forget_stream(stream);
    return call_driver<kSymbol>(stream);
}

}  // namespace

extern "C" {

// Lower numbers go first, and 0 is the last: what is best-effort must not outrank others' default streams.
Result cuStreamCreateWithPriority(Stream* stream, unsigned flags, int priority) {
    const bool low = mode() != Mode::kOff && gate::is_best_effort();
    return call_driver<Symbol::cuStreamCreateWithPriority>(stream, flags,
                                                           low ? std::max(priority, 0) : priority);
}

Result cuStreamDestroy(Stream stream) { return destroy<Symbol::cuStreamDestroy>(stream); }
Result cuStreamDestroy_v2(Stream stream) { return destroy<Symbol::cuStreamDestroy_v2>(stream); }

Result cuEventRecord(Event event, Stream stream) {
    put_tail(stream, NullStream::kLegacy);
    return call_driver<Symbol::cuEventRecord>(event, stream);
}

Result cuEventRecord_ptsz(Event event, Stream stream) {
    put_tail(stream, NullStream::kPerThread);
    return call_driver<Symbol::cuEventRecord_ptsz>(event, stream);
}

Result cuEventRecordWithFlags(Event event, Stream stream, unsigned flags) {
    put_tail(stream, NullStream::kLegacy);
    return call_driver<Symbol::cuEventRecordWithFlags>(event, stream, flags);
}

Result cuEventRecordWithFlags_ptsz(Event event, Stream stream, unsigned flags) {
    put_tail(stream, NullStream::kPerThread);
    return call_driver<Symbol::cuEventRecordWithFlags_ptsz>(event, stream, flags);
}

Result cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, std::size_t bytes, Stream stream) {
    put_tail(stream, NullStream::kLegacy);
    return call_driver<Symbol::cuMemcpyDtoHAsync_v2>(to, from, bytes, stream);
}

Result cuMemcpyDtoHAsync_v2_ptsz(void* to, DevicePointer from, std::size_t bytes, Stream stream) {
    put_tail(stream, NullStream::kPerThread);
    return call_driver<Symbol::cuMemcpyDtoHAsync_v2_ptsz>(to, from, bytes, stream);
}

}  // extern "C"

}  // namespace explsched::intercept
