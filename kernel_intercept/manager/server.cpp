#include "kernel_intercept/manager/server.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>

#include "kernel_intercept/manager/log.hpp"
#include "kernel_intercept/manager/start.hpp"
#include "kernel_intercept/shared/clock.hpp"

namespace explsched::manager {

namespace {

// What an epoll event belongs to: one of these, or 2 * id of a connection for its socket, and + 1 for its
// process.
constexpr std::uint64_t kListener = 0, kTimer = 1, kSignals = 2, kFirstId = 2;

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

}  // namespace

bool belongs_to(int socket, std::uint32_t uid, std::int32_t& pid) {
    ucred peer{};
    socklen_t size = sizeof(peer);
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
    pid = peer.pid;
    return peer.uid == uid;
}

const char* fault_of(const shared::Hello& hello) {
    if (hello.priority != shared::Class::kHigh && hello.priority != shared::Class::kBestEffort)
        return "unknown class";
    if (hello.request_permille < 1 || hello.request_permille > hello.limit_permille ||
        hello.limit_permille > 1000) {
        return "request and limit must be 1..1000 permille, request <= limit";
    }
    if (std::memchr(hello.job.data(), '\0', hello.job.size()) == nullptr) return "job id too long";
    return nullptr;
}

std::string hex(const std::array<unsigned char, 16>& uuid) {
    std::string text;
    for (const unsigned char byte : uuid) {
        text += "0123456789abcdef"[byte >> 4];
        text += "0123456789abcdef"[byte & 15];
    }
    return text;
}

Server::Server(const Settings& settings) : settings_(settings), next_id_(kFirstId) {
    make_directory(settings.directory);
    lock_ = only_instance(settings.directory);
    load();
    epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
    timer_.reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    if (!epoll_ || !timer_) fail("epoll, timerfd");
    signals_ = stop_signals();
    listener_ = listen_at(socket_path(settings));
    watch(listener_.get(), kListener);
    watch(timer_.get(), kTimer);
    watch(signals_.get(), kSignals);
    next_save_ns_ = shared::now_ns() + settings.save_ns;
}

Server::~Server() { unlink(socket_path(settings_).c_str()); }

void Server::watch(int descriptor, std::uint64_t what) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = what;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) fail("epoll_ctl");
}

void Server::run() {
    while (!stopping_) {
        std::array<epoll_event, 64> events;
        const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
        if (count < 0 && errno != EINTR) fail("epoll_wait");
        for (int i = 0; i < count; ++i) handle(events[static_cast<std::size_t>(i)].data.u64);
        work();
    }
    save(true);
}

void Server::handle(std::uint64_t what) {
    std::uint64_t expirations = 0;
    if (what == kListener) {
        accept_clients();
    } else if (what == kTimer) {
        if (read(timer_.get(), &expirations, sizeof(expirations)) < 0 && errno != EAGAIN)
            fail("read of a timerfd");
    } else if (what == kSignals) {
        stopping_ = true;
    } else if (what % 2 == 0) {
        hear(what / 2);
    } else {
        drop(what / 2);  // the process has ended
    }
}

void Server::accept_clients() {
    for (;;) {
        Connection connection{
            shared::Descriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)),
            shared::Descriptor(), 0, nullptr, 0};
        if (!connection.socket) {
            if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
                log("accept: %s", std::strerror(errno));
            return;
        }
        if (!belongs_to(connection.socket.get(), geteuid(), connection.pid)) {
            ++totals_.foreign;
            continue;
        }
        connection.process.reset(static_cast<int>(syscall(SYS_pidfd_open, connection.pid, 0)));
        if (!connection.process) continue;  // already gone
        ++totals_.accepted;
        const std::uint64_t id = next_id_++;
        watch(connection.socket.get(), 2 * id);
        watch(connection.process.get(), 2 * id + 1);
        connections_.emplace(id, std::move(connection));
    }
}

void Server::hear(std::uint64_t id) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    // A bounded number, so that one that rings without end holds up nobody.
    for (int i = 0; i < 16; ++i) {
        std::array<char, shared::kLongestMessage> data;
        const ssize_t got = recv(found->second.socket.get(), data.data(), data.size(), MSG_TRUNC);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (got <= 0) return drop(id);
        answer(found->second, id, data.data(), static_cast<std::size_t>(got));
        if (connections_.count(id) == 0) return;
    }
}

