// How long after the manager grants a waiting launch the client runs again (wake), and how long a bare futex
// needs for the same between two processes (futex). Prints one JSON object.
//
//   wake_latency MANAGER COUNT
//
// The time of the grant is written into the shared page by the manager just before it wakes the client; the
// client reads the clock as soon as it runs. The manager's policy is quota, where launches wait for credit.
//
// Manager and client in turn: wherever the system puts them, on one core, on two. A core that has nothing to
// do halts, and only the system (and the hypervisor) decide how long it takes to come back; what that is
// here, the bare futex tells: a process that sleeps as long, writes the time, and wakes the client.

#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernel_intercept/shared/clock.hpp"
#include "kernel_intercept/shared/futex.hpp"
#include "kernel_intercept/shared/protocol.hpp"
#include "tests/kernel/manager/bare_waker.hpp"
#include "tests/kernel/manager/daemon.hpp"

using namespace explsched;
using namespace explsched::shared;
using wakes::BareWaker;
using wakes::kFullNs;

namespace {

struct Client {
    int socket;
    std::uint32_t slot;
    Page* page;
};

// A client that speaks the protocol itself, so that every wait is ended by the manager.
Client join(const std::string& path) {
    Hello hello{};
    hello.preamble = preamble(MessageKind::kHello);
    hello.request_permille = hello.limit_permille = 1000;
    Client client{daemon_under_test::connect_to(path), 0, nullptr};
    send(client.socket, &hello, sizeof(hello), MSG_NOSIGNAL);
    Welcome welcome{};
    iovec part{&welcome, sizeof(welcome)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kWelcomeDescriptors)];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    if (recvmsg(client.socket, &message, 0) != sizeof(welcome)) std::exit(1);
    int fds[kWelcomeDescriptors];
    std::memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fds));
    void* at = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    if (at == MAP_FAILED) std::exit(1);
    client.slot = welcome.slot;
    client.page = static_cast<Page*>(at);
    return client;
}

class Managed {
   public:
    explicit Managed(const std::string& socket) : waiting_(join(socket)) {}

    std::uint64_t wake_ns() {
        Slot& own = waiting_.page->slots[waiting_.slot];
        const std::uint32_t waiting =
            (own.client.grant.load() & ~kGrantState) + kGrantState + 1 + kGrantWaiting;
        own.client.credit_ns = 1;  // as if it had come in this moment
        own.client.grant = waiting;
        usleep(kFullNs / 1000);
        const Preamble notice = preamble(MessageKind::kNotify);
        send(waiting_.socket, &notice, sizeof(notice), MSG_NOSIGNAL);
        while (own.client.grant.load() == waiting) futex_wait(own.client.grant, waiting, 1'000'000'000);
        const std::uint64_t woken_ns = now_ns(), granted_ns = own.client.granted_ns.load();
        own.client.grant = waiting & ~kGrantState;
        return woken_ns - std::min(woken_ns, granted_ns);
    }

   private:
    Client waiting_;
};

double percentile_us(const std::vector<std::uint64_t>& values_ns, double share) {
    const auto at = static_cast<std::size_t>(share * static_cast<double>(values_ns.size()));
    return values_ns.empty() ? 0 : static_cast<double>(values_ns[std::min(at, values_ns.size() - 1)]) / 1e3;
}

void print(const char* name, std::vector<std::uint64_t> values_ns) {
    std::sort(values_ns.begin(), values_ns.end());
    std::printf("\"%s_p50_us\": %.2f, \"%s_p99_us\": %.2f", name, percentile_us(values_ns, 0.5), name,
                percentile_us(values_ns, 0.99));
}

void put_on(pid_t pid, const cpu_set_t& cores) {
    if (sched_setaffinity(pid, sizeof(cores), &cores) != 0) std::perror("sched_setaffinity");
}

// The cores this process may use, one at a time.
std::vector<cpu_set_t> single_cores() {
    cpu_set_t all;
    std::vector<cpu_set_t> cores;
    if (sched_getaffinity(0, sizeof(all), &all) != 0) return cores;
    for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
        if (!CPU_ISSET(core, &all)) continue;
        cores.emplace_back();
        CPU_ZERO(&cores.back());
        CPU_SET(core, &cores.back());
    }
    return cores;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) {
        std::fprintf(stderr, "usage: wake_latency MANAGER COUNT\n");
        return 2;
    }
    const daemon_under_test::Daemon daemon(argv[1], "--policy quota");
    Managed managed(daemon.socket());
    BareWaker bare;
    const int count = std::atoi(argv[2]);
    cpu_set_t all;
    if (sched_getaffinity(0, sizeof(all), &all) != 0) return 1;
    const std::vector<cpu_set_t> cores = single_cores();
    std::printf("{\"count\": %d", count);
    for (const char* place : {"", "one_core_", "two_cores_"}) {
        if (place[0] == 't' && cores.size() < 2) continue;
        const cpu_set_t& own = place[0] == '\0' ? all : cores.front();
        const cpu_set_t& theirs = place[0] == 't' ? cores.back() : own;
        put_on(0, own);
        put_on(daemon.pid(), theirs);
        put_on(bare.pid(), theirs);
        std::vector<std::uint64_t> wakes_ns, bare_ns;
        for (int i = 0; i < count; ++i) {
            wakes_ns.push_back(managed.wake_ns());
            bare_ns.push_back(bare.wake_ns());
        }
        std::printf(", ");
        print((std::string(place) + "wake").c_str(), wakes_ns);
        std::printf(", ");
        print((std::string(place) + "futex").c_str(), bare_ns);
    }
    std::printf("}\n");
    return 0;
}
