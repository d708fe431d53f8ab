// Which best-effort clients may run on beside high-priority work, by what was measured: how much longer its
// busy periods take for the same work than those in which it has the GPU to itself.
#pragma once

#include <array>
#include <cstdint>

namespace explsched::policy {

class BesideRule {
   public:
    // The client to leave running in the next busy period, as a bit; 0 for none. `clients`: bits of those
    // there are; `expected`: of them those that fit by their profiles, as a guess until there are
    // measurements.
    std::uint64_t next(std::uint64_t clients, std::uint64_t expected);

    // A busy period has ended that began with `beside` running on.
    void period(std::uint64_t beside, std::uint64_t wall_ns, std::uint64_t work_ns);

    // A client has gone.
    void forget(std::uint32_t client);

    // How much longer high-priority work takes beside the client, 0.05 to 1; a guess until there are
    // measurements.
    double slowdown(std::uint32_t client) const;

    double stretch(std::uint32_t client) const { return clients_[client].stretch; }

   private:
    struct Client {
        std::uint32_t periods{0};
        double stretch{1};  // running mean
    };
    bool allowed(std::uint32_t client, std::uint64_t expected) const;

    std::array<Client, 64> clients_{};
    double alone_{0};  // wall per work of the period just before, if it had the GPU to itself; else 0
    std::uint64_t periods_{0};
    bool known_alone_{false};
};

}  // namespace explsched::policy
