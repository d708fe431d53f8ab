#include "kernel_intercept/policy/quota.hpp"

#include <algorithm>

namespace explsched::policy {

namespace {

constexpr double kWholeGpu = 1000;
constexpr double kGrowth = 1.25;        // demand that is met may grow by this much in a refill,
constexpr double kSmallestDemand = 20;  // and starts from this
constexpr double kDemandWeight = 0.25;  // of the newest refill in the running mean

constexpr double kRecovery = 1.2, kEmergency = 1.6, kIgnored = 4.0;
constexpr double kRecoveryFactor = 1.3;
constexpr int kRecoveryPeriods = 5;
constexpr double kLeastScale = 10;     // Dilu's CONTROL_FACTOR, 1 % of the requests
constexpr double kForgetting = 1.001;  // per period, of the least stretch

bool hungry(const Member& member) { return member.waiting || member.credit_ns <= 0; }

double ceiling(const Member& member) {
    const double limit = member.limit_permille;
    return hungry(member) ? limit : std::min(limit, member.demand_permille * kGrowth + kSmallestDemand);
}

}  // namespace

std::vector<double> rates(const std::vector<Member>& members, std::uint32_t best_effort_permille) {
    const auto scale = [&](const Member& member) {
        return member.high ? 1.0 : best_effort_permille / 1000.0;
    };
    double requested = 0;
    for (const Member& member : members)
        requested += std::min<double>(member.request_permille, ceiling(member));
    const double squeeze = requested > kWholeGpu ? kWholeGpu / requested : 1.0;
    std::vector<double> rate(members.size());
    double spare = kWholeGpu;
    for (std::size_t i = 0; i < members.size(); ++i) {
        rate[i] = std::min<double>(members[i].request_permille, ceiling(members[i])) * squeeze;
        spare -= rate[i];
    }
    // Water filling: each round tops up in proportion to the requests, until the spare or the ceilings are
    // met.
    for (std::size_t round = 0; round < members.size() && spare > 1e-6; ++round) {
        double weights = 0;
        for (std::size_t i = 0; i < members.size(); ++i) {
            if (rate[i] < ceiling(members[i])) weights += members[i].request_permille;
        }
        if (weights == 0) break;
        const double unit = spare / weights;
        for (std::size_t i = 0; i < members.size(); ++i) {
            const double more = std::min(unit * members[i].request_permille, ceiling(members[i]) - rate[i]);
            if (more <= 0) continue;
            rate[i] += more;
            spare -= more;
        }
    }
    for (std::size_t i = 0; i < members.size(); ++i) rate[i] *= scale(members[i]);
    return rate;
}

std::vector<Member> refill(std::vector<Member> members, std::uint64_t elapsed_ns,
                           std::uint32_t best_effort_permille) {
    if (elapsed_ns == 0) return members;
    for (Member& member : members) {
        const double used = static_cast<double>(member.charged_ns) * 1000 / static_cast<double>(elapsed_ns);
        member.demand_permille += kDemandWeight * (used - member.demand_permille);
        member.charged_ns = 0;
    }
    const std::vector<double> rate = rates(members, best_effort_permille);
    for (std::size_t i = 0; i < members.size(); ++i) {
        const auto grown = static_cast<std::int64_t>(rate[i] * static_cast<double>(elapsed_ns) / 1000);
        // Of a refill that comes late nothing is lost.
        const double longest_ns = static_cast<double>(std::max<std::uint64_t>(kBurstNs, elapsed_ns));
        const auto most = static_cast<std::int64_t>(rate[i] * longest_ns / 1000);
        std::int64_t& credit = members[i].credit_ns;
        credit = std::clamp(credit + grown, -kDebtNs, std::max(most, credit));
        // What was saved at a higher rate than the present one goes by a quarter at a time.
        if (credit > most) credit -= (credit - most) / 4 + 1;
    }
    return members;
}

void Pressure::period(std::uint64_t wall_ns, std::uint64_t work_ns) {
    if (wall_ns == 0 || work_ns == 0) return;
    const double stretch = static_cast<double>(wall_ns) / static_cast<double>(work_ns);
    least_stretch_ = least_stretch_ == 0 ? stretch : std::min(stretch, least_stretch_ * kForgetting);
    const double overflow = stretch / least_stretch_;
    if (overflow >= kEmergency && overflow < kIgnored) {
        scale_permille_ = std::max(scale_permille_ / overflow, kLeastScale);
        calm_periods_ = 0;
    } else if (overflow < kRecovery && ++calm_periods_ >= kRecoveryPeriods) {
        scale_permille_ = std::min(scale_permille_ * kRecoveryFactor, 1000.0);
        calm_periods_ = 0;
    }
}

}  // namespace explsched::policy
