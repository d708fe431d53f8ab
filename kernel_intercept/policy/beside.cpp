#include "kernel_intercept/policy/beside.hpp"

#include <algorithm>

namespace explsched::policy {

namespace {

// What is tried without being expected to fit must not be seen in the 99th percentile.
constexpr std::uint64_t kTryEvery = 256;
constexpr std::uint32_t kEnough = 8;  // measurements
constexpr double kMostStretch = 1.03;
constexpr double kMemory = 8, kLossMemory = 128;  // periods of the running means
constexpr double kMostError = 0.3;                // beyond, the clock has changed between the two periods

}  // namespace

bool BesideRule::allowed(std::uint32_t client, std::uint64_t expected) const {
    if (clients_[client].periods >= kEnough) return clients_[client].stretch <= kMostStretch;
    return (expected >> client & 1) != 0;
}

std::uint64_t BesideRule::next(std::uint64_t clients, std::uint64_t expected) {
    ++periods_;
    if (measures_alone() || clients == 0 || !known_alone_) return 0;
    const bool trial = periods_ % kTryEvery == 1;
    std::uint64_t candidates = 0;
    for (std::uint64_t left = clients; left != 0; left &= left - 1) {
        const auto client = static_cast<std::uint32_t>(__builtin_ctzll(left));
        if (trial || allowed(client, expected)) candidates |= std::uint64_t{1} << client;
    }
    if (candidates == 0) return 0;
    // In turns.
    const auto count = static_cast<std::uint64_t>(__builtin_popcountll(candidates));
    for (std::uint64_t i = (trial ? periods_ / kTryEvery : periods_) % count; i > 0; --i)
        candidates &= candidates - 1;
    return candidates & -candidates;
}

void BesideRule::ended(const Period& period) {
    if (period.wall_ns == 0 || period.work_ns == 0) return;
    const auto work = static_cast<double>(period.work_ns);
    const double ratio = static_cast<double>(period.wall_ns) / work;
    if (measures_alone()) {
        alone_ = ratio;
        known_alone_ = true;
        return;
    }
    const std::uint64_t who = period.beside != 0 ? period.beside : period.kept;
    if (alone_ != 0 && who != 0) {
        Client& client = clients_[static_cast<std::size_t>(__builtin_ctzll(who))];
        if (period.beside != 0) {
            ++client.periods;
            client.stretch += (ratio / alone_ - client.stretch) / std::min<double>(client.periods, kMemory);
        } else if (const std::uint64_t kept_ns = std::min(period.kept_ns, period.wall_ns)) {
            const double loss = (ratio - alone_) * work / static_cast<double>(kept_ns);
            client.loss += std::clamp(loss - client.loss, -kMostError, kMostError) /
                           std::min<double>(++client.kept, kLossMemory);
        }
    }
    alone_ = 0;
}

double BesideRule::loss(std::uint32_t client) const { return std::clamp(clients_[client].loss, 0.03, 1.0); }

void BesideRule::forget(std::uint32_t client) { clients_[client] = {}; }

}  // namespace explsched::policy
