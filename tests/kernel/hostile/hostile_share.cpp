// How well the gate shares the hostile device, beside CUDA MPS alone: for benchmarks/kernel_share.py
// --hostile.
//
//   hostile_share SECONDS [WARM_UP_SECONDS [VARIANT]]          MPS alone and the gate, without and with the
//                                                              priority that `sxrun --mps` asks MPS for
//   hostile_share oracle SECONDS [VARIANT]                     MPS alone and what no gate can exceed
//   hostile_share told SECONDS [VARIANT]      MPS told of priority or a share, alone and with the gate; and
//                                             what nothing can exceed that changes shares at any moment
//
// In virtual time, so the figures do not depend on the machine. Prints one JSON object.

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>

#include "tests/kernel/hostile/arms.hpp"
#include "tests/kernel/hostile/oracle.hpp"

using namespace hostile;
using explsched::manager::Settings;
using explsched::shared::Policy;

namespace {

constexpr double kSecond = 1e9;

struct Mix {
    const char* name;
    std::vector<Program> programs;
};

std::vector<Mix> mixes() {
    return {
        {"eager + vision", {vision_server(), vision_training()}},
        {"eager + short", {vision_server(), short_training()}},
        {"eager + language", {vision_server(), language_training()}},
        {"eager + graphs", {vision_server(), graph_training()}},
        {"eager + vision, language", {vision_server(), vision_training(), language_training()}},
        {"eager + parallel, short", {vision_server(), parallel_training(), short_training()}},
        {"eager + four",
         {vision_server(), vision_training(), language_training(), graph_training(), short_training()}},
        {"graph + vision", {language_server(), vision_training()}},
        {"graph + graphs", {language_server(), graph_training()}},
        {"graph + short, language", {language_server(), short_training(), language_training()}},
        {"graph + four",
         {language_server(), vision_training(), parallel_training(), graph_training(), short_training()}},
    };
}

double total_ns(const Result& result, std::size_t from) {
    double sum = 0;
    for (std::size_t i = from; i < result.clients.size(); ++i) sum += result.clients[i].work_ns;
    return sum;
}

double p99(const Result& result) { return percentile(result.clients[0].latencies_ns, 0.99); }
double p50(const Result& result) { return percentile(result.clients[0].latencies_ns, 0.5); }

struct Figures {
    double hp_p99_ratio, hp_p50_ratio, hp_p99_ratio_mps, be_retained, total, above_caps, let_in,
        let_in_beside;
    std::size_t requests;
};

Figures figures(const Result& alone, const Result& free, const Result& ours) {
    return {p99(ours) / p99(alone),
            p50(ours) / p50(alone),
            p99(free) / p99(alone),
            total_ns(ours, 1) / total_ns(free, 1),
            total_ns(ours, 0) / total_ns(free, 0),
            ours.above_caps,
            ours.let_in,
            ours.let_in_beside,
            ours.clients[0].latencies_ns.size()};
}

void print(const Figures& f, const char* separator) {
    std::printf(
        "{\"hp_p99_ratio\": %.4f, \"hp_p50_ratio\": %.4f, \"hp_p99_ratio_mps\": %.4f, "
        "\"be_retained\": %.4f, \"total\": %.4f, \"above_caps\": %.4f, \"let_in_above_caps\": %.4f, "
        "\"let_in_beside_high\": %.4f, \"requests\": %zu}%s",
        f.hp_p99_ratio, f.hp_p50_ratio, f.hp_p99_ratio_mps, f.be_retained, f.total, f.above_caps, f.let_in,
        f.let_in_beside, f.requests, separator);
}

constexpr double kBar = 1.07;
constexpr auto kWarmUpNs = static_cast<std::uint64_t>(kSecond);

// The most work with a 99th percentile within the bar.
struct Best {
    double total{0}, kept{0}, ratio{0}, median{0};

