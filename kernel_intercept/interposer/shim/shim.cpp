// A libcuda.so.1 that leads to the interposer programs which a preloaded dlsym cannot reach: libraries opened
// with RTLD_DEEPBIND find the C library's dlsym first, but load libcuda.so.1 by name like everybody.
//
// Used beside LD_PRELOAD, by putting its directory first in LD_LIBRARY_PATH. What the preloaded interposer
// exports is forwarded there, all else to the real driver, which is looked for where it is installed.

#include <dlfcn.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr const char* kName = "libcuda.so.1";
constexpr int kErrorSymbolNotFound = 302;  // CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND

constexpr const char* kUsualDirectories[] = {
    "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib", "/run/opengl-driver/lib", "/usr/lib",
};

std::atomic<void*> g_driver{nullptr};

bool is_this_library(const char* path) noexcept {
    Dl_info self{};
    struct stat mine {};
    struct stat other {};
    if (dladdr(reinterpret_cast<void*>(&is_this_library), &self) == 0) return false;
    return stat(self.dli_fname, &mine) == 0 && stat(path, &other) == 0 && mine.st_dev == other.st_dev &&
           mine.st_ino == other.st_ino;
}

void* open_in(const char* directory, std::size_t length) noexcept {
    char path[PATH_MAX];
    const int written =
        std::snprintf(path, sizeof path, "%.*s/%s", static_cast<int>(length), directory, kName);
    if (length == 0 || written < 0 || written >= PATH_MAX || is_this_library(path)) return nullptr;
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

void* open_on_path(const char* directories) noexcept {
    while (directories != nullptr && *directories != '\0') {
        const std::size_t length = std::strcspn(directories, ":");
        if (void* driver = open_in(directories, length)) return driver;
        directories += length + (directories[length] == ':' ? 1 : 0);
    }
    return nullptr;
}

void* open_driver() noexcept {
    void* driver = open_on_path(std::getenv("LD_LIBRARY_PATH"));
    for (const char* directory : kUsualDirectories) {
        if (driver != nullptr) break;
        driver = open_in(directory, std::strlen(directory));
    }
    return driver;
}

int missing() noexcept { return kErrorSymbolNotFound; }

// The preloaded interposer's function of this name, if there is an interposer and it has one.
void* hook_of(const char* name) noexcept {
    void* interposer = dlopen("libexplsched_intercept.so", RTLD_LAZY | RTLD_NOLOAD);
    if (interposer == nullptr) return nullptr;
    void* hook = dlsym(interposer, name);
    dlclose(interposer);  // it was loaded before and stays
    return hook;
}

}  // namespace

extern "C" {

extern __attribute__((visibility("hidden"))) const std::int32_t explsched_shim_names[];

// Asked by the interposer, which would otherwise take this library for the driver. Null if there is none.
__attribute__((visibility("default"))) void* explsched_shim_driver() {
    void* driver = g_driver.load(std::memory_order_acquire);
    if (driver == nullptr) {
        driver = open_driver();  // twice by two threads is the same library
        g_driver.store(driver, std::memory_order_release);
    }
    return driver;
}

__attribute__((visibility("hidden"))) void* explsched_shim_resolve(std::uint32_t index,
                                                                   std::atomic<void*>* slots) {
    const char* base = reinterpret_cast<const char*>(explsched_shim_names);
    const char* name = base + explsched_shim_names[index];
    void* driver = explsched_shim_driver();
    void* target = driver == nullptr ? nullptr : dlsym(driver, name);
    if (target == nullptr) return reinterpret_cast<void*>(&missing);
    // Without the driver's function a hook would have nothing to call, so it is asked for second.
    if (void* hook = hook_of(name)) target = hook;
    slots[index].store(target, std::memory_order_release);
    return target;
}

}  // extern "C"
