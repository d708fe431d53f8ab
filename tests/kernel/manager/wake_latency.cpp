// How long after the manager grants a waiting launch the client runs again (wake), how long a bare futex
// needs for the same between two processes (futex), and how long after the GPU has room the gate lets a
// launch go that waited for it (admit). Prints one JSON object.
//
//   wake_latency MANAGER COUNT
//
// The time of the grant is written into the shared page by the manager just before it wakes the client; the
// client reads the clock as soon as it runs. A second client, asleep, is expected to fill the GPU for a
// while, so that each launch waits. This client leaves every wait to the manager; the gate's own also try
// themselves.
//
// Manager and client in turn: wherever the system puts them, on one core, on two. A core that has nothing to
// do halts, and only the system (and the hypervisor) decide how long it takes to come back; what that is
// here, the bare futex tells: a process that sleeps as long, writes the time, and wakes the client.

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "kernel_intercept/gate/gate.hpp"
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

// How long the GPU is full, and the waker asleep.
constexpr std::uint64_t kFullNs = 300'000;

struct Handover {
    std::atomic<std::uint32_t> asked, done;
    std::atomic<std::uint64_t> done_ns;
};

// A process that does what the manager does, and nothing else.
class BareWaker {
   public:
    BareWaker() {
        void* at = mmap(nullptr, sizeof(Handover), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) std::exit(1);
        handover_ = new (at) Handover{};
        pid_ = fork();
        if (pid_ == 0) serve();
    }
    ~BareWaker() {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
        munmap(handover_, sizeof(Handover));
    }
    BareWaker(const BareWaker&) = delete;
    BareWaker& operator=(const BareWaker&) = delete;

    pid_t pid() const { return pid_; }

    std::uint64_t wake_ns() {
        const std::uint32_t before = handover_->done.load();
        handover_->asked.fetch_add(1);
        futex_wake_all(handover_->asked);
        while (handover_->done.load() == before) futex_wait(handover_->done, before, 1'000'000'000);
        return now_ns() - handover_->done_ns.load();
    }

   private:
    [[noreturn]] void serve() {
        prctl(PR_SET_TIMERSLACK, 1);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (std::uint32_t served = 0;; ++served) {
            while (handover_->asked.load() == served) futex_wait(handover_->asked, served, 1'000'000'000);
            const timespec pause{0, static_cast<long>(kFullNs)};
            clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, nullptr);
            handover_->done_ns = now_ns();
            handover_->done.fetch_add(1);
            futex_wake_all(handover_->done);
        }
    }

    Handover* handover_;
    pid_t pid_;
};

class Managed {
   public:
    explicit Managed(const std::string& socket) : busy_(join(socket)), waiting_(join(socket)) {}

    std::uint64_t wake_ns() {
        Timeline& blocker = busy_.page->slots[busy_.slot].timeline;
        Slot& own = waiting_.page->slots[waiting_.slot];
        push(blocker, {kFullNs, 900, 900}, now_ns());
        own.door.want = pack_cost({1000, 500, 500});
        own.door.want_since_ns = now_ns();
        const std::uint32_t gate = (own.door.gate.load() & ~kGateState) + kGateState + 1 + kGateWaiting;
        own.door.gate = gate;
        const Preamble bell = preamble(MessageKind::kRing);
        send(waiting_.socket, &bell, sizeof(bell), MSG_NOSIGNAL);
        while (own.door.gate.load() == gate) futex_wait(own.door.gate, gate, 1'000'000'000);
        const std::uint64_t wake_ns = now_ns() - own.door.granted_ns.load();
        own.timeline.reserved = 0;
        settle(own.timeline, now_ns());
        settle(blocker, now_ns());
        own.door.gate = gate & ~kGateState;
        return wake_ns;
    }

   private:
    Client busy_, waiting_;
};

class Gated {
   public:
    explicit Gated(const std::string& socket) : busy_(join(socket)) {
        setenv("EXPLSCHED_KM_SOCKET", socket.c_str(), 1);
        gate::attach(0, {{}, 90, 132});
    }

    std::uint64_t wake_ns() {
        Timeline& blocker = busy_.page->slots[busy_.slot].timeline;
        push(blocker, {kFullNs, 900, 900}, now_ns());
        const std::uint64_t room_at_ns = blocker.busy_until_ns.load();
        if (gate::admit(0, {1000, 500, 500}) != gate::Admission::kGranted) std::exit(1);
        const std::uint64_t now = now_ns();
        gate::drained(0);
        settle(blocker, room_at_ns);  // as predicted, so that no lateness is learnt
        return now - std::min(now, room_at_ns);
    }

   private:
    Client busy_;
};

double percentile_us(const std::vector<std::uint64_t>& values_ns, double share) {
    const auto at = static_cast<std::size_t>(share * static_cast<double>(values_ns.size()));
    return static_cast<double>(values_ns[std::min(at, values_ns.size() - 1)]) / 1e3;
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
    const daemon_under_test::Daemon daemon(argv[1]);
    Managed managed(daemon.socket());
    BareWaker bare;
    Gated gated(daemon.socket());
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
        std::vector<std::uint64_t> wakes_ns, bare_ns, admits_ns;
        for (int i = 0; i < count; ++i) {
            wakes_ns.push_back(managed.wake_ns());
            bare_ns.push_back(bare.wake_ns());
            admits_ns.push_back(gated.wake_ns());
        }
        std::printf(", ");
        print((std::string(place) + "wake").c_str(), wakes_ns);
        std::printf(", ");
        print((std::string(place) + "futex").c_str(), bare_ns);
        std::printf(", ");
        print((std::string(place) + "admit").c_str(), admits_ns);
    }
    std::printf("}\n");
    return 0;
}
