// What the gate writes to its slot on a launch's way to the driver and back: the manager is this test, which
// has the page.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "kernel_intercept/gate/admission.hpp"
#include "kernel_intercept/gate/gate.hpp"
#include "kernel_intercept/shared/clock.hpp"
#include "kernel_intercept/shared/lateness.hpp"
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
                           shared_memory(table, shared::kTableMagic, shared::kTableEntries)};
        page_->control.heartbeat_ns = shared::now_ns() + kHour;
        page_->control.cap_compute_permille = page_->control.cap_bandwidth_permille = 950;
        page_->control.ahead_ns = kMs;
        page_->control.occupied = std::uint64_t{1} << kSlot;
        slot().door.tenancy = kTenancy;
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

    bool rung() const {
        shared::Preamble bell{};
        const shared::Preamble expected = shared::preamble(shared::MessageKind::kRing);
        return recv(client_, &bell, sizeof(bell), MSG_DONTWAIT) == sizeof(bell) &&
               std::memcmp(&bell, &expected, sizeof(bell)) == 0;
    }

   private:
    void welcome(const int (&fds)[2]) const {
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
    int client_{-1};
};

void pause_ms(int ms) { usleep(static_cast<useconds_t>(ms) * 1000); }

void a_launch_is_under_way_until_the_driver_is_called(Manager& manager) {
    const shared::Timeline& line = manager.slot().timeline;
    for (const bool charged : {false, true}) {
        gate::drained(0);
        if (charged) gate::charge(0, kLong);
        if (!charged) CHECK(gate::admit(0, kLong) == gate::Admission::kGranted);
        CHECK(line.starting_ns != 0);
        gate::before_driver(0);
        CHECK(line.starting_ns == 0);
    }
}

void what_reaches_the_driver_late_ends_as_late(Manager& manager) {
    const shared::Timeline& line = manager.slot().timeline;
    gate::drained(0);
    gate::admit(0, kLong);
    const std::uint64_t announced_ns = line.busy_until_ns;
    pause_ms(2);
    gate::before_driver(0);
    CHECK(line.busy_until_ns >= announced_ns + 2 * kMs && line.starting_ns == 0);
    const std::uint64_t known_ns = line.busy_until_ns;
    gate::before_driver(0);  // for a launch that goes with it
    CHECK(line.busy_until_ns == known_ns);
}

void a_long_call_leaves_others_unsure(Manager& manager) {
    const shared::Timeline& line = manager.slot().timeline;
    gate::drained(0);
    gate::admit(0, kLong);
    gate::before_driver(0);
    pause_ms(2);
    gate::after_driver(0);
    CHECK(line.unsure_ns == shared::kMostUnsureNs);
    gate::drained(0);
    CHECK(line.unsure_ns == 0);
    gate::admit(0, {kMs, 300, 100});
    gate::before_driver(0);
    pause_ms(2);  // it may have waited for the kernel
    gate::after_driver(0);
    CHECK(line.unsure_ns == 0);
    gate::admit(0, kLong);
    gate::admit(0, {1000, 300, 100});  // too short to be of interest
    gate::before_driver(0);
    pause_ms(2);
    gate::after_driver(0);
    CHECK(line.unsure_ns == 0);
}

void an_end_is_told_and_rung_for_those_that_wait(Manager& manager) {
    const shared::Slot& slot = manager.slot();
    gate::drained(0);
    const std::uint64_t drains = slot.counters.drains;
    gate::drained(0);  // nothing since
    CHECK(slot.counters.drains == drains && !manager.rung());
    gate::admit(0, kLong);
    CHECK(!shared::drained(slot.timeline));
    gate::drained(0);
    CHECK(shared::drained(slot.timeline) && slot.counters.drains == drains + 1 && !manager.rung());
    manager.page().control.waiting = 1;
    gate::admit(0, kLong);
    gate::drained(0);
    CHECK(manager.rung() && !manager.rung());
    manager.page().control.waiting = 0;
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

// Of a wait that nobody ends nothing is left but what is counted.
void a_wait_leaves_an_idle_door(Manager& manager) {
    constexpr std::uint32_t kOther = 5;
    shared::Control& control = manager.page().control;
    const shared::Slot& slot = manager.slot();
    gate::drained(0);
    control.occupied.fetch_or(std::uint64_t{1} << kOther);
    shared::Timeline& other = manager.page().slots[kOther].timeline;
    shared::push(other, {kHour, 900, 900}, shared::now_ns());
    const std::uint64_t launches = slot.timeline.head;
    CHECK(gate::admit(0, {kMs, 500, 500}) == gate::Admission::kPassThrough);
    CHECK(manager.rung() && control.waiting == 0);
    CHECK((slot.door.gate & shared::kGateState) == shared::kGateIdle && slot.timeline.reserved == 0);
    CHECK(slot.counters.waits == 1 && slot.counters.passed == 1 && slot.timeline.head == launches + 1);
    CHECK(slot.counters.waited_ns >= gate::kLongestWaitNs);
    CHECK(slot.counters.longest_wait_ns == slot.counters.waited_ns);
    control.occupied = std::uint64_t{1} << kSlot;
}

void a_slot_of_another_is_left_alone(Manager& manager) {
    shared::Slot& slot = manager.slot();
    gate::drained(0);
    gate::admit(0, kLong);
    slot.door.tenancy = kTenancy + 1;
    const std::uint64_t launches = slot.timeline.head, end_ns = slot.timeline.busy_until_ns;
    pause_ms(1);
    gate::before_driver(0);
    pause_ms(1);
    gate::after_driver(0);
    gate::drained(0);
    gate::record(0, {{42, {1, 1, 1}, {32, 1, 1}, 0, 90}, kLong, "name"});
    CHECK(gate::admit(0, kLong) == gate::Admission::kPassThrough);
    gate::charge(0, kLong);
    CHECK(slot.timeline.head == launches && slot.timeline.busy_until_ns == end_ns);
    CHECK(slot.timeline.starting_ns != 0 && slot.timeline.unsure_ns == 0);
    CHECK(!shared::drained(slot.timeline) && slot.ring.written == slot.ring.read &&
          slot.counters.unmanaged == 0);
}

}  // namespace

int main() {
    Manager manager;
    for (int i = 0; i < 10'000 && gate::admit(0, kLong) != gate::Admission::kGranted; ++i) usleep(1000);
    REQUIRE(manager.slot().timeline.head == 1);
    a_launch_is_under_way_until_the_driver_is_called(manager);
    what_reaches_the_driver_late_ends_as_late(manager);
    a_long_call_leaves_others_unsure(manager);
    an_end_is_told_and_rung_for_those_that_wait(manager);
    samples_are_dropped_while_nobody_reads_them(manager);
    a_wait_leaves_an_idle_door(manager);
    a_slot_of_another_is_left_alone(manager);
    return check::result();
}
