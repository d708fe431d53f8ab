#include "tests/kernel/policy/model.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>

#include "kernel_intercept/gate/launch.hpp"

namespace model {

namespace {

using explsched::KernelCost;
using explsched::manager::Gpu;
using explsched::manager::Settings;
namespace gate = explsched::gate;
namespace shared = explsched::shared;

constexpr std::size_t kQueue = 1024;  // launches pending, as in CUDA; the host waits beyond
constexpr std::uint64_t kBeatNs = 5'000'000;
constexpr std::uint64_t kReactionNs = 20'000;  // from the end of a kernel to the host's next call
constexpr std::uint64_t kLongestWaitNs = 45'000'000;

struct Running {
    KernelCost cost;
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
    std::optional<KernelCost> calling{};  // admitted, and held up on its way to the GPU

    bool served() const { return next_kernel == spec.kernels.size(); }
};

class Simulation {
   public:
    Simulation(const Settings& settings, const std::vector<ClientSpec>& specs, Sharing sharing)
        : settings_(settings), sharing_(sharing), gpu_(settings, shared::Hello{}) {
        for (const ClientSpec& spec : specs) {
            const auto slot =
                gpu_.join({1, "", spec.priority, spec.request_permille, spec.limit_permille}, now_ns_);
            clients_.push_back({spec, *slot, {}, {}, 0, now_ns_, now_ns_, 0, 0, false, std::nullopt});
            if (spec.pause_ns != 0) clients_.back().acts_at_ns += pause(spec);
        }
    }

    Result run(std::uint64_t duration_ns) {
        const std::uint64_t start_ns = now_ns_;
        while (now_ns_ < start_ns + duration_ns) {
            // Who is granted one launch may wait for the next one at once, and rings again.
            for (bool granted = true; granted;) {
                granted = false;
                for (Client& client : clients_) act(client);
                manage();
                for (Client& client : clients_) granted = take_grant(client) || granted;
            }
            step();
        }
        Result result{{}, above_ns_, let_in_above_ns_, best_effort_above_ns_, busy_ns_};
        for (double* share :
             {&result.above_caps, &result.let_in_above_caps, &result.best_effort_above_caps, &result.busy}) {
            *share /= static_cast<double>(now_ns_ - start_ns);
        }
        for (Client& client : clients_) result.clients.push_back(client.result);
        return result;
    }

   private:
    shared::Slot& slot(const Client& client) { return gpu_.page().slots[client.slot]; }

    std::uint64_t pause(const ClientSpec& spec) {
        return static_cast<std::uint64_t>(-std::log(1 - uniform_(random_)) *
                                          static_cast<double>(spec.pause_ns));
    }

    // Half of the time not at all.
    std::uint64_t late(std::uint64_t most_ns) {
        if (most_ns == 0 || uniform_(random_) < 0.5) return 0;
        return static_cast<std::uint64_t>(uniform_(random_) * static_cast<double>(most_ns));
    }

    std::uint64_t reaction(const ClientSpec& spec) { return kReactionNs + late(spec.late_ns); }

    void act(Client& client) {
        while (client.acts_at_ns <= now_ns_ && !client.draining) {
            if (client.calling) {
                reach_gpu(client, *client.calling);
            } else if (client.served()) {
                client.draining = true;
            } else if (client.queue.size() >= kQueue && client.spec.pause_ns == 0) {
                return;
            } else if (!launch(client)) {
                return;
            }
        }
        if (client.draining && client.queue.empty() && client.acts_at_ns <= now_ns_) finish(client);
    }

    void finish(Client& client) {
        if (sharing_ == Sharing::kManaged) shared::settle(slot(client).timeline, now_ns_);
        slot(client).counters.drains.fetch_add(1);
        client.result.latencies_ns.push_back(now_ns_ - client.began_ns);
        client.next_kernel = 0;
        client.draining = false;
        client.acts_at_ns =
            now_ns_ + reaction(client.spec) + (client.spec.pause_ns == 0 ? 0 : pause(client.spec));
        client.began_ns = client.acts_at_ns;
    }

    bool launch(Client& client) {
        const KernelCost& cost = client.spec.kernels[client.next_kernel];
        if (sharing_ == Sharing::kManaged && !admitted(client, cost)) return false;
        ++client.next_kernel;
        call_driver(client, cost);
        return true;
    }

    // One call in 50 is held up, where hosts are late.
    void call_driver(Client& client, const KernelCost& cost) {
        if (client.spec.held_up_ns == 0 || uniform_(random_) > 0.02) return reach_gpu(client, cost);
        client.calling = cost;
        client.acts_at_ns = now_ns_ + static_cast<std::uint64_t>(uniform_(random_) *
                                                                 static_cast<double>(client.spec.held_up_ns));
    }

    void reach_gpu(Client& client, const KernelCost& cost) {
        client.calling.reset();
        client.queue.push_back({cost, static_cast<double>(cost.gpu_ns), now_ns_});
        if (sharing_ == Sharing::kManaged) gate::reached_driver(gpu_.page(), client.slot, now_ns_);
    }

    bool admitted(Client& client, const KernelCost& cost) {
        shared::Page& page = gpu_.page();
        if (client.spec.priority == shared::Class::kHigh && settings_.policy == shared::Policy::kGroup) {
            gate::announce(page, client.slot, cost, now_ns_);
            return true;
        }
        if (client.waits_since_ns != 0) return false;
        if (gate::try_now(page, client.slot, cost, now_ns_).launched) return true;
        client.waits_since_ns = now_ns_;
        shared::Doorway& door = slot(client).door;
        door.want.store(shared::pack_cost(cost));
        door.want_since_ns.store(now_ns_);
        door.gate.store((door.gate.load() & ~shared::kGateState) + 4 + shared::kGateWaiting);
        return false;
    }

