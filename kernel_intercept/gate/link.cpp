#include "kernel_intercept/gate/link.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kernel_intercept/shared/clock.hpp"
#include "kernel_intercept/shared/protocol.hpp"

namespace explsched::gate {

namespace {

constexpr std::uint64_t kFirstPauseNs = 100'000'000;
constexpr std::uint64_t kAnswerPauseNs = 2'000'000;
constexpr std::uint64_t kLongestPauseNs = 10'000'000'000;

template <typename Memory>
Memory* map(int fd, int protection, std::uint32_t magic) {
    struct stat info {};
    if (fstat(fd, &info) != 0 || info.st_size != sizeof(Memory)) return nullptr;
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return nullptr;  // it could be cut under our feet
    void* at = mmap(nullptr, sizeof(Memory), protection, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return nullptr;
    auto* memory = static_cast<Memory*>(at);
    const shared::Header& header = memory->header;
    if (header.magic == magic && header.layout_version == shared::kLayoutVersion &&
        header.size == sizeof(Memory)) {
        return memory;
    }
    munmap(at, sizeof(Memory));
    return nullptr;
}

void blank(const void* at, std::size_t size) {
    if (at == nullptr) return;
    // If it fails, the old memory stays, whose heartbeat has stopped.
    (void)mmap(const_cast<void*>(at), size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
               -1, 0);
}

bool same_user(int fd) {
    ucred peer{};
    socklen_t size = sizeof(peer);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
           (peer.uid == geteuid() || peer.uid == 0);
}

}  // namespace

void Link::attach(const GpuIdentity& gpu, int patience_ms) noexcept {
    if (wanted() || changing_.exchange(true)) return;
    settings_ = settings_of_environment();
    gpu_ = gpu;
    if (settings_.socket_path[0] != '\0') {
        if (!greet() || !hear(patience_ms)) back_off(shared::now_ns());
        wanted_ = true;
    }
    changing_ = false;
}

void Link::recover(std::uint64_t now_ns) noexcept {
    if (now_ns < next_try_ns_.load(std::memory_order_relaxed) || changing_.exchange(true)) return;
    const int kept_errno = errno;
    if (page.load() != nullptr && manager_gone()) retire();
    if (page.load() != nullptr) {
        next_try_ns_ = now_ns + kFirstPauseNs;  // hung, perhaps: look again soon
    } else if (!(fresh_socket_ >= 0 || greet()) || !hear(0)) {
        back_off(now_ns);
    }
    errno = kept_errno;
    changing_ = false;
}

void Link::back_off(std::uint64_t now_ns) noexcept {
    if (fresh_socket_ >=
        0) {  // greeted: looks for the answer soon, and that is no failure to pause longer after
        next_try_ns_ = now_ns + kAnswerPauseNs;
        return;
    }
    pause_ns_ = pause_ns_ == 0 ? kFirstPauseNs : pause_ns_ * 2;
    if (pause_ns_ > kLongestPauseNs) pause_ns_ = kLongestPauseNs;
    next_try_ns_ = now_ns + pause_ns_;
}

bool Link::greet() noexcept {
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return false;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, settings_.socket_path.data(), sizeof(address.sun_path));
    shared::Hello hello{};
    hello.preamble = shared::preamble(shared::MessageKind::kHello);
    hello.priority = settings_.priority;
    hello.request_permille = settings_.request_permille;
    hello.limit_permille = settings_.limit_permille;
    hello.compute_capability = gpu_.compute_capability;
    hello.multiprocessors = gpu_.multiprocessors;
    hello.gpu_uuid = gpu_.uuid;
    hello.job = settings_.job;
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 || !same_user(fd) ||
        send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello)) {
        close(fd);
        return false;
    }
    fresh_socket_ = fd;
    return true;
}

