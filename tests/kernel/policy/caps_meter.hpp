// For how much of the time the caps were exceeded, and by whom.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernel_intercept/policy/group.hpp"

namespace model {

// A kernel that runs.
struct OnGpu {
    explsched::shared::Load load;
    bool high;
    std::uint64_t launched_ns;
};

// What runs in one moment.
class Moment {
   public:
    void add(const OnGpu& kernel) {
        any_ = true;
        sum_ = sum_ + kernel.load;
        if (kernel.high) {
            high_launched_ns_ = std::max(high_launched_ns_, kernel.launched_ns);
        } else {
            best_effort_ = best_effort_ + kernel.load;
            best_effort_launched_ns_ = std::max(best_effort_launched_ns_, kernel.launched_ns);
        }
    }

    bool any() const { return any_; }
    explsched::shared::Load best_effort() const { return best_effort_; }
    explsched::shared::Load sum() const { return sum_; }
    bool best_effort_came_last() const { return best_effort_launched_ns_ > high_launched_ns_; }
    double slowdown() const {
        return std::max({1000U, sum_.compute_permille, sum_.bandwidth_permille}) / 1000.0;
    }

   private:
    bool any_{false};
    explsched::shared::Load sum_, best_effort_;
    std::uint64_t high_launched_ns_{0}, best_effort_launched_ns_{0};  // the last of what runs
};

class CapsMeter {
   public:
    explicit CapsMeter(explsched::policy::Caps caps) : caps_(caps) {}

    void pass(const Moment& moment, std::uint64_t passed_ns) {
        const auto passed = static_cast<double>(passed_ns);
        all_ns_ += passed;
        if (moment.any()) busy_ns_ += passed;
        if (above(moment.best_effort())) best_effort_above_ns_ += passed;
        if (!above(moment.sum())) return;
        above_ns_ += passed;
        if (moment.best_effort_came_last()) let_in_above_ns_ += passed;
    }

    // Shares of the time that has passed.
    double busy() const { return busy_ns_ / all_ns_; }
    double above_caps() const { return above_ns_ / all_ns_; }
    double let_in_above_caps() const { return let_in_above_ns_ / all_ns_; }
    double best_effort_above_caps() const { return best_effort_above_ns_ / all_ns_; }

   private:
    bool above(explsched::shared::Load load) const {
        return load.compute_permille > caps_.compute_permille ||
               load.bandwidth_permille > caps_.bandwidth_permille;
    }

    explsched::policy::Caps caps_;
    double all_ns_{0}, busy_ns_{0}, above_ns_{0}, let_in_above_ns_{0}, best_effort_above_ns_{0};
};

}  // namespace model
