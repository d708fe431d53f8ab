// The profiles a manager knows: in memory, in the table its clients read, and in the user's file.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernel_intercept/manager/memory.hpp"
#include "kernel_intercept/manager/profile.hpp"
#include "kernel_intercept/shared/layout.hpp"

namespace explsched::manager {

// Beyond, look-ups of a linear table get long. Timings of what others ran leave room for what is run now.
constexpr std::size_t kMostKernels = std::size_t{shared::kTableEntries} / 4 * 3;
constexpr std::size_t kMostFromFile = kMostKernels / 2;

class ProfileStore {
   public:
    ProfileStore();

    void add(const shared::RingSample& sample, CoRun co_run);
    void adopt(const std::vector<Profile>& profiles);  // of the file, in order, as far as there is room
    // Until the file has been written without it, the kernel is not taken from there again.
    void forget(const KernelKey& key);
    // Of those forgotten: what a save is to leave out of the file, and what one has left out.
    const std::set<std::uint64_t>& forgotten() const { return forgotten_; }
    void left_out(const std::set<std::uint64_t>& hashes);

    int table_descriptor() const { return table_.descriptor(); }
    std::vector<Profile> profiles() const;
    std::size_t size() const { return profiles_.size(); }
    std::uint64_t samples() const { return samples_; }
    std::uint64_t refused() const { return refused_; }

   private:
    void publish(std::uint64_t hash, std::uint64_t cost);

    std::unordered_map<std::uint64_t, Profile> profiles_;  // by hash_of(key)
    std::set<std::uint64_t> forgotten_;                    // by hash_of(key)
    Shared<shared::Table> table_;
    std::uint64_t samples_{0};
    std::uint64_t refused_{0};  // samples that say nothing, and kernels for which the table has no room
};

// The two below use the lock FILE.lock, as the other tools that change the file do.

// What the file holds; nothing if there is none. Throws std::runtime_error that names the file.
ProfileText load_profiles(const std::string& path);
// Merges `ours` into the file by `merged`, atomically replaced (mode 0600); what the file said of the
// `forgotten` (by hash_of) is dropped. Returns what it holds now: `kMostKernels` at most, first those whose
// shares were measured, then those with the most timings.
std::vector<Profile> save_profiles(const std::string& path, const std::vector<Profile>& ours,
                                   const std::set<std::uint64_t>& forgotten);

}  // namespace explsched::manager
