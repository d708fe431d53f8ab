// How a manager was told to work.
#pragma once

#include <cstdint>
#include <string>

#include "kernel_intercept/shared/layout.hpp"

namespace explsched::manager {

struct Settings {
    std::string directory;  // of the socket and the lock, mode 0700
    std::string profiles;   // file of kernel profiles
    shared::Policy policy{shared::Policy::kGroup};
    std::uint32_t cap_compute_permille{950};
    std::uint32_t cap_bandwidth_permille{950};
    std::uint32_t high_share_permille{60};
    std::uint64_t beat_ns{5'000'000};
    std::uint64_t save_ns{60'000'000'000};
    bool foreground{false};
};

enum class Action : std::uint8_t { kServe, kStatus, kVersion, kHelp };

struct CommandLine {
    Action action;
    Settings settings;
};

// Paths are absolute in what detaches. Throws std::invalid_argument that names the option, what was found and
// what is accepted, and std::filesystem::filesystem_error for a relative path in a directory that is gone.
CommandLine parse_command_line(int argc, char** argv);

extern const char* const kUsage;

std::string socket_path(const Settings& settings);

}  // namespace explsched::manager
