#include "kernel_intercept/interposer/routes.hpp"

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

}  // namespace explsched::intercept
