// What happens before and after a launch goes to the driver. All entry points for launches end here.
#pragma once

#include "kernel_intercept/gate/gate.hpp"
#include "kernel_intercept/interposer/boundaries.hpp"
#include "kernel_intercept/interposer/capture.hpp"
#include "kernel_intercept/interposer/contexts.hpp"
#include "kernel_intercept/interposer/cost.hpp"
#include "kernel_intercept/shared/kernel.hpp"

namespace explsched::intercept {

enum class Timing : std::uint8_t {
    kAllowed,
    kForbidden,  // events around the launch would change what it overlaps with
};

struct Launch {
    const char* entry;  // the driver's entry point
    Stream stream;
    NullStream null_stream;
    gate::Patience patience{gate::Patience::kMayWait};
    Timing timing{Timing::kAllowed};
};

struct KernelLaunch {
    Launch launch;
    LaunchShape shape;
};

// What the second half of a launch needs of the first.
struct Admitted {
    ContextRecord* context{nullptr};
    TimedLaunch* timed{nullptr};
};

// The context whose GPU's manager has a say in the launch: the current one. Null while the stream captures,
// and without a manager: then the launch's cost need not be known. A trace tells all launches as if there
// were one.
ContextRecord* managed_context(const Launch& launch) noexcept;

// Waits and pays for the launch as the gate says. The driver is to be called next.
Admitted admit(const KernelLaunch& kernel) noexcept;

// Pays for a launch on another context than the current one, without waiting.
void charge(const KernelLaunch& kernel, ContextRecord* context) noexcept;

// A launch whose cost is known: a graph.
Admitted admit(const Launch& launch, const KernelCost& cost, const gate::Sample& sample,
               std::uint64_t key_hash, ContextRecord& context) noexcept;

void end_sample(const Admitted& admitted, const Launch& launch, Result result) noexcept;

// To be called after the driver, with its answer.
inline void launched(const Admitted& admitted, const Launch& launch, Result result) noexcept {
    if (__builtin_expect(admitted.timed != nullptr, 0)) end_sample(admitted, launch, result);
    if (__builtin_expect(result != kSuccess, 0) && admitted.context != nullptr)
        heed_failure(*admitted.context, result);
}

}  // namespace explsched::intercept
