// The profiles a manager knows: in memory, in the table its clients read, and in the user's file.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernel_intercept/manager/memory.hpp"
#include "kernel_intercept/manager/profile.hpp"
#include "kernel_intercept/shared/layout.hpp"

namespace explsched::manager {

class ProfileStore {
   public:
    ProfileStore();

    void add(const shared::RingSample& sample, Company company);
    void adopt(const std::vector<Profile>& profiles);  // of the file

    int table_descriptor() const { return table_.descriptor(); }
    std::vector<Profile> profiles() const;  // ordered by key
    std::size_t size() const { return profiles_.size(); }
    std::uint64_t samples() const { return samples_; }
    std::uint64_t refused() const { return refused_; }

   private:
    void publish(std::uint64_t hash, const Profile& profile);

    std::unordered_map<std::uint64_t, Profile> profiles_;  // by hash_of(key)
    Shared<shared::Table> table_;
    std::uint64_t samples_{0};
    std::uint64_t refused_{0};  // samples that say nothing, and kernels for which the table has no room
};

// The two below use the lock FILE.lock, as the other tools that change the file do.

// What the file holds; nothing if there is none. Throws std::runtime_error that names the file.
ProfileText load_profiles(const std::string& path);
// Merges `ours` into the file by `merged`, atomically replaced (mode 0600). Returns what it holds now.
std::vector<Profile> save_profiles(const std::string& path, const std::vector<Profile>& ours);

}  // namespace explsched::manager
