#include "tests/kernel/interposer/middle.hpp"

#include <dlfcn.h>

extern "C" long labs(long value) noexcept {
    const auto next = reinterpret_cast<long (*)(long)>(dlsym(RTLD_NEXT, "labs"));
    return next(value);
}

extern "C" long middle_labs(long value) { return labs(value); }

extern "C" void* middle_next(const char* name) { return dlsym(RTLD_NEXT, name); }
