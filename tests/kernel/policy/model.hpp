// A GPU and its clients in virtual time: the gate's and the manager's decisions on their real shared page,
// without processes, clocks or luck. Kernels that run together are slowed down by max(1, sum of compute, sum
// of bandwidth).
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "kernel_intercept/manager/gpu.hpp"

namespace model {

enum class Sharing : std::uint8_t { kUnmanaged, kManaged };

struct ClientSpec {
    explsched::shared::Class priority;
    std::vector<explsched::KernelCost> kernels;  // of a request, or of a training step
    std::uint64_t pause_ns;                      // mean time between requests; 0: the next follows at once
    std::uint32_t request_permille{1000};
    std::uint32_t limit_permille{1000};
    std::uint64_t late_ns{0};        // half of its host's reactions come later by up to this
    std::uint64_t wakes_late_ns{0};  // half of its grants are seen later by up to this
    std::uint64_t held_up_ns{0};     // one launch in 50 reaches the GPU later by up to this
};

struct ClientResult {
    std::vector<std::uint64_t> latencies_ns;  // of requests
    std::uint64_t work_ns{0};                 // running time done, as if alone
    std::uint64_t charge_ns{0};               // of it, the share of the GPU
    std::uint64_t longest_wait_ns{0};         // of a launch
};

struct Result {
    std::vector<ClientResult> clients;
    double above_caps{0};              // share of the time
    double let_in_above_caps{0};       // of it, with a best-effort kernel as the last one launched
    double best_effort_above_caps{0};  // by best-effort kernels alone
    double busy{0};                    // share of the time in which something ran
};

// Runs for `duration_ns` of virtual time.
Result run(const explsched::manager::Settings& settings, const std::vector<ClientSpec>& specs,
           Sharing sharing, std::uint64_t duration_ns);

std::uint64_t percentile(std::vector<std::uint64_t> values, double share);

}  // namespace model
