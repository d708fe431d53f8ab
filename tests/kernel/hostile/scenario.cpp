#include "tests/kernel/hostile/scenario.hpp"

#include <algorithm>
#include <cmath>
#include <map>

namespace hostile {

namespace {

using explsched::KernelCost;

constexpr std::uint64_t kStartNs = 1'000'000'000'000;
constexpr std::uint64_t kPollNs = 5'000;  // of a host that looks for the end of its work
constexpr std::uint64_t kSeenTimes = 2;   // launches of a kernel after which its time has been measured
constexpr std::uint32_t kCapPermille = 950;

struct Client {
    Program program;
    std::vector<std::uint32_t> streams;
    std::uint64_t acts_at_ns{kStartNs};
    std::size_t next_call{0};
    std::uint32_t part{0};
    bool polling{false};
    std::uint64_t began_ns{0};
    std::map<std::uint32_t, std::pair<std::uint32_t, std::uint64_t>> events;  // stream and count
    std::map<const Call*, std::uint64_t> seen;
    Outcome outcome{};
    double work_at_warm_up_ns{0};
};

class Scenario {
   public:
    Scenario(const std::vector<Program>& programs, Profiles profiles, Arm& arm)
        : profiles_(profiles),
          arm_(arm),
          device_(DeviceSettings{}, static_cast<std::uint32_t>(programs.size()), kStartNs) {
        for (const Program& program : programs) {
            Client client{};
            client.program = program;
            const auto index = static_cast<std::uint32_t>(clients_.size());
            for (std::uint32_t i = 0; i < program.streams; ++i)
                client.streams.push_back(device_.open_stream(index));
            client.acts_at_ns = kStartNs + (program.high ? pause(program) : 1000 * index);
            client.began_ns = client.acts_at_ns;
            clients_.push_back(std::move(client));
            arm_.join(index, program, device_);
        }
    }

    Result run(std::uint64_t warm_up_ns, std::uint64_t duration_ns) {
        const std::uint64_t counts_from_ns = kStartNs + warm_up_ns, end_ns = counts_from_ns + duration_ns;
        bool warm = false;
        while (device_.now_ns() < end_ns) {
            if (!warm && device_.now_ns() >= counts_from_ns) {
                warm = true;
                for (std::uint32_t i = 0; i < clients_.size(); ++i) {
                    clients_[i].work_at_warm_up_ns = device_.done_ns(i);
                    clients_[i].outcome.latencies_ns.clear();
                }
                above_ns_ = let_in_ns_ = beside_ns_ = 0;
            }
            for (std::uint32_t i = 0; i < clients_.size(); ++i) act(i);
            if (device_.now_ns() >= manager_at_ns_) manager_at_ns_ = wakes(arm_.manage(device_));
            device_.look_at_gates();
            std::uint64_t next_ns = std::min(device_.next_ns(), manager_at_ns_);
            for (const Client& client : clients_) {
                if (client.acts_at_ns > device_.now_ns()) next_ns = std::min(next_ns, client.acts_at_ns);
            }
            next_ns = std::max(next_ns, device_.now_ns() + 1);
            measure(static_cast<double>(next_ns - device_.now_ns()));
            device_.pass_until(next_ns);
        }
        const auto all_ns = static_cast<double>(duration_ns);
        Result result{{}, above_ns_ / all_ns, let_in_ns_ / all_ns, beside_ns_ / all_ns};
        for (std::uint32_t i = 0; i < clients_.size(); ++i) {
            clients_[i].outcome.work_ns = device_.done_ns(i) - clients_[i].work_at_warm_up_ns;
            result.clients.push_back(clients_[i].outcome);
        }
        return result;
    }

   private:
    std::uint64_t pause(const Program& program) {
        if (program.pause_ns == 0) return 0;
        return static_cast<std::uint64_t>(-std::log(1 - unit_(random_)) *
                                          static_cast<double>(program.pause_ns));
    }

    // A daemon wakes up late: by 5 us, sometimes by 60.
    std::uint64_t wakes(std::uint64_t at_ns) {
        if (at_ns == UINT64_MAX) return at_ns;
        return std::max(at_ns, device_.now_ns()) + (unit_(late_) < 0.9 ? 5'000 : 60'000);
    }

    void act(std::uint32_t index) {
        Client& client = clients_[index];
        while (client.acts_at_ns <= device_.now_ns()) {
            if (client.polling) {
                if (!device_.is_idle(index)) {
                    client.acts_at_ns = device_.now_ns() + kPollNs;
                    return;
                }
                part_ends(index);
            } else if (client.next_call == client.program.calls.size()) {
                client.next_call = 0;
                client.polling = client.program.pause_ns != 0;
                if (client.polling) arm_.recorded(index, client.streams[0], device_);
            } else if (!call(index, client.program.calls[client.next_call])) {
                return;
            }
        }
    }

