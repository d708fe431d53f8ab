// The two look-ups through which programs get the driver's entry points: dlsym and cuGetProcAddress.
// The third entrance is the exported functions themselves.
//
// A look-up is answered from the pointer that the real one returned: the same name stands for functions of
// different types in different versions of the driver. Where cuGetProcAddress returns a pointer that dlsym
// does not know, name and version decide.

#include <dlfcn.h>

#include <atomic>

#include "kernel_intercept/interposer/driver.hpp"
#include "kernel_intercept/interposer/libc_dlsym.hpp"
#include "kernel_intercept/interposer/routes.hpp"
#include "kernel_intercept/interposer/settings.hpp"

namespace explsched::intercept {
namespace {

// Returned in two registers; see dlsym.S.
struct DlsymRoute {
    Dlsym jump_to;
    void* answer;
};

bool names_driver_call(const char* name) noexcept {
    return name != nullptr && name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

std::atomic<void*> g_libc{nullptr};

// No function, and in dlerror() that there is none: who is answered null may take the message for granted
// (Python's ctypes does). So it is looked up where it cannot be.
DlsymRoute missing(Dlsym find, const char* name) noexcept {
    void* libc = g_libc.load(std::memory_order_relaxed);
    const auto open = &dlopen;
    if (libc == nullptr && open != nullptr) {
        libc = open("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
        g_libc.store(libc, std::memory_order_relaxed);
    }
    if (libc != nullptr && find != nullptr) find(libc, name);
    return {nullptr, nullptr};
}

}  // namespace

extern "C" __attribute__((visibility("hidden"))) DlsymRoute explsched_route_dlsym(void* handle,
                                                                                  const char* name,
                                                                                  const void* caller) {
    const DlsymRoute pass{libc_dlsym(), nullptr};
    if (!names_driver_call(name) || mode() == Mode::kOff) return pass;
    const Symbol symbol = hooked_symbol(name);
    if (symbol == Symbol::kCount) return pass;
    if (!find_driver()) {
        // Our exports alone must not make a program believe that there is a driver.
        if (handle == RTLD_DEFAULT) return missing(pass.jump_to, name);
        if (handle == RTLD_NEXT || pass.jump_to == nullptr) return pass;
        void* entry = pass.jump_to(handle, name);
        return entry == hook_of(symbol) ? missing(pass.jump_to, name) : DlsymRoute{nullptr, entry};
    }
    const bool searches = handle == RTLD_NEXT || handle == RTLD_DEFAULT;
    // The driver looks up its own functions (from release 570 on) and must get them.
    void* entry = g_driver_entries[static_cast<std::size_t>(symbol)].load(std::memory_order_acquire);
    if (in_driver(caller)) return searches && entry != nullptr ? DlsymRoute{nullptr, entry} : pass;
    // What the C library would answer to a search depends on the caller, and it cannot be asked in its name.
    // But the driver is loaded, and what it lacks, nobody has.
    if (searches)
        return entry == nullptr ? missing(pass.jump_to, name) : DlsymRoute{nullptr, hook_of(symbol)};
    return {nullptr, route(pass.jump_to(handle, name))};
}

// The flags choose between legacy and per-thread entries, and the real call has honoured them already. An
// empty name and a null status are the driver's to answer.
extern "C" Result cuGetProcAddress(const char* symbol, void** entry, int version, std::uint64_t flags) {
    const Result result = call_driver<Symbol::cuGetProcAddress>(symbol, entry, version, flags);
    if (result == kSuccess && entry != nullptr && mode() != Mode::kOff)
        *entry = route_named(symbol, version, flags, *entry);
    return result;
}

extern "C" Result cuGetProcAddress_v2(const char* symbol, void** entry, int version, std::uint64_t flags,
                                      int* status) {
    const Result result = call_driver<Symbol::cuGetProcAddress_v2>(symbol, entry, version, flags, status);
    if (result == kSuccess && entry != nullptr && mode() != Mode::kOff)
        *entry = route_named(symbol, version, flags, *entry);
    return result;
}

}  // namespace explsched::intercept
