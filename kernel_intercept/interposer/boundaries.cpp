#include "kernel_intercept/interposer/boundaries.hpp"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <iterator>

#include "kernel_intercept/interposer/driver.hpp"
#include "kernel_intercept/interposer/settings.hpp"

namespace explsched::intercept {
namespace {

// A stream that has a number, by GPU and number. Null streams are told apart by their context, and streams
// per thread by an address that is the thread's own.
struct Numbered {
    std::atomic<std::uintptr_t> key;  // one of those below, or a key
    std::atomic<const ContextRecord*> context;
    Stream stream;
    NullStream null_stream;
    std::atomic<int> tails;  // threads that put one into it: meanwhile it keeps its number
};
constexpr std::uintptr_t kNever = 0, kTaken = 1, kFree = 2;  // no keys; never used: none behind it is

std::array<std::array<Numbered, gate::kCountedStreams>, gate::kMaxGpus> g_streams{};
constexpr std::uint64_t kHoldNs = 1;  // of work that a hold counts as, so that it can be told
thread_local char t_thread;

auto& numbered_on(int ordinal) noexcept { return g_streams[static_cast<std::size_t>(ordinal)]; }

std::uintptr_t key_of_stream(const ContextRecord& context, Stream stream, NullStream null_stream) noexcept {
    const auto handle = reinterpret_cast<std::uintptr_t>(stream);
    const bool per_thread =
        handle == kPerThreadStream || (handle == 0 && null_stream == NullStream::kPerThread);
    if (per_thread)
        return reinterpret_cast<std::uintptr_t>(&t_thread) ^ reinterpret_cast<std::uintptr_t>(&context) << 1;
    return handle > kPerThreadStream ? handle : reinterpret_cast<std::uintptr_t>(&context);
}

MemoryOperation write_to(std::uint64_t address, std::uint64_t value) noexcept {
    return {kWriteValue64, address, value, 0, 0, 0};
}

Result submit(Stream stream, NullStream null_stream, unsigned count, MemoryOperation* operations) noexcept {
    return null_stream == NullStream::kLegacy
               ? call_driver<Symbol::cuStreamBatchMemOp_v2>(stream, count, operations, 0U)
               : call_driver<Symbol::cuStreamBatchMemOp_v2_ptsz>(stream, count, operations, 0U);
}

// What one context has registered is gone with it, for all others too, which may have work that waits there.
// So where another context has the memory at its first address already, this one gets an address of its own.
void* registered(ContextRecord& context, const gate::SignalMemory& signals) noexcept {
    const auto registers = [&signals](void* at) {
        return call_driver<Symbol::cuMemHostRegister_v2>(at, signals.bytes,
                                                         kHostRegisterPortable | kHostRegisterDeviceMap);
    };
    void* at = signals.memory;
    Result result = registers(at);
    if (result == kErrorRegistered && context.mapping.of == signals.memory) {
        at = context.mapping.at;  // of a context that is gone, as a rule
        result = registers(at);
    }
    if (result == kErrorRegistered) {
        at = mremap(signals.memory, 0, signals.bytes, MREMAP_MAYMOVE);
        if (at == MAP_FAILED) return nullptr;
        context.mapping = {signals.memory, at};
        result = registers(at);
    }
    return result == kSuccess ? at : nullptr;
}

// Makes the gate's memory known to the context, and has the GPU write to it once. What it cannot do here it
// is not asked for again before there is another manager.
void pin(ContextRecord& context, const gate::SignalMemory& signals, Stream stream,
         NullStream null_stream) noexcept {
    const RelaxedCaptureMode relaxed;
    if (!relaxed.granted()) return;
    void* none = context.pinned.load(std::memory_order_relaxed);
    if (none == signals.memory || !context.pinned.compare_exchange_strong(none, signals.memory)) return;
    context.signals_work.store(false, std::memory_order_relaxed);
    context.signals_at.store(0, std::memory_order_relaxed);
    if (!g_gate_on_device.load(std::memory_order_relaxed)) return;
    if (driver<Symbol::cuStreamBatchMemOp_v2>() == nullptr) return;
    gate::signals_pinned(context.ordinal);
    void* const memory = registered(context, signals);
    DevicePointer at = 0;
    if (memory == nullptr || call_driver<Symbol::cuMemHostGetDevicePointer_v2>(&at, memory, 0U) != kSuccess)
        return;
    context.gate_at = at + signals.gate_offset;
    context.signals_at.store(at, std::memory_order_release);
    MemoryOperation probe = write_to(at + signals.probe_offset, 1);
    submit(stream, null_stream, 1, &probe);
}

// Whether the GPU's memory operations can be relied on in this context.
bool signals_work(ContextRecord& context, Stream stream, NullStream null_stream) noexcept {
    const gate::SignalMemory signals = gate::signals(context.ordinal);
    if (signals.memory == nullptr) return false;
    if (context.pinned.load(std::memory_order_acquire) != signals.memory)
        pin(context, signals, stream, null_stream);
    if (context.pinned.load(std::memory_order_acquire) != signals.memory) return false;
    if (context.signals_work.load(std::memory_order_acquire)) return true;
    if (context.signals_at.load(std::memory_order_acquire) == 0) return false;
    const auto* probe = reinterpret_cast<const std::atomic<std::uint64_t>*>(
        static_cast<const char*>(signals.memory) + signals.probe_offset);
    if (probe->load(std::memory_order_acquire) == 0) return false;
    context.signals_work.store(true, std::memory_order_release);
    gate::signals_work(context.ordinal);
    return true;
}

// Null where the GPU tells nothing of the stream, or must not be asked to.
ContextRecord* reporting_context(Stream stream, NullStream null_stream) noexcept {
    if (mode() == Mode::kOff) return nullptr;
    ContextRecord* context = launched_context();
    if (context == nullptr || !context->signals_work.load(std::memory_order_acquire)) return nullptr;
    return is_capturing(stream, null_stream) ? nullptr : context;
}

void put_tail_of(ContextRecord& context, int number, Stream stream, NullStream null_stream) noexcept {
    const gate::Boundary boundary = gate::tail(context.ordinal, number);
    if (boundary.writes) put_boundary(context, number, stream, null_stream, boundary);
}

// Takes the number from its stream, or from none, unless its key has changed.
bool take(Numbered& one, std::uintptr_t held) noexcept {
    if (!one.key.compare_exchange_strong(held, kTaken)) return false;
    while (one.tails.load() != 0) sched_yield();  // the driver must not see the handle any more
    return true;
}

// Frees a number that the context has or had last, of which the GPU may have something to tell.
void give_up(const ContextRecord& context, int number, Numbered& one, std::uintptr_t held) noexcept {
    if (one.context.load() != &context || !take(one, held)) return;
    const bool is_own = one.context.load() == &context;  // else another has had it since
    if (is_own) gate::abandon_stream(context.ordinal, number);
    one.key.store(is_own ? kFree : held, std::memory_order_release);
}

}  // namespace

int counted_stream(ContextRecord& context, Stream stream, NullStream null_stream) noexcept {
    if (!signals_work(context, stream, null_stream)) return gate::kUncounted;
    auto& numbered = numbered_on(context.ordinal);
    const std::uintptr_t key = key_of_stream(context, stream, null_stream);
    for (int i = 0; i < gate::kCountedStreams; ++i) {
        const Numbered& one = numbered[static_cast<std::size_t>(i)];
        const std::uintptr_t held = one.key.load(std::memory_order_acquire);
        if (held == key)
            return one.context.load(std::memory_order_relaxed) == &context ? i : gate::kUncounted;
        if (held == kNever) break;
    }
    for (int i = 0; i < gate::kCountedStreams; ++i) {
        Numbered& one = numbered[static_cast<std::size_t>(i)];
        std::uintptr_t held = one.key.load(std::memory_order_relaxed);
        if (held != kNever && held != kFree) continue;
        if (!one.key.compare_exchange_strong(held, kTaken)) break;  // another thread opens one, perhaps this
        if (!gate::open_stream(context.ordinal, i)) {
            one.key.store(held, std::memory_order_release);
            continue;
        }
        one.context.store(&context, std::memory_order_relaxed);
        one.stream = stream;
        one.null_stream = null_stream;
        one.key.store(key, std::memory_order_release);
        return i;
    }
    return gate::kUncounted;
}

void put_boundary(ContextRecord& context, int number, Stream stream, NullStream null_stream,
                  const gate::Boundary& boundary) noexcept {
    const gate::SignalMemory signals = gate::signals(context.ordinal);
    if (signals.memory != context.pinned.load(std::memory_order_acquire)) return;
    const std::uint64_t at = context.signals_at.load(std::memory_order_relaxed);
    MemoryOperation operations[2] = {
        write_to(at + signals.first_done_offset + static_cast<std::size_t>(number) * signals.stream_stride,
                 boundary.done_ns),
        wait_for_gate(context)};
    if (submit(stream, null_stream, boundary.writes + boundary.waits,
               operations + (boundary.writes ? 0 : 1)) == kSuccess)
        return;
    context.signals_work.store(false, std::memory_order_release);
    gate::abandon_stream(context.ordinal, number);  // as of a stream whose green context is gone
}

MemoryOperation wait_for_gate(const ContextRecord& context) noexcept {
    return {kWaitValue32, context.gate_at, 1, kWaitForBits, 0, 0};
}

void put_tail(Stream stream, NullStream null_stream) noexcept { Look(stream, null_stream).ended(false); }

Hold::Hold(Stream stream, NullStream null_stream) noexcept : stream_(stream), null_stream_(null_stream) {
    ContextRecord* context = reporting_context(stream, null_stream);
    if (context == nullptr) return;
    const int number = counted_stream(*context, stream, null_stream);
    if (number == gate::kUncounted) return;
    const KernelCost cost{kHoldNs, 0, 0};
    const gate::Boundary boundary =
        gate::admit(context->ordinal, number, cost, gate::Patience::kMustNotWait).boundary;
    if (boundary.writes) put_boundary(*context, number, stream, null_stream, boundary);
}

Look::Look(Stream stream, NullStream null_stream) noexcept : stream_(stream), null_stream_(null_stream) {
    context_ = reporting_context(stream, null_stream);
    if (context_ == nullptr) return;
    const std::uintptr_t key = key_of_stream(*context_, stream, null_stream);
    for (int i = 0; i < gate::kCountedStreams; ++i) {
        const Numbered& one = numbered_on(context_->ordinal)[static_cast<std::size_t>(i)];
        const std::uintptr_t held = one.key.load();
        if (held == kNever || (held == key && one.context != context_)) return;
        if (held != key) continue;
        number_ = i;
        boundary_ = gate::tail(context_->ordinal, i);
        return;
    }
}

void Look::ended(bool idle) const noexcept {
    if (!boundary_.writes) return;
    if (!idle) return put_boundary(*context_, number_, stream_, null_stream_, boundary_);
    const gate::SignalMemory signals = gate::signals(context_->ordinal);
    if (signals.memory != context_->pinned.load(std::memory_order_acquire)) return;
    auto* done = reinterpret_cast<std::atomic<std::uint64_t>*>(
        static_cast<char*>(signals.memory) + signals.first_done_offset +
        static_cast<std::size_t>(number_) * signals.stream_stride);
    std::uint64_t held = done->load(std::memory_order_relaxed);
    while (held < boundary_.done_ns && !done->compare_exchange_weak(held, boundary_.done_ns)) {
    }
}

void put_all_tails(ContextRecord& context) noexcept {
    if (!context.signals_work.load(std::memory_order_acquire)) return;
    for (int i = 0; i < gate::kCountedStreams; ++i) {
        Numbered& one = numbered_on(context.ordinal)[static_cast<std::size_t>(i)];
        if (one.key.load(std::memory_order_acquire) == kNever) return;
        one.tails.fetch_add(1);
        const std::uintptr_t held = one.key.load();
        // Streams of other threads have no handle that means them here. While anything captures, the stream
        // may be the next, or one that captures cannot bear.
        if (held > kFree && one.context == &context &&
            held == key_of_stream(context, one.stream, one.null_stream) && !any_capture())
            put_tail_of(context, i, one.stream, one.null_stream);
        one.tails.fetch_sub(1);
    }
}

void await_tails() noexcept {
    for (auto& numbered : g_streams) {
        for (Numbered& one : numbered) {
            if (one.key.load(std::memory_order_acquire) == kNever) break;
            while (one.tails.load() != 0) sched_yield();
        }
    }
}

void forget_stream(Stream stream) noexcept {
    const auto key = reinterpret_cast<std::uintptr_t>(stream);
    if (key <= kPerThreadStream) return;
    for (auto& numbered : g_streams) {
        for (Numbered& one : numbered) {
            if (one.key.load(std::memory_order_relaxed) == key && take(one, key))
                one.key.store(kFree, std::memory_order_release);
        }
    }
}

void forget_tails_of_parent() noexcept {
    for (auto& numbered : g_streams) {
        for (Numbered& one : numbered) one.tails.store(0, std::memory_order_relaxed);
    }
}

void heed_failure(const ContextRecord& context, Result result) noexcept {
    if (std::find(std::begin(kLastingErrors), std::end(kLastingErrors), result) == std::end(kLastingErrors))
        return;
    for (int i = 0; i < gate::kCountedStreams; ++i) {
        Numbered& one = numbered_on(context.ordinal)[static_cast<std::size_t>(i)];
        one.tails.fetch_add(1);
        const std::uintptr_t held = one.key.load();
        if (held > kFree && one.context.load() == &context) gate::abandon_stream(context.ordinal, i);
        one.tails.fetch_sub(1);
        if (held == kFree) give_up(context, i, one, held);
    }
}

void forget_streams_of(const ContextRecord& context) noexcept {
    auto& numbered = numbered_on(context.ordinal);
    for (int i = 0; i < gate::kCountedStreams; ++i) {
        Numbered& one = numbered[static_cast<std::size_t>(i)];
        const std::uintptr_t held = one.key.load(std::memory_order_acquire);
        if (held >= kFree) give_up(context, i, one, held);
    }
}

}  // namespace explsched::intercept
