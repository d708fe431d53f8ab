// The client side of the kernel manager: asked before a launch, told after it.
//
// No function here throws, takes a lock or calls the CUDA driver. Without a manager, or when it is dead,
// everything passes. All state is constant-initialised: the library that links this has no constructors.
#pragma once

#include <array>
#include <cstdint>

#include "kernel_intercept/gate/kernel.hpp"

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
    kGranted,      // paid for from credit
    kPassThrough,  // no manager, a dead one, or a wait that reached its bound
};

// Registers this process with the manager for a GPU. `ordinal` is the CUDA device ordinal, below kMaxGpus.
// May block for up to 100 ms at the first call. Repeated calls for the same ordinal do nothing.
void attach(int ordinal, const GpuIdentity& gpu) noexcept;

// Whether a manager was asked for when the GPU was attached, be it alive or not. Without one none of the
// functions below does anything, and a caller can spare itself what they need to be told.
bool manages(int ordinal) noexcept;

// The two below take `hash_of` of the launch's key, so that callers can make it once and keep it.

// The measured or imported cost of a launch, if the manager knows it; else `estimate`.
KernelCost lookup(std::uint64_t key_hash, const KernelCost& estimate) noexcept;

// Whether this launch of the key should be timed and given to `record`.
bool sampling_due(std::uint64_t key_hash) noexcept;

// Waits, for at most 50 ms, until the launch may go to the GPU, and charges its cost.
Admission admit(int ordinal, const KernelCost& cost) noexcept;

// Charges the cost of a launch that must not wait: blocks of a cooperative kernel wait for each other, and a
// collective waits for other GPUs.
void charge(int ordinal, const KernelCost& cost) noexcept;

// To be called right before the driver is, for a launch that was admitted or charged. If it was held up
// since, it begins as much later than others think, and they are told.
void before_driver(int ordinal) noexcept;

// The driver's call has returned. If that took long, nobody knows when in it the kernel began, unless it may
// have waited for the kernel, as with CUDA_LAUNCH_BLOCKING.
void after_driver(int ordinal) noexcept;

// All that this process has launched on the GPU so far is done: a synchronising call has returned.
void drained(int ordinal) noexcept;

// Hands a measurement to the manager. Drops it when the ring is full.
void record(int ordinal, const Sample& sample) noexcept;

// In the child of a fork: forgets the parent's registration. The next `attach` registers anew.
void reset_after_fork() noexcept;

constexpr int kMaxGpus = 16;

}  // namespace explsched::gate
