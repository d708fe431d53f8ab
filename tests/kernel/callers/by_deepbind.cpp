// A plugin loaded with RTLD_DEEPBIND: it binds dlsym to libc's before anything preloaded.

#include <dlfcn.h>

#include <cstdio>

#include "tests/kernel/callers/caller.hpp"

int main(int, char** argv) {
    caller::clear_trace();
    void* plugin = dlopen(argv[1], RTLD_NOW | RTLD_DEEPBIND);
    if (plugin == nullptr) std::fprintf(stderr, "%s\n", dlerror());
    REQUIRE(plugin != nullptr);
    const auto find = reinterpret_cast<void* (*)(const char*)>(dlsym(plugin, "plugin_find"));
    caller::launch_three(find);
    return caller::verdict(3, caller::three("cuLaunchKernel"));
}
