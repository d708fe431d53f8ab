// What the gate writes to its slot on a launch's way to the driver and back: the manager is this test, which
// has the page.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include "kernel_intercept/gate/admission.hpp"
#include "kernel_intercept/gate/gate.hpp"
#include "kernel_intercept/gate/link.hpp"
#include "kernel_intercept/gate/watchdog.hpp"
#include "kernel_intercept/shared/clock.hpp"
#include "kernel_intercept/shared/futex.hpp"
#include "kernel_intercept/shared/protocol.hpp"
#include "tests/kernel/gate/check.hpp"

using namespace explsched;

namespace {

constexpr std::uint64_t kMs = 1'000'000, kHour = 3'600'000 * kMs;
constexpr std::uint32_t kSlot = 3, kTenancy = 77;
constexpr KernelCost kLong{1000 * kMs, 300, 100};

template <typename Memory>
int shared_memory(Memory*& memory, std::uint32_t magic, std::uint32_t entries) {
    const int fd = memfd_create("slot_test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(fd >= 0 && ftruncate(fd, sizeof(Memory)) == 0);
    void* at = mmap(nullptr, sizeof(Memory), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REQUIRE(at != MAP_FAILED && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    memory = new (at) Memory{};
    memory->header = {magic, shared::kLayoutVersion, sizeof(Memory), entries};
    return fd;
}

// A manager that has let this process in, and does nothing more.
class Manager {
   public:
    Manager() {
        shared::Table* table = nullptr;
        const int fds[] = {shared_memory(page_, shared::kPageMagic, shared::kSlots),
                           shared_memory(table, shared::kTableMagic, shared::kTableEntries),
                           shared_memory(signals_, shared::kSignalsMagic, shared::kSlots)};
        page_->control.heartbeat_ns = shared::now_ns() + kHour;
        page_->control.batch_ns = kMs;
        own().gate = shared::kOpen;
        page_->control.occupied = std::uint64_t{1} << kSlot;
        slot().client.tenancy = kTenancy;
        char directory[] = "/tmp/slot-XXXXXX";
        REQUIRE(mkdtemp(directory) != nullptr);
        const std::string path = std::string(directory) + "/socket";
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
        const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        REQUIRE(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
        REQUIRE(listen(listener, 1) == 0);
        setenv("EXPLSCHED_KM_SOCKET", path.c_str(), 1);
        gate::attach(0, {{1}, 90, 132});  // in vain so far: nobody has answered
        client_ = accept(listener, nullptr, nullptr);
        welcome(fds);
        unlink(path.c_str());
        rmdir(directory);
    }

    shared::Page& page() { return *page_; }
    shared::Slot& slot() { return page_->slots[kSlot]; }
    shared::ClientSignals& own() { return signals_->clients[kSlot]; }

    bool notified() const {
        shared::Preamble notice{};
        const shared::Preamble expected = shared::preamble(shared::MessageKind::kNotify);
        return recv(client_, &notice, sizeof(notice), MSG_DONTWAIT) == sizeof(notice) &&
               std::memcmp(&notice, &expected, sizeof(notice)) == 0;
    }

   private:
    void welcome(const int (&fds)[shared::kWelcomeDescriptors]) const {
        shared::Hello hello{};
        REQUIRE(recv(client_, &hello, sizeof(hello), 0) == sizeof(hello));
        shared::Welcome welcome{shared::preamble(shared::MessageKind::kWelcome), kSlot, sizeof(shared::Page),
                                sizeof(shared::Table), kTenancy};
        iovec part{&welcome, sizeof(welcome)};
        alignas(cmsghdr) char control[CMSG_SPACE(sizeof(fds))]{};
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control;
        message.msg_controllen = sizeof(control);
        cmsghdr* header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(fds));
        std::memcpy(CMSG_DATA(header), fds, sizeof(fds));
        REQUIRE(sendmsg(client_, &message, 0) == sizeof(welcome));
    }

    shared::Page* page_{nullptr};
    shared::Signals* signals_{nullptr};
    int client_{-1};
};

void the_manager_is_told_of_an_end_for_those_that_wait(Manager& manager) {
    const shared::Slot& slot = manager.slot();
    gate::drained(0);
    const std::uint64_t drains = slot.counters.drains;
    gate::drained(0);  // nothing since
    CHECK(slot.counters.drains == drains && !manager.notified());
    gate::admit(0, gate::kUncounted, kLong);
    CHECK(!shared::progress_of(manager.own()).idle());
    gate::drained(0);
    CHECK(shared::progress_of(manager.own()).idle() && slot.counters.drains == drains + 1 &&
          !manager.notified());
    manager.page().control.waiting = 1;
    gate::admit(0, gate::kUncounted, kLong);
    gate::drained(0);
    CHECK(manager.notified() && !manager.notified());
    manager.page().control.waiting = 0;
    // While it is busy, the manager looks for the end by itself if the GPU reports.
    shared::ClientState& client = manager.page().slots[kSlot].client;
    client.busy = shared::kGatesShut;
    for (const std::uint32_t reports : {0U, 1U}) {
        client.reports = reports;
        gate::admit(0, gate::kUncounted, kLong);
        gate::drained(0);
        CHECK(manager.notified() == (reports == 0));
    }
    client.busy = shared::kIdle;
    client.reports = 0;
}

// The end of a busy period is looked at by the manager.
void the_end_of_high_priority_work_is_told_to_the_manager(Manager& manager) {
    manager.page().control.high = std::uint64_t{1} << kSlot;
    gate::admit(0, 2, kLong);
    CHECK(manager.slot().client.busy != shared::kIdle && !manager.notified());
    CHECK(gate::tail(0, 2).writes && !gate::tail(0, 2).writes);
    gate::drained(0);
    CHECK(manager.notified());
    manager.slot().client.busy = 0;
    manager.page().control.high = 0;
}

void samples_are_dropped_while_nobody_reads_them(Manager& manager) {
    shared::SampleRing& ring = manager.slot().ring;
    const gate::Sample sample{{42, {1, 1, 1}, {32, 1, 1}, 0, 90}, kLong, "name"};
    for (std::uint64_t i = 1; i <= 100; ++i) {
        gate::record(0, sample);
        CHECK(ring.written == i);
        ring.read = ring.written.load();
    }
    CHECK(ring.dropped == 0 && std::strcmp(ring.samples[0].name.data(), "name") == 0);
    CHECK(ring.samples[99 % shared::kRingSamples].cost.gpu_ns == kLong.gpu_ns);
    for (std::uint64_t i = 0; i < shared::kRingSamples + 5; ++i) gate::record(0, sample);
    CHECK(ring.written == 100 + shared::kRingSamples && ring.dropped == 5);
    ring.read = ring.written.load();
}

// A wait that nobody ends is bounded, and leaves nothing but what is counted.
void a_wait_is_bounded(Manager& manager) {
    constexpr std::uint64_t kOther = 1 << 5;
    shared::Control& control = manager.page().control;
    const shared::Slot& slot = manager.slot();
    gate::drained(0);
    control.occupied.fetch_or(kOther);
    control.high = kOther;
    shared::close_gate(manager.own().gate);
    const std::uint64_t launches = slot.counters.launches;
    CHECK(gate::admit(0, gate::kUncounted, {kMs, 500, 500}).admission == gate::Admission::kPassThrough);
    CHECK(slot.counters.waits == 1 && slot.counters.passed == 1 && slot.counters.launches == launches + 1);
    CHECK(slot.counters.waited_ns >= gate::kLongestWaitNs);
    CHECK(slot.counters.longest_wait_ns == slot.counters.waited_ns);
    const gate::Decision ahead = gate::admit(0, 3, {kMs, 500, 500});  // it waits on the GPU
    CHECK(ahead.admission == gate::Admission::kGranted && ahead.boundary.waits);
    manager.own().gate.fetch_or(shared::kOpen);
    control.high = 0;
    control.occupied = std::uint64_t{1} << kSlot;
}

// As where the user may start no more threads: nobody would open the gate of what waits on the GPU.
[[maybe_unused]] void without_a_watchdog_launches_wait_on_the_host(Manager& manager) {
    shared::Control& control = manager.page().control;
    const std::uint64_t waits = manager.slot().counters.waits;
    rlimit before{};
    REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
    const rlimit nothing{1, before.rlim_max};  // no room for a stack
    gate::forget_watchdog();
    control.high = 1 << 5;
    shared::close_gate(manager.own().gate);
    gate::open_stream(0, 7);
    REQUIRE(setrlimit(RLIMIT_AS, &nothing) == 0);
    const gate::Decision decision = gate::admit(0, 7, {1000, 100, 100});
    setrlimit(RLIMIT_AS, &before);
    CHECK(!decision.boundary.waits && manager.slot().counters.waits == waits + 1);
    control.high = 0;
    manager.own().gate.fetch_or(shared::kOpen);
    gate::forget_watchdog();
}

// Nor is it waited for again and again when the stream did not move though its gate was open, for long
// enough, while the launch waited.
void a_stream_that_stands_still_holds_up_one_launch(Manager& manager) {
    constexpr int kStream = 5;
    const shared::Slot& slot = manager.slot();
    manager.page().control.high = 1 << 5;
    gate::open_stream(0, kStream);
    for (std::uint64_t i = 0; i < gate::kMostAhead; ++i) gate::admit(0, kStream, {1000, 100, 100});
    const std::uint64_t waits = slot.counters.waits;
    std::thread high([&] {
        usleep(20'000);
        shared::close_gate(manager.own().gate);
    });
    for (int i = 0; i < 10; ++i) gate::admit(0, kStream, {1000, 100, 100});
    high.join();
    CHECK(slot.counters.waits == waits + 1);
    manager.own().gate.fetch_or(shared::kOpen);
    manager.page().control.high = 0;
}

void a_wait_for_credit_leaves_an_idle_gate(Manager& manager) {
    shared::Slot& slot = manager.slot();
    manager.page().control.policy = shared::Policy::kQuota;
    slot.client.credit_ns = 0;
    const std::uint64_t waits = slot.counters.waits;
    CHECK(gate::admit(0, gate::kUncounted, kLong).admission == gate::Admission::kPassThrough);
    CHECK(manager.notified() && manager.page().control.waiting == 0);
    CHECK((slot.client.grant & shared::kGrantState) == shared::kGrantIdle &&
          slot.counters.waits == waits + 1);
    CHECK(slot.client.credit_ns < 0);  // it owes
    slot.client.credit_ns = 1;
    CHECK(gate::admit(0, gate::kUncounted, kLong).admission == gate::Admission::kGranted);
    CHECK(slot.counters.waits == waits + 1);
    manager.page().control.policy = shared::Policy::kGroup;
}

// It would find credit or its turn only when the manager looks again; the first thread tells it.
void a_second_thread_is_woken_by_the_first(Manager& manager) {
    shared::Slot& slot = manager.slot();
    manager.page().control.policy = shared::Policy::kQuota;
    slot.client.credit_ns = 0;
    std::thread first([] { gate::admit(0, gate::kUncounted, kLong); });
    while ((slot.client.grant & shared::kGrantState) != shared::kGrantWaiting) usleep(100);
    std::thread second([] { gate::admit(0, gate::kUncounted, kLong); });
    usleep(10'000);  // it sleeps, most probably
    const std::uint64_t passed = slot.counters.passed;
    slot.client.credit_ns = 2 * static_cast<std::int64_t>(kLong.gpu_ns);
    slot.client.grant = slot.client.grant | shared::kGranted;
    shared::futex_wake_all(slot.client.grant);
    first.join();
    second.join();
    CHECK(slot.counters.passed == passed);  // neither has waited until its bound
    while (manager.notified()) {
    }
    manager.page().control.policy = shared::Policy::kGroup;
}

// What the GPU still writes for a destroyed stream would be taken for the next one's.
void a_number_is_not_given_anew_before_its_work_is_done(Manager& manager) {
    constexpr int kStream = 6;
    shared::Line& line = manager.own().lines[kStream];
    CHECK(gate::open_stream(0, kStream));
    gate::admit(0, kStream, kLong);
    CHECK(gate::tail(0, kStream).done_ns == kLong.gpu_ns && line.done == 0);
    CHECK(!gate::open_stream(0, kStream) && line.done == 0);
    line.done = kLong.gpu_ns;
    CHECK(gate::open_stream(0, kStream));
    gate::admit(0, kStream, kLong);
    gate::tail(0, kStream);
    gate::abandon_stream(0, kStream);  // its context goes
    CHECK(gate::open_stream(0, kStream) && line.done == 2 * kLong.gpu_ns);
}

// Time and work of the same launches, however many periods there are between two looks of the manager.
void a_busy_period_is_told_with_its_work(Manager& manager) {
    shared::Slot& slot = manager.slot();
    shared::Control& control = manager.page().control;
    control.policy = shared::Policy::kQuota;
    control.high = std::uint64_t{1} << kSlot;
    slot.client.credit_ns = INT64_MAX / 2;
    const auto period = [](int launches) {
        for (int i = 0; i < launches; ++i) gate::admit(0, 1, kLong);
        usleep(1000);
        gate::drained(0);
    };
    period(1);  // and what came before it
    const std::uint64_t before = slot.counters.busy_time, before_ns = shared::now_ns();
    const auto told = [&] { return shared::unpack_busy(slot.counters.busy_time - before); };
    period(2);
    period(1);
    CHECK(told().work_ns == 3 * kLong.gpu_ns && slot.client.busy == shared::kIdle);
    CHECK(told().wall_ns >= 2 * kMs - 128 && told().wall_ns <= shared::now_ns() - before_ns);
    const auto period_of_unknown_work = [&] {
        gate::lookup(43, kLong);
        gate::sampling_due(43);
        period(1);
    };
    for (int i = 0; i < 65; ++i) period_of_unknown_work();
    CHECK(told().work_ns == 3 * kLong.gpu_ns && slot.client.busy == shared::kIdle);
    period_of_unknown_work();  // it is never timed
    CHECK(told().work_ns == 4 * kLong.gpu_ns);
    gate::lookup(44, kLong);
    period(1);  // asked about only, as of a kernel of a graph
    CHECK(told().work_ns == 5 * kLong.gpu_ns);
    period(300);  // too long to be told
    CHECK(told().work_ns == 5 * kLong.gpu_ns);
    control.high = 0;
    period(1);
    CHECK(told().work_ns == 5 * kLong.gpu_ns);
    control.policy = shared::Policy::kGroup;
    slot.client.credit_ns = 0;
}

// A heartbeat that is late is no reason to let everything pass: what is bounded stays bounded.
void a_late_manager_floods_nothing(Manager& manager) {
    shared::Control& control = manager.page().control;
    const std::uint64_t beat_ns = control.heartbeat_ns;
    gate::drained(0);
    gate::open_stream(0, 4);
    control.high = 1 << 5;
    shared::close_gate(manager.own().gate);
    control.heartbeat_ns = shared::now_ns() - 60 * kMs;
    int waits = 0;
    for (int i = 0; i < 256; ++i) waits += gate::admit(0, 4, {1000, 100, 100}).boundary.waits;
    CHECK(waits == 4 && manager.slot().counters.unmanaged >= 256);
    control.heartbeat_ns = beat_ns;
    control.high = 0;
    manager.own().gate.fetch_or(shared::kOpen);
}

// What is written to standard error while that is this pipe.
class Pipe {
   public:
    Pipe() { REQUIRE(pipe2(ends_, O_NONBLOCK) == 0); }
    ~Pipe() {
        for (const int end : ends_) close(end);
    }
    Pipe(const Pipe&) = delete;
    Pipe& operator=(const Pipe&) = delete;

    template <typename Action>
    std::string said_during(const Action& action) const {
        const int before = dup(STDERR_FILENO);
        dup2(ends_[1], STDERR_FILENO);
        action();
        dup2(before, STDERR_FILENO);
        close(before);
        char text[1024];
        const ssize_t got = read(ends_[0], text, sizeof(text));
        return got <= 0 ? "" : std::string(text, static_cast<std::size_t>(got));
    }

    // No more fits into it, and who writes to it waits.
    void fill() const {
        while (write(ends_[1], "x", 1) == 1) {
        }
        REQUIRE(errno == EAGAIN && fcntl(ends_[1], F_SETFL, 0) == 0);
    }
    void close_reader() {
        close(ends_[0]);
        ends_[0] = -1;
    }

   private:
    int ends_[2];
};

void two_processes_with_collectives_on_a_gpu_are_warned(Manager& manager, const Pipe& standard_error) {
    constexpr std::uint32_t kOther = kSlot + 1;
    const auto collective = [] { gate::collective_launched(0); };
    const auto said_during = [&](const auto& action) { return standard_error.said_during(action); };
    manager.page().control.occupied = std::uint64_t{1} << kSlot | std::uint64_t{1} << kOther;
    CHECK(said_during(collective).empty());
    manager.page().slots[kOther].counters.collectives = 1;
    CHECK(said_during(collective).empty());  // told at the first
    manager.slot().counters.collectives = 0;
    CHECK(said_during(collective).find("NCCL") != std::string::npos);
    CHECK(said_during(collective).empty());
    manager.slot().counters.collectives = 0;
    CHECK(Pipe().said_during(collective).empty());  // a file of the program that has got the number
}

// Who reads standard error has stopped, or is gone: that holds up no launch, and ends no program.
void what_nobody_reads_is_not_told(Manager& manager, Pipe& standard_error) {
    const auto warn = [&] {
        manager.slot().counters.collectives = 0;
        gate::collective_launched(0);
    };
    standard_error.fill();
    CHECK(standard_error.said_during(warn).find("NCCL") == std::string::npos);
    standard_error.close_reader();
    standard_error.said_during(warn);
}

void a_slot_of_another_is_left_alone(Manager& manager) {
    shared::Slot& slot = manager.slot();
    gate::drained(0);
    gate::admit(0, 1, kLong);
    slot.client.tenancy = kTenancy + 1;
    const std::uint64_t launches = slot.counters.launches, unmanaged = slot.counters.unmanaged;
    CHECK(!gate::tail(0, 1).writes && gate::signals(0).memory == nullptr);
    gate::drained(0);
    gate::record(0, {{42, {1, 1, 1}, {32, 1, 1}, 0, 90}, kLong, "name"});
    CHECK(gate::admit(0, 1, kLong).admission == gate::Admission::kPassThrough);
    CHECK(!gate::admit(0, 1, kLong, gate::Patience::kMustNotWait).boundary.writes);
    CHECK(slot.counters.launches == launches && !shared::progress_of(manager.own()).idle());
    CHECK(slot.ring.written == slot.ring.read && slot.counters.unmanaged == unmanaged);
}

// Whether nobody, our watchdog included, opens it.
bool stays_shut(std::atomic<std::uint32_t>& gate) {
    shared::close_gate(gate);
    for (int i = 0; i < 10; ++i) {
        usleep(10'000);
        if (shared::is_open(gate)) return false;
    }
    return true;
}

void a_gate_of_another_is_left_alone(Manager& manager) {
    gate::signals_pinned(0);
    manager.slot().client.tenancy = kTenancy + 1;
    CHECK(stays_shut(manager.own().gate));
    manager.slot().client.tenancy = kTenancy;
    manager.own().gate.fetch_or(shared::kOpen);
}

// Our work may still wait for it on the GPU.
void a_gate_that_we_had_is_opened_when_its_manager_is_gone(Manager& manager) {
    for (int i = 0; i < 1000 && gate::links[0].signals != nullptr; ++i) {
        gate::admit(0, 1, kLong);
        usleep(1000);
    }
    CHECK(gate::links[0].signals == nullptr);
    CHECK(stays_shut(manager.own().gate));
    manager.page().control.heartbeat_ns = 1;
    for (int i = 0; i < 10'000 && !shared::is_open(manager.own().gate); ++i) usleep(1000);
    CHECK(shared::is_open(manager.own().gate));
}

}  // namespace

int main() {
    Pipe standard_error;
    std::optional<Manager> served;
    standard_error.said_during([&] { served.emplace(); });
    Manager& manager = *served;
    for (int i = 0; i < 10'000; ++i) {
        if (gate::admit(0, gate::kUncounted, kLong).admission == gate::Admission::kGranted) break;
        usleep(1000);
    }
    REQUIRE(manager.slot().counters.launches == 1);
    the_manager_is_told_of_an_end_for_those_that_wait(manager);
    the_end_of_high_priority_work_is_told_to_the_manager(manager);
    samples_are_dropped_while_nobody_reads_them(manager);
    a_wait_is_bounded(manager);
#ifndef __SANITIZE_ADDRESS__  // its own threads would find no room, either
    without_a_watchdog_launches_wait_on_the_host(manager);
#endif
    a_stream_that_stands_still_holds_up_one_launch(manager);
    a_number_is_not_given_anew_before_its_work_is_done(manager);
    a_wait_for_credit_leaves_an_idle_gate(manager);
    a_second_thread_is_woken_by_the_first(manager);
    a_busy_period_is_told_with_its_work(manager);
    a_late_manager_floods_nothing(manager);
    two_processes_with_collectives_on_a_gpu_are_warned(manager, standard_error);
    what_nobody_reads_is_not_told(manager, standard_error);
    a_gate_of_another_is_left_alone(manager);
    a_slot_of_another_is_left_alone(manager);
    a_gate_that_we_had_is_opened_when_its_manager_is_gone(manager);
    return check::result();
}