    void part_ends(std::uint32_t index) {
        Client& client = clients_[index];
        client.polling = false;
        if (++client.part < client.program.parts) {
            client.acts_at_ns = device_.now_ns() + client.program.think_ns;
            return;
        }
        client.part = 0;
        client.outcome.latencies_ns.push_back(device_.now_ns() - client.began_ns);
        client.acts_at_ns = device_.now_ns() + pause(client.program);
        client.began_ns = client.acts_at_ns;
    }

    // What is known of a launch: its time and shares alone, or, if nothing was imported, its time once it has
    // been measured, the share of the multiprocessors that its grid occupies, and nothing of the bandwidth.
    KernelCost cost_of(Client& client, const Call& call) {
        double ns = 0, compute = 0, bandwidth = 0;
        for (const Work& work : call.work) {
            ns += work.alone_ns;
            compute += work.alone_ns * work.load.compute_permille;
            bandwidth += work.alone_ns * work.load.bandwidth_permille;
        }
        KernelCost cost{static_cast<std::uint64_t>(ns), static_cast<std::uint32_t>(compute / ns),
                        static_cast<std::uint32_t>(bandwidth / ns)};
        if (profiles_ == Profiles::kKnown) return cost;
        if (client.seen[&call]++ < kSeenTimes) cost.gpu_ns = 20'000;
        cost.bandwidth_permille = 1000;
        return cost;
    }

    // False if the host has to wait before it can make the call.
    bool call(std::uint32_t index, const Call& call) {
        Client& client = clients_[index];
        const std::uint32_t stream = client.streams[call.stream];
        const bool gated =
            call.step == Step::kLaunch || call.step == Step::kGraph || call.step == Step::kSpin;
        if (device_.is_full(stream)) {
            client.acts_at_ns = device_.now_ns() + 20'000;
            return false;
        }
        if (gated) {
            const Launch launch{index, stream, cost_of(client, call), call.step != Step::kSpin};
            if (const auto again_ns = arm_.admit(launch, device_)) {
                client.acts_at_ns = std::max(*again_ns, device_.now_ns() + 1000);
                return false;
            }
            submit(launch, call);
        } else if (call.step == Step::kCopy) {
            submit({index, stream, {}, false}, call);
        } else if (call.step == Step::kRecord) {
            arm_.recorded(index, stream, device_);
            client.events[call.event] = {stream, device_.submitted(stream)};
        } else if (const auto event = client.events.find(call.event); event != client.events.end()) {
            Operation wait{{Kind::kWaitEvent, 0, {}}};
            wait.stream = event->second.first;
            wait.value = event->second.second;
            device_.submit(stream, wait);
        }
        ++client.next_call;
        client.acts_at_ns = device_.now_ns() + client.program.call_ns;
        return true;
    }

    void submit(const Launch& launch, const Call& call) {
        std::uint64_t since_ns = 0;
        for (const Work& work : call.work) {
            if (since_ns != 0) {
                if (const auto wait = arm_.within_graph(launch, since_ns)) {
                    device_.submit(launch.stream, *wait);
                    since_ns = 0;
                }
            }
            Operation operation{work};
            operation.called_ns = device_.now_ns();
            device_.submit(launch.stream, operation);
            since_ns += static_cast<std::uint64_t>(work.alone_ns);
        }
    }

    void measure(double passed_ns) {
        Load sum;
        std::uint64_t high_called_ns = 0, low_called_ns = 0;
        for (const Running& running : device_.running()) {
            sum = sum + running.load;
            std::uint64_t& last = clients_[running.client].program.high ? high_called_ns : low_called_ns;
            last = std::max(last, running.called_ns);
        }
        if (device_.running().size() < 2) return;
        if (sum.compute_permille <= kCapPermille && sum.bandwidth_permille <= kCapPermille) return;
        above_ns_ += passed_ns;
        if (low_called_ns <= high_called_ns) return;
        let_in_ns_ += passed_ns;
        if (high_called_ns != 0) beside_ns_ += passed_ns;
    }

    Profiles profiles_;
    Arm& arm_;
    Device device_;
    std::vector<Client> clients_;
    std::uint64_t manager_at_ns_{0};
    double above_ns_{0}, let_in_ns_{0}, beside_ns_{0};
    std::mt19937_64 random_{20240607 + variant}, late_{5 + variant};
    std::uniform_real_distribution<double> unit_{0, 1};
};

}  // namespace

Result run(const std::vector<Program>& programs, Profiles profiles, Arm& arm, std::uint64_t warm_up_ns,
           std::uint64_t duration_ns) {
    return Scenario(programs, profiles, arm).run(warm_up_ns, duration_ns);
}

double percentile(std::vector<std::uint64_t> values, double share) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const auto at = static_cast<std::size_t>(share * static_cast<double>(values.size()));
    return static_cast<double>(values[std::min(values.size() - 1, at)]);
}

}  // namespace hostile
