#include "tests/kernel/hostile/arms.hpp"

#include <algorithm>
#include <map>

#include "kernel_intercept/gate/launch.hpp"
#include "kernel_intercept/manager/gpu.hpp"

namespace hostile {

namespace {

using namespace explsched;

constexpr std::uint64_t kBeatNs = 5'000'000;
constexpr std::uint64_t kLongestWaitNs = 45'000'000;
constexpr std::uint64_t kSoonestNs = 20'000;
constexpr std::uint64_t kWakeNs = 8'000;  // from a grant to the launch

class MpsAlone : public Arm {
   public:
    void join(std::uint32_t, const Program&, Device&) override {}
    std::optional<std::uint64_t> admit(const Launch&, Device&) override { return std::nullopt; }
    void launched(const Launch&, Device&) override {}
    void recorded(std::uint32_t, std::uint32_t, Device&) override {}
    void synchronised(std::uint32_t, Device&) override {}
    std::uint64_t manage(Device&) override { return UINT64_MAX; }
};

// The gate that predicts: launches are admitted by when earlier ones are expected to end.
class Predictive : public Arm {
   public:
    explicit Predictive(const manager::Settings& settings)
        : settings_(settings), gpu_(settings, shared::Hello{}) {}

    void join(std::uint32_t client, const Program& program, Device& device) override {
        const auto priority = program.high ? shared::Class::kHigh : shared::Class::kBestEffort;
        slots_[client] = *gpu_.join({1, "", priority, program.request_permille, 1000}, device.now_ns());
    }

    std::optional<std::uint64_t> admit(const Launch& launch, Device& device) override {
        const std::uint32_t slot = slots_[launch.client];
        const std::uint64_t now_ns = device.now_ns();
        shared::Page& page = gpu_.page();
        if (gate::announces(page, slot)) {
            gate::announce(page, slot, launch.cost, now_ns);
            return std::nullopt;
        }
        shared::Slot& state = page.slots[slot];
        if (!launch.may_wait) {
            gate::launch_on_debt(page, state, launch.cost, now_ns);
            return std::nullopt;
        }
        std::uint64_t& since_ns = waits_since_ns_[launch.client];
        const bool granted = (state.door.gate.load() & shared::kGateState) == shared::kGateGranted;
        if (since_ns != 0 && (granted || now_ns - since_ns >= kLongestWaitNs)) {
            gate::launch_on_debt(page, state, launch.cost, now_ns);
            stop_waiting(slot, since_ns);
            return std::nullopt;
        }
        const gate::Try attempt = gate::try_now(page, slot, launch.cost, now_ns);
        if (attempt.launched) {
            if (since_ns != 0) stop_waiting(slot, since_ns);
            return std::nullopt;
        }
        if (since_ns == 0) {
            since_ns = now_ns;
            state.door.want.store(shared::pack_cost(launch.cost));
            state.door.want_since_ns.store(now_ns);
            state.door.gate.store((state.door.gate.load() & ~shared::kGateState) + 4 + shared::kGateWaiting);
            rung_ = true;
        }
        const std::uint64_t retry_ns = attempt.retry_ns == 0 ? now_ns + 5'000'000 : attempt.retry_ns;
        return std::clamp(retry_ns, now_ns + kSoonestNs, now_ns + 5'000'000);
    }

    void launched(const Launch& launch, Device& device) override {
        gate::reached_driver(gpu_.page(), slots_[launch.client], device.now_ns());
    }

    void recorded(std::uint32_t, std::uint32_t, Device&) override {}
    void synchronised(std::uint32_t, Device&) override {
    }  // pollers and clients that never synchronise tell nothing

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
    void stop_waiting(std::uint32_t slot, std::uint64_t& since_ns) {
        shared::Slot& state = gpu_.page().slots[slot];
        state.timeline.reserved.store(0);
        state.door.gate.store(state.door.gate.load() & ~shared::kGateState);
        since_ns = 0;
    }

    manager::Settings settings_;
    manager::Gpu gpu_;
    std::map<std::uint32_t, std::uint32_t> slots_;
    std::map<std::uint32_t, std::uint64_t> waits_since_ns_;
    std::uint64_t next_beat_ns_{0};
    bool rung_{false};
};

}  // namespace

std::unique_ptr<Arm> mps_alone() { return std::make_unique<MpsAlone>(); }

std::unique_ptr<Arm> gated(const manager::Settings& settings) {
    return std::make_unique<Predictive>(settings);
}

}  // namespace hostile
