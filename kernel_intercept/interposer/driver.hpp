// The real driver: its entry points and where it lies in memory.
//
// Everything is found late, when the driver has been loaded by the program, and kept for good. Old drivers
// lack some entry points: those stay null.
#pragma once

#include <array>
#include <atomic>

#include "kernel_intercept/interposer/symbols.hpp"

namespace explsched::intercept {

extern std::array<std::atomic<void*>, kSymbolCount> g_driver_entries;

// Looks for a loaded libcuda.so.1 and fills `g_driver_entries`. False while none is loaded. Cheap once done.
bool find_driver() noexcept;

// Whether an address lies in the driver's image. False before the driver was found.
bool in_driver(const void* address) noexcept;

// The symbol among those of symbols.def whose entry in the driver this is; kCount if it is none.
Symbol symbol_of_entry(const void* entry) noexcept;

// The driver's function, or null if the driver is not loaded or lacks it.
template <Symbol kSymbol>
typename Signature<kSymbol>::Type driver() noexcept {
    auto& slot = g_driver_entries[static_cast<std::size_t>(kSymbol)];
    void* entry = slot.load(std::memory_order_acquire);
    if (entry == nullptr && find_driver()) entry = slot.load(std::memory_order_acquire);
    return reinterpret_cast<typename Signature<kSymbol>::Type>(entry);
}

// Calls the driver's function; an error code of the driver's if it lacks it.
template <Symbol kSymbol, typename... Arguments>
Result call_driver(Arguments... arguments) {
    const auto entry = driver<kSymbol>();
    return entry == nullptr ? kErrorSymbolNotFound : entry(arguments...);
}

}  // namespace explsched::intercept
