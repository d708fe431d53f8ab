#include "kernel_intercept/interposer/launch.hpp"

#include "kernel_intercept/gate/gate.hpp"
#include "kernel_intercept/interposer/functions.hpp"
#include "kernel_intercept/interposer/settings.hpp"
#include "kernel_intercept/interposer/streams.hpp"
#include "kernel_intercept/interposer/timing.hpp"
#include "kernel_intercept/interposer/trace.hpp"

namespace explsched::intercept {
namespace {

constexpr unsigned kReadEvery = 32;  // launches between two looks at pending events
thread_local unsigned t_launches = 0;

void trace_kernel(const KernelLaunch& kernel, const char* name, gate::Admission admission) noexcept {
    trace({kernel.launch.entry, name, kernel.shape.grid, kernel.shape.block, kernel.shape.shared_bytes,
           admission == gate::Admission::kGranted});
}

gate::Admission pay(const Launch& launch, const KernelCost& cost, ContextRecord& context) noexcept {
    note_stream(context, stream_identity(launch.stream, launch.null_stream));
    if (launch.waiting == Waiting::kAllowed) return gate::admit(context.ordinal, cost);
    gate::charge(context.ordinal, cost);
    return gate::Admission::kPassThrough;
}

TimedLaunch* sample_if_due(const Launch& launch, const KnownLaunch& known, ContextRecord& context) noexcept {
    if (context.pending.load(std::memory_order_relaxed) != 0 && ++t_launches % kReadEvery == 0) {
        read_timings(context);
    }
    if (!gate::sampling_due(known.key_hash)) return nullptr;
    if (launch.timing == Timing::kForbidden || any_capture()) return nullptr;
    return start_timing(context, launch.stream, launch.null_stream, {known.key, known.cost, known.name});
}

}  // namespace

Admitted admit(const Launch& launch, const KnownLaunch& known, ContextRecord& context) noexcept {
    const gate::Admission admission = pay(launch, known.cost, context);
    if (__builtin_expect(mode() == Mode::kTracing, 0)) {
        trace({launch.entry, known.name, known.key.grid, known.key.block, known.key.dynamic_shared_bytes,
               admission == gate::Admission::kGranted});
    }
    return {&context, sample_if_due(launch, known, context)};
}

Admitted admit(const KernelLaunch& kernel) noexcept {
    const Mode now = mode();
    if (now == Mode::kOff) return {};
    ContextRecord* context = nullptr;
    if (!is_capturing(kernel.launch.stream, kernel.launch.null_stream)) context = current_context();
    if (context == nullptr) {
        if (__builtin_expect(now == Mode::kTracing, 0)) {
            trace_kernel(kernel, function_facts(kernel.shape.function, 0).name.text,
                         gate::Admission::kPassThrough);
        }
        return {};
    }
    const LaunchFacts facts = launch_facts(*context, kernel.shape);
    const KernelKey key = key_of(*context, kernel.shape, facts);
    Launch launch = kernel.launch;
    if (facts.collective) launch.waiting = Waiting::kForbidden;
    return admit(launch, {key, facts.key_hash, expected_cost(facts), facts.name.text}, *context);
}

void charge(const KernelLaunch& kernel, ContextRecord* context) noexcept {
    const Mode now = mode();
    if (now == Mode::kOff) return;
    if (context != nullptr && !is_capturing(kernel.launch.stream, kernel.launch.null_stream)) {
        const LaunchFacts facts = launch_facts(*context, kernel.shape);
        pay(kernel.launch, expected_cost(facts), *context);
        gate::launched(context->ordinal);
    }
    if (now == Mode::kTracing) {
        trace_kernel(kernel, function_facts(kernel.shape.function, 0).name.text,
                     gate::Admission::kPassThrough);
    }
}

void end_sample(const Admitted& admitted, const Launch& launch, Result result) noexcept {
    end_timing(*admitted.context, *admitted.timed, launch.stream, launch.null_stream, result);
}

}  // namespace explsched::intercept
