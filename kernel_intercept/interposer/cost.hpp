// What a launch is expected to take from the GPU.
#pragma once

#include "kernel_intercept/interposer/contexts.hpp"
#include "kernel_intercept/interposer/functions.hpp"
#include "kernel_intercept/shared/kernel.hpp"

namespace explsched::intercept {

// The running time assumed of a kernel nobody has timed. Kernels of deep learning run from a few to a few
// hundred microseconds; the first samples replace this.
constexpr std::uint64_t kUnknownKernelNs = 20'000;

struct LaunchShape {
    Function function;
    Dim3 grid;
    Dim3 block;
    std::uint32_t shared_bytes;  // dynamic
};

struct LaunchFacts {
    KernelName name;
    std::uint64_t key_hash;          // of the launch's key
    std::uint32_t compute_permille;  // the share of the multiprocessors that the grid can occupy
    bool collective;
};

// Lock-free and a few nanoseconds for a launch seen before.
LaunchFacts launch_facts(const ContextRecord& gpu, const LaunchShape& shape) noexcept;

KernelKey key_of(const ContextRecord& gpu, const LaunchShape& shape, const LaunchFacts& facts) noexcept;

// The manager's figure if it has one. Else the default time, the computed share, and all of the bandwidth,
// so that an unknown kernel is run beside no other.
KernelCost expected_cost(const LaunchFacts& facts) noexcept;

}  // namespace explsched::intercept