    bool take_grant(Client& client) {
        if (client.waits_since_ns == 0) return false;
        shared::Doorway& door = slot(client).door;
        const bool granted = (door.gate.load() & shared::kGateState) == shared::kGateGranted;
        if (!granted && now_ns_ - client.waits_since_ns < kLongestWaitNs) return false;
        if (granted && client.wakes_at_ns == 0 && client.spec.wakes_late_ns != 0) {
            client.wakes_at_ns = now_ns_ + late(client.spec.wakes_late_ns);
            client.acts_at_ns = client.wakes_at_ns;
        }
        if (client.wakes_at_ns > now_ns_) return false;
        client.wakes_at_ns = 0;
        if (granted &&
            !gate::grant_holds(gpu_.page(), client.slot, client.spec.kernels[client.next_kernel], now_ns_)) {
            slot(client).timeline.reserved.store(0);
            door.gate.store((door.gate.load() & ~shared::kGateState) + 4 + shared::kGateWaiting);
            return false;
        }
        client.result.longest_wait_ns =
            std::max(client.result.longest_wait_ns, now_ns_ - client.waits_since_ns);
        client.waits_since_ns = 0;
        const KernelCost& cost = client.spec.kernels[client.next_kernel++];
        gate::launch_on_debt(gpu_.page(), slot(client), cost, now_ns_);
        slot(client).timeline.reserved.store(0);
        door.gate.store(door.gate.load() & ~shared::kGateState);
        call_driver(client, cost);
        return true;
    }

    void manage() {
        if (sharing_ == Sharing::kUnmanaged) return;
        if (now_ns_ >= next_beat_ns_) {
            gpu_.beat(now_ns_);
            next_beat_ns_ = now_ns_ + kBeatNs;
        }
        look_again_ns_ = gpu_.serve(now_ns_);
    }

    // To the next moment at which anything happens.
    void step() {
        shared::Load sum, best_effort;
        std::uint64_t high_launched_ns = 0, best_effort_launched_ns = 0;  // the last of what runs
        double next_ns = static_cast<double>(next_beat_ns_ > now_ns_ ? next_beat_ns_ - now_ns_ : kBeatNs);
        bool any = false;
        for (const Client& client : clients_) {
            if (client.acts_at_ns > now_ns_)
                next_ns = std::min(next_ns, static_cast<double>(client.acts_at_ns - now_ns_));
            if (client.queue.empty()) continue;
            any = true;
            const Running& first = client.queue.front();
            sum = sum + shared::load_of(first.cost);
            if (client.spec.priority == shared::Class::kHigh) {
                high_launched_ns = std::max(high_launched_ns, first.launched_ns);
            } else {
                best_effort = best_effort + shared::load_of(first.cost);
                best_effort_launched_ns = std::max(best_effort_launched_ns, first.launched_ns);
            }
        }
        if (look_again_ns_ > now_ns_)
            next_ns = std::min(next_ns, static_cast<double>(look_again_ns_ - now_ns_));
        const double slowdown = std::max({1000U, sum.compute_permille, sum.bandwidth_permille}) / 1000.0;
        for (const Client& client : clients_) {
            if (!client.queue.empty())
                next_ns = std::min(next_ns, client.queue.front().remaining_ns * slowdown);
        }
        const auto passed = static_cast<std::uint64_t>(std::max(1.0, std::ceil(next_ns)));
        const auto above = [&](shared::Load load) {
            return load.compute_permille > settings_.cap_compute_permille ||
                   load.bandwidth_permille > settings_.cap_bandwidth_permille;
        };
        if (above(sum)) above_ns_ += static_cast<double>(passed);
        if (above(sum) && best_effort_launched_ns > high_launched_ns)
            let_in_above_ns_ += static_cast<double>(passed);
        if (above(best_effort)) best_effort_above_ns_ += static_cast<double>(passed);
        if (any) busy_ns_ += static_cast<double>(passed);
        now_ns_ += passed;
        for (Client& client : clients_) progress(client, static_cast<double>(passed) / slowdown);
    }

    void progress(Client& client, double done_ns) {
        if (client.queue.empty()) return;
        Running& first = client.queue.front();
        first.remaining_ns -= done_ns;
        if (first.remaining_ns > 0.5) return;
        client.result.work_ns += first.cost.gpu_ns;
        client.result.charge_ns += gate::charge_of(first.cost);
        client.queue.pop_front();
        if (client.queue.empty() && client.draining) client.acts_at_ns = now_ns_ + reaction(client.spec);
    }

    Settings settings_;
    Sharing sharing_;
    std::uint64_t now_ns_{1'000'000'000'000};
    Gpu gpu_;
    std::vector<Client> clients_;
    std::mt19937_64 random_{20240607};
    std::uniform_real_distribution<double> uniform_{0, 1};
    std::uint64_t next_beat_ns_{0}, look_again_ns_{0};
    double above_ns_{0}, let_in_above_ns_{0}, best_effort_above_ns_{0}, busy_ns_{0};
};

}  // namespace

Result run(const Settings& settings, const std::vector<ClientSpec>& specs, Sharing sharing,
           std::uint64_t duration_ns) {
    return Simulation(settings, specs, sharing).run(duration_ns);
}

std::uint64_t percentile(std::vector<std::uint64_t> values, double share) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    return values[std::min(values.size() - 1,
                           static_cast<std::size_t>(share * static_cast<double>(values.size())))];
}

}  // namespace model
