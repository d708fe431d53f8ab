#include "kernel_intercept/gate/settings.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "explsched/job_options.h"
#include "explsched/job_options/permille.h"

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
    const std::uint32_t value = text == nullptr ? 0 : expl_permille(text);
    return value == 0 ? otherwise : value;
}

}  // namespace

Settings settings_of_environment() noexcept {
    Settings settings{};
    copy_text(settings.socket_path, std::getenv(shared::kSocketVariable));
    const char* priority = std::getenv(EXPL_SHARE_VARIABLE);
    shared::Hello& hello = settings.hello;
    hello.preamble = shared::preamble(shared::MessageKind::kHello);
    hello.priority = priority != nullptr && std::strcmp(priority, "high") == 0 ? shared::Class::kHigh
                                                                               : shared::Class::kBestEffort;
    hello.limit_permille = permille(EXPL_LIMIT_VARIABLE, 1000);
    hello.request_permille =
        std::min(permille(EXPL_REQUEST_VARIABLE, hello.limit_permille), hello.limit_permille);
    copy_text(hello.job, std::getenv("SLURM_JOB_ID"));
    return settings;
}

}  // namespace explsched::gate
