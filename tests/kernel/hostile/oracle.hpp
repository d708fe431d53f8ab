// What no gate can do: it knows what runs, how much it slows down what else runs and when a request ends, and
// stops and resumes best-effort kernels at any moment at no cost. How much work gets done under it is a bound
// for gates that keep the same promise.
#pragma once

#include <memory>

#include "tests/kernel/hostile/scenario.hpp"

namespace hostile {

enum class Promise : std::uint8_t {
    kEach,  // each request takes at most so much longer than it would have taken alone
    kTail,  // no request takes longer than a time that slow ones take alone, and so much more
};

// What it does with best-effort kernels.
enum class Means : std::uint8_t {
    kPairs,      // stops and resumes each at any moment, and runs together what slows each other down least
    kGates,      // as gates can: lets a client begin kernels or not, whatever they are; what has begun ends
    kTwoShares,  // gives best-effort work fewer multiprocessors while high-priority work runs, as green
                 // contexts might that change with load; at once, within a kernel
    kShares,  // as kPairs, and gives best-effort kernels any share of their speed, another one at any moment
};

struct OracleSettings {
    Means means;
    Promise promise;
    double share;            // by which requests may take longer
    double slow_request_ns;  // kTail: the time above which requests are slow, alone
    double usual_ns;         // of a request alone, at a clock of 1
    double most_slowdown;    // high-priority kernels never run beside what slows them down by more
    double price{0};         // kShares: best-effort work that the same time of high-priority work is worth
    std::uint32_t share_permille{1000};  // kTwoShares: of the multiprocessors, beside high-priority work
};

std::unique_ptr<Arm> oracle(const OracleSettings& settings);

}  // namespace hostile
