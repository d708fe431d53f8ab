#include "kernel_intercept/gate/settings.hpp"

#include <cstdlib>
#include <cstring>

namespace explsched::gate {

namespace {

template <std::size_t N>
void copy_text(std::array<char, N>& to, const char* text) {
    to.fill('\0');
    const std::size_t length = text == nullptr ? N : std::strlen(text);
    if (length < N) std::memcpy(to.data(), text, length);
}

std::uint32_t permille(const char* name, std::uint32_t otherwise) {
    const char* text = std::getenv(name);
    if (text == nullptr || *text == '\0') return otherwise;
    char* end = nullptr;
    const unsigned long value = std::strtoul(text, &end, 10);
    return *end == '\0' && value >= 1 && value <= 1000 ? static_cast<std::uint32_t>(value) : otherwise;
}

}  // namespace

Settings settings_of_environment() noexcept {
    Settings settings{};
    copy_text(settings.socket_path, std::getenv(shared::kSocketVariable));
    const char* priority = std::getenv("EXPLSCHED_CLASS");
    settings.priority = priority != nullptr && std::strcmp(priority, "high") == 0
                            ? shared::Class::kHigh
                            : shared::Class::kBestEffort;
    settings.limit_permille = permille("EXPLSCHED_LIMIT", 1000);
    settings.request_permille = permille("EXPLSCHED_REQUEST", settings.limit_permille);
    if (settings.request_permille > settings.limit_permille)
        settings.request_permille = settings.limit_permille;
    copy_text(settings.job, std::getenv("SLURM_JOB_ID"));
    return settings;
}

}  // namespace explsched::gate