    // False if the promise was not kept.
    bool take(const Result& result, const Result& alone, const Result& free) {
        if (p99(result) > kBar * p99(alone)) return false;
        if (total_ns(result, 0) > total * total_ns(free, 0))
            *this = {total_ns(result, 0) / total_ns(free, 0), total_ns(result, 1) / total_ns(free, 1),
                     p99(result) / p99(alone), p50(result) / p50(alone)};
        return true;
    }
};

void print(const Best& best, const char* separator) {
    std::printf("{\"total\": %.4f, \"be_retained\": %.4f, \"hp_p99_ratio\": %.4f, \"hp_p50_ratio\": %.4f}%s",
                best.total, best.kept, best.ratio, best.median, separator);
}

// Over how much slowdown high-priority work is given company at, or what its time is worth, and by how much
// requests are let take longer.
void print_oracle(const Mix& mix, Means means, Promise promise, std::uint64_t duration_ns,
                  const Result& alone, const Result& free, const char* separator) {
    constexpr double kAny = 1e9;
    const OracleSettings plain{means, promise, 0, p99(alone), p50(alone), kAny};
    std::vector<OracleSettings> tries;
    for (const double value : {1.1, 1.2, 1.3, kAny}) {
        tries.push_back(plain);
        if (means == Means::kPairs) tries.back().most_slowdown = value;
        if (means == Means::kShares) tries.back().price = value == kAny ? 4 : value * 10 - 10;
    }
    if (means == Means::kGates) tries.resize(1);
    Best best;
    for (OracleSettings settings : tries) {
        for (const double share : {0.07, 0.06, 0.05, 0.04, 0.03, 0.02, 0.01, 0.0}) {
            settings.share = share;
            if (best.take(run(mix.programs, Profiles::kKnown, *oracle(settings), kWarmUpNs, duration_ns),
                          alone, free))
                break;
        }
    }
    print(best, separator);
}

// The most multiprocessors that best-effort work may have beside high-priority work.
void print_two_shares(const Mix& mix, std::uint64_t duration_ns, const Result& alone, const Result& free,
                      const char* separator) {
    Best best;
    for (std::uint32_t permille = 50; permille <= 400; permille += 50) {
        OracleSettings settings{Means::kTwoShares, Promise::kEach, 0, 0, 0, 0};
        settings.share_permille = permille;
        best.take(run(mix.programs, Profiles::kKnown, *oracle(settings), kWarmUpNs, duration_ns), alone,
                  free);
    }
    print(best, separator);
}

int oracles(std::uint64_t duration_ns) {
    std::printf("{\"mixes\": [");
    bool first = true;
    for (const Mix& mix : mixes()) {
        const Result alone = run({mix.programs[0]}, Profiles::kKnown, *mps_alone(), kWarmUpNs, duration_ns);
        const Result free = run(mix.programs, Profiles::kKnown, *mps_alone(), kWarmUpNs, duration_ns);
        std::printf("%s{\"mix\": \"%s\", \"each\": ", first ? "" : ", ", mix.name);
        print_oracle(mix, Means::kPairs, Promise::kEach, duration_ns, alone, free, ", \"tail\": ");
        print_oracle(mix, Means::kPairs, Promise::kTail, duration_ns, alone, free, ", \"gate_each\": ");
        print_oracle(mix, Means::kGates, Promise::kEach, duration_ns, alone, free, ", \"gate_tail\": ");
        print_oracle(mix, Means::kGates, Promise::kTail, duration_ns, alone, free, "}");
        std::fflush(stdout);
        first = false;
    }
    std::puts("]}");
    return 0;
}

// What MPS can be told, the same in all mixes.
int told(std::uint64_t duration_ns) {
    const std::vector<std::pair<const char*, Told>> kinds{{"nothing", {}},
                                                          {"priority", {true}},
                                                          {"percent_10", {false, 100}},
                                                          {"percent_30", {false, 300}},
                                                          {"percent_50", {false, 500}},
                                                          {"priority_percent_30", {true, 300}}};
    std::printf("{\"mixes\": [");
    bool first = true;
    for (const Mix& mix : mixes()) {
        const auto simulate = [&](const std::vector<Program>& programs, std::unique_ptr<Arm> arm) {
            return run(programs, Profiles::kKnown, *arm, kWarmUpNs, duration_ns);
        };
        const Result alone = simulate({mix.programs[0]}, mps_alone());
        const Result free = simulate(mix.programs, mps_alone());
        std::printf("%s{\"mix\": \"%s\", ", first ? "" : ", ", mix.name);
        for (const auto& [name, what] : kinds) {
            std::printf("\"mps_%s\": ", name);
            print(figures(alone, free, simulate(mix.programs, mps_alone(what))), ", ");
            std::printf("\"gate_%s\": ", name);
            print(figures(alone, free, simulate(mix.programs, gated({}, what))), ", ");
        }
        std::printf("\"two_shares\": ");
        print_two_shares(mix, duration_ns, alone, free, ", \"shares_each\": ");
        print_oracle(mix, Means::kShares, Promise::kEach, duration_ns, alone, free, "}");
        std::fflush(stdout);
        first = false;
    }
    std::puts("]}");
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    const std::string what = argc > 2 ? argv[1] : "";
    if (what == "oracle" || what == "told") {
        if (argc > 3) variant = std::strtoull(argv[3], nullptr, 10);
        return (what == "told" ? told : oracles)(static_cast<std::uint64_t>(std::atof(argv[2]) * kSecond));
    }
    if (argc < 2)
        return std::fprintf(stderr, "usage: hostile_share SECONDS [WARM_UP_SECONDS [VARIANT]]\n"), 2;
    const auto duration_ns = static_cast<std::uint64_t>(std::atof(argv[1]) * kSecond);
    const auto warm_up_ns = static_cast<std::uint64_t>((argc > 2 ? std::atof(argv[2]) : 1.0) * kSecond);
    if (argc > 3) variant = std::strtoull(argv[3], nullptr, 10);
    const auto simulate = [&](const std::vector<Program>& programs, Profiles profiles,
                              std::unique_ptr<Arm> arm, std::uint64_t warm_up) {
        return run(programs, profiles, *arm, warm_up, duration_ns);
    };
    std::printf("{\"mixes\": [");
    bool first = true;
    for (const Mix& mix : mixes()) {
        // Each is compared with runs over the same time: clocks and requests are the same in all of them.
        const Result alone = simulate({mix.programs[0]}, Profiles::kKnown, mps_alone(), kSecond);
        const Result free = simulate(mix.programs, Profiles::kKnown, mps_alone(), kSecond);
        const Result later_alone = simulate({mix.programs[0]}, Profiles::kKnown, mps_alone(), warm_up_ns);
        const Result later_free = simulate(mix.programs, Profiles::kKnown, mps_alone(), warm_up_ns);
        std::printf("%s{\"mix\": \"%s\"", first ? "" : ", ", mix.name);
        for (const auto& [suffix, what] : {std::pair{"", Told{}}, {"_priority", Told{true}}}) {
            std::printf(", \"known%s\": ", suffix);
            const Result known = simulate(mix.programs, Profiles::kKnown, gated({}, what), kSecond);
            print(figures(alone, free, known), ", ");
            std::printf("\"learnt%s\": ", suffix);
            const Result learnt = simulate(mix.programs, Profiles::kLearnt, gated({}, what), warm_up_ns);
            print(figures(later_alone, later_free, learnt), "");
        }
        std::printf("}");
        std::fflush(stdout);
        first = false;
    }
    Settings quota;
    quota.policy = Policy::kQuota;
    const std::vector<Program> pair{whole_gpu_training(300), whole_gpu_training(700)};
    const Result free = simulate(pair, Profiles::kKnown, mps_alone(), kSecond);
    const Result ours = simulate(pair, Profiles::kKnown, gated(quota), kSecond);
    std::printf("], \"quota\": {\"first\": %.4f, \"total\": %.4f}}\n",
                ours.clients[0].work_ns / total_ns(ours, 0), total_ns(ours, 0) / total_ns(free, 0));
    return 0;
}
