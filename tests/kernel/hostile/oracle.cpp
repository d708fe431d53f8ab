#include "tests/kernel/hostile/oracle.hpp"

#include <algorithm>

namespace hostile {

namespace {

// The first client that joins has priority.
class Oracle : public Arm {
   public:
    explicit Oracle(const OracleSettings& settings) : settings_(settings) {}

    void join(std::uint32_t client, const Program& program, Device& device) override {
        if (client != 0) return;
        for (const Call& call : program.calls) {
            for (const Work& work : call.work) part_ns_ += work.alone_ns;
        }
        parts_ = program.parts;
        device.choose_by(
            [this, &device](const std::vector<Running>& ready) { return choose(ready, device); });
    }
    std::optional<std::uint64_t> admit(const Launch& launch, Device& device) override {
        if (launch.client == 0 && device.done_ns(0) >= request_ends_at_ns_ - 1) {
            began_ns_ = device.now_ns();
            began_at_done_ns_ = device.done_ns(0);
            request_ends_at_ns_ = began_at_done_ns_ + part_ns_ * parts_;
            delayed_ns_ = 0;
        }
        return std::nullopt;
    }
    std::optional<Operation> within_graph(const Launch&, std::uint64_t) override { return std::nullopt; }
    void recorded(std::uint32_t, std::uint32_t, Device&) override {}
    std::uint64_t manage(Device&) override { return UINT64_MAX; }

   private:
    // What the request may still be delayed by.
    bool has_slack(const Device& device) const {
        const double usual_ns = settings_.usual_ns / device.clock();
        if (settings_.promise == Promise::kEach) return delayed_ns_ < settings_.share * usual_ns;
        const double left = 1 - (device.done_ns(0) - began_at_done_ns_) / (part_ns_ * parts_);
        const auto passed_ns = static_cast<double>(device.now_ns() - began_ns_);
        return passed_ns + left * usual_ns < (1 + settings_.share) * settings_.slow_request_ns;
    }

    Chosen choose(const std::vector<Running>& ready, const Device& device) {
        const bool high =
            std::any_of(ready.begin(), ready.end(), [](const Running& one) { return one.client == 0; });
        if (high_runs_) delayed_ns_ += static_cast<double>(device.now_ns() - at_ns_) * (1 - 1 / slowdown_);
        at_ns_ = device.now_ns();
        std::uint64_t all = 0;
        std::uint64_t begun = 0;
        for (const Running& one : ready) {
            all |= std::uint64_t{1} << one.client;
            if (one.begun) begun |= std::uint64_t{1} << one.client;
        }
        const bool slack = !high || has_slack(device);
        high_runs_ = high;
        if (settings_.means == Means::kGates && !device.is_idle(0)) {
            const std::uint64_t some = has_slack(device) ? all : (all & 1) | begun;
            std::vector<Running> together;
            std::copy_if(ready.begin(), ready.end(), std::back_inserter(together),
                         [some](const Running& one) { return (some >> one.client & 1) != 0; });
            slowdown_ = device.slowdown(together);
            return {some};
        }
        if (settings_.means == Means::kTwoShares)
            return {all, 1, high || !device.is_idle(0) ? settings_.share_permille : 1000};
        if (settings_.means == Means::kShares && high) return share(ready, all, slack, device);
        std::uint64_t best = all & 1;
        double most = high ? 1 : 0;
        slowdown_ = 1;
        for (std::uint64_t some = all; slack && some != 0; some = (some - 1) & all) {
            if (high && (some & 1) == 0) continue;
            std::vector<Running> together;
            std::copy_if(ready.begin(), ready.end(), std::back_inserter(together),
                         [some](const Running& one) { return (some >> one.client & 1) != 0; });
            const double slowdown = device.slowdown(together);
            const double rate = static_cast<double>(together.size()) / slowdown;
            if (rate <= most || (high && slowdown > settings_.most_slowdown)) continue;
            best = some;
            most = rate;
            slowdown_ = slowdown;
        }
        return {best};
    }

    // Beside high-priority work: what gets the most done for the time that it costs.
    Chosen share(const std::vector<Running>& ready, std::uint64_t all, bool slack, const Device& device) {
        Chosen best{all & 1};
        double most = 0;
        slowdown_ = 1;
        for (std::uint64_t some = all; slack && some > 1; some = (some - 1) & all) {
            if ((some & 1) == 0) continue;
            for (double share = 0.1; share < 1.05; share += 0.1) {
                std::vector<Running> together;
                double company = 0;
                for (Running one : ready) {
                    if ((some >> one.client & 1) == 0) continue;
                    one.share = one.client == 0 ? 1 : share;
                    company += one.client == 0 ? 0 : share;
                    together.push_back(one);
                }
                const double slowdown = device.slowdown(together);
                const double worth = company / slowdown - settings_.price * (1 - 1 / slowdown);
                if (worth <= most) continue;
                best = {some, share};
                most = worth;
                slowdown_ = slowdown;
            }
        }
        return best;
    }

    OracleSettings settings_;
    double part_ns_{0};
    std::uint32_t parts_{1};
    std::uint64_t began_ns_{0}, at_ns_{0};
    double began_at_done_ns_{0}, request_ends_at_ns_{0}, delayed_ns_{0}, slowdown_{1};
    bool high_runs_{false};
};

}  // namespace

std::unique_ptr<Arm> oracle(const OracleSettings& settings) { return std::make_unique<Oracle>(settings); }

}  // namespace hostile
