// The contexts that launches go to: which GPU each belongs to, and what of it is being timed.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "kernel_intercept/gate/gate.hpp"
#include "kernel_intercept/interposer/driver_abi.hpp"
#include "kernel_intercept/interposer/occupancy.hpp"

namespace explsched::intercept {

// A launch between two events. The events are made at first use and kept for the context's life.
struct TimedLaunch {
    enum class State : std::uint8_t { kFree, kRecording, kPending, kReading };
    std::atomic<State> state;
    Event start;
    Event end;
    gate::Sample sample;
};

struct ContextRecord {
    std::atomic<Context> context;  // null: unused
    std::atomic<bool> ready;       // the fields below are set
    std::atomic<int> ordinal;
    std::uint32_t compute_capability;
    std::uint32_t multiprocessors;
    MultiprocessorLimits limits;

    // The stream that all launches since the last known idle moment went to; see streams.hpp.
    std::atomic<std::uintptr_t> streams;
    std::atomic<Event> last_event;  // recorded behind all of them, if that was in one stream

    // The gate's signals that this context knows, at `signals_at` on the device (0: not yet, or never).
    std::atomic<void*> pinned;
    std::atomic<std::uint64_t> signals_at;
    std::uint64_t gate_at;           // of one manager: slots differ between managers
    std::atomic<bool> signals_work;  // the GPU has written there
    // Where this process has some signals once more, for contexts that cannot have them at their first
    // address.
    struct Mapping {
        void *of, *at;
    } mapping;

    std::atomic<int> pending;  // timed launches not read yet
    std::array<TimedLaunch, 16> timed;
};

// The record of the thread's current context; made at first sight, which registers the GPU with the manager.
// Null if there is no context, the GPU is none we know, or another thread is making the record right now.
ContextRecord* current_context() noexcept;

// The same, but null unless something was launched there before.
ContextRecord* launched_context() noexcept;

// The record of a given context, if one was made.
ContextRecord* known_context(Context context) noexcept;

// That of a stream, which calls can name where another one is current, of another GPU perhaps. Null if the
// driver does not say, or for special streams, which are those of the current one.
Context context_of(Stream stream) noexcept;

// While it lives, a context is the thread's current one. Null leaves the thread as it is.
class InContext {
   public:
    explicit InContext(Context own) noexcept;
    ~InContext();
    InContext(const InContext&) = delete;
    InContext& operator=(const InContext&) = delete;

   private:
    bool pushed_;
};

// How many contexts of this process launch on a GPU, and whether some launch on another one.
int contexts_on(int ordinal) noexcept;
bool several_gpus() noexcept;

// The event is gone; the next one may have its handle.
void forget_event(Event event) noexcept;

// A context is gone, and its events with it.
void forget_context(Context context) noexcept;

}  // namespace explsched::intercept
