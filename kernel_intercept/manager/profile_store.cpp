#include "kernel_intercept/manager/profile_store.hpp"

#include <string_view>

namespace explsched::manager {

ProfileStore::ProfileStore() : table_("explsched-profiles", Access::kOthersRead) {
    table_->header = {shared::kTableMagic, shared::kLayoutVersion, sizeof(shared::Table),
                      shared::kTableEntries};
}

void ProfileStore::add(const shared::RingSample& sample, CoRun co_run) {
    const std::uint64_t hash = hash_of(sample.key);
    if (sample.cost.gpu_ns == 0 || sample.cost.gpu_ns > shared::kTimeMask ||
        (profiles_.count(hash) == 0 && profiles_.size() >= kMostKernels)) {
        ++refused_;
        return;
    }
    Profile& profile =
        profiles_.emplace(hash, Profile{sample.key, 0, sample.cost, Source::kTiming, ""}).first->second;
    profile = with_sample(std::move(profile), sample.cost, co_run);
    if (const std::string_view name(sample.name.data()); name.size() > profile.name.size())
        profile.name = name;
    ++samples_;
    publish(hash, shared::pack_cost(profile.cost));
}

void ProfileStore::adopt(const std::vector<Profile>& profiles) {
    for (const Profile& profile : profiles) {
        const std::uint64_t hash = hash_of(profile.key);
        if (forgotten_.count(hash) != 0) continue;
        const std::size_t most = profile.source == Source::kTiming ? kMostFromFile : kMostKernels;
        if (profiles_.count(hash) == 0 && profiles_.size() >= most) {
            refused_ += profiles_.size() >= kMostKernels ? 1 : 0;
            continue;
        }
        const auto [found, is_new] = profiles_.emplace(hash, profile);
        if (!is_new) found->second = merged(found->second, profile);
        publish(hash, shared::pack_cost(found->second.cost));
    }
}

void ProfileStore::forget(const KernelKey& key) {
    const std::uint64_t hash = hash_of(key);
    forgotten_.insert(hash);
    if (profiles_.erase(hash) != 0) publish(hash, 0);
}

void ProfileStore::left_out(const std::set<std::uint64_t>& hashes) {
    for (const std::uint64_t hash : hashes) forgotten_.erase(hash);
}

void ProfileStore::publish(std::uint64_t hash, std::uint64_t cost) {
    shared::TableEntry* entry = shared::place_of(table_->entries, hash);
    if (entry == nullptr) return;
    entry->cost.store(cost, std::memory_order_relaxed);
    entry->key.store(hash, std::memory_order_release);
}

std::vector<Profile> ProfileStore::profiles() const {
    std::vector<Profile> all;
    all.reserve(profiles_.size());
    for (const auto& [hash, profile] : profiles_) all.push_back(profile);
    return all;
}

}  // namespace explsched::manager
