// The C library's own dlsym. Calling dlsym by name would reach the interposer's.
#pragma once

namespace explsched::intercept {

using Dlsym = void* (*)(void* handle, const char* name);

// The next dlsym in the search order after this library: the C library's, or that of another preloaded
// library. Never null on a supported C library.
Dlsym libc_dlsym() noexcept;

}  // namespace explsched::intercept
