#include "kernel_intercept/interposer/contexts.hpp"

#include <algorithm>

#include "kernel_intercept/interposer/boundaries.hpp"
#include "kernel_intercept/interposer/driver.hpp"
#include "kernel_intercept/interposer/fork.hpp"

namespace explsched::intercept {
namespace {

std::array<ContextRecord, 64> g_records{};
std::atomic<std::uint32_t> g_epoch{1};  // grows when a record is dropped

// What the thread saw last. Trivial, so that thread-local storage needs no construction.
struct Seen {
    Context context;
    ContextRecord* record;
    std::uint32_t epoch;
};
thread_local Seen t_seen{nullptr, nullptr, 0};

bool ask_uuid(Device device, Uuid& uuid) noexcept {
    // The second version tells instances of a partitioned GPU apart.
    return call_driver<Symbol::cuDeviceGetUuid_v2>(&uuid, device) == kSuccess ||
           call_driver<Symbol::cuDeviceGetUuid>(&uuid, device) == kSuccess;
}

bool ask_attribute(int attribute, Device device, std::uint32_t& value) noexcept {
    int found = 0;
    if (call_driver<Symbol::cuDeviceGetAttribute>(&found, attribute, device) != kSuccess || found < 0)
        return false;
    value = static_cast<std::uint32_t>(found);
    return true;
}

// Fills in the GPU of the current context. False if it is none we can know.
bool identify(ContextRecord& record) noexcept {
    Device device = -1;
    Uuid uuid{};
    std::uint32_t major = 0;
    std::uint32_t minor = 0;
    if (call_driver<Symbol::cuCtxGetDevice>(&device) != kSuccess) return false;
    if (device < 0 || device >= gate::kMaxGpus) return false;
    if (!ask_uuid(device, uuid)) return false;
    if (!ask_attribute(kDeviceMultiprocessors, device, record.multiprocessors)) return false;
    if (!ask_attribute(kDeviceCapabilityMajor, device, major)) return false;
    if (!ask_attribute(kDeviceCapabilityMinor, device, minor)) return false;
    record.ordinal = device;
    record.compute_capability = 10 * major + minor;
    record.limits = multiprocessor_limits(record.compute_capability);
    gate::GpuIdentity identity{};
    std::copy(std::begin(uuid.bytes), std::end(uuid.bytes), identity.uuid.begin());
    identity.compute_capability = record.compute_capability;
    identity.multiprocessors = record.multiprocessors;
    gate::attach(device, identity);
    return true;
}

void release(ContextRecord& record) noexcept {
    record.ready.store(false, std::memory_order_relaxed);
    record.streams.store(0, std::memory_order_relaxed);
    record.last_event.store(nullptr, std::memory_order_relaxed);
    record.pinned.store(nullptr, std::memory_order_relaxed);
    record.signals_work.store(false, std::memory_order_relaxed);
    forget_streams_of(record);
    record.pending.store(0, std::memory_order_relaxed);
    for (TimedLaunch& timed : record.timed) {
        timed.start = nullptr;
        timed.end = nullptr;
        timed.state.store(TimedLaunch::State::kFree, std::memory_order_relaxed);
    }
    record.context.store(nullptr, std::memory_order_release);
}

// Claims a free record for the context. The claim is its context field: a second thread sees it.
ContextRecord* make_record(Context context) noexcept {
    for (ContextRecord& record : g_records) {
        Context none = nullptr;
        if (!record.context.compare_exchange_strong(none, context, std::memory_order_acq_rel)) {
            if (none == context) return nullptr;  // another thread is at it
            continue;
        }
        watch_forks();
        if (!identify(record)) {
            release(record);
            return nullptr;
        }
        record.ready.store(true, std::memory_order_release);
        return &record;
    }
    return nullptr;
}

Context ask_current() noexcept {
    Context context = nullptr;
    return call_driver<Symbol::cuCtxGetCurrent>(&context) == kSuccess ? context : nullptr;
}

ContextRecord* remembered(Context context, ContextRecord* record) noexcept {
    if (record != nullptr) t_seen = {context, record, g_epoch.load(std::memory_order_acquire)};
    return record;
}

ContextRecord* seen_record(Context context) noexcept {
    if (t_seen.context == context && t_seen.epoch == g_epoch.load(std::memory_order_acquire))
        return t_seen.record;
    return remembered(context, known_context(context));
}

}  // namespace

ContextRecord* known_context(Context context) noexcept {
    for (ContextRecord& record : g_records) {
        if (record.context.load(std::memory_order_acquire) != context) continue;
        return record.ready.load(std::memory_order_acquire) ? &record : nullptr;
    }
    return nullptr;
}

ContextRecord* current_context() noexcept {
    const Context context = ask_current();
    if (context == nullptr) return nullptr;
    ContextRecord* record = seen_record(context);
    return record != nullptr ? record : remembered(context, make_record(context));
}

ContextRecord* launched_context() noexcept {
    const Context context = ask_current();
    return context == nullptr ? nullptr : seen_record(context);
}

Context context_of(Stream stream) noexcept {
    Context own = nullptr;
    const bool told = reinterpret_cast<std::uintptr_t>(stream) > kPerThreadStream &&
                      call_driver<Symbol::cuStreamGetCtx>(stream, &own) == kSuccess;
    return told ? own : nullptr;
}

InContext::InContext(Context own) noexcept
    : pushed_(own != nullptr && own != ask_current() &&
              call_driver<Symbol::cuCtxPushCurrent_v2>(own) == kSuccess) {}

InContext::~InContext() {
    Context own = nullptr;
    if (pushed_) call_driver<Symbol::cuCtxPopCurrent_v2>(&own);
}

int contexts_on(int ordinal) noexcept {
    return static_cast<int>(
        std::count_if(g_records.begin(), g_records.end(), [ordinal](const ContextRecord& record) {
            return record.ready.load(std::memory_order_acquire) && record.ordinal == ordinal;
        }));
}

bool several_gpus() noexcept {
    int first = -1;
    for (const ContextRecord& record : g_records) {
        if (!record.ready.load(std::memory_order_acquire)) continue;
        if (first >= 0 && record.ordinal != first) return true;
        first = record.ordinal;
    }
    return false;
}

void forget_event(Event event) noexcept {
    for (ContextRecord& record : g_records) {
        Event held = event;
        if (record.last_event.load(std::memory_order_relaxed) == event)
            record.last_event.compare_exchange_strong(held, nullptr, std::memory_order_relaxed);
    }
}

void forget_context(Context context) noexcept {
    for (ContextRecord& record : g_records) {
        if (record.context.load(std::memory_order_acquire) == context) release(record);
    }
    g_epoch.fetch_add(1, std::memory_order_acq_rel);
}

}  // namespace explsched::intercept
