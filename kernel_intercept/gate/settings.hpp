// What the environment says about this process.
#pragma once

#include <array>

#include "kernel_intercept/shared/protocol.hpp"

namespace explsched::gate {

struct Settings {
    std::array<char, 108> socket_path;  // of the manager; empty if there is none
    shared::Hello hello;                // what it is told, but for the GPU
};

// EXPLSCHED_KM_SOCKET, SLURM_JOB_ID, and the job options share, request and limit
// (explsched/job_options/table.py). Best-effort, with all of the GPU as the limit, is what holds when they
// are unset or cannot be read: a wrong value must not make a job more important than others.
Settings settings_of_environment() noexcept;

}  // namespace explsched::gate
