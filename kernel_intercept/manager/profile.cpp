#include "kernel_intercept/manager/profile.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <stdexcept>

#include "kernel_intercept/shared/packed.hpp"

namespace explsched::manager {

const std::string_view kTitle = "# explsched kernel profiles 1";
const std::string_view kColumns =
    "name_hash\tgrid\tblock\tshared_bytes\tcc\tsamples\tgpu_ns\tcompute_permille\tbandwidth_"
    "permille\tsource\tname";

namespace {

constexpr std::array<std::string_view, 3> kSources{"timing", "nvml", "ncu"};
constexpr std::size_t kCells = 11;

[[noreturn]] void refuse(std::string_view what, std::string_view found, const std::string& accepted) {
    throw std::invalid_argument(std::string(what) + ": found '" + std::string(found.substr(0, 40)) +
                                "', accepted " + accepted);
}

template <typename Number>
Number whole(std::string_view column, std::string_view text, std::uint64_t most, int base = 10) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (error != std::errc{} || end != text.data() + text.size() || value > most)
        refuse(column, text, "are whole numbers from 0 to " + std::to_string(most));
    return static_cast<Number>(value);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
    std::vector<std::string_view> parts;
    for (std::size_t at = 0;;) {
        const std::size_t end = text.find(separator, at);
        parts.push_back(text.substr(at, end - at));
        if (end == std::string_view::npos) return parts;
        at = end + 1;
    }
}

Dim3 dim3(std::string_view column, std::string_view text) {
    const auto parts = split(text, ',');
    if (parts.size() != 3) refuse(column, text, "is x,y,z");
    const auto extent = [&](std::size_t i) { return whole<std::uint32_t>(column, parts[i], UINT32_MAX); };
    return {extent(0), extent(1), extent(2)};
}

std::uint64_t name_hash(std::string_view text) {
    if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != std::string_view::npos)
        refuse("name_hash", text, "are 16 hexadecimal digits");
    return whole<std::uint64_t>("name_hash", text, UINT64_MAX, 16);
}

Source source_named(std::string_view text) {
    const auto found = std::find(kSources.begin(), kSources.end(), text);
    if (found == kSources.end()) refuse("source", text, "are timing, nvml and ncu");
    return static_cast<Source>(found - kSources.begin());
}

Profile parse_line(std::string_view line) {
    const auto cells = split(line, '\t');
    if (cells.size() != kCells) {
        throw std::invalid_argument("found " + std::to_string(cells.size()) + " columns, accepted are " +
                                    std::to_string(kCells));
    }
    const KernelKey key{name_hash(cells[0]), dim3("grid", cells[1]), dim3("block", cells[2]),
                        whole<std::uint32_t>("shared_bytes", cells[3], UINT32_MAX),
                        whole<std::uint32_t>("cc", cells[4], 999)};
    const KernelCost cost{whole<std::uint64_t>("gpu_ns", cells[6], UINT64_MAX),
                          whole<std::uint32_t>("compute_permille", cells[7], 1000),
                          whole<std::uint32_t>("bandwidth_permille", cells[8], 1000)};
    return {key,
            whole<std::uint64_t>("samples", cells[5], UINT64_MAX),
            cost,
            source_named(cells[9]),
            std::string(cells[10]),
            0};
}

void append(std::string& text, const Profile& profile) {
    const auto& [name_hash, grid, block, shared_bytes, compute_capability] = profile.key;
    std::array<char, 256> cells{};
    std::snprintf(cells.data(), cells.size(),
                  "%016" PRIx64 "\t%u,%u,%u\t%u,%u,%u\t%u\t%u\t%" PRIu64 "\t%" PRIu64 "\t%u\t%u\t%s\t",
                  name_hash, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes,
                  compute_capability, profile.samples, profile.cost.gpu_ns, profile.cost.compute_permille,
                  profile.cost.bandwidth_permille, kSources[static_cast<std::size_t>(profile.source)].data());
    text += cells.data();
    for (const char c : profile.name) text += c >= ' ' && c <= '~' ? c : '?';
    text += '\n';
}

}  // namespace

ProfileText parse_profiles(std::string_view text) {
    ProfileText result;
    if (text.empty()) return result;
    if (text.back() == '\n') text.remove_suffix(1);
    const auto lines = split(text, '\n');
    if (lines[0] != kTitle) refuse("line 1", lines[0], "is '" + std::string(kTitle) + "'");
    if (lines.size() > 1 && lines[1] != kColumns)
        refuse("line 2", lines[1], "are the column names of version 1");
    for (std::size_t i = 2; i < lines.size(); ++i) {
        try {
            result.profiles.push_back(parse_line(lines[i]));
        } catch (const std::invalid_argument& error) {
            result.faults.push_back({i + 1, error.what()});
        }
    }
    return result;
}

std::string render_profiles(const std::vector<Profile>& profiles) {
    std::string text = std::string(kTitle) + '\n' + std::string(kColumns) + '\n';
    for (const Profile& profile : profiles) append(text, profile);
    return text;
}

Profile with_sample(Profile profile, const KernelCost& sample, CoRun co_run) {
    constexpr std::uint64_t kLongestMemory = 32, kSettled = 4;
    constexpr double kShareMemory = 16, kMany = 0.15;
    const std::uint64_t mean_ns =
        std::min(profile.samples == 0 ? sample.gpu_ns : profile.cost.gpu_ns, shared::kTimeMask);
    if (co_run == CoRun::kShared && sample.gpu_ns > mean_ns) return profile;
    const std::uint64_t taken_ns = profile.samples < kSettled || profile.long_share > kMany
                                       ? sample.gpu_ns
                                       : std::min(sample.gpu_ns, mean_ns + mean_ns / 4 + 1);
    profile.long_share += ((sample.gpu_ns > 2 * mean_ns ? 1 : 0) - profile.long_share) / kShareMemory;
    const auto weight = static_cast<std::int64_t>(std::min(profile.samples, kLongestMemory - 1) + 1);
    const std::int64_t step_ns =
        (static_cast<std::int64_t>(taken_ns) - static_cast<std::int64_t>(mean_ns)) / weight;
    profile.cost.gpu_ns = static_cast<std::uint64_t>(static_cast<std::int64_t>(mean_ns) + step_ns);
    profile.samples += profile.samples < UINT64_MAX ? 1 : 0;
    if (profile.source == Source::kTiming) {
        profile.cost.compute_permille = std::min(sample.compute_permille, 1000U);
        profile.cost.bandwidth_permille = std::min(sample.bandwidth_permille, 1000U);
    }
    return profile;
}

Profile merged(const Profile& ours, const Profile& file) {
    const Profile& timed = ours.samples > file.samples ? ours : file;
    const Profile& shared = ours.source > file.source ? ours : file;
    return {file.key,
            timed.samples,
            {timed.cost.gpu_ns, shared.cost.compute_permille, shared.cost.bandwidth_permille},
            shared.source,
            ours.name.size() > file.name.size() ? ours.name : file.name,  // the longer one is less cut
            ours.long_share};
}

}  // namespace explsched::manager
