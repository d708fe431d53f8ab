// The arms of the comparison: CUDA MPS alone, MPS with what it can be told of its clients, and the gate.
#pragma once

#include <memory>

#include "kernel_intercept/manager/settings.hpp"
#include "tests/kernel/hostile/scenario.hpp"

namespace hostile {

// What MPS was told at their start. Without it, all clients are the same to it.
struct Told {
    bool priority{false};                      // high-priority clients are prior
    std::uint32_t best_effort_permille{1000};  // of the multiprocessors
};

std::unique_ptr<Arm> mps_alone(const Told& told = {});
std::unique_ptr<Arm> gated(const explsched::manager::Settings& settings, const Told& told = {});

}  // namespace hostile
