// A plugin that finds the driver by itself; see by_deepbind.cpp.

#include <dlfcn.h>

extern "C" void* plugin_find(const char* symbol) {
    static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
    return dlsym(driver, symbol);
}
