#include "kernel_intercept/interposer/launch.hpp"

#include "kernel_intercept/gate/gate.hpp"
#include "kernel_intercept/interposer/boundaries.hpp"
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

gate::Admission pay(const Launch& launch, gate::Patience patience, const KernelCost& cost,
                    ContextRecord& context) noexcept {
    note_stream(context, stream_identity(launch.stream, launch.null_stream));
    const int stream = counted_stream(context, launch.stream, launch.null_stream);
    const gate::Decision decision = gate::admit(context.ordinal, stream, cost, patience);
    if (__builtin_expect(decision.boundary.writes || decision.boundary.waits, 0))
        put_boundary(context, stream, launch.stream, launch.null_stream, decision.boundary);
    return decision.admission;
}

bool sample_is_due(const Launch& launch, std::uint64_t key_hash, ContextRecord& context) noexcept {
    if (context.pending.load(std::memory_order_relaxed) != 0 && ++t_launches % kReadEvery == 0) {
        read_timings(context);
    }
    return gate::sampling_due(key_hash) && launch.timing == Timing::kAllowed && !any_capture();
}

}  // namespace

ContextRecord* managed_context(const Launch& launch) noexcept {
    if (is_capturing(launch.stream, launch.null_stream)) return nullptr;
    ContextRecord* context = current_context();
    if (context == nullptr || gate::manages(context->ordinal)) return context;
    return mode() == Mode::kTracing ? context : nullptr;
}

Admitted admit(const Launch& launch, const KernelCost& cost, const gate::Sample& sample,
               std::uint64_t key_hash, ContextRecord& context) noexcept {
    const gate::Admission admission = pay(launch, launch.patience, cost, context);
    if (__builtin_expect(mode() == Mode::kTracing, 0)) {
        trace({launch.entry, sample.name, sample.key.grid, sample.key.block, sample.key.dynamic_shared_bytes,
               admission == gate::Admission::kGranted});
    }
    Admitted admitted{&context, nullptr};
    if (sample_is_due(launch, key_hash, context)) {
        admitted.timed = start_timing(context, launch.stream, launch.null_stream, sample);
    }
    return admitted;
}

Admitted admit(const KernelLaunch& kernel) noexcept {
    const Mode now = mode();
    if (now == Mode::kOff) return {};
    const Launch& launch = kernel.launch;
    ContextRecord* context = managed_context(launch);
    if (context == nullptr) {
        if (__builtin_expect(now == Mode::kTracing, 0)) {
            trace_kernel(kernel, function_facts(kernel.shape.function, 0).name.text,
                         gate::Admission::kPassThrough);
        }
        return {};
    }
    const LaunchFacts facts = launch_facts(*context, kernel.shape);
    const KernelCost cost = expected_cost(facts);
    if (__builtin_expect(facts.collective, 0)) gate::collective_launched(context->ordinal);
    const gate::Admission admission =
        pay(launch, facts.collective ? gate::Patience::kMustNotWait : launch.patience, cost, *context);
    if (__builtin_expect(now == Mode::kTracing, 0)) trace_kernel(kernel, facts.name.text, admission);
    Admitted admitted{context, nullptr};
    if (sample_is_due(launch, facts.key_hash, *context)) {
        admitted.timed = start_timing(*context, launch.stream, launch.null_stream,
                                      {key_of(*context, kernel.shape, facts), cost, facts.name.text});
    }
    return admitted;
}

void charge(const KernelLaunch& kernel, ContextRecord* context) noexcept {
    const Mode now = mode();
    if (now == Mode::kOff) return;
    const Launch& launch = kernel.launch;
    if (context != nullptr && !is_capturing(launch.stream, launch.null_stream)) {
        const LaunchFacts facts = launch_facts(*context, kernel.shape);
        pay(launch, gate::Patience::kMustNotWait, expected_cost(facts), *context);
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
