#include "kernel_intercept/manager/profile_keeper.hpp"

#include <chrono>
#include <stdexcept>
#include <utility>

#include "kernel_intercept/manager/log.hpp"
#include "kernel_intercept/shared/clock.hpp"

namespace explsched::manager {

ProfileKeeper::ProfileKeeper(ProfileStore& profiles, std::string path, std::uint64_t every_ns)
    : profiles_(profiles),
      path_(std::move(path)),
      every_ns_(every_ns),
      next_ns_(shared::now_ns() + every_ns) {}

void ProfileKeeper::load() {
    try {
        const ProfileText text = load_profiles(path_);
        for (const Fault& fault : text.faults)
            log(path_ + ": line " + std::to_string(fault.line) + ": " + fault.reason);
        totals_.faults = text.faults.size();
        profiles_.adopt(text.profiles);
    } catch (const std::runtime_error& error) {
        log(error.what() + std::string("; going on without"));
        ++totals_.errors;
    }
}

void ProfileKeeper::save_if_due(std::uint64_t now_ns) {
    if (now_ns < next_ns_) return;
    next_ns_ = now_ns + every_ns_;
    if (saving_.valid()) {
        if (saving_.wait_for(std::chrono::seconds(0)) == std::future_status::timeout) return;
        collect();
    }
    start();
}

void ProfileKeeper::finish() {
    if (saving_.valid()) collect();
    if (start()) collect();
}

bool ProfileKeeper::start() {
    if (profiles_.samples() == saved_samples_ && profiles_.forgotten().empty()) return false;
    saved_samples_ = profiles_.samples();
    leaving_out_ = profiles_.forgotten();
    // `collect` writes where the user may start no more threads (ulimit -u). A copy: when libstdc++ finds
    // that, it has moved from a temporary already.
    const std::vector<Profile> known = profiles_.profiles();
    saving_ = std::async(save_profiles, path_, known, leaving_out_);
    return true;
}

void ProfileKeeper::collect() {
    try {
        const std::vector<Profile> file = saving_.get();
        profiles_.left_out(leaving_out_);
        profiles_.adopt(file);
        ++totals_.saves;
    } catch (const std::exception& error) {
        log(std::string("profiles are not saved: ") + error.what());
        ++totals_.errors;
    }
}

}  // namespace explsched::manager
