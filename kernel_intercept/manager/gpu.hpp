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
#include "kernel_intercept/policy/quota.hpp"
#include "kernel_intercept/shared/protocol.hpp"

namespace explsched::manager {

struct Tenant {
    std::int32_t pid;
    std::string job;
    shared::Class priority;
    std::uint32_t request_permille;
    std::uint32_t limit_permille;
};

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
    void take_samples(const std::function<void(const shared::RingSample&, Company)>& take);

    bool empty() const { return page_->control.occupied.load(std::memory_order_relaxed) == 0; }
    int descriptor() const { return page_.descriptor(); }
    const shared::Hello& identity() const { return identity_; }
    const std::array<std::optional<Tenant>, shared::kSlots>& tenants() const { return tenants_; }
    shared::Page& page() { return *page_; }
    const shared::Page& page() const { return *page_; }
    std::uint32_t best_effort_permille() const;

   private:
    std::uint64_t serve_group(std::uint64_t now_ns);
    std::uint64_t serve_quota(std::uint64_t now_ns);
    bool grant_paid();  // whether some still wait
    void count_backlog(std::uint64_t now_ns);
    bool change_credit(const std::function<std::vector<policy::Member>(std::vector<policy::Member>)>& rule);
    void refill(std::uint64_t now_ns);
    void feel_pressure();
    Company company();
    bool waits(std::uint32_t slot) const;
    void grant(std::uint32_t slot);

    Settings settings_;
    shared::Hello identity_;
    Shared<shared::Page> page_;
    std::array<std::optional<Tenant>, shared::kSlots> tenants_;
    std::uint32_t tenancies_{0};  // so far
    std::array<std::int64_t, shared::kSlots> room_ns_{};
    std::array<std::uint64_t, shared::kSlots> charged_ns_{};   // as of the last look at the backlog
    std::array<std::uint64_t, shared::kSlots> refilled_ns_{};  // of that, as of the last refill
    std::uint64_t busy_until_ns_{0};
    std::array<std::uint64_t, shared::kSlots> drains_{};    // as of the last look at the busy periods
    std::array<std::uint64_t, shared::kSlots> launches_{};  // as of the last look at the samples
    std::array<policy::Pressure, shared::kSlots> pressure_{};
    std::uint64_t company_until_ns_{0};  // timings up to then may have been taken in company
    std::uint64_t last_beat_ns_{0};
    std::uint64_t last_refill_ns_{0};
};

}  // namespace explsched::manager
