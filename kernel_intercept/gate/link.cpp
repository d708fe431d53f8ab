#include "kernel_intercept/gate/link.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "kernel_intercept/gate/admission.hpp"
#include "kernel_intercept/shared/clock.hpp"
#include "kernel_intercept/shared/descriptor.hpp"

namespace explsched::gate {

namespace {

constexpr std::uint64_t kFirstPauseNs = 100'000'000;
constexpr std::uint64_t kAnswerPauseNs = 2'000'000;
constexpr std::uint64_t kLongestPauseNs = 10'000'000'000;

template <typename Memory>
void unmap(Memory* memory) {
    if (memory != nullptr) munmap(const_cast<void*>(static_cast<const void*>(memory)), sizeof(Memory));
}

void blank(const void* at, std::size_t size) {
    if (at == nullptr) return;
    // If it fails, the old memory stays, whose heartbeat has stopped.
    (void)mmap(const_cast<void*>(at), size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
               -1, 0);
}

KeptDescriptor standard_error;

// Once in a process: it asks again and again.
void tell_refusal(const char* reason) {
    static std::atomic<bool> told{false};
    if (told.exchange(true)) return;
    char text[256];
    constexpr const char* kFormat =
        "explsched: the kernel manager does not serve this process: %.*s; kernel launches pass unmanaged\n";
    std::snprintf(text, sizeof(text), kFormat, int{sizeof(shared::Refused::reason)}, reason);
    tell(text);
}

template <typename Memory>
Memory* map(int fd, int protection, std::uint32_t magic) {
    shared::Header header{};
    if (pread(fd, &header, sizeof(header), 0) != sizeof(header) || header.magic != magic) return nullptr;
    if (header.layout_version != shared::kLayoutVersion)
        return tell_refusal("it is of another release"), nullptr;
    const int seals = fcntl(fd, F_GET_SEALS);  // else it could be cut under our feet
    if (header.size != sizeof(Memory) || lseek(fd, 0, SEEK_END) != sizeof(Memory) || seals < 0 ||
        (seals & F_SEAL_SHRINK) == 0)
        return nullptr;
    void* at = mmap(nullptr, sizeof(Memory), protection, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? nullptr : static_cast<Memory*>(at);
}

}  // namespace

void tell(const char* text) noexcept {
    if (standard_error.number() < 0) standard_error.keep(STDERR_FILENO);
    pollfd ready{standard_error.number(), POLLOUT, 0};
    if (!standard_error.is_ours() || poll(&ready, 1, 0) != 1 || ready.revents != POLLOUT) return;
    if (write(ready.fd, text, std::strlen(text)) < 0) return;
}

void Link::attach(const GpuIdentity& gpu, int patience_ms) noexcept {
    if (wanted() || changing_.exchange(true)) return;
    settings_ = settings_of_environment();
    settings_.hello.compute_capability = gpu.compute_capability;
    settings_.hello.multiprocessors = gpu.multiprocessors;
    settings_.hello.gpu_uuid = gpu.uuid;
    if (standard_error.number() < 0) standard_error.keep(STDERR_FILENO);
    if (settings_.socket_path[0] != '\0') {
        if (!greet() || !hear(patience_ms)) back_off(shared::now_ns());
        wanted_ = true;
    }
    changing_ = false;
}

void Link::recover(std::uint64_t now_ns) noexcept {
    if (now_ns < next_try_ns_.load(std::memory_order_relaxed) || changing_.exchange(true)) return;
    const int kept_errno = errno;
    if (page.load() != nullptr && registration_lost()) retire();
    if (page.load() != nullptr) {
        next_try_ns_ = now_ns + kFirstPauseNs;  // hung, perhaps: look again soon
    } else if (!(fresh_socket_.is_ours() || greet()) || !hear(0)) {
        back_off(now_ns);
    }
    errno = kept_errno;
    changing_ = false;
}

void Link::back_off(std::uint64_t now_ns) noexcept {
    if (fresh_socket_.number() >= 0) {  // greeted: looks for the answer soon, and has not failed
        next_try_ns_ = now_ns + kAnswerPauseNs;
        return;
    }
    pause_ns_ = pause_ns_ == 0 ? kFirstPauseNs : pause_ns_ * 2;
    if (pause_ns_ > kLongestPauseNs) pause_ns_ = kLongestPauseNs;
    next_try_ns_ = now_ns + pause_ns_;
}

bool Link::greet() noexcept {
    fresh_socket_.drop();  // one that the program has closed
    const shared::Descriptor any(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    // A program that has closed its standard streams prints to whatever has their numbers.
    const int fd = fcntl(any.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (fd < 0) return false;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, settings_.socket_path.data(), sizeof(address.sun_path));
    std::int32_t manager = 0;
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
        !(shared::belongs_to(fd, geteuid(), manager) || shared::belongs_to(fd, 0, manager)) ||
        send(fd, &settings_.hello, sizeof(shared::Hello), MSG_NOSIGNAL) != sizeof(shared::Hello)) {
        close(fd);
        return false;
    }
    fresh_socket_.keep(fd);
    return true;
}

bool Link::hear(int patience_ms) noexcept {
    const int fresh = fresh_socket_.number();
    pollfd ready{fresh, POLLIN, 0};
    if (poll(&ready, 1, patience_ms) == 0) return false;
    std::array<char, shared::kLongestMessage> answer{};
    iovec part{answer.data(), answer.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * shared::kWelcomeDescriptors)];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = recvmsg(fresh, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    int fds[shared::kWelcomeDescriptors] = {-1, -1, -1};
    const cmsghdr* header = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
    if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len <= CMSG_LEN(sizeof(fds))) {
        std::memcpy(fds, CMSG_DATA(header), header->cmsg_len - CMSG_LEN(0));
    }
    shared::Welcome welcome{};
    shared::Refused refused{};
    const auto size = static_cast<std::size_t>(got);
    const bool welcomed = shared::is_message(answer.data(), size, shared::MessageKind::kWelcome, welcome) &&
                          adopt(fds, welcome);
    if (shared::is_message(answer.data(), size, shared::MessageKind::kRefused, refused))
        tell_refusal(refused.reason.data());
    for (const int fd : fds) {
        if (fd >= 0) close(fd);
    }
    if (welcomed) {
        pause_ns_ = 0;
    } else {
        close(fresh);
    }
    fresh_socket_.drop();
    return welcomed;
}

bool Link::adopt(const int (&fds)[shared::kWelcomeDescriptors], const shared::Welcome& welcome) noexcept {
    if (fds[0] < 0 || fds[1] < 0 || fds[2] < 0 || welcome.slot >= shared::kSlots) return false;
    auto* new_page = map<shared::Page>(fds[0], PROT_READ | PROT_WRITE, shared::kPageMagic);
    auto* new_table = map<const shared::Table>(fds[1], PROT_READ, shared::kTableMagic);
    auto* new_signals = map<shared::Signals>(fds[2], PROT_READ | PROT_WRITE, shared::kSignalsMagic);
    if (new_page == nullptr || new_table == nullptr || new_signals == nullptr) {
        unmap(new_page);
        unmap(new_table);
        unmap(new_signals);
        return false;
    }
    madvise(new_signals, sizeof(shared::Signals), MADV_DONTFORK);  // a child cannot share pinned memory
    const int fresh = fresh_socket_.number();
    const int old = socket_.number();
    if (socket_.is_ours() && dup3(fresh, old, O_CLOEXEC) == old) {
        close(fresh);
        socket_.keep(old);
    } else {
        socket_.keep(fresh);
    }
    slot.store(welcome.slot);
    tenancy.store(welcome.tenancy);
    for (CountedStream& stream : streams) {
        const StreamLock lock(stream.taken);
        if (lock.held()) stream.batches.start_at(0);  // else it counts on, and its next report says where
    }
    pinned.store(false);
    signals.store(new_signals, std::memory_order_release);
    table.store(new_table, std::memory_order_release);
    page.store(new_page, std::memory_order_release);
    return true;
}

bool Link::notify() noexcept {
    const shared::Preamble notice = shared::preamble(shared::MessageKind::kNotify);
    const int kept_errno = errno;
    const bool alive = socket_.is_ours() &&
                       (send(socket_.number(), &notice, sizeof(notice), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0 ||
                        errno == EAGAIN);
    errno = kept_errno;
    return alive;
}

bool Link::registration_lost() const noexcept {
    char byte = 0;
    if (own_page() == nullptr || !socket_.is_ours()) return true;
    const int kept_errno = errno;
    const ssize_t got = recv(socket_.number(), &byte, sizeof(byte), MSG_PEEK | MSG_DONTWAIT);
    const bool lost = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
    errno = kept_errno;
    return lost;
}

void Link::retire() noexcept {
    const bool dismissed = own_page() == nullptr;  // by a manager that is there
    shared::Page* old_page = page.exchange(nullptr);
    const shared::Table* old_table = table.exchange(nullptr);
    shared::Signals* old_signals = signals.exchange(nullptr);
    if (old_signals != nullptr && pinned.load()) {
        RetiredGate& retired = retired_gates_[retirements_++ % retired_gates_.size()];
        std::atomic<std::uint32_t>& word = old_signals->clients[slot.load()].gate;
        if (!dismissed) word.fetch_or(shared::kOpen);
        // The page is blanked below: its beginning stays, in a mapping of its own.
        const void* kept = mremap(old_page, 0, offsetof(shared::Page, slots), MREMAP_MAYMOVE);
        retired.control.store(kept == MAP_FAILED ? nullptr
                                                 : &static_cast<const shared::Page*>(kept)->control);
        retired.word.store(&word);
    } else {
        blank(old_signals, sizeof(shared::Signals));
    }
    blank(old_page, sizeof(shared::Page));
    blank(old_table, sizeof(shared::Table));
    next_try_ns_ = 0;
    static std::atomic<bool> told{false};
    if (!dismissed && !told.exchange(true))
        tell("explsched: the kernel manager is gone; kernel launches pass unmanaged\n");
}

void Link::open_retired_gates(std::uint64_t now_ns) noexcept {
    for (const RetiredGate& retired : retired_gates_) {
        std::atomic<std::uint32_t>* word = retired.word.load(std::memory_order_acquire);
        const shared::Control* control = retired.control.load(std::memory_order_relaxed);
        if (word != nullptr && (control == nullptr || !manager_alive(*control, now_ns)))
            word->fetch_or(shared::kOpen);
    }
}

void Link::forget() noexcept {
    unmap(page.exchange(nullptr));
    unmap(table.exchange(nullptr));
    signals = nullptr;  // a child does not have that memory
    for (RetiredGate& retired : retired_gates_) retired.word = nullptr;
    for (CountedStream& stream : streams) stream.taken = false;
    for (KeptDescriptor* descriptor : {&socket_, &fresh_socket_}) {
        if (descriptor->is_ours()) close(descriptor->number());
        descriptor->drop();
    }
    pause_ns_ = 0;
    next_try_ns_ = 0;
    recording = false;
    changing_ = false;
    wanted_ = false;
}

}  // namespace explsched::gate
