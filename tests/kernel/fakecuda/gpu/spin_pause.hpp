// A hint to the core that this thread only waits for memory to change.
#pragma once

namespace fakecuda {

inline void spin_pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::
                     : "memory");  // `yield` does nothing on most cores; this takes about as long as pause
#endif
}

}  // namespace fakecuda
