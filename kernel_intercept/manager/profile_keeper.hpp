// Loads a manager's profiles from the user's file when it starts, and saves them now and then.
#pragma once

#include <cstdint>
#include <future>
#include <set>
#include <string>
#include <vector>

#include "kernel_intercept/manager/profile_store.hpp"

namespace explsched::manager {

class ProfileKeeper {
   public:
    struct Totals {
        std::uint64_t saves;
        std::uint64_t errors;
        std::uint64_t faults;  // lines of the file left out
    };

    ProfileKeeper(ProfileStore& profiles, std::string path, std::uint64_t every_ns);

    // Goes on without the file, and says so in the log, if it cannot be read.
    void load();
    // Without waiting: another thread writes, on a copy, because files may be slow (network, full disk) and
    // clients must not notice.
    void save_if_due(std::uint64_t now_ns);
    void save_soon() { next_ns_ = 0; }
    // Waits until all is saved.
    void finish();

    const Totals& totals() const { return totals_; }

   private:
    bool start();
    void collect();

    ProfileStore& profiles_;
    std::string path_;
    std::uint64_t every_ns_;
    std::uint64_t next_ns_;
    std::uint64_t saved_samples_{0};
    std::set<std::uint64_t> leaving_out_;  // of the file, by `saving_`
    std::future<std::vector<Profile>> saving_;
    Totals totals_{};
};

}  // namespace explsched::manager
