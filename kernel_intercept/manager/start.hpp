// What a manager sets up before it serves.
#pragma once

#include <string>

#include "kernel_intercept/shared/descriptor.hpp"

namespace explsched::manager {

// Makes `path` with mode 0700, or checks that it belongs to this user and to nobody else. Throws
// std::runtime_error that names it.
void make_directory(const std::string& path);

// The file, made if need be, with a lock that the kernel releases when the process ends. `command`:
// F_OFD_SETLK, or F_OFD_SETLKW to wait for it. Throws std::system_error that names the file, of EADDRINUSE
// where another process has the lock.
shared::Descriptor locked(const std::string& path, int command);

// A socket that is connected to who listens at `path`; none, with the reason in errno, where nobody does.
shared::Descriptor connected_to(const std::string& path, int flags);

// Throws std::system_error, of EADDRINUSE if somebody listens there already.
shared::Descriptor listen_at(const std::string& path);

// A signalfd of SIGTERM and SIGINT, which are blocked for this thread and those it starts.
shared::Descriptor stop_signals();  // throws std::system_error

// Asks the system for short turns on a core, which come sooner where others compute: managers work for
// microseconds at a time, and launches wait for them. Of use from Linux 6.12 on (EEVDF); before, and where it
// is refused, nothing changes.
void request_short_timeslice() noexcept;

}  // namespace explsched::manager
