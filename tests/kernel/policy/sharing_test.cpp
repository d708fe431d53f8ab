// What the rules achieve on a GPU in virtual time: an inference server and one to four trainings, and quotas.

#include <cstdio>

#include "tests/kernel/gate/check.hpp"
#include "tests/kernel/policy/model.hpp"

using namespace model;
using explsched::KernelCost;
using explsched::manager::Settings;
using explsched::shared::Class;
using explsched::shared::Policy;

namespace {

constexpr std::uint64_t kUs = 1000, kMs = 1'000'000, kS = 1'000'000'000;

std::vector<KernelCost> repeated(const std::vector<KernelCost>& kernels, int times) {
    std::vector<KernelCost> all;
    for (int i = 0; i < times; ++i) all.insert(all.end(), kernels.begin(), kernels.end());
    return all;
}

const KernelCost kConv{1000 * kUs, 600, 200}, kNorm{1000 * kUs, 200, 600};
const KernelCost kMath{500 * kUs, 250, 100}, kCopy{500 * kUs, 100, 250};
const ClientSpec kServer{Class::kHigh, repeated({kConv, kNorm}, 20), 80 * kMs};

ClientSpec training(const std::vector<KernelCost>& kernels) {
    return {Class::kBestEffort, repeated(kernels, static_cast<int>(40 / kernels.size())), 0};
}

const std::vector<ClientSpec> kTrainings{training({kMath}), training({kCopy}), training({kMath, kCopy}),
                                         training({kMath, kMath, kCopy, kCopy})};

double work(const Result& result) {
    double sum = 0;
    for (std::size_t i = 1; i < result.clients.size(); ++i)
        sum += static_cast<double>(result.clients[i].work_ns);
    return sum;
}

void the_server_is_not_slowed_and_the_trainings_go_on() {
    Settings settings;
    settings.ahead_ns = 4 * kMs;
    const Result alone = run(settings, {kServer}, Sharing::kUnmanaged, 30 * kS);
    const auto p99 = [](const Result& result) {
        return static_cast<double>(percentile(result.clients[0].latencies_ns, 0.99));
    };
    for (unsigned set = 1; set < 16; ++set) {
        std::vector<ClientSpec> clients{kServer};
        for (unsigned i = 0; i < 4; ++i) {
            if ((set >> i & 1) != 0) clients.push_back(kTrainings[i]);
        }
        const Result free = run(settings, clients, Sharing::kUnmanaged, 30 * kS);
        const Result ours = run(settings, clients, Sharing::kManaged, 30 * kS);
        std::printf(
            "%2u: p99 / alone %.3f (unmanaged %.3f), best-effort kept %.3f, above the caps %.4f of the "
            "time\n",
            set, p99(ours) / p99(alone), p99(free) / p99(alone), work(ours) / work(free), ours.above_caps);
        CHECK(p99(ours) <= 1.05 * p99(alone));
        CHECK(work(ours) >= 0.8 * work(free));
        CHECK(ours.best_effort_above_caps <= 0.001);
        CHECK(ours.above_caps <= 0.025);  // only when a request arrives on top of what runs
        for (const ClientResult& client : ours.clients) CHECK(client.longest_wait_ns < 50 * kMs);
    }
}

void no_training_starves() {
    Settings settings;
    // One that needs nearly all of the GPU among small ones that would always fit.
    const KernelCost large{300 * kUs, 900, 900}, small{300 * kUs, 300, 300};
    const Result result =
        run(settings, {training({large}), training({small}), training({small}), training({small})},
            Sharing::kManaged, 10 * kS);
    const double fair = 10e9 / 4;
    CHECK(static_cast<double>(result.clients[0].work_ns) > 0.4 * fair);
    CHECK(result.above_caps == 0);
}

void quotas_are_kept_and_the_gpu_is_full() {
    Settings settings;
    settings.policy = Policy::kQuota;
    const KernelCost whole{700 * kUs, 1000, 400};
    ClientSpec small = training({whole}), large = training({whole});
    small.request_permille = 300;
    large.request_permille = 700;
    const Result free = run(settings, {small, large}, Sharing::kUnmanaged, 20 * kS);
    const Result ours = run(settings, {small, large}, Sharing::kManaged, 20 * kS);
    const auto total = [](const Result& result) {
        return static_cast<double>(result.clients[0].work_ns + result.clients[1].work_ns);
    };
    const double share = static_cast<double>(ours.clients[0].work_ns) / total(ours);
    std::printf("quota 30/70: %.3f / %.3f, total %.3f of unmanaged\n", share, 1 - share,
                total(ours) / total(free));
    CHECK(share >= 0.28 && share <= 0.32);
    CHECK(total(ours) >= 0.97 * total(free));
}

}  // namespace

int main() {
    the_server_is_not_slowed_and_the_trainings_go_on();
    no_training_starves();
    quotas_are_kept_and_the_gpu_is_full();
    return check::result();
}
