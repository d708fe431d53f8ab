// The entry points of symbols.def as an enumeration, with their types and names.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernel_intercept/interposer/driver_abi.hpp"

namespace explsched::intercept {

enum class Symbol : std::uint8_t {
#define HOOK(name, parameters) name,
#define REAL(name, parameters) name,
#include "kernel_intercept/interposer/symbols.def"
#undef HOOK
#undef REAL
    kCount
};

constexpr std::size_t kSymbolCount = static_cast<std::size_t>(Symbol::kCount);

constexpr std::array<std::string_view, kSymbolCount> kSymbolNames{{
#define HOOK(name, parameters) #name,
#define REAL(name, parameters) #name,
#include "kernel_intercept/interposer/symbols.def"
#undef HOOK
#undef REAL
}};

// Signature<Symbol::x>::Type is the type of the driver's function x.
template <Symbol kSymbol>
struct Signature;
// NOLINTBEGIN(bugprone-macro-parentheses): `parameters` comes in parentheses
#define HOOK(name, parameters)             \
    template <>                            \
    struct Signature<Symbol::name> {       \
        using Type = Result(*) parameters; \
    };
// NOLINTEND(bugprone-macro-parentheses)
#define REAL(name, parameters) HOOK(name, parameters)
#include "kernel_intercept/interposer/symbols.def"
#undef HOOK
#undef REAL

// Our functions carry the driver's names; nothing else of the library is visible.
extern "C" {
#define HOOK(name, parameters) __attribute__((visibility("default"))) Result name parameters;
#define REAL(name, parameters)
#include "kernel_intercept/interposer/symbols.def"
#undef HOOK
#undef REAL
}

}  // namespace explsched::intercept
