// The arms of the comparison: CUDA MPS alone, and the gate.
#pragma once

#include <memory>

#include "kernel_intercept/manager/settings.hpp"
#include "tests/kernel/hostile/scenario.hpp"

namespace hostile {

std::unique_ptr<Arm> mps_alone();
std::unique_ptr<Arm> gated(const explsched::manager::Settings& settings);

}  // namespace hostile
