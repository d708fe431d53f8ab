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

// Lower numbers go first, and 0 is the last: what is best-effort must not outrank others' default streams.
bool is_low() noexcept { return mode() != Mode::kOff && gate::is_best_effort(); }

template <Symbol kSymbol>
Result set_attribute(Stream stream, int attribute, const LaunchAttributeValue* value) {
    if (attribute != kAttributePriority || value == nullptr || value->priority >= 0 || !is_low())
        return call_driver<kSymbol>(stream, attribute, value);
    LaunchAttributeValue last = *value;
    last.priority = 0;
    return call_driver<kSymbol>(stream, attribute, static_cast<const LaunchAttributeValue*>(&last));
}

}  // namespace

extern "C" {

Result cuStreamCreateWithPriority(Stream* stream, unsigned flags, int priority) {
    return call_driver<Symbol::cuStreamCreateWithPriority>(stream, flags,
                                                           is_low() ? std::max(priority, 0) : priority);
}

Result cuStreamSetAttribute(Stream stream, int attribute, const LaunchAttributeValue* value) {
    return set_attribute<Symbol::cuStreamSetAttribute>(stream, attribute, value);
}

Result cuStreamSetAttribute_ptsz(Stream stream, int attribute, const LaunchAttributeValue* value) {
    return set_attribute<Symbol::cuStreamSetAttribute_ptsz>(stream, attribute, value);
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
