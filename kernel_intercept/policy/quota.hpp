// Shares of the GPU's time by request and limit: the rules of Dilu's RCKM (Dilu, section 4.3), with these
// changes: what is charged is predicted GPU time (running time x the larger share of compute and bandwidth)
// instead of grid blocks; per GPU; a debt is carried over, so one large kernel in a synchronising loop is
// held to its share too; what idle clients leave goes to those that wait.
#pragma once

#include <cstdint>
#include <vector>

namespace explsched::policy {

struct Member {
    std::uint32_t request_permille;  // of the GPU's time, when all are busy
    std::uint32_t limit_permille;    // when others are idle
    bool high;                       // keeps its latency: others give way when it slows down
    bool waiting;                    // a launch is held up now
    std::uint64_t charged_ns;        // since the last refill
    std::int64_t credit_ns;
    double demand_permille;  // running mean of what it uses; carried from refill to refill
};

// The rate of each member, in permille of the GPU's time. Nobody gets more than its limit or its demand (with
// room to grow); each gets its request at least, scaled down if the requests exceed the GPU; the rest is
// divided in proportion to the requests. `best_effort_permille` scales the members that are not `high`.
std::vector<double> rates(const std::vector<Member>& members, std::uint32_t best_effort_permille);

// The members after `elapsed_ns`: credit grows by the rates, `charged_ns` restarts. Credit decays: no member
// holds more than `kBurstNs` of its rate, nor owes more than `kDebtNs`.
constexpr std::int64_t kBurstNs = 20'000'000;
constexpr std::int64_t kDebtNs = 500'000'000;
std::vector<Member> refill(std::vector<Member> members, std::uint64_t elapsed_ns,
                           std::uint32_t best_effort_permille);

// How much the busy periods of a high-priority client are stretched, and what the others are cut to for it.
// Dilu's constants: recovery below 1.2 (x 1.3 every 5 periods), emergency from 1.6 (divide by the stretch) to
// 4.0, where the cause is taken to be another one.
class Pressure {
   public:
    // `wall_ns` from first launch to synchronised, `work_ns` of predicted running time in it.
    void period(std::uint64_t wall_ns, std::uint64_t work_ns);
    std::uint32_t best_effort_permille() const { return static_cast<std::uint32_t>(scale_permille_); }

   private:
    double least_stretch_{0};  // of all periods, slowly forgotten
    double scale_permille_{1000};
    int calm_periods_{0};
};

}  // namespace explsched::policy
