// Shares of the GPU's time by request and limit: the rules of Dilu's RCKM (Dilu, section 4.3), with these
// changes. What is charged is predicted GPU time (running time x the larger share of compute and bandwidth)
// instead of grid blocks, per GPU. Credit is handed out by water filling: in proportion to the requests, and
// what a member may not take (its limit) or need not (its savings are full) goes to the others. Debts are
// carried over, so one large kernel in a synchronising loop is held to its share too. When the GPU would
// idle, credit is handed out early, to all in proportion: the one that waits goes on at once, and the one
// that was late finds as much more saved (as virtual time jumps in start-time fair queueing, Goyal et al.,
// SIGCOMM'96).
#pragma once

#include <cstdint>
#include <vector>

namespace explsched::policy {

struct Member {
    std::uint32_t request_permille;  // of the GPU's time, when all are busy
    std::uint32_t limit_permille;    // when others are idle
    bool high;                       // keeps its latency: others give way when it slows down
    bool waiting;                    // a launch is held up now
    bool active;                     // it has launched since the last refill
    std::int64_t credit_ns;          // negative: a debt
    std::int64_t room_ns;            // what it may be given on top of that until its limit is reached
};

// A member saves at most what its request comes to in this time, and owes at most `kDebtNs`.
constexpr std::int64_t kSavingsNs = 50'000'000;
constexpr std::int64_t kDebtNs = 500'000'000;
// What a limit leaves unused is kept for this time.
constexpr std::int64_t kRoomNs = 10'000'000;

// The members after `elapsed_ns`, with `handed_out_ns` of credit divided among them, as far as they can take
// it. Growth of the members that are not `high` is scaled by `best_effort_permille`; what is cut off is lost.
std::vector<Member> refill(std::vector<Member> members, std::uint64_t elapsed_ns, std::uint64_t handed_out_ns,
                           std::uint32_t best_effort_permille);

// The members after so much was handed out early that one of those that wait, the one which lacks least for
// its request, has `enough_ns`. Nothing changes if no member that waits may take as much: it is at its limit,
// or gives way to a `high` one.
std::vector<Member> advance(std::vector<Member> members, std::int64_t enough_ns,
                            std::uint32_t best_effort_permille);

// A high-priority client since the last look at it.
struct BusyLook {
    std::uint64_t wall_ns;  // of the busy periods that have ended: from first launch to synchronised
    std::uint64_t work_ns;  // predicted running time in them; none of it: no period has ended
    bool busy;              // one goes on
    bool launched;
    bool others;  // best-effort clients had work
};

// How much the busy periods of a high-priority client are stretched, and what the others are cut to for it.
// Dilu's constants: recovery below 1.2 (x 1.3 every 5 periods), emergency from 1.6 (divide by the stretch) to
// 4.0, where the cause is taken to be another one; nothing is cut for a client that has launched nothing for
// 120 x 5 ms. Unlike there, nothing is cut for a period without others, and the least stretch, with which
// all are compared, is forgotten faster in those.
class Pressure {
   public:
    void look(const BusyLook& look, std::uint64_t now_ns);
    std::uint32_t best_effort_permille() const { return static_cast<std::uint32_t>(scale_permille_); }

   private:
    double least_stretch_{0};  // forgotten slowly, in periods alone faster; 0: unknown
    double scale_permille_{1000};
    int calm_periods_{0};
    bool beside_{false};  // others had work in the period that goes on
    std::uint64_t launched_ns_{0};
};

}  // namespace explsched::policy