bool Link::hear(int patience_ms) noexcept {
    pollfd ready{fresh_socket_, POLLIN, 0};
    if (poll(&ready, 1, patience_ms) == 0) return false;
    shared::Welcome welcome{};
    iovec part{&welcome, sizeof(welcome)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * shared::kWelcomeDescriptors)];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = recvmsg(fresh_socket_, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    int fds[shared::kWelcomeDescriptors] = {-1, -1};
    const cmsghdr* header = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
    if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len <= CMSG_LEN(sizeof(fds))) {
        std::memcpy(fds, CMSG_DATA(header), header->cmsg_len - CMSG_LEN(0));
    }
    const shared::Preamble expected = shared::preamble(shared::MessageKind::kWelcome);
    const bool welcomed = got == sizeof(welcome) && std::memcmp(&welcome, &expected, sizeof(expected)) == 0 &&
                          adopt(fds[0], fds[1], welcome.slot);
    for (const int fd : fds) {
        if (fd >= 0) close(fd);
    }
    if (welcomed) {
        pause_ns_ = 0;
    } else {
        close(fresh_socket_);
    }
    fresh_socket_ = -1;
    return welcomed;
}

bool Link::adopt(int page_fd, int table_fd, std::uint32_t new_slot) noexcept {
    if (page_fd < 0 || table_fd < 0 || new_slot >= shared::kSlots) return false;
    auto* new_page = map<shared::Page>(page_fd, PROT_READ | PROT_WRITE, shared::kPageMagic);
    if (new_page == nullptr) return false;
    auto* new_table = map<const shared::Table>(table_fd, PROT_READ, shared::kTableMagic);
    if (new_table == nullptr) {
        munmap(new_page, sizeof(shared::Page));
        return false;
    }
    const int old = socket_.load();
    if (old >= 0 && socket_is_ours()) {
        dup3(fresh_socket_, old, O_CLOEXEC);
        close(fresh_socket_);
    } else {
        socket_ = fresh_socket_;
    }
    struct stat info {};
    inode_ = fstat(socket_.load(), &info) == 0 ? info.st_ino : 0;
    slot.store(new_slot);
    table.store(new_table, std::memory_order_release);
    page.store(new_page, std::memory_order_release);
    return true;
}

bool Link::socket_is_ours() const noexcept {
    struct stat info {};
    return fstat(socket_.load(), &info) == 0 && S_ISSOCK(info.st_mode) && info.st_ino == inode_;
}

bool Link::ring() noexcept {
    const shared::Preamble bell = shared::preamble(shared::MessageKind::kRing);
    const int kept_errno = errno;
    // Programs that close all descriptors close ours too, and may have opened another file in its place.
    const bool alive =
        socket_is_ours() &&
        (send(socket_.load(), &bell, sizeof(bell), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0 || errno == EAGAIN);
    errno = kept_errno;
    return alive;
}

bool Link::manager_gone() noexcept {
    char byte = 0;
    if (!socket_is_ours()) return true;
    const ssize_t got = recv(socket_.load(), &byte, sizeof(byte), MSG_PEEK | MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

void Link::retire() noexcept {
    shared::Page* old_page = page.exchange(nullptr);
    const shared::Table* old_table = table.exchange(nullptr);
    blank(old_page, sizeof(shared::Page));
    blank(old_table, sizeof(shared::Table));
    next_try_ns_ = 0;
    static std::atomic<bool> told{false};
    if (!told.exchange(true)) {
        static const char text[] = "explsched: the kernel manager is gone; kernel launches pass unmanaged\n";
        if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0) return;
    }
}

void Link::forget() noexcept {
    if (shared::Page* old = page.exchange(nullptr)) munmap(old, sizeof(shared::Page));
    if (const shared::Table* old = table.exchange(nullptr))
        munmap(const_cast<shared::Table*>(old), sizeof(shared::Table));
    if (socket_.load() >= 0 && socket_is_ours()) close(socket_.load());
    if (fresh_socket_ >= 0) close(fresh_socket_);
    socket_ = -1;
    fresh_socket_ = -1;
    pause_ns_ = 0;
    next_try_ns_ = 0;
    recording = false;
    changing_ = false;
    wanted_ = false;
}

}  // namespace explsched::gate
