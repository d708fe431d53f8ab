// Clients that launch on the hostile device in virtual time, under one arm of a comparison.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "kernel_intercept/shared/kernel.hpp"
#include "tests/kernel/hostile/device.hpp"
#include "tests/kernel/hostile/programs.hpp"

namespace hostile {

enum class Profiles : std::uint8_t { kKnown, kLearnt };

struct Launch {
    std::uint32_t client;
    std::uint32_t stream;  // of the device
    explsched::KernelCost cost;
    bool may_wait;  // not a collective
};

// What stands between the clients and the device.
class Arm {
   public:
    virtual ~Arm() = default;
    virtual void join(std::uint32_t client, const Program& program, Device& device) = 0;
    // Before a launch. When to ask again; nothing if it may go.
    virtual std::optional<std::uint64_t> admit(const Launch& launch, Device& device) = 0;
    // Between two kernels of a graph, `since_ns` of work after its start or the last wait: what waits there.
    virtual std::optional<Operation> within_graph(const Launch& launch, std::uint64_t since_ns) = 0;
    // The client records an event, or has launched all whose end it is going to wait for.
    virtual void recorded(std::uint32_t client, std::uint32_t stream, Device& device) = 0;
    // The manager looks; when to look again.
    virtual std::uint64_t manage(Device& device) = 0;
};

struct Outcome {
    std::vector<std::uint64_t> latencies_ns;  // of requests
    double work_ns;                           // done, as if alone
};

struct Result {
    std::vector<Outcome> clients;
    double above_caps;     // share of the time
    double let_in;         // of it, with a best-effort kernel as the last one launched
    double let_in_beside;  // of that, while a high-priority kernel ran
};

// Times up to `warm_up_ns` do not count.
Result run(const std::vector<Program>& programs, Profiles profiles, Arm& arm, std::uint64_t warm_up_ns,
           std::uint64_t duration_ns);

double percentile(std::vector<std::uint64_t> values, double share);

}  // namespace hostile
