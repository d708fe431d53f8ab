// Every hook, through every entrance: the linked symbol, dlsym, and cuGetProcAddress in both its versions,
// for both default streams. All give out the same function of ours.

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/kernel/interposer/check.hpp"
#include "tests/kernel/interposer/linked_hooks.hpp"

namespace {

constexpr int kSuccess = 0;
constexpr unsigned long long kPerThread = 2;  // CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM

using GetProc4 = int (*)(const char*, void**, int, unsigned long long);
using GetProc5 = int (*)(const char*, void**, int, unsigned long long, int*);

bool is_ours(void* address) {
    Dl_info info{};
    return dladdr(address, &info) != 0 && std::strstr(info.dli_fname, "libexplsched_intercept") != nullptr;
}

void* same_by_look_up(void* driver, const NamedEntry& entry) {
    const unsigned long long flags = entry.per_thread ? kPerThread : 0;
    void* first = nullptr;
    void* second = nullptr;
    int status = -1;
    CHECK_EQUAL(reinterpret_cast<GetProc4>(dlsym(driver, "cuGetProcAddress"))(entry.base.c_str(), &first,
                                                                              entry.since, flags),
                kSuccess);
    CHECK_EQUAL(reinterpret_cast<GetProc5>(dlsym(driver, "cuGetProcAddress_v2"))(entry.base.c_str(), &second,
                                                                                 entry.since, flags, &status),
                kSuccess);
    CHECK(first == second);
    return first;
}

}  // namespace

int main() {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(driver != nullptr);
    const std::vector<LinkedHook> hooks = linked_hooks();
    const std::vector<NamedEntry> entries = named_entries();
    for (const LinkedHook& hook : hooks) {
        void* by_handle = dlsym(driver, hook.name.c_str());
        if (by_handle == nullptr && CUDA_HEADERS < 13030) continue;  // the double cannot have what they lack
        const auto same = [&](void* found, const char* entrance) {
            explsched::test::require(found == hook.function && is_ours(found), hook.name + " " + entrance,
                                     __FILE__, __LINE__);
        };
        same(by_handle, "by dlsym of the driver");
        same(dlsym(RTLD_DEFAULT, hook.name.c_str()), "by dlsym of all");
        for (const NamedEntry& entry : entries) {
            if (entry.symbol == hook.name) same(same_by_look_up(driver, entry), "by cuGetProcAddress");
        }
    }
}
