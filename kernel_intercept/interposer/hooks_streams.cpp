// Streams: what comes between launches tells how far the GPU has come, and what it waits for.

#include <algorithm>

#include "kernel_intercept/interposer/boundaries.hpp"
#include "kernel_intercept/interposer/driver.hpp"
#include "kernel_intercept/interposer/settings.hpp"
#include "kernel_intercept/interposer/streams.hpp"

namespace explsched::intercept {
namespace {

template <Symbol kSymbol>
Result destroy(Stream stream) {
    put_tail(stream, NullStream::kLegacy);
    forget_stream(stream);
    end_capture_by_destruction(stream);
    return call_driver<kSymbol>(stream);
}

// The call shows the end of what stands before it to the host, or to others.
template <Symbol kSymbol, typename... Arguments>
Result show(Stream stream, Arguments... arguments) {
    put_tail(stream, null_stream_of(kSymbol));
    return call_driver<kSymbol>(arguments...);
}

// The call holds up what follows it.
template <Symbol kSymbol, typename... Arguments>
Result hold(Stream stream, Arguments... arguments) {
    const Hold held(stream, null_stream_of(kSymbol));
    return call_driver<kSymbol>(arguments...);
}

template <Symbol kSymbol, typename... Arguments>
Result show_and_hold(Stream stream, Arguments... arguments) {
    put_tail(stream, null_stream_of(kSymbol));
    return hold<kSymbol>(stream, arguments...);
}

bool any_wait(unsigned count, const MemoryOperation* operations) noexcept {
    return operations != nullptr &&
           std::any_of(operations, operations + count, [](const MemoryOperation& one) {
               return one.operation == kWaitValue32 || one.operation == kWaitValue64;
           });
}

// An event behind all that was launched tells the end of it all when it has been reached.
template <Symbol kSymbol, typename... Arguments>
Result record(Event event, Stream stream, Arguments... arguments) {
    constexpr NullStream kNull = null_stream_of(kSymbol);
    ContextRecord* context = mode() == Mode::kOff ? nullptr : launched_context();
    if (context != nullptr) {
        const std::uintptr_t identity = stream_identity(stream, kNull);
        const bool behind_all = identity != kManyStreams && context->streams.load() == identity;
        if (behind_all && !is_capturing(stream, kNull)) {
            context->last_event.store(event);
        } else if (context->last_event.load() == event) {
            context->last_event.store(nullptr);
        }
    }
    return show<kSymbol>(stream, arguments...);
}

// Of priorities, lower numbers go first, and 0 is the last.
template <Symbol kSymbol>
Result set_attribute(Stream stream, int attribute, const LaunchAttributeValue* value) {
    if (attribute != kAttributePriority || value == nullptr || value->priority >= 0 || !is_best_effort())
        return call_driver<kSymbol>(stream, attribute, value);
    LaunchAttributeValue last = *value;
    last.priority = 0;
    return call_driver<kSymbol>(stream, attribute, static_cast<const LaunchAttributeValue*>(&last));
}

}  // namespace

extern "C" {

Result cuStreamCreateWithPriority(Stream* stream, unsigned flags, int priority) {
    return call_driver<Symbol::cuStreamCreateWithPriority>(
        stream, flags, is_best_effort() ? std::max(priority, 0) : priority);
}

Result cuStreamSetAttribute(Stream stream, int attribute, const LaunchAttributeValue* value) {
    return set_attribute<Symbol::cuStreamSetAttribute>(stream, attribute, value);
}

Result cuStreamSetAttribute_ptsz(Stream stream, int attribute, const LaunchAttributeValue* value) {
    return set_attribute<Symbol::cuStreamSetAttribute_ptsz>(stream, attribute, value);
}

Result cuStreamDestroy(Stream stream) { return destroy<Symbol::cuStreamDestroy>(stream); }
Result cuStreamDestroy_v2(Stream stream) { return destroy<Symbol::cuStreamDestroy_v2>(stream); }

Result cuGreenCtxStreamCreate(Stream* stream, Handle green, unsigned flags, int priority) {
    return call_driver<Symbol::cuGreenCtxStreamCreate>(stream, green, flags,
                                                       is_best_effort() ? std::max(priority, 0) : priority);
}

Result cuEventRecord(Event event, Stream stream) {
    return record<Symbol::cuEventRecord>(event, stream, event, stream);
}

Result cuEventRecord_ptsz(Event event, Stream stream) {
    return record<Symbol::cuEventRecord_ptsz>(event, stream, event, stream);
}

Result cuEventRecordWithFlags(Event event, Stream stream, unsigned flags) {
    return record<Symbol::cuEventRecordWithFlags>(event, stream, event, stream, flags);
}

Result cuEventRecordWithFlags_ptsz(Event event, Stream stream, unsigned flags) {
    return record<Symbol::cuEventRecordWithFlags_ptsz>(event, stream, event, stream, flags);
}

Result cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, std::size_t bytes, Stream stream) {
    return show<Symbol::cuMemcpyDtoHAsync_v2>(stream, to, from, bytes, stream);
}

Result cuMemcpyDtoHAsync_v2_ptsz(void* to, DevicePointer from, std::size_t bytes, Stream stream) {
    return show<Symbol::cuMemcpyDtoHAsync_v2_ptsz>(stream, to, from, bytes, stream);
}

// What is recorded on the same GPU is counted in its own stream.
Result cuStreamWaitEvent(Stream stream, Event event, unsigned flags) {
    return several_gpus() ? hold<Symbol::cuStreamWaitEvent>(stream, stream, event, flags)
                          : call_driver<Symbol::cuStreamWaitEvent>(stream, event, flags);
}

Result cuStreamWaitEvent_ptsz(Stream stream, Event event, unsigned flags) {
    return several_gpus() ? hold<Symbol::cuStreamWaitEvent_ptsz>(stream, stream, event, flags)
                          : call_driver<Symbol::cuStreamWaitEvent_ptsz>(stream, event, flags);
}

// NOLINTBEGIN(bugprone-macro-parentheses): a template and its argument
#define VALUE_HOOK(name, effect, type)                                         \
    Result name(Stream stream, DevicePointer at, type value, unsigned flags) { \
        return effect<Symbol::name>(stream, stream, at, value, flags);         \
    }
VALUE_HOOK(cuStreamWaitValue32, hold, std::uint32_t)
VALUE_HOOK(cuStreamWaitValue32_ptsz, hold, std::uint32_t)
VALUE_HOOK(cuStreamWaitValue32_v2, hold, std::uint32_t)
VALUE_HOOK(cuStreamWaitValue32_v2_ptsz, hold, std::uint32_t)
VALUE_HOOK(cuStreamWaitValue64, hold, std::uint64_t)
VALUE_HOOK(cuStreamWaitValue64_ptsz, hold, std::uint64_t)
VALUE_HOOK(cuStreamWaitValue64_v2, hold, std::uint64_t)
VALUE_HOOK(cuStreamWaitValue64_v2_ptsz, hold, std::uint64_t)
VALUE_HOOK(cuStreamWriteValue32, show, std::uint32_t)
VALUE_HOOK(cuStreamWriteValue32_ptsz, show, std::uint32_t)
VALUE_HOOK(cuStreamWriteValue32_v2, show, std::uint32_t)
VALUE_HOOK(cuStreamWriteValue32_v2_ptsz, show, std::uint32_t)
VALUE_HOOK(cuStreamWriteValue64, show, std::uint64_t)
VALUE_HOOK(cuStreamWriteValue64_ptsz, show, std::uint64_t)
VALUE_HOOK(cuStreamWriteValue64_v2, show, std::uint64_t)
VALUE_HOOK(cuStreamWriteValue64_v2_ptsz, show, std::uint64_t)
#undef VALUE_HOOK

#define BATCH_HOOK(name)                                                                      \
    Result name(Stream stream, unsigned count, MemoryOperation* operations, unsigned flags) { \
        return any_wait(count, operations)                                                    \
                   ? show_and_hold<Symbol::name>(stream, stream, count, operations, flags)    \
                   : show<Symbol::name>(stream, stream, count, operations, flags);            \
    }
BATCH_HOOK(cuStreamBatchMemOp)
BATCH_HOOK(cuStreamBatchMemOp_ptsz)
BATCH_HOOK(cuStreamBatchMemOp_v2)
BATCH_HOOK(cuStreamBatchMemOp_v2_ptsz)
#undef BATCH_HOOK

Result cuLaunchHostFunc(Stream stream, Handle function, void* data) {
    return show_and_hold<Symbol::cuLaunchHostFunc>(stream, stream, function, data);
}

Result cuLaunchHostFunc_ptsz(Stream stream, Handle function, void* data) {
    return show_and_hold<Symbol::cuLaunchHostFunc_ptsz>(stream, stream, function, data);
}

Result cuLaunchHostFunc_v2(Stream stream, Handle function, void* data, unsigned mode) {
    return show_and_hold<Symbol::cuLaunchHostFunc_v2>(stream, stream, function, data, mode);
}

Result cuLaunchHostFunc_v2_ptsz(Stream stream, Handle function, void* data, unsigned mode) {
    return show_and_hold<Symbol::cuLaunchHostFunc_v2_ptsz>(stream, stream, function, data, mode);
}

Result cuStreamAddCallback(Stream stream, Handle callback, void* data, unsigned flags) {
    return show_and_hold<Symbol::cuStreamAddCallback>(stream, stream, callback, data, flags);
}

Result cuStreamAddCallback_ptsz(Stream stream, Handle callback, void* data, unsigned flags) {
    return show_and_hold<Symbol::cuStreamAddCallback_ptsz>(stream, stream, callback, data, flags);
}

#define SEMAPHORES_HOOK(name, effect)                                                          \
    Result name(const Handle* semaphores, const void* params, unsigned count, Stream stream) { \
        return effect<Symbol::name>(stream, semaphores, params, count, stream);                \
    }
SEMAPHORES_HOOK(cuSignalExternalSemaphoresAsync, show)
SEMAPHORES_HOOK(cuSignalExternalSemaphoresAsync_ptsz, show)
SEMAPHORES_HOOK(cuWaitExternalSemaphoresAsync, hold)
SEMAPHORES_HOOK(cuWaitExternalSemaphoresAsync_ptsz, hold)
#undef SEMAPHORES_HOOK
// NOLINTEND(bugprone-macro-parentheses)

}  // extern "C"

}  // namespace explsched::intercept
