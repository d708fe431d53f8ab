// What the gate keeps on the hostile device, in virtual time: the same figures on every machine.

#include <cstdio>

#include "tests/kernel/gate/check.hpp"
#include "tests/kernel/hostile/arms.hpp"
#include "tests/kernel/hostile/oracle.hpp"

using namespace hostile;
using explsched::manager::Settings;
using explsched::shared::Policy;

namespace {

constexpr std::uint64_t kS = 1'000'000'000;

double low_work(const Result& result) {
    double sum = 0;
    for (std::size_t i = 1; i < result.clients.size(); ++i) sum += result.clients[i].work_ns;
    return sum;
}

double p99(const Result& result) { return percentile(result.clients[0].latencies_ns, 0.99); }

Result run_with(const std::vector<Program>& programs, Profiles profiles, std::unique_ptr<Arm> arm) {
    return run(programs, profiles, *arm, kS, 5 * kS);
}

void high_priority_keeps_its_latency_and_best_effort_goes_on() {
    const std::vector<std::vector<Program>> mixes{
        {vision_server(), vision_training()},
        {vision_server(), graph_training()},
        {vision_server(), parallel_training(), short_training()},
        {language_server(), short_training(), language_training()},
        {vision_server(), vision_training(), language_training(), graph_training(), short_training()},
    };
    for (const std::vector<Program>& mix : mixes) {
        const Result alone = run_with({mix[0]}, Profiles::kKnown, mps_alone());
        const Result free = run_with(mix, Profiles::kKnown, mps_alone());
        for (const Profiles profiles : {Profiles::kKnown, Profiles::kLearnt}) {
            const Result ours = run_with(mix, profiles, gated({}));
            std::printf("%zu clients: p99 %.3f (MPS alone %.3f), best-effort kept %.3f\n", mix.size(),
                        p99(ours) / p99(alone), p99(free) / p99(alone), low_work(ours) / low_work(free));
            CHECK(p99(ours) <= 1.08 * p99(alone));
            CHECK(p99(free) > 1.25 * p99(alone));  // else there is nothing to keep
            CHECK(low_work(ours) >= 0.7 * low_work(free));
            CHECK(ours.let_in_beside <= 0.001);
        }
    }
}

// Without any share of their time an oracle delays no request; with one it gets more done than the gate.
void an_oracle_keeps_its_promise() {
    const std::vector<Program> mix{vision_server(), vision_training()};
    const Result alone = run_with({mix[0]}, Profiles::kKnown, mps_alone());
    const double slow_ns = p99(alone), usual_ns = percentile(alone.clients[0].latencies_ns, 0.5);
    for (const Promise promise : {Promise::kEach, Promise::kTail}) {
        const Result best =
            run_with(mix, Profiles::kKnown, oracle({Means::kPairs, promise, 0.07, slow_ns, usual_ns, 1.2}));
        CHECK(p99(best) <= 1.071 * slow_ns);
        CHECK(low_work(best) > low_work(run_with(mix, Profiles::kKnown, gated({}))));
    }
    const Result none =
        run_with(mix, Profiles::kKnown, oracle({Means::kPairs, Promise::kEach, 0, slow_ns, usual_ns, 1.2}));
    CHECK(p99(none) <= 1.001 * slow_ns);
}

void quotas_are_kept_though_nobody_synchronises() {
    Settings settings;
    settings.policy = Policy::kQuota;
    const std::vector<Program> pair{whole_gpu_training(300), whole_gpu_training(700)};
    const Result free = run_with(pair, Profiles::kKnown, mps_alone());
    const Result ours = run_with(pair, Profiles::kKnown, gated(settings));
    const double total = ours.clients[0].work_ns + ours.clients[1].work_ns;
    std::printf("quota 30/70: %.3f, total %.3f\n", ours.clients[0].work_ns / total,
                total / (free.clients[0].work_ns + free.clients[1].work_ns));
    CHECK(ours.clients[0].work_ns / total >= 0.28 && ours.clients[0].work_ns / total <= 0.32);
    CHECK(total >= 0.97 * (free.clients[0].work_ns + free.clients[1].work_ns));
}

}  // namespace

int main() {
    high_priority_keeps_its_latency_and_best_effort_goes_on();
    an_oracle_keeps_its_promise();
    quotas_are_kept_though_nobody_synchronises();
    return check::result();
}
