// A client of the model: its host, what of it is on the GPU, and what chance does to it.
#pragma once

#include <cmath>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>

#include "tests/kernel/policy/model.hpp"

namespace model {

struct Running {
    explsched::KernelCost cost;
    double remaining_ns;
    std::uint64_t launched_ns;
};

struct Client {
    ClientSpec spec;
    std::uint32_t slot;
    ClientResult result;
    std::deque<Running> queue;
    std::size_t next_kernel{0};
    std::uint64_t acts_at_ns{0};  // when its host goes on
    std::uint64_t began_ns{0};
    std::uint64_t waits_since_ns{0};  // 0: not held up
    std::uint64_t wakes_at_ns{0};     // after a grant; 0: none yet
    bool draining{false};
    std::optional<explsched::KernelCost> calling{};  // admitted, and held up on its way to the GPU

    bool served() const { return next_kernel == spec.kernels.size(); }
};

// The same in every run.
class Chance {
   public:
    bool happens(double share) { return share_(random_) < share; }

    std::uint64_t up_to(std::uint64_t most_ns) {
        return static_cast<std::uint64_t>(share_(random_) * static_cast<double>(most_ns));
    }

    std::uint64_t exponential(std::uint64_t mean_ns) {
        return static_cast<std::uint64_t>(-std::log(1 - share_(random_)) * static_cast<double>(mean_ns));
    }

    // Half of the time not at all.
    std::uint64_t late(std::uint64_t most_ns) { return most_ns == 0 || happens(0.5) ? 0 : up_to(most_ns); }

   private:
    std::mt19937_64 random_{20240607};
    std::uniform_real_distribution<double> share_{0, 1};
};

}  // namespace model
