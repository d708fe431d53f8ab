// The log of a virtual GPU: one line of CSV per kernel that ended, for benchmarks and tests.
//
// Columns: pid, kernel, stream, admitted_ns, started_ns, ended_ns (all of the virtual GPU), compute_permille
// and bandwidth_permille of the kernel, the sums over all kernels running when it started, and called_ns:
// when the driver's call began. From then to admitted_ns other calls, of any process, had the GPU's lock.
#pragma once

#include <string>
#include <vector>

#include "tests/kernel/fakecuda/gpu/fluid.hpp"

namespace fakecuda::gpu {

class Log {
   public:
    explicit Log(const std::string& path);  // throws std::system_error
    ~Log();
    Log(const Log&) = delete;
    Log& operator=(const Log&) = delete;

    // Whole lines in one write each call: processes append side by side.
    void append(const std::vector<EndedKernel>& ended) const;

   private:
    int fd_;
};

}  // namespace fakecuda::gpu
