// How programs find the driver's functions: cuGetProcAddress in both its ABIs, over the table of entries.def.
//
// The runtime links none of the driver's functions. It asks dlsym for cuGetProcAddress_v2 alone, and that for
// all others.

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "tests/kernel/fakecuda/call_log.hpp"
#include "tests/kernel/fakecuda/driver.hpp"

// Every row against NVIDIA's own table of base names, versions and types.
#define LEGACY(base, since, symbol) \
    static_assert(std::is_same_v<PFN_##base##_v##since, decltype(&(symbol))>, #symbol);
#define PER_THREAD(base, since, symbol, suffix) \
    static_assert(std::is_same_v<PFN_##base##_v##since##suffix, decltype(&symbol##suffix)>, #symbol #suffix);
#include "tests/kernel/fakecuda/entries.def"
#undef LEGACY
#undef PER_THREAD

namespace {

enum class Variant { kLegacy, kPerThread };

struct Entry {
    std::string_view base;
    int since;
    Variant variant;
    void* function;
};

// An older driver has the rows of its time. The table is filled when it is first asked: function addresses
// are no compile-time constants.
const auto& entries() {
#define LEGACY(base, since, symbol) Entry{#base, since, Variant::kLegacy, reinterpret_cast<void*>(&(symbol))},
#define PER_THREAD(base, since, symbol, suffix) \
    Entry{#base, since, Variant::kPerThread, reinterpret_cast<void*>(&symbol##suffix)},
    static const std::array table{
#include "tests/kernel/fakecuda/entries.def"
    };
#undef LEGACY
#undef PER_THREAD
    return table;
}

// Code that jumps to a function, from an address that no symbol has.
void* alias_of(void* function) {
#if defined(__x86_64__)
    constexpr std::array<unsigned char, 8> kJump{0xff, 0x25, 0x02, 0, 0, 0, 0x90, 0x90};  // jmp *(8 bytes on)
#else
    constexpr std::array<unsigned char, 8> kJump{0x50, 0, 0, 0x58, 0, 0x02, 0x1f, 0xd6};  // ldr x16; br x16
#endif
    static auto* next = static_cast<unsigned char*>(
        mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    unsigned char* alias = next;
    next += 16;
    std::memcpy(alias, kJump.data(), kJump.size());
    std::memcpy(alias + kJump.size(), &function, sizeof(function));
    __builtin___clear_cache(reinterpret_cast<char*>(alias), reinterpret_cast<char*>(next));
    return alias;
}

struct Found {
    void* function{nullptr};
    bool name_known{false};
};

// The newest ABI of `base` that is no newer than `version`; with the flag, its per-thread twin where one
// exists.
Found find(std::string_view base, int version, cuuint64_t flags) {
    const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    const Entry* best = nullptr;
    Found found;
    const auto better = [&](const Entry& a, const Entry& b) {
        if (per_thread && a.variant != b.variant) return a.variant == Variant::kPerThread;
        return a.since > b.since;
    };
    for (const Entry& entry : entries()) {
        if (entry.base != base || entry.since > fakecuda::kDriverVersion) continue;
        found.name_known = true;
        if (entry.since > version || (entry.variant == Variant::kPerThread && !per_thread)) continue;
        if (best == nullptr || better(entry, *best)) best = &entry;
    }
    if (best != nullptr) found.function = best->function;
    const char* fault = std::getenv("FAKECUDA_FAULT");  // programs look up before they call cuInit
    if (found.function != nullptr && fault != nullptr && std::strcmp(fault, "aliased") == 0)
        found.function = alias_of(found.function);
    return found;
}

void log_look_up(const char* base, int version, cuuint64_t flags, bool found, const void* return_address) {
    fakecuda::log_call("cuGetProcAddress " + std::string(*base == '\0' ? "(empty)" : base) + " " +
                           std::to_string(version) + " " + std::to_string(flags) +
                           (found ? " found" : " missing"),
                       return_address);
}

}  // namespace

extern "C" {

// The ABI of CUDA 11.3 to 11.8.
CUresult cuGetProcAddress(const char* base, void** function, int version, cuuint64_t flags) {
    if (base == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *function = find(base, version, flags).function;
    log_look_up(base, version, flags, *function != nullptr, __builtin_return_address(0));
    return *function == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

// The ABI from CUDA 12.0 on: a missing function is no error, the status tells. The runtime starts with an
// empty name to see whether the function works at all.
CUresult cuGetProcAddress_v2(const char* base, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
    if (base == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Found found = find(base, version, flags);
    log_look_up(base, version, flags, found.function != nullptr, __builtin_return_address(0));
    *function = found.function;
    if (status != nullptr) {
        *status = found.function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
                  : found.name_known        ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                            : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
    return CUDA_SUCCESS;
}

// Undocumented tables of functions, by which NVIDIA's runtime checks that the driver is NVIDIA's. There are
// none here, so that runtime gives up after it has looked its symbols up.
CUresult cuGetExportTable(const void** table, const CUuuid*) {
    if (table == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *table = nullptr;
    return CUDA_ERROR_NOT_FOUND;
}

}  // extern "C"
