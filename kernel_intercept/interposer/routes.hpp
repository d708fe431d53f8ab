// Which of our functions stands for which entry point of the driver.
#pragma once

#include <string_view>

#include "kernel_intercept/interposer/symbols.hpp"

namespace explsched::intercept {

// The hooked symbol of this name; kCount if it is none.
Symbol hooked_symbol(std::string_view name) noexcept;

// Our function for a symbol; null if we only call it.
void* hook_of(Symbol symbol) noexcept;

// Our function for an address that the driver handed out; the address itself if we have none.
void* route(void* driver_entry) noexcept;

// The same for an address that cuGetProcAddress found for this name, version and flags, if the driver has
// functions there that dlsym does not find. Only for versions whose types are known.
void* route_named(const char* base, int version, std::uint64_t flags, void* driver_entry) noexcept;

}  // namespace explsched::intercept
