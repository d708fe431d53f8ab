// What a launch is expected to take from the GPU.
#pragma once

#include "kernel_intercept/gate/kernel.hpp"
#include "kernel_intercept/interposer/contexts.hpp"
#include "kernel_intercept/interposer/functions.hpp"

namespace explsched::intercept {

// The running time assumed of a kernel nobody has timed. Kernels of deep learning run from a few to a few
// hundred microseconds; the first samples replace this.
constexpr std::uint64_t kUnknownKernelNs = 20'000;

// Without a measurement: compute is the share of multiprocessors that the grid can occupy, and all of the
// bandwidth, so that an unknown kernel is run beside no other.
KernelCost estimated_cost(const ContextRecord& gpu, const FunctionFacts& facts,
                          const KernelKey& key) noexcept;

// The manager's figure if it has one, else the estimate.
KernelCost expected_cost(const ContextRecord& gpu, const FunctionFacts& facts, const KernelKey& key) noexcept;

}  // namespace explsched::intercept
