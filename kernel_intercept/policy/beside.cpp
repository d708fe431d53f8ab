#include "kernel_intercept/policy/beside.hpp"

#include <algorithm>

namespace explsched::policy {

namespace {

constexpr std::uint32_t kEnough = 8;  // measurements
constexpr double kMostStretch = 1.03, kHarm = 1.1;
constexpr double kMemory = 8, kLossMemory = 32;  // periods of the running means
constexpr double kMostError = 0.3;               // beyond, the clock has changed between the two periods

}  // namespace

bool BesideRule::allowed(std::uint32_t client, std::uint64_t expected) const {
    if (clients_[client].periods >= kEnough) return clients_[client].stretch <= kMostStretch;
    return (expected >> client & 1) != 0;
}

std::uint64_t BesideRule::next(std::uint64_t clients, std::uint64_t expected) {
    ++periods_;
    if (measures_alone() || clients == 0 || !known_alone_) return 0;
    if (const std::uint64_t tried = trial(clients)) return tried;
    std::uint64_t candidates = 0;
    for (std::uint64_t left = clients; left != 0; left &= left - 1) {
        const auto client = static_cast<std::uint32_t>(__builtin_ctzll(left));
        if (allowed(client, expected)) candidates |= std::uint64_t{1} << client;
    }
    if (candidates == 0) return 0;
    // In turns.
    const auto count = static_cast<std::uint64_t>(__builtin_popcountll(candidates));
    for (std::uint64_t i = periods_ % count; i > 0; --i) candidates &= candidates - 1;
    return candidates & -candidates;
}

// Whoever waits for a trial longest, right after a period that it can be compared with.
std::uint64_t BesideRule::trial(std::uint64_t clients) {
    if (!compares() || periods_ < trial_at_) return 0;
    std::uint32_t next = static_cast<std::uint32_t>(__builtin_ctzll(clients));
    for (std::uint64_t left = clients; left != 0; left &= left - 1) {
        const auto client = static_cast<std::uint32_t>(__builtin_ctzll(left));
        if (clients_[client].trial.at < clients_[next].trial.at) next = client;
    }
    if (periods_ < clients_[next].trial.at) return 0;
    trial_at_ = periods_ + kTryEvery;
    clients_[next].trial.at = periods_ + clients_[next].trial.every;
    return std::uint64_t{1} << next;
}

void BesideRule::Seldom::again(std::uint64_t now, bool harmed) {
    every = harmed ? std::min(2 * every, kTrySeldom) : kTryEvery;
    at = now + every;
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
            client.trial.again(periods_, client.stretch > kHarm);
        } else if (const std::uint64_t kept_ns = std::min(period.kept_ns, period.wall_ns)) {
            const double loss = (ratio - alone_) * work / static_cast<double>(kept_ns);
            client.loss += std::clamp(loss - client.loss, -kMostError, kMostError) /
                           std::min<double>(++client.kept, kLossMemory);
            client.keep.again(periods_, loss > kMostLoss);
        }
    }
    alone_ = 0;
}

double BesideRule::loss(std::uint32_t client) const { return std::clamp(clients_[client].loss, 0.03, 1.0); }

bool BesideRule::keeps(std::uint32_t client) const {
    const Client& one = clients_[client];
    return one.loss <= kMostLoss || (compares() && periods_ >= one.keep.at);
}

void BesideRule::forget(std::uint32_t client) {
    clients_[client] = {};
    learning_until_ = periods_ + kLearning;
}

}  // namespace explsched::policy
