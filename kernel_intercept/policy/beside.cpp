#include "kernel_intercept/policy/beside.hpp"

#include <algorithm>

namespace explsched::policy {

namespace {

// What is tried without being expected to fit must not be seen in the 99th percentile.
constexpr std::uint64_t kTryEvery = 256;
constexpr std::uint64_t kAloneEvery = 16;  // to compare the next one with it: clocks change
constexpr std::uint32_t kEnough = 8;       // measurements
constexpr double kMostStretch = 1.03;
constexpr double kMemory = 8;                     // periods of the running mean
constexpr double kGuess = 0.4, kGuessCounts = 2;  // slowdown by an unknown client, as many measurements

}  // namespace

bool BesideRule::allowed(std::uint32_t client, std::uint64_t expected) const {
    if (clients_[client].periods >= kEnough) return clients_[client].stretch <= kMostStretch;
    return (expected >> client & 1) != 0;
}

std::uint64_t BesideRule::next(std::uint64_t clients, std::uint64_t expected) {
    ++periods_;
    if (periods_ % kAloneEvery == 0 || clients == 0 || !known_alone_) return 0;
    const bool trial = periods_ % kTryEvery == 1;
    // In turns, beginning with another one each time.
    const auto first = static_cast<std::uint32_t>((trial ? periods_ / kTryEvery : periods_) % 64);
    for (std::uint32_t i = 0; i < 64; ++i) {
        const std::uint32_t client = (first + i) % 64;
        if ((clients >> client & 1) != 0 && (trial || allowed(client, expected)))
            return std::uint64_t{1} << client;
    }
    return 0;
}

void BesideRule::period(std::uint64_t beside, std::uint64_t wall_ns, std::uint64_t work_ns) {
    if (wall_ns == 0 || work_ns == 0) return;
    const double ratio = static_cast<double>(wall_ns) / static_cast<double>(work_ns);
    if (beside == 0) {
        alone_ = ratio;
        known_alone_ = true;
        return;
    }
    if (alone_ != 0) {
        Client& client = clients_[static_cast<std::size_t>(__builtin_ctzll(beside))];
        ++client.periods;
        client.stretch += (ratio / alone_ - client.stretch) / std::min<double>(client.periods, kMemory);
    }
    alone_ = 0;
}

double BesideRule::slowdown(std::uint32_t client) const {
    const Client& one = clients_[client];
    const double known = std::min<double>(one.periods, kMemory);
    return std::clamp((kGuess * kGuessCounts + (one.stretch - 1) * known) / (kGuessCounts + known), 0.05,
                      1.0);
}

void BesideRule::forget(std::uint32_t client) { clients_[client] = {}; }

}  // namespace explsched::policy
