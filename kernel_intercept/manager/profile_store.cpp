#include "kernel_intercept/manager/profile_store.hpp"

#include <string_view>

namespace explsched::manager {

ProfileStore::ProfileStore() : table_("explsched-profiles", Access::kOthersRead) {
    table_->header = {shared::kTableMagic, shared::kLayoutVersion, sizeof(shared::Table),
                      shared::kTableEntries};
}

void ProfileStore::add(const shared::RingSample& sample, CoRun co_run) {
    const std::uint64_t hash = shared::hash_of(sample.key);
    const auto found = profiles_.find(hash);
    if (sample.cost.gpu_ns == 0 || sample.cost.gpu_ns > shared::kTimeMask ||
        (found == profiles_.end() && profiles_.size() >= kMostKernels)) {
        ++refused_;
        return;
    }
    Profile& profile =
        found != profiles_.end()
            ? found->second
            : profiles_.emplace(hash, Profile{sample.key, 0, sample.cost, Source::kTiming, "", 0})
                  .first->second;
    profile = with_sample(std::move(profile), sample.cost, co_run);
    if (const std::string_view name(sample.name.data()); name.size() > profile.name.size())
        profile.name = name;
    ++samples_;
    publish(hash, shared::pack_cost(profile.cost));
}

void ProfileStore::adopt(const std::vector<Profile>& profiles) {
    for (const Profile& profile : profiles) {
        const std::uint64_t hash = shared::hash_of(profile.key);
        if (forgotten_.count(hash) != 0) continue;
        const auto found = profiles_.find(hash);
        const std::size_t most = profile.source == Source::kTiming ? kMostFromFile : kMostKernels;
        if (found == profiles_.end() && profiles_.size() >= most) {
            refused_ += profiles_.size() >= kMostKernels ? 1 : 0;
            continue;
        }
        if (found == profiles_.end()) {
            profiles_.emplace(hash, profile);
        } else {
            found->second = merged(found->second, profile);
        }
        publish(hash, shared::pack_cost(profiles_.at(hash).cost));
    }
}

void ProfileStore::forget(const KernelKey& key) {
    const std::uint64_t hash = shared::hash_of(key);
    forgotten_.insert(hash);
    if (profiles_.erase(hash) != 0) publish(hash, 0);
}

void ProfileStore::left_out(const std::set<std::uint64_t>& hashes) {
    for (const std::uint64_t hash : hashes) forgotten_.erase(hash);
}

void ProfileStore::publish(std::uint64_t hash, std::uint64_t cost) {
    for (std::uint32_t step = 0; step < shared::kTableEntries; ++step) {
        shared::TableEntry& entry = table_->entries[(hash + step) % shared::kTableEntries];
        const std::uint64_t key = entry.key.load(std::memory_order_relaxed);
        if (key != 0 && key != hash) continue;
        entry.cost.store(cost, std::memory_order_relaxed);
        entry.key.store(hash, std::memory_order_release);
        return;
    }
}

std::vector<Profile> ProfileStore::profiles() const {
    std::vector<Profile> all;
    all.reserve(profiles_.size());
    for (const auto& [hash, profile] : profiles_) all.push_back(profile);
    return all;
}

}  // namespace explsched::manager
