// How long after the manager grants a waiting launch the client runs again. Prints one JSON object.
//
//   wake_latency MANAGER COUNT
//
// The time of the grant is written into the shared page by the manager just before it wakes the client; the
// client reads the clock right after `admit` has returned. A second client, asleep, is expected to fill the
// GPU for a while, so that each launch waits. Only waits that the manager ended are counted: the client also
// tries again itself.

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
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
#include "tests/kernel/manager/daemon.hpp"

using namespace explsched;
using namespace explsched::shared;

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

double percentile_us(std::vector<std::uint64_t>& values_ns, double share) {
    const auto at = static_cast<std::size_t>(share * static_cast<double>(values_ns.size()));
    return static_cast<double>(values_ns[std::min(at, values_ns.size() - 1)]) / 1e3;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) {
        std::fprintf(stderr, "usage: wake_latency MANAGER COUNT\n");
        return 2;
    }
    const daemon_under_test::Daemon daemon(argv[1]);
    const Client busy = join(daemon.socket()), waiting = join(daemon.socket());
    Timeline& blocker = busy.page->slots[busy.slot].timeline;
    Doorway& door = waiting.page->slots[waiting.slot].door;
    const Preamble bell = preamble(MessageKind::kRing);
    std::vector<std::uint64_t> wakes_ns;
    for (int i = 0; i < std::atoi(argv[2]); ++i) {
        push(blocker, {300'000, 900, 900}, now_ns());  // 300 us: long enough to fall asleep
        door.want = pack_cost({1000, 500, 500});
        door.want_since_ns = now_ns();
        const std::uint32_t gate = (door.gate.load() & ~kGateState) + kGateState + 1 + kGateWaiting;
        door.gate = gate;
        send(waiting.socket, &bell, sizeof(bell), MSG_NOSIGNAL);
        while (door.gate.load() == gate) futex_wait(door.gate, gate, 1'000'000'000);
        wakes_ns.push_back(now_ns() - door.granted_ns.load());
        Timeline& own = waiting.page->slots[waiting.slot].timeline;
        own.reserved = 0;
        settle(own, now_ns());
        settle(blocker, now_ns());
        door.gate = gate & ~kGateState;
    }
    std::sort(wakes_ns.begin(), wakes_ns.end());
    std::printf("{\"count\": %zu, \"wake_p50_us\": %.2f, \"wake_p99_us\": %.2f, \"wake_max_us\": %.2f}\n",
                wakes_ns.size(), percentile_us(wakes_ns, 0.5), percentile_us(wakes_ns, 0.99),
                percentile_us(wakes_ns, 1));
    return 0;
}
