// The model of the GPU: kernels as fluids that share two resources.
//
// All kernels that run now progress at the same rate, 1 / max(1, sum of compute shares, sum of bandwidth
// shares). The model is linear on purpose, so that what a scheduling rule should achieve on it can be
// computed by hand. It has no notion of blocks, of stream priorities or of caches.
//
// Nothing here locks, sleeps or reads a clock.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/kernel/fakecuda/gpu/state.hpp"

namespace fakecuda::gpu {

struct EndedKernel {
    std::int32_t pid;
    std::int32_t stream;
    std::int64_t ended_ns;
    Task task;
};

// Computes the state at `until_ns` (no earlier than state.now_ns), and adds the kernels that ended to
// `ended`.
void advance(State& state, std::int64_t until_ns, std::vector<EndedKernel>& ended);

// Carries out the memory accesses of a process, by that process itself, which the model has come to. Returns
// whether it has any left.
bool serve_memory(State& state, std::int32_t process, std::vector<EndedKernel>& ended);

// No task of `stream` up to number `count` ends before this time, if nobody submits anything. In ns of the
// virtual GPU.
std::int64_t earliest_end_ns(const State& state, std::int32_t stream, std::uint64_t count);

// Removes a process that died, with everything it had submitted.
void bury(State& state, std::int32_t process);

}  // namespace fakecuda::gpu
