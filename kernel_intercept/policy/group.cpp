#include "kernel_intercept/policy/group.hpp"

#include <tuple>

namespace explsched::policy {

namespace {

std::int64_t slack(Load running, Load own, Caps caps) {
    const Load sum = running + own;
    return std::min(std::int64_t{caps.compute_permille} - sum.compute_permille,
                    std::int64_t{caps.bandwidth_permille} - sum.bandwidth_permille);
}

}  // namespace

std::vector<Want> order(std::vector<Want> wants, Load running, Caps caps, std::uint64_t now_ns,
                        std::uint64_t aged_ns) {
    const auto rank = [&](const Want& want) {
        const bool aged = now_ns - want.since_ns >= aged_ns;
        const std::int64_t room = aged ? 0 : -slack(running, want.load, caps);
        return std::make_tuple(!aged, room, want.since_ns, want.slot);
    };
    std::sort(wants.begin(), wants.end(), [&](const Want& a, const Want& b) { return rank(a) < rank(b); });
    return wants;
}

}  // namespace explsched::policy
