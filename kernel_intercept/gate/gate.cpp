#include "kernel_intercept/gate/gate.hpp"

namespace explsched::gate {

void attach(int, const GpuIdentity&) noexcept {}

std::optional<KernelCost> lookup(const KernelKey&) noexcept { return std::nullopt; }

bool sampling_due(const KernelKey&) noexcept { return false; }

Admission admit(int, const KernelCost&) noexcept { return Admission::kPassThrough; }

void charge(int, const KernelCost&) noexcept {}

void drained(int) noexcept {}

void record(int, const Sample&) noexcept {}

void reset_after_fork() noexcept {}

}  // namespace explsched::gate
