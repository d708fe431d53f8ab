#include "kernel_intercept/interposer/routes.hpp"

#include <array>
#include <cstdio>

#include "kernel_intercept/gate/gate.hpp"
#include "kernel_intercept/interposer/driver.hpp"

namespace explsched::intercept {
namespace {

#define REAL(name, parameters)
#define HOOK(name, parameters) +1  // NOLINT(bugprone-macro-parentheses): a term of a sum
constexpr std::size_t kHookCount = 0
#include "kernel_intercept/interposer/symbols.def"
    ;
#undef HOOK

struct NamedHook {
    std::string_view name;
    Symbol symbol;
};

// Sorted by name when compiled.
constexpr std::array<NamedHook, kHookCount> sorted_hooks() {
    std::array<NamedHook, kHookCount> hooks{{
#define HOOK(name, parameters) {#name, Symbol::name},
#include "kernel_intercept/interposer/symbols.def"
#undef HOOK
    }};
    for (std::size_t i = 1; i < kHookCount; ++i) {
        const NamedHook moving = hooks[i];
        std::size_t place = i;
        for (; place > 0 && moving.name < hooks[place - 1].name; --place) hooks[place] = hooks[place - 1];
        hooks[place] = moving;
    }
    return hooks;
}

constexpr auto kHooksByName = sorted_hooks();

// Names that have stood for several types, or stand for another symbol: from a version of CUDA on. All others
// are their symbol's.
struct Renamed {
    std::string_view base;
    int since;
    const char* symbol;
};
constexpr Renamed kRenamed[] = {
#define HOOK(name, parameters)
#define RENAMED(base, since, name, parameters) {#base, since, #name},
#include "kernel_intercept/interposer/symbols.def"
#undef HOOK
};
constexpr int kNewestVersion = 13050;        // that this was compared with
constexpr std::uint64_t kPerThreadFlag = 2;  // CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM

Symbol symbol_named(const char* base, int version, std::uint64_t flags) noexcept {
    const char* name = base;
    for (const Renamed& row : kRenamed) {
        if (row.base == base && version >= row.since) name = row.symbol;
    }
    if ((flags & kPerThreadFlag) != 0) {
        std::array<char, 64> twin{};
        for (const char* suffix : {"_ptsz", "_ptds"}) {
            std::snprintf(twin.data(), twin.size(), "%s%s", name, suffix);
            const Symbol symbol = hooked_symbol(twin.data());
            if (symbol != Symbol::kCount) return symbol;
        }
    }
    return hooked_symbol(name);
}

}  // namespace

Symbol hooked_symbol(std::string_view name) noexcept {
    std::size_t low = 0;
    std::size_t high = kHookCount;
    while (low < high) {
        const std::size_t middle = (low + high) / 2;
        if (kHooksByName[middle].name < name) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < kHookCount && kHooksByName[low].name == name ? kHooksByName[low].symbol : Symbol::kCount;
}

void* hook_of(Symbol symbol) noexcept {
    switch (symbol) {
#define HOOK(name, parameters) \
    case Symbol::name:         \
        return reinterpret_cast<void*>(&(name));
#include "kernel_intercept/interposer/symbols.def"
#undef HOOK
        default:
            return nullptr;
    }
}
#undef REAL

void* route(void* driver_entry) noexcept {
    void* hook = hook_of(symbol_of_entry(driver_entry));
    return hook == nullptr ? driver_entry : hook;
}

void* route_named(const char* base, int version, std::uint64_t flags, void* driver_entry) noexcept {
    if (base == nullptr || driver_entry == nullptr) return driver_entry;
    void* routed = route(driver_entry);
    const Symbol symbol = symbol_named(base, version, flags);
    if (symbol == Symbol::kCount) return routed;
    if (routed == driver_entry && version <= kNewestVersion) {
        // Where dlsym has found nothing, this is the entry.
        void* none = nullptr;
        g_driver_entries[static_cast<std::size_t>(symbol)].compare_exchange_strong(none, driver_entry);
        routed = hook_of(symbol);
    }
    gate::looked_up(routed != driver_entry);
    return routed;
}

}  // namespace explsched::intercept
