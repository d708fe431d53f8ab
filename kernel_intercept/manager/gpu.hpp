// One GPU: its shared page and the clients on it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "kernel_intercept/manager/memory.hpp"
#include "kernel_intercept/manager/profile.hpp"
#include "kernel_intercept/manager/settings.hpp"
#include "kernel_intercept/policy/beside.hpp"
#include "kernel_intercept/policy/quota.hpp"
#include "kernel_intercept/shared/protocol.hpp"

namespace explsched::manager {

using shared::each_bit;

struct Tenant {
    std::int32_t pid;
    std::string job;
    shared::Class priority;
    std::uint32_t request_permille;
    std::uint32_t limit_permille;
};

// What a client does between two idle moments, as far as the manager has seen it.
struct BusyPeriod {
    std::uint64_t seen_ns, changed_at_ns;  // issued and done together, and when that was last another sum
    std::uint64_t began_at_issued_ns;
    std::uint64_t idle_since_ns;  // 0: it is not
    std::uint64_t ended_ns;       // the last one
    std::uint64_t latency_ns;     // running mean of the work of a period, 0 = unknown
};

// What the manager knows of the client in a slot; anew for each that takes it.
struct Client {
    std::optional<Tenant> tenant;
    BusyPeriod period{};
    shared::Load peak;               // of the time before `peaks_from_ns_`
    std::uint64_t open_since_ns{0};  // of a gate that is to be shut; 0: is shut
    std::int64_t room_ns{0};
    std::uint64_t charged_ns{0};                 // as of the last look at the backlog
    std::uint64_t refilled_ns{0}, busy_time{0};  // charged and ended busy periods as of the last refill
    std::uint64_t launches{0};                   // as of the last look at the samples
    policy::Pressure pressure;
    bool launched() const { return charged_ns != refilled_ns; }  // policy `quota`: since the last refill
};

// Slurm stops all of a suspended job, the manager too, and a virtual machine all its processes. Clients that
// go on meanwhile take the manager for dead sooner than this.
constexpr std::uint64_t kStoodStillNs = 50'000'000;

class Gpu {
   public:
    Gpu(const Settings& settings, const shared::Hello& first);

    // The slot of a new client, unless all are taken.
    std::optional<std::uint32_t> join(const Tenant& tenant, std::uint64_t now_ns);
    // Returns all that the client had taken: a slot, room, credit.
    void leave(std::uint32_t slot);

    void beat(std::uint64_t now_ns);
    // Serves the launches that wait. Returns when to look again at the latest, 0 for no such time.
    std::uint64_t serve(std::uint64_t now_ns);
    void take_samples(const std::function<void(const shared::RingSample&, CoRun)>& take);

    bool empty() const { return page_->control.occupied.load(std::memory_order_relaxed) == 0; }
    int descriptor() const { return page_.descriptor(); }
    int signals_descriptor() const { return signals_.descriptor(); }
    shared::Signals& signals() { return *signals_; }
    shared::Progress progress(std::uint32_t slot) const {
        return shared::progress_of(signals_->clients[slot]);
    }
    std::uint64_t latency_ns(std::uint32_t slot) const { return clients_[slot].period.latency_ns; }
    const shared::Hello& identity() const { return identity_; }
    const std::optional<Tenant>& tenant(std::uint32_t slot) const { return clients_[slot].tenant; }
    shared::Page& page() { return *page_; }
    const shared::Page& page() const { return *page_; }
    std::uint32_t best_effort_permille() const;

   private:
    std::uint64_t serve_group(std::uint64_t now_ns);
    std::uint64_t look_at_busy(std::uint32_t slot, std::uint64_t now_ns);
    void end_period(std::uint32_t slot, std::uint64_t issued_ns);
    std::uint64_t expected_beside(std::uint64_t low);
    void forget_old_peaks(std::uint64_t now_ns);
    void set_batch(std::uint64_t open, bool allowed);
    void settle_silent(std::uint64_t clients, std::uint64_t now_ns);
    std::uint64_t working(std::uint64_t clients) const;
    std::uint64_t choose_open(std::uint64_t rivals, std::uint64_t now_ns, std::uint64_t& next_ns);
    std::uint64_t serve_quota(std::uint64_t now_ns);
    bool grant_paid();  // whether some still wait
    std::uint64_t busy_until_ns(std::uint64_t now_ns);
    bool change_credit(const std::function<std::vector<policy::Member>(std::vector<policy::Member>)>& rule);
    void refill(std::uint64_t now_ns);
    void feel_pressure(std::uint64_t now_ns);
    CoRun co_run();

    Settings settings_;
    shared::Hello identity_;
    Shared<shared::Page> page_;
    Shared<shared::Signals> signals_;
    std::array<Client, shared::kSlots> clients_{};
    std::uint64_t peaks_from_ns_{0};
    policy::BesideRule beside_;
    std::uint32_t first_open_{0}, last_slot_{shared::kSlots - 1};
    std::uint64_t turn_ends_ns_{0}, looked_ns_{0};  // the latter at who is silent
    std::uint32_t tenancies_{0};                    // so far
    std::uint64_t predicted_until_ns_{0};
    std::uint64_t shared_until_ns_{0};  // timings up to then may have been taken while others ran
    std::uint64_t last_beat_ns_{0};
    std::uint64_t stood_still_until_ns_{0};  // what was measured in that time tells nothing
    std::uint64_t last_refill_ns_{0};
};

}  // namespace explsched::manager
