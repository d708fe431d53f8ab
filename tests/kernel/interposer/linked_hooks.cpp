// Without cuda.h, which declares the newest of the functions under their base names, and none per thread.

#include "tests/kernel/interposer/linked_hooks.hpp"

#define REAL(name, parameters)
#define HOOK(name, parameters) extern "C" __attribute__((weak)) void name();
#include "kernel_intercept/interposer/symbols.def"
#undef HOOK

std::vector<LinkedHook> linked_hooks() {
    return {
#define HOOK(name, parameters) {#name, reinterpret_cast<void*>(&(name))},
#include "kernel_intercept/interposer/symbols.def"
#undef HOOK
    };
}

std::vector<NamedEntry> named_entries() {
    return {
#define LEGACY(base, since, symbol) {#base, since, false, #symbol},
#define PER_THREAD(base, since, symbol, suffix) {#base, since, true, #symbol #suffix},
#include "tests/kernel/fakecuda/entries.def"
#undef LEGACY
#undef PER_THREAD
    };
}
