#include "tests/kernel/hostile/arms.hpp"

#include <algorithm>
#include <map>

#include "kernel_intercept/gate/admission.hpp"
#include "kernel_intercept/manager/gpu.hpp"

namespace hostile {

namespace {

using namespace explsched;

constexpr std::uint64_t kBeatNs = 5'000'000;
constexpr std::uint64_t kGraphPieceNs = 100'000;
constexpr std::uint64_t kWakesNs = 8'000;  // from a grant to the launch

Standing standing_of(const Program& program, const Told& told) {
    return {program.high ? 1000 : told.best_effort_permille, program.high && told.priority};
}

class MpsAlone : public Arm {
   public:
    explicit MpsAlone(const Told& told) : told_(told) {}

    void join(std::uint32_t client, const Program& program, Device& device) override {
        device.set_standing(client, standing_of(program, told_));
    }
    std::optional<std::uint64_t> admit(const Launch&, Device&) override { return std::nullopt; }
    std::optional<Operation> within_graph(const Launch&, std::uint64_t) override { return std::nullopt; }
    void recorded(std::uint32_t, std::uint32_t, Device&) override {}
    std::uint64_t manage(Device&) override { return UINT64_MAX; }

   private:
    Told told_;
};

// The gate's and the manager's own decisions; what the interposer does around them is done here.
class Gated : public Arm {
   public:
    Gated(const manager::Settings& settings, const Told& told)
        : settings_(settings), told_(told), gpu_(settings, shared::Hello{}) {}

    void join(std::uint32_t client, const Program& program, Device& device) override {
        device.set_standing(client, standing_of(program, told_));
        const auto priority = program.high ? shared::Class::kHigh : shared::Class::kBestEffort;
        const std::uint32_t slot =
            *gpu_.join({1, "", priority, program.request_permille, 1000}, device.now_ns());
        clients_[client].slot = slot;
        device.watch(&gpu_.signals().clients[slot].gate);
        gpu_.page().slots[slot].client.reports = 1;
    }

    std::optional<std::uint64_t> admit(const Launch& launch, Device& device) override {
        Client& client = clients_[launch.client];
        shared::Slot& slot = gpu_.page().slots[client.slot];
        if (const auto again_ns = waits(launch, client, slot, device.now_ns())) return again_ns;
        if (settings_.policy == shared::Policy::kQuota) gate::pay(slot, launch.cost);
        const auto patience = launch.may_wait ? gate::Patience::kMayWait : gate::Patience::kMustNotWait;
        const int stream = line_of(client, launch.stream);
        emit(client, launch.stream,
             gate::enter(gpu_.page(), gpu_.signals(), client.slot, stream, client.streams[launch.stream],
                         launch.cost, patience, device.now_ns()),
             device);
        return std::nullopt;
    }

    std::optional<Operation> within_graph(const Launch& launch, std::uint64_t since_ns) override {
        const Client& client = clients_[launch.client];
        const shared::Control& control = gpu_.page().control;
        if ((control.high.load() >> client.slot & 1) != 0 || since_ns < kGraphPieceNs) return std::nullopt;
        return wait_of(client);
    }

    void recorded(std::uint32_t index, std::uint32_t stream, Device& device) override {
        Client& client = clients_[index];
        const gate::Boundary tail = client.streams[stream].batches.tail();
        const auto line = static_cast<std::size_t>(line_of(client, stream));
        if (tail.writes) gpu_.signals().clients[client.slot].lines[line].told = tail.done_ns;
        emit(client, stream, tail, device);
    }

    std::uint64_t manage(Device& device) override {
        const std::uint64_t now_ns = device.now_ns();
        if (now_ns >= next_beat_ns_) {
            gpu_.beat(now_ns);
            next_beat_ns_ = now_ns + kBeatNs;
        }
        const std::uint64_t again_ns = gpu_.serve(now_ns);
        return std::min(next_beat_ns_, again_ns == 0 ? UINT64_MAX : again_ns);
    }

   private:
    struct Client {
        std::uint32_t slot{0};
        std::uint64_t waits_since_ns{0};
        std::map<std::uint32_t, gate::CountedStream> streams;  // by stream of the device
        std::map<std::uint32_t, int> lines;
    };

    static int line_of(Client& client, std::uint32_t stream) {
        return client.lines.emplace(stream, static_cast<int>(client.lines.size())).first->second;
    }

    // When to ask again; nothing if the launch may go.
    std::optional<std::uint64_t> waits(const Launch& launch, Client& client, shared::Slot& slot,
                                       std::uint64_t now_ns) {
        if (!launch.may_wait) return std::nullopt;
        const bool quota = settings_.policy == shared::Policy::kQuota;
        const bool goes = quota
                              ? slot.client.credit_ns.load() > 0
                              : gate::has_room(gpu_.page(), gpu_.signals(), client.slot,
                                               line_of(client, launch.stream), client.streams[launch.stream]);
        const bool waited_long =
            client.waits_since_ns != 0 && now_ns - client.waits_since_ns >= gate::kLongestWaitNs;
        if (goes || waited_long) {
            client.waits_since_ns = 0;
            slot.client.grant = slot.client.grant & ~shared::kGrantState;
            return std::nullopt;
        }
        if (client.waits_since_ns == 0) client.waits_since_ns = now_ns;
        slot.client.grant = (slot.client.grant & ~shared::kGrantState) + shared::kGrantWaiting;
        return now_ns + (quota ? kWakesNs : 100'000);
    }

    Operation wait_of(const Client& client) {
        Operation wait{{Kind::kWait, 0, {}}};
        wait.gate = &gpu_.signals().clients[client.slot].gate;
        wait.value = shared::kOpen;
        return wait;
    }

    void emit(Client& client, std::uint32_t stream, const gate::Boundary& boundary, Device& device) {
        if (boundary.writes) {
            Operation write{{Kind::kWrite, 0, {}}};
            const auto line = static_cast<std::size_t>(line_of(client, stream));
            write.address = &gpu_.signals().clients[client.slot].lines[line].done;
            write.value = boundary.done_ns;
            device.submit(stream, write);
        }
        if (boundary.waits) device.submit(stream, wait_of(client));
    }

    manager::Settings settings_;
    Told told_;
    manager::Gpu gpu_;
    std::map<std::uint32_t, Client> clients_;
    std::uint64_t next_beat_ns_{0};
};

}  // namespace

std::unique_ptr<Arm> mps_alone(const Told& told) { return std::make_unique<MpsAlone>(told); }

std::unique_ptr<Arm> gated(const manager::Settings& settings, const Told& told) {
    return std::make_unique<Gated>(settings, told);
}

}  // namespace hostile
