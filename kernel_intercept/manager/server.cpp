#include "kernel_intercept/manager/server.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kernel_intercept/manager/log.hpp"
#include "kernel_intercept/manager/start.hpp"
#include "kernel_intercept/shared/clock.hpp"

namespace explsched::manager {

namespace {

// What an epoll event is of: one of these, 2 * id of a connection (its socket), or that + 1 (its process).
constexpr std::uint64_t kListener = 0, kTimer = 1, kSignals = 2, kFirstId = 2;
constexpr int kPeerPidfd = 77;  // SO_PEERPIDFD

}  // namespace

Server::Server(const Settings& settings)
    : settings_(settings), keeper_(profiles_, settings.profiles, settings.save_ns), next_id_(kFirstId) {
    make_directory(settings.directory);
    lock_ = locked(settings.directory + "/kernel-manager.lock", F_OFD_SETLK);  // one manager serves it
    keeper_.load();
    epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
    timer_.reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    if (!epoll_ || !timer_) fail("epoll, timerfd");
    signals_ = stop_signals();
    listener_ = listen_at(socket_path(settings));
    watch(listener_.get(), kListener);
    watch(timer_.get(), kTimer);
    watch(signals_.get(), kSignals);
}

Server::~Server() { unlink(socket_path(settings_).c_str()); }

void Server::watch(int descriptor, std::uint64_t what) {
    epoll_event event{};
    event.events = what == kListener ? EPOLLIN | EPOLLET : EPOLLIN;
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
    keeper_.finish();
}

void Server::handle(std::uint64_t what) {
    std::uint64_t expirations = 0;
    if (what == kListener) {
        accept_clients();
    } else if (what == kTimer) {
        if (read(timer_.get(), &expirations, sizeof(expirations)) < 0 && errno != EAGAIN) fail("timerfd");
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
            if (errno == EINTR || errno == ECONNABORTED) continue;
            if (errno != EAGAIN) log(std::string("accept: ") + std::strerror(errno));
            return;  // to come again when the next one comes, or goes
        }
        if (!shared::belongs_to(connection.socket.get(), geteuid(), connection.pid)) {
            ++totals_.foreign;
            continue;
        }
        int process = -1;  // of a client in a container beside ours, whose pid is 0, only from Linux 6.5 on
        socklen_t size = sizeof(process);
        if (getsockopt(connection.socket.get(), SOL_SOCKET, kPeerPidfd, &process, &size) != 0)
            process = static_cast<int>(syscall(SYS_pidfd_open, connection.pid, 0));
        connection.process.reset(process);
        if (!connection.process && errno == ESRCH) continue;  // already gone
        // Without a pidfd its end is that of its connection, which a child of its own may hold open.
        ++totals_.accepted;
        const std::uint64_t id = next_id_++;
        watch(connection.socket.get(), 2 * id);
        if (connection.process) watch(connection.process.get(), 2 * id + 1);
        connections_.emplace(id, std::move(connection));
    }
}

void Server::drop(std::uint64_t id) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    if (found->second.gpu != nullptr) found->second.gpu->leave(found->second.slot);
    connections_.erase(found);
    accept_clients();  // for whom there was no descriptor
}

void Server::work() {
    const std::uint64_t now_ns = shared::now_ns();
    const bool due = now_ns >= next_beat_ns_;
    if (due) next_beat_ns_ = now_ns + settings_.beat_ns;
    std::uint64_t next_ns = 0;
    for (const auto& [uuid, gpu] : gpus_) {
        if (gpu->empty()) continue;
        if (due) gpu->beat(now_ns);
        const std::uint64_t again_ns = gpu->serve(now_ns);
        if (due) {  // not before those that wait
            gpu->take_samples(
                [&](const shared::RingSample& sample, CoRun co_run) { profiles_.add(sample, co_run); });
        }
        next_ns = next_ns == 0 ? next_beat_ns_ : next_ns;
        if (again_ns != 0) next_ns = std::min(next_ns, again_ns);
    }
    keeper_.save_if_due(now_ns);
    itimerspec when{};  // without clients the timer rests
    when.it_value.tv_sec = static_cast<time_t>(next_ns / 1'000'000'000);
    when.it_value.tv_nsec = static_cast<long>(next_ns % 1'000'000'000);
    if (timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr) != 0) fail("timerfd_settime");
}

}  // namespace explsched::manager
