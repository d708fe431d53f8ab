#include "kernel_intercept/interposer/names.hpp"

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>

namespace explsched::intercept {
namespace {

constexpr std::size_t kMaxNames = 16384;
constexpr std::size_t kProbes = 64;
constexpr const char* kUnknown = "?";

std::array<std::atomic<char*>, kMaxNames> g_names{};

std::uint64_t fnv1a(const char* text) noexcept {
    std::uint64_t hash = 0xcbf29ce484222325ULL;
    for (; *text != '\0'; ++text) hash = (hash ^ static_cast<unsigned char>(*text)) * 0x100000001b3ULL;
    return hash;
}

}  // namespace

KernelName kept_name(const char* name) noexcept {
    if (name == nullptr || name[0] == '\0') return {kUnknown, fnv1a("")};
    const std::uint64_t hash = fnv1a(name);
    char* copy = nullptr;
    KernelName kept{kUnknown, hash};
    for (std::size_t i = 0; i < kProbes; ++i) {
        auto& slot = g_names[(hash + i) % kMaxNames];
        char* held = slot.load(std::memory_order_acquire);
        if (held == nullptr) {
            if (copy == nullptr) copy = strdup(name);
            if (copy == nullptr) return kept;
            if (slot.compare_exchange_strong(held, copy, std::memory_order_acq_rel)) return {copy, hash};
        }
        if (std::strcmp(held, name) == 0) {
            kept.text = held;
            break;
        }
    }
    std::free(copy);
    return kept;
}

}  // namespace explsched::intercept
