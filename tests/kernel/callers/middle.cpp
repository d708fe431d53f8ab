#include "tests/kernel/callers/middle.hpp"

#include <dlfcn.h>

extern "C" {

void* middle_next(const char* symbol) { return dlsym(RTLD_NEXT, symbol); }

// Must find innermost.cpp's function of this name, not itself: a dlsym wrapper that calls the real one,
// instead of jumping to it, makes "next" mean "after the wrapper".
int middle_wrapped(int value) {
    const auto next = reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, "middle_wrapped"));
    if (next == nullptr || next == middle_wrapped) return -1;
    return next(value) + 1;
}

}  // extern "C"
