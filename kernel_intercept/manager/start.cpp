#include "kernel_intercept/manager/start.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "kernel_intercept/manager/log.hpp"

namespace explsched::manager {

using shared::Descriptor;

namespace {

sockaddr_un address_of(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    return address;
}

constexpr std::uint64_t kTimesliceNs = 100'000;  // the shortest that Linux gives

// As sched_setattr(2) has it, version 0. The header of the kernel cannot be included beside <sched.h>.
struct Attributes {
    std::uint32_t size, policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t runtime_ns, deadline_ns, period_ns;
};
static_assert(sizeof(Attributes) == 48);

}  // namespace

void make_directory(const std::string& path) {
    if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) fail(path);
    struct stat info {};
    if (lstat(path.c_str(), &info) != 0) fail(path);
    if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
        throw std::runtime_error(path + ": accepted is a directory of this user with mode 0700");
    }
}

Descriptor locked(const std::string& path, int command) {
    Descriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    struct flock whole {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    while (!file || fcntl(file.get(), command, &whole) != 0) {
        if (file && errno == EINTR) continue;
        if (file && (errno == EAGAIN || errno == EACCES)) fail(path + ": another manager has it", EADDRINUSE);
        fail(path);
    }
    return file;
}

Descriptor connected_to(const std::string& path, int flags) {
    Descriptor connection(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
    const sockaddr_un address = address_of(path);
    if (connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
        connection.reset();
    return connection;
}

Descriptor listen_at(const std::string& path) {
    // A living manager has the lock, too, but cleaners of /tmp remove that file; they leave its socket alone.
    if (connected_to(path, SOCK_NONBLOCK) || errno == EAGAIN)  // or many want to talk to it
        fail(path + ": another manager serves it", EADDRINUSE);
    unlink(path.c_str());  // of a manager that was killed
    Descriptor listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const sockaddr_un address = address_of(path);
    if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
        chmod(path.c_str(), 0600) != 0 || listen(listener.get(), SOMAXCONN) != 0) {
        fail(path);
    }
    return listener;
}

Descriptor stop_signals() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigprocmask(SIG_BLOCK, &signals, nullptr);
    Descriptor descriptor(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!descriptor) fail("signalfd");
    return descriptor;
}

void request_short_timeslice() noexcept {
    Attributes attributes{};
    if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return;
    if (attributes.policy != SCHED_OTHER) return;
    attributes.runtime_ns = kTimesliceNs;
    syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace explsched::manager