void Server::answer(Connection& connection, std::uint64_t id, const char* data, std::size_t size) {
    shared::Preamble preamble{};
    if (size < sizeof(preamble) || size > shared::kLongestMessage)
        return refuse(connection, id, "message of a wrong size");
    std::memcpy(&preamble, data, sizeof(preamble));
    if (preamble.magic != shared::kMessageMagic) return refuse(connection, id, "not a message of explsched");
    if (preamble.version != shared::kProtocolVersion)
        return refuse(connection, id, "another version of the protocol");
    if (preamble.kind == shared::MessageKind::kRing && size == sizeof(preamble) && connection.gpu != nullptr)
        return;
    if (preamble.kind == shared::MessageKind::kStatus && size == sizeof(preamble)) {
        const std::string text = status();
        if (send(connection.socket.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            drop(id);
        return;
    }
    shared::Forget forget{};
    if (preamble.kind == shared::MessageKind::kForget && size == sizeof(forget)) {
        std::memcpy(&forget, data, sizeof(forget));
        profiles_.forget(forget.key);
        next_save_ns_ = shared::now_ns();
        if (send(connection.socket.get(), &forget, sizeof(forget), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) drop(id);
        return;
    }
    shared::Hello hello{};
    if (preamble.kind != shared::MessageKind::kHello || size != sizeof(hello) || connection.gpu != nullptr) {
        return refuse(connection, id, "message of a wrong kind or size");
    }
    std::memcpy(&hello, data, sizeof(hello));
    if (const char* fault = fault_of(hello)) return refuse(connection, id, fault);
    welcome(connection, hello);
    if (connection.gpu == nullptr) refuse(connection, id, "no slot is free");
}

Gpu& Server::gpu_of(const shared::Hello& hello) {
    std::unique_ptr<Gpu>& gpu = gpus_[hex(hello.gpu_uuid)];
    if (gpu == nullptr) gpu = std::make_unique<Gpu>(settings_, hello);
    return *gpu;
}

void Server::welcome(Connection& connection, const shared::Hello& hello) {
    if (gpus_.size() >= shared::kSlots && gpus_.count(hex(hello.gpu_uuid)) == 0)
        return;  // no machine has as many
    Gpu& gpu = gpu_of(hello);
    const auto slot = gpu.join(
        {connection.pid, hello.job.data(), hello.priority, hello.request_permille, hello.limit_permille},
        shared::now_ns());
    if (!slot) return;
    connection.gpu = &gpu;
    connection.slot = *slot;
    shared::Welcome reply{shared::preamble(shared::MessageKind::kWelcome), *slot, sizeof(shared::Page),
                          sizeof(shared::Table), 0};
    const std::array<int, shared::kWelcomeDescriptors> fds{gpu.descriptor(), profiles_.table_descriptor()};
    iovec part{&reply, sizeof(reply)};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(fds))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(fds));
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(fds));
    if (sendmsg(connection.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EPIPE) {
        log("pid %d: welcome: %s", connection.pid,
            std::strerror(errno));  // its end will be seen as a hang-up
    }
}

void Server::refuse(Connection& connection, std::uint64_t id, const char* reason) {
    ++totals_.malformed;
    shared::Refused reply{shared::preamble(shared::MessageKind::kRefused), {}};
    std::strncpy(reply.reason.data(), reason, reply.reason.size() - 1);
    if (send(connection.socket.get(), &reply, sizeof(reply), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
        ++totals_.refused;
    drop(id);
}

void Server::drop(std::uint64_t id) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    if (found->second.gpu != nullptr) found->second.gpu->leave(found->second.slot);
    connections_.erase(found);
}

void Server::work() {
    const std::uint64_t now_ns = shared::now_ns();
    const bool due = now_ns >= next_beat_ns_;
    if (due) next_beat_ns_ = now_ns + settings_.beat_ns;
    std::uint64_t next_ns = 0;
    for (const auto& [uuid, gpu] : gpus_) {
        if (gpu->empty()) continue;
        if (due) {
            gpu->beat(now_ns);
            gpu->take_samples(
                [&](const shared::RingSample& sample, Company company) { profiles_.add(sample, company); });
        }
        const std::uint64_t again_ns = gpu->serve(now_ns);
        next_ns = next_ns == 0 ? next_beat_ns_ : next_ns;
        if (again_ns != 0) next_ns = std::min(next_ns, again_ns);
    }
    if (now_ns >= next_save_ns_) save(false);
    itimerspec when{};  // without clients the timer rests
    when.it_value.tv_sec = static_cast<time_t>(next_ns / 1'000'000'000);
    when.it_value.tv_nsec = static_cast<long>(next_ns % 1'000'000'000);
    if (timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr) != 0) fail("timerfd_settime");
}

void Server::load() {
    try {
        const ProfileText text = load_profiles(settings_.profiles);
        for (const Fault& fault : text.faults) {
            log("%s: line %zu: %s", settings_.profiles.c_str(), fault.line, fault.reason.c_str());
        }
        totals_.profile_faults = text.faults.size();
        profiles_.adopt(text.profiles);
    } catch (const std::runtime_error& error) {
        log("%s; going on without", error.what());
        ++totals_.save_errors;
    }
}

// Files may be slow (network, full disk), clients must not notice: written by another thread, on a copy.
void Server::save(bool wait) {
    next_save_ns_ = shared::now_ns() + settings_.save_ns;
    const auto finish = [&] {
        try {
            const std::vector<Profile> file = saving_.get();
            profiles_.left_out(leaving_out_);
            profiles_.adopt(file);
            ++totals_.saves;
        } catch (const std::exception& error) {
            log("profiles are not saved: %s", error.what());
            ++totals_.save_errors;
        }
    };
    if (saving_.valid() && (wait || saving_.wait_for(std::chrono::seconds(0)) == std::future_status::ready))
        finish();
    if (saving_.valid() || (profiles_.samples() == saved_samples_ && profiles_.forgotten().empty())) return;
    saved_samples_ = profiles_.samples();
    leaving_out_ = profiles_.forgotten();
    saving_ =
        std::async(std::launch::async, save_profiles, settings_.profiles, profiles_.profiles(), leaving_out_);
    if (wait) finish();
}

}  // namespace explsched::manager
