// The client side of the kernel manager: asked before a launch, told after it.
//
// No function here throws or calls the CUDA driver. Without a manager, or when it is dead, everything passes.
// All state is constant-initialised: the library that links this has no constructors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernel_intercept/shared/kernel.hpp"

namespace explsched::gate {

struct GpuIdentity {
    std::array<unsigned char, 16> uuid;
    std::uint32_t compute_capability;  // 10 * major + minor
    std::uint32_t multiprocessors;
};

// A launch timed by events. `name` is the mangled name, told once per key at least, else nullptr.
struct Sample {
    KernelKey key;
    KernelCost cost;  // gpu_ns measured; the shares as far as known to the caller (occupancy)
    const char* name;
};

enum class Admission : std::uint8_t {
    kGranted,
    kPassThrough,  // no manager, a dead one, or a wait that reached its bound
};

// Memory operations to put into the launch's stream before it, if any: a write of `done_ns` to the stream's
// `done` word, then a wait for the lowest bit of the client's gate.
struct Boundary {
    bool writes{false};
    bool waits{false};
    std::uint64_t done_ns{0};
};

// Blocks of a cooperative kernel wait for each other, and a collective for other GPUs: such must not wait.
enum class Patience : std::uint8_t { kMayWait, kMustNotWait };

struct Decision {
    Admission admission{Admission::kPassThrough};
    Boundary boundary{};
};

// The streams of a process on a GPU whose progress the GPU writes down have numbers below kCountedStreams.
// What other streams have done is predicted, and their launches wait on the host.
constexpr int kCountedStreams = 31;
constexpr int kUncounted = kCountedStreams;

// The memory that the GPU writes to, to be pinned for each context. Null without a manager.
struct SignalMemory {
    void* memory;
    std::size_t bytes;
    std::size_t gate_offset;        // of this client's gate in it, a 32-bit word
    std::size_t probe_offset;       // of a 64-bit word that shows whether the GPU writes there
    std::size_t first_done_offset;  // of its stream 0's `done`, a 64-bit word
    std::size_t stream_stride;
};

// Registers this process with the manager for a GPU. `ordinal` is the CUDA device ordinal, below kMaxGpus.
// May block for up to 100 ms at the first call. Repeated calls for the same ordinal do nothing.
void attach(int ordinal, const GpuIdentity& gpu) noexcept;

// Whether a manager was asked for when the GPU was attached, be it alive or not. Without one none of the
// functions below does anything, and a caller can spare itself what they need to be told.
bool manages(int ordinal) noexcept;

// Whether this process asks a manager to be served as best-effort, by the environment as it is now: to be
// asked once, since the program may change it, and crash a reader meanwhile.
bool is_best_effort() noexcept;

SignalMemory signals(int ordinal) noexcept;

// The GPU may write to that memory from now on: it stays as it is.
void signals_pinned(int ordinal) noexcept;

// The GPU has carried out a memory operation of this process: what it counts can be relied on.
void signals_work(int ordinal) noexcept;

// A stream takes the number `stream`: what was issued under it before is done. False, and nothing changes,
// while the GPU has yet to tell the end of that: the work of a destroyed stream goes on.
bool open_stream(int ordinal, int stream) noexcept;

// The stream's context goes, and its work with it, whether or not the GPU still tells of it.
void abandon_stream(int ordinal, int stream) noexcept;

// The two below take `hash_of` of the launch's key, so that callers can make it once and keep it.

// The measured or imported cost of a launch, if the manager knows it; else `estimate`.
KernelCost lookup(std::uint64_t key_hash, const KernelCost& estimate) noexcept;

// To be asked at each launch that has paid: whether it should be timed and given to `record`.
bool sampling_due(std::uint64_t key_hash) noexcept;

// Waits, for at most 50 ms, until the launch may go to the GPU, unless it must not; and charges its cost.
Decision admit(int ordinal, int stream, const KernelCost& cost,
               Patience patience = Patience::kMayWait) noexcept;

// A kernel that waits for other GPUs is about to be launched. Says so on standard error if another process
// has such kernels on the same GPU: where they run at the same time, each may wait for the other for ever.
void collective_launched(int ordinal) noexcept;

// Whether graphs of this process are to wait for its gate between their kernels.
bool graphs_wait(int ordinal) noexcept;

// What to put into the stream so that the end of all launched so far is told: before its end is waited for.
Boundary tail(int ordinal, int stream) noexcept;

// All that this process has launched on the GPU so far is done: a synchronising call has returned.
void drained(int ordinal) noexcept;

// The program has looked up a function that is hooked, and was given ours or not: what goes through others is
// not managed.
void looked_up(bool routed) noexcept;

// Hands a measurement to the manager. Drops it when the ring is full.
void record(int ordinal, const Sample& sample) noexcept;

// To what standard error was when the first GPU was attached, or something first told, if it still is:
// daemons close it, too. Nothing where whoever reads it is gone (SIGPIPE), or has stopped: no launch waits
// for that.
void tell(const char* text) noexcept;

// In the child of a fork: forgets the parent's registration. The next `attach` registers anew.
void reset_after_fork() noexcept;

constexpr int kMaxGpus = 16;

}  // namespace explsched::gate
