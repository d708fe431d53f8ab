// A kernel's profile and its line in the profile file.
//
// The file, version 1: line 1 is `kTitle`, line 2 the column names, then one kernel a line, cells separated
// by tabs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernel_intercept/shared/kernel.hpp"

namespace explsched::manager {

enum class Source : std::uint8_t { kTiming, kNvml, kNcu };  // of the shares; least trusted first

struct Profile {
    KernelKey key;
    std::uint64_t samples;  // event timings behind `gpu_ns`
    KernelCost cost;
    Source source;
    std::string name;      // mangled
    double long_share{0};  // of late timings, more than twice the mean; not kept in the file
};

struct Fault {
    std::size_t line;  // from 1
    std::string reason;
};

struct ProfileText {
    std::vector<Profile> profiles;
    std::vector<Fault> faults;  // lines that were left out
};

extern const std::string_view kTitle;
extern const std::string_view kColumns;

// Throws std::invalid_argument if the text is not a profile file of version 1. A bad line is only reported.
// Where lines have the same key all are returned, in order: the last one counts.
ProfileText parse_profiles(std::string_view text);
std::string render_profiles(const std::vector<Profile>& profiles);

// Whether other processes used the GPU about when a launch was timed.
enum class CoRun : std::uint8_t { kAlone, kShared };

// The profile after one more timing. The time is the running mean of the first 32, then follows with weight
// 1/32. It is to be the time alone, and timings err on one side: the host may be held up between the events,
// and others slow a kernel down. So a long timing counts as 5/4 of the mean at most, and one beside others
// only if it is shorter. Unless long ones are many: persistent kernels have one key for matrices of any size,
// and then the mean of all is what a launch takes. Shares that come with a timing are estimates and replace
// only estimates.
Profile with_sample(Profile profile, const KernelCost& sample, CoRun co_run);

// One profile of what this process knows and what the file says: the time of the one with more timings (the
// file's at a tie: tools may have changed it), the shares of the more trusted source (again the file's at a
// tie).
Profile merged(const Profile& ours, const Profile& file);

}  // namespace explsched::manager
