#include "tests/kernel/policy/model.hpp"

#include <algorithm>
#include <cmath>

#include "kernel_intercept/gate/launch.hpp"
#include "tests/kernel/policy/caps_meter.hpp"
#include "tests/kernel/policy/model_client.hpp"

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

class Simulation {
   public:
    Simulation(const Settings& settings, const std::vector<ClientSpec>& specs, Sharing sharing)
        : settings_(settings),
          sharing_(sharing),
          gpu_(settings, shared::Hello{}),
          meter_({settings.cap_compute_permille, settings.cap_bandwidth_permille}) {
        for (const ClientSpec& spec : specs) {
            const auto slot =
                gpu_.join({1, "", spec.priority, spec.request_permille, spec.limit_permille}, now_ns_);
            clients_.push_back({spec, *slot, {}, {}, 0, now_ns_, now_ns_, 0, 0, false, std::nullopt});
            if (spec.pause_ns != 0) clients_.back().acts_at_ns += chance_.exponential(spec.pause_ns);
        }
    }

    Result run(std::uint64_t duration_ns) {
        const std::uint64_t end_ns = now_ns_ + duration_ns;
        while (now_ns_ < end_ns) {
            // Who is granted one launch may wait for the next one at once, and rings again.
            for (bool granted = true; granted;) {
                granted = false;
                for (Client& client : clients_) act(client);
                manage();
                for (Client& client : clients_) granted = take_grant(client) || granted;
            }
            step();
        }
        Result result{{},
                      meter_.above_caps(),
                      meter_.let_in_above_caps(),
                      meter_.best_effort_above_caps(),
                      meter_.busy()};
        for (Client& client : clients_) result.clients.push_back(client.result);
        return result;
    }

   private:
    shared::Slot& slot(const Client& client) { return gpu_.page().slots[client.slot]; }

    std::uint64_t reaction(const ClientSpec& spec) { return kReactionNs + chance_.late(spec.late_ns); }

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
        client.acts_at_ns = now_ns_ + reaction(client.spec) +
                            (client.spec.pause_ns == 0 ? 0 : chance_.exponential(client.spec.pause_ns));
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
        if (client.spec.held_up_ns == 0 || !chance_.happens(0.02)) return reach_gpu(client, cost);
        client.calling = cost;
        client.acts_at_ns = now_ns_ + chance_.up_to(client.spec.held_up_ns);
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
            client.wakes_at_ns = now_ns_ + chance_.late(client.spec.wakes_late_ns);
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
        Moment moment;
        std::uint64_t next_ns = next_beat_ns_ > now_ns_ ? next_beat_ns_ - now_ns_ : kBeatNs;
        const auto until = [&](std::uint64_t time_ns) {
            if (time_ns > now_ns_) next_ns = std::min(next_ns, time_ns - now_ns_);
        };
        until(look_again_ns_);
        for (const Client& client : clients_) {
            until(client.acts_at_ns);
            if (client.queue.empty()) continue;
            const Running& first = client.queue.front();
            moment.add({shared::load_of(first.cost), client.spec.priority == shared::Class::kHigh,
                        first.launched_ns});
        }
        for (const Client& client : clients_) {
            if (client.queue.empty()) continue;
            const double ends_in_ns = std::ceil(client.queue.front().remaining_ns * moment.slowdown());
            next_ns = std::min(next_ns, static_cast<std::uint64_t>(ends_in_ns));
        }
        const std::uint64_t passed_ns = std::max<std::uint64_t>(1, next_ns);
        meter_.pass(moment, passed_ns);
        now_ns_ += passed_ns;
        for (Client& client : clients_) progress(client, static_cast<double>(passed_ns) / moment.slowdown());
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
    CapsMeter meter_;
    std::vector<Client> clients_;
    Chance chance_;
    std::uint64_t next_beat_ns_{0}, look_again_ns_{0};
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
