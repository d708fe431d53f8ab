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
    kPairs,  // stops and resumes each at any moment, and runs together what slows each other down least
    kGates,  // as gates can: lets a client begin kernels or not, whatever they are; what has begun ends
};

struct OracleSettings {
    Means means;
    Promise promise;
    double share;            // by which requests may take longer
    double slow_request_ns;  // kTail: the time above which requests are slow, alone
    double usual_ns;         // of a request alone, at a clock of 1
    double most_slowdown;    // high-priority kernels never run beside what slows them down by more
};

std::unique_ptr<Arm> oracle(const OracleSettings& settings);

}  // namespace hostile
