// Which best-effort clients may run on beside high-priority work, and for how long, by what was measured: how
// much longer its busy periods take for the same work than those in which it has the GPU to itself.
#pragma once

#include <array>
#include <cstdint>

namespace explsched::policy {

class BesideRule {
   public:
    // The client to leave running in the next busy period, as a bit; 0 for none. `clients`: bits of those
    // there are; `expected`: of them those that fit by their profiles, as a guess until there are
    // measurements.
    std::uint64_t next(std::uint64_t clients, std::uint64_t expected);

    // Whether the next busy period is to have the GPU to itself, so that others can be compared with it.
    bool measures_alone() const { return periods_ % alone_every() == 0; }

    // A busy period has ended that began with `beside` running on, and `kept` for the first `kept_ns` of it.
    struct Period {
        std::uint64_t beside, kept;
        std::uint64_t kept_ns, wall_ns, work_ns;
    };
    void ended(const Period& period);

    // A client has gone.
    void forget(std::uint32_t client);

    // What share of the time in which the client is kept running high-priority work loses, 0.03 to 1; a guess
    // until there are measurements.
    double loss(std::uint32_t client) const;

    // Whether to keep the client running in the next period. Not where that takes more from high-priority
    // work than it brings, as with kernels that fill the GPU on both sides; but now and then, to see.
    bool keeps(std::uint32_t client) const;

    double stretch(std::uint32_t client) const { return clients_[client].stretch; }

   private:
    static constexpr std::uint64_t kAloneEvery = 16;  // periods; clocks change
    static constexpr std::uint64_t kLearning = 48;  // periods after a client has come, of which half compare
    std::uint64_t alone_every() const { return periods_ < learning_until_ ? 2 : kAloneEvery; }
    bool compares() const { return periods_ % alone_every() == 1; }
    // What is tried without being expected to fit must not be seen in the 99th percentile: it is tried every
    // so many periods, and half as often after each trial that did harm.
    static constexpr std::uint64_t kTryEvery = 256, kTrySeldom = 16'384;
    static constexpr double kMostLoss = 0.6;
    struct Seldom {
        std::uint64_t at{0}, every{kTryEvery};
        void again(std::uint64_t now, bool harmed);
    };
    struct Client {
        std::uint32_t periods{0}, kept{4};  // the guess counts as so many measurements
        double stretch{1}, loss{0.5};       // running means
        Seldom trial, keep;
    };
    bool allowed(std::uint32_t client, std::uint64_t expected) const;
    std::uint64_t trial(std::uint64_t clients);

    std::array<Client, 64> clients_{};
    double alone_{0};  // wall per work of the period just before, if it had the GPU to itself; else 0
    std::uint64_t periods_{0}, learning_until_{kLearning}, trial_at_{0};
    bool known_alone_{false};
};

}  // namespace explsched::policy
