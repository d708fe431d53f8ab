#include "kernel_intercept/interposer/driver.hpp"

#include <dlfcn.h>
#include <link.h>

#include "kernel_intercept/interposer/libc_dlsym.hpp"

namespace explsched::intercept {

std::array<std::atomic<void*>, kSymbolCount> g_driver_entries{};

namespace {

struct Range {
    std::uintptr_t begin;
    std::uintptr_t end;
};

std::atomic<bool> g_found{false};
std::atomic<std::uintptr_t> g_begin{0};
std::atomic<std::uintptr_t> g_end{0};

struct ImageQuery {
    std::uintptr_t base;  // the load bias
    Range range;
};

int measure_image(dl_phdr_info* info, std::size_t /*size*/, void* data) {
    auto* query = static_cast<ImageQuery*>(data);
    if (info->dlpi_addr != query->base) return 0;
    query->range = {UINTPTR_MAX, 0};
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto& segment = info->dlpi_phdr[i];
        if (segment.p_type != PT_LOAD) continue;
        const std::uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
        if (begin < query->range.begin) query->range.begin = begin;
        if (begin + segment.p_memsz > query->range.end) query->range.end = begin + segment.p_memsz;
    }
    return 1;
}

Range image_of(void* handle) noexcept {
    link_map* map = nullptr;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return {0, 0};
    ImageQuery query{map->l_addr, {0, 0}};
    dl_iterate_phdr(measure_image, &query);
    return query.range;
}

}  // namespace

bool find_driver() noexcept {
    if (g_found.load(std::memory_order_acquire)) return true;
    const Dlsym find = libc_dlsym();
    const auto open = &dlopen;  // none in a program of an older glibc that loads nothing
    if (find == nullptr || open == nullptr) return false;
    // Never loads anything: a program without CUDA must not get it from us. The reference is kept, so the
    // entries stay valid.
    void* handle = open("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (handle == nullptr) {
        dlerror();  // a program must not find our failed search in its own dlerror
        return false;
    }
    // The shim of ours (shim/shim.cpp) bears the driver's name and knows where the driver is.
    if (void* shim = find(handle, "explsched_shim_driver")) handle = reinterpret_cast<void* (*)()>(shim)();
    if (handle == nullptr) return false;
    // Several threads may come here at once: all store the same values.
    const Range image = image_of(handle);
    g_begin.store(image.begin, std::memory_order_relaxed);
    g_end.store(image.end, std::memory_order_relaxed);
    for (std::size_t i = 0; i < kSymbolCount; ++i) {
        g_driver_entries[i].store(find(handle, kSymbolNames[i].data()), std::memory_order_release);
    }
    dlerror();
    g_found.store(true, std::memory_order_release);
    return true;
}

bool in_driver(const void* address) noexcept {
    const auto value = reinterpret_cast<std::uintptr_t>(address);
    return value >= g_begin.load(std::memory_order_relaxed) && value < g_end.load(std::memory_order_relaxed);
}

Symbol symbol_of_entry(const void* entry) noexcept {
    if (entry == nullptr || !find_driver()) return Symbol::kCount;
    for (std::size_t i = 0; i < kSymbolCount; ++i) {
        if (g_driver_entries[i].load(std::memory_order_relaxed) == entry) return static_cast<Symbol>(i);
    }
    return Symbol::kCount;
}

}  // namespace explsched::intercept
