#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <utility>

#include "kernel_intercept/manager/log.hpp"
#include "kernel_intercept/manager/profile_store.hpp"
#include "kernel_intercept/manager/start.hpp"
#include "kernel_intercept/shared/descriptor.hpp"
#include "kernel_intercept/shared/layout.hpp"

namespace explsched::manager {

namespace {

std::string contents(const std::string& path) {
    const shared::Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file && errno == ENOENT) return {};
    if (!file) fail(path);
    std::string text;
    char part[65536];
    for (ssize_t got = 0; (got = read(file.get(), part, sizeof(part))) != 0;) {
        if (got < 0 && errno != EINTR) fail(path);
        if (got > 0) text.append(part, static_cast<std::size_t>(got));
    }
    return text;
}

void replace(const std::string& path, const std::string& text) {
    const std::string temporary = path + "." + std::to_string(getpid());
    shared::Descriptor file(
        open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file) fail(temporary);
    std::size_t done = 0;
    while (done < text.size()) {
        const ssize_t put = write(file.get(), text.data() + done, text.size() - done);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) break;
        done += static_cast<std::size_t>(put);
    }
    if (done < text.size() || fsync(file.get()) != 0 || rename(temporary.c_str(), path.c_str()) != 0) {
        const int error = errno;
        unlink(temporary.c_str());
        fail(temporary, error);
    }
}

}  // namespace

ProfileText load_profiles(const std::string& path) {
    try {
        return parse_profiles(contents(path));
    } catch (const std::invalid_argument& error) {
        throw std::runtime_error(path + ": " + error.what());
    }
}

std::vector<Profile> save_profiles(const std::string& path, const std::vector<Profile>& ours,
                                   const std::set<std::uint64_t>& forgotten) {
    const std::filesystem::path directory = std::filesystem::path(path).parent_path();
    std::error_code error;
    if (std::filesystem::create_directories(directory, error)) chmod(directory.c_str(), 0700);
    const shared::Descriptor held = locked(path + ".lock", F_OFD_SETLKW);
    std::map<std::uint64_t, Profile> all;
    for (const Profile& profile : ours) all.insert_or_assign(hash_of(profile.key), profile);
    for (const Profile& profile : load_profiles(path).profiles) {
        const std::uint64_t hash = hash_of(profile.key);
        if (forgotten.count(hash) != 0) continue;
        const auto [found, is_new] = all.emplace(hash, profile);
        if (!is_new) found->second = merged(found->second, profile);
    }
    std::vector<Profile> result;
    result.reserve(all.size());
    for (auto& [hash, profile] : all) result.push_back(std::move(profile));
    std::stable_sort(result.begin(), result.end(), [](const Profile& a, const Profile& b) {
        return std::pair(a.source, a.samples) > std::pair(b.source, b.samples);
    });
    if (result.size() > kMostKernels) result.erase(result.begin() + kMostKernels, result.end());
    replace(path, render_profiles(result));
    return result;
}

}  // namespace explsched::manager
