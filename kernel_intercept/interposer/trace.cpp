#include "kernel_intercept/interposer/trace.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "kernel_intercept/interposer/settings.hpp"

namespace explsched::intercept {

void trace(const TracedLaunch& launch) noexcept {
    const int kept_errno = errno;
    char line[4096];
    const int length = std::snprintf(line, sizeof line, "launch %s %.3600s %u,%u,%u %u,%u,%u %u %s\n",
                                     launch.entry, launch.kernel, launch.grid.x, launch.grid.y, launch.grid.z,
                                     launch.block.x, launch.block.y, launch.block.z, launch.shared_bytes,
                                     launch.granted ? "granted" : "pass");
    // Opened for each line: programs close descriptors they do not know, and reuse the number.
    const int file = open(trace_path(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file >= 0) {
        ssize_t written = 0;
        do {
            written = write(file, line, static_cast<std::size_t>(length));
        } while (written < 0 && errno == EINTR);
        close(file);
    }
    errno = kept_errno;
}

}  // namespace explsched::intercept
