#include "kernel_intercept/policy/quota.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace explsched::policy {

namespace {

constexpr std::int64_t kWholeGpu = 1000;

constexpr double kRecovery = 1.2, kEmergency = 1.6, kIgnored = 4.0;
constexpr double kRecoveryFactor = 1.3;
constexpr int kRecoveryPeriods = 5;
constexpr double kLeastScale = 10;                              // Dilu's CONTROL_FACTOR, 1 % of the requests
constexpr double kForgetting = 1.001, kForgettingAlone = 1.05;  // per period, of the least stretch
constexpr std::uint64_t kIdleNs = 600'000'000;

// The most credit of each member. One that got all of the GPU's time until now must be able to keep it.
std::vector<std::int64_t> savings(const std::vector<Member>& members, std::int64_t elapsed_ns) {
    std::int64_t requested = 0;
    for (const Member& member : members) requested += member.request_permille;
    std::vector<std::int64_t> most;
    most.reserve(members.size());
    for (const Member& member : members) {
        most.push_back(std::max(kSavingsNs * member.request_permille / std::max(requested, kWholeGpu),
                                elapsed_ns * member.limit_permille / kWholeGpu));
    }
    return most;
}

// What each member can take at once.
std::vector<std::int64_t> ceilings(const std::vector<Member>& members, std::int64_t elapsed_ns) {
    std::vector<std::int64_t> ceiling = savings(members, elapsed_ns);
    for (std::size_t i = 0; i < members.size(); ++i) {
        ceiling[i] = std::clamp<std::int64_t>(ceiling[i] - members[i].credit_ns, 0,
                                              std::max<std::int64_t>(members[i].room_ns, 0));
    }
    return ceiling;
}

std::int64_t room_after(const Member& member, std::int64_t elapsed_ns) {
    if (member.limit_permille == kWholeGpu) return 2 * kDebtNs;  // no limit: enough to pay any debt
    const std::int64_t most_ns = std::max(elapsed_ns, kRoomNs) * member.limit_permille / kWholeGpu;
    return std::min(member.room_ns + elapsed_ns * member.limit_permille / kWholeGpu, most_ns);
}

void give(Member& member, std::int64_t share_ns, std::uint32_t best_effort_permille) {
    member.room_ns -= share_ns;
    member.credit_ns += member.high ? share_ns : share_ns * best_effort_permille / kWholeGpu;
}

}  // namespace

std::vector<Member> refill(std::vector<Member> members, std::uint64_t elapsed_ns, std::uint64_t handed_out_ns,
                           std::uint32_t best_effort_permille) {
    const auto elapsed = static_cast<std::int64_t>(elapsed_ns);
    for (Member& member : members) {
        member.room_ns = room_after(member, elapsed);
        member.credit_ns = std::max(member.credit_ns, -kDebtNs);
    }
    std::vector<std::int64_t> ceiling = ceilings(members, elapsed);
    // Water filling: each round fills at least one member, or hands out all there is.
    auto left = static_cast<std::int64_t>(handed_out_ns);
    for (std::size_t round = 0; round < members.size() && left > 0; ++round) {
        std::int64_t weights = 0;
        for (std::size_t i = 0; i < members.size(); ++i) {
            if (ceiling[i] > 0 || (round == 0 && members[i].active)) weights += members[i].request_permille;
        }
        if (weights == 0) break;
        const std::int64_t poured = left;
        for (std::size_t i = 0; i < members.size(); ++i) {
            const std::int64_t share = poured * members[i].request_permille / weights;
            const std::int64_t taken = std::min(share, ceiling[i]);
            // What an active member has no need of, others must not use to slow it down. Beyond its limit
            // they may.
            left -= round == 0 && members[i].active ? std::min(share, members[i].room_ns) : taken;
            ceiling[i] -= taken;
            give(members[i], taken, best_effort_permille);
        }
    }
    return members;
}

std::vector<Member> advance(std::vector<Member> members, std::int64_t enough_ns,
                            std::uint32_t best_effort_permille) {
    double unit_ns = std::numeric_limits<double>::infinity();  // per thousandth of a request
    for (const Member& member : members) {
        const std::int64_t lacks_ns = enough_ns - member.credit_ns;
        if (!member.waiting || lacks_ns > member.room_ns) continue;
        if (!member.high && best_effort_permille < kWholeGpu) continue;
        unit_ns = std::min(unit_ns, static_cast<double>(lacks_ns) / member.request_permille);
    }
    if (unit_ns <= 0 || unit_ns == std::numeric_limits<double>::infinity()) return members;
    const std::vector<std::int64_t> ceiling = ceilings(members, enough_ns);
    for (std::size_t i = 0; i < members.size(); ++i) {
        const std::int64_t share = std::llround(unit_ns * members[i].request_permille);
        give(members[i], std::min(share, ceiling[i]), best_effort_permille);
    }
    return members;
}

void Pressure::look(const BusyLook& look, std::uint64_t now_ns) {
    if (look.launched) launched_ns_ = now_ns;
    if (now_ns > launched_ns_ + kIdleNs) scale_permille_ = kWholeGpu;
    const bool beside = beside_ || look.others, period = look.wall_ns != 0 && look.work_ns != 0;
    beside_ = look.busy && (period ? look.others : beside);
    if (!period) return;
    const double stretch = static_cast<double>(look.wall_ns) / static_cast<double>(look.work_ns);
    const double most = least_stretch_ * (beside ? kForgetting : kForgettingAlone);
    least_stretch_ = least_stretch_ == 0 ? stretch : std::min(stretch, most);
    const double overflow = stretch / least_stretch_;
    if (beside && overflow >= kEmergency && overflow < kIgnored) {
        scale_permille_ = std::max(scale_permille_ / overflow, kLeastScale);
        calm_periods_ = 0;
    } else if (overflow < kRecovery && ++calm_periods_ >= kRecoveryPeriods) {
        scale_permille_ = std::min(scale_permille_ * kRecoveryFactor, 1000.0);
        calm_periods_ = 0;
    }
}

}  // namespace explsched::policy
