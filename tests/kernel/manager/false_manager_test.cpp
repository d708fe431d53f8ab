// The gate against what answers on the manager's socket and is none: launches pass, and nothing is left open.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <new>

#include "kernel_intercept/gate/admission.hpp"
#include "kernel_intercept/shared/clock.hpp"
#include "kernel_intercept/shared/protocol.hpp"
#include "tests/kernel/manager/gate_client.hpp"

using namespace gate_client;

namespace {

std::string scratch;

// What a false manager hands out. As it is, the gate cannot tell it from a true one.
struct Offer {
    shared::Welcome welcome{shared::preamble(shared::MessageKind::kWelcome), 0, sizeof(shared::Page),
                            sizeof(shared::Table), 0};
    std::size_t welcome_bytes{sizeof(shared::Welcome)};
    shared::Header page{shared::kPageMagic, shared::kLayoutVersion, sizeof(shared::Page), shared::kSlots};
    shared::Header table{shared::kTableMagic, shared::kLayoutVersion, sizeof(shared::Table),
                         shared::kTableEntries};
    std::size_t page_bytes{sizeof(shared::Page)};
    std::size_t table_bytes{sizeof(shared::Table)};
    shared::Header signals{shared::kSignalsMagic, shared::kLayoutVersion, sizeof(shared::Signals),
                           shared::kSlots};
    std::size_t signals_bytes{sizeof(shared::Signals)};
    shared::Policy policy{shared::Policy::kGroup};
    int seals{F_SEAL_SHRINK | F_SEAL_GROW};
    std::size_t descriptors{shared::kWelcomeDescriptors};
};

int memory(const shared::Header& header, std::size_t bytes, const Offer& offer) {
    const int fd = memfd_create("false", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0);
    void* at = mmap(nullptr, sizeof(shared::Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REQUIRE(at != MAP_FAILED);
    std::memcpy(at, &header, sizeof(header));
    if (header.magic == shared::kPageMagic && bytes >= sizeof(shared::Page)) {
        auto* page = static_cast<shared::Page*>(at);
        page->control.heartbeat_ns = shared::now_ns() + 3'600'000'000'000;  // alive for an hour
        page->control.beat_interval_ns = 5'000'000;
        page->control.occupied = 1;
        page->control.policy = offer.policy;
    }
    munmap(at, sizeof(shared::Page));
    CHECK(fcntl(fd, F_ADD_SEALS, offer.seals) == 0);
    return fd;
}

void answer(int connection, const Offer& offer) {
    shared::Hello hello{};
    if (recv(connection, &hello, sizeof(hello), 0) != sizeof(hello)) return;  // it went without a word
    const std::array<int, shared::kWelcomeDescriptors> fds{memory(offer.page, offer.page_bytes, offer),
                                                           memory(offer.table, offer.table_bytes, offer),
                                                           memory(offer.signals, offer.signals_bytes, offer)};
    iovec part{const_cast<shared::Welcome*>(&offer.welcome), offer.welcome_bytes};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(fds))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (offer.descriptors != 0) {
        message.msg_control = control.data();
        message.msg_controllen = CMSG_SPACE(sizeof(int) * offer.descriptors);
        cmsghdr* header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int) * offer.descriptors);
        std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * offer.descriptors);
    }
    CHECK(sendmsg(connection, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(offer.welcome_bytes));
    for (const int fd : fds) close(fd);
}

int open_files() {
    const std::filesystem::directory_iterator files("/proc/self/fd");
    return static_cast<int>(std::distance(begin(files), end(files)));
}

struct Outcome {
    bool granted;
    int files;         // more than before
    std::string told;  // on standard error
};

int listener_at(const std::string& address) {
    sockaddr_un place{};
    place.sun_family = AF_UNIX;
    std::strncpy(place.sun_path, address.c_str(), sizeof(place.sun_path) - 1);
    unlink(address.c_str());
    const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(bind(listener, reinterpret_cast<const sockaddr*>(&place), sizeof(place)) == 0);
    CHECK(chmod(address.c_str(), 0666) == 0 && listen(listener, 8) == 0);
    return listener;
}

// A process meets a manager that makes this offer, as `uid`.
Outcome outcome_of(const Offer& offer, uid_t uid = geteuid()) {
    const std::string address = scratch + "/socket";
    int ready[2];
    REQUIRE(pipe2(ready, O_CLOEXEC) == 0);
    const pid_t manager = child_that([&] {
        CHECK(setuid(uid) == 0);
        const int listener = listener_at(address);
        CHECK(write(ready[1], "1", 1) == 1);
        const int connection = accept(listener, nullptr, nullptr);
        answer(connection, offer);
        pause();
        return 0;
    });
    char byte = 0;
    CHECK(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
    close(ready[1]);
    int errors[2];
    REQUIRE(pipe2(errors, O_CLOEXEC) == 0);
    const pid_t client = child_that([&] {
        gate::reset_after_fork();
        setenv("EXPLSCHED_KM_SOCKET", address.c_str(), 1);
        if (dup2(errors[1], STDERR_FILENO) < 0) return 64;
        if (uid != geteuid() && setuid(uid + 1) != 0) return 64;
        const int before = open_files();
        gate::attach(0, kGpu);
        // The answer may come later than `attach` waits for it.
        bool granted = false;
        for (int i = 0; i < 300 && !granted; ++i) {
            granted = gate::admit(0, gate::kUncounted, kSmall).admission == Admission::kGranted;
            if (!granted) usleep(1000);
        }
        return (granted ? 32 : 0) + open_files() - before;
    });
    close(errors[1]);
    std::array<char, 1024> told{};
    std::size_t bytes = 0;
    for (ssize_t got = 1; got > 0; bytes += static_cast<std::size_t>(std::max<ssize_t>(got, 0)))
        got = read(errors[0], told.data() + bytes, told.size() - bytes);
    close(errors[0]);
    const int status = WEXITSTATUS(status_of(client));
    end(manager);
    return {(status & 32) != 0, status & 31, {told.data(), bytes}};
}

void one_that_seems_true_is_used() {
    const Outcome outcome = outcome_of({});
    CHECK(outcome.granted && outcome.files == 1);  // the connection, and no memory
    CHECK(outcome.told.empty());
}

template <typename Change>
bool passes(const Change& change) {
    Offer offer;
    change(offer);
    const Outcome outcome = outcome_of(offer);
    // A connection may be under way, to whoever may listen now.
    return !outcome.granted && outcome.files <= 1;
}

void what_does_not_fit_is_not_used() {
    CHECK(passes([](Offer& o) { o.welcome.preamble.kind = shared::MessageKind::kRefused; }));
    CHECK(passes([](Offer& o) { o.welcome.preamble.version += 1; }));
    CHECK(passes([](Offer& o) { o.welcome_bytes -= 1; }));
    CHECK(passes([](Offer& o) { o.welcome.slot = shared::kSlots; }));
    CHECK(passes([](Offer& o) { o.page.magic = shared::kTableMagic; }));
    CHECK(passes([](Offer& o) { o.page.layout_version += 1; }));
    CHECK(passes([](Offer& o) { o.page.size -= 1; }));
    CHECK(passes([](Offer& o) { o.table.magic += 1; }));
    CHECK(passes([](Offer& o) { o.table.layout_version += 1; }));
    CHECK(passes([](Offer& o) { o.signals.magic += 1; }));
    CHECK(passes([](Offer& o) { o.signals_bytes += 4096; }));
    CHECK(passes([](Offer& o) { o.page_bytes += 4096; }));
    CHECK(passes([](Offer& o) { o.table_bytes += 4096; }));
    CHECK(passes([](Offer& o) { o.seals = F_SEAL_GROW; }));  // it could be cut while a launch reads it
    CHECK(passes([](Offer& o) { o.descriptors = 2; }));
    CHECK(passes([](Offer& o) { o.descriptors = 1; }));
    CHECK(passes([](Offer& o) { o.descriptors = 0; }));
}

// Its memory may have any size, but for the headers.
void one_of_another_release_is_told_of() {
    Offer newer;
    for (shared::Header* header : {&newer.page, &newer.table, &newer.signals}) ++header->layout_version;
    newer.page.size += 4096;
    newer.page_bytes += 4096;
    const std::string told = outcome_of(newer).told;
    CHECK(told ==
          "explsched: the kernel manager does not serve this process: it is of another release; kernel "
          "launches pass unmanaged\n");
}

// A launch that waits when the manager is killed goes on, whatever the heartbeat says: whether it did so
// before its longest wait was over.
bool goes_on_when_killed() {
    const std::string address = scratch + "/socket";
    const int listener = listener_at(address);
    const pid_t manager = child_that([&] {
        const int connection = accept(listener, nullptr, nullptr);
        Offer offer;
        offer.policy = shared::Policy::kQuota;  // and there is no credit
        answer(connection, offer);
        char notice = 0;
        return recv(connection, &notice, sizeof(notice), 0) > 0 ? 0 : 1;
    });
    close(listener);
    const pid_t client = child_that([&] {
        gate::reset_after_fork();
        setenv("EXPLSCHED_KM_SOCKET", address.c_str(), 1);
        gate::attach(0, kGpu);
        const std::uint64_t began_ns = shared::now_ns();
        CHECK(gate::admit(0, gate::kUncounted, kSmall).admission == Admission::kPassThrough);
        return shared::now_ns() - began_ns < gate::kLongestWaitNs ? 0 : 1;
    });
    const bool went_on = status_of(client) == 0;
    return status_of(manager) == 0 && went_on;
}

void who_waits_for_one_that_is_killed_goes_on() {
    bool went_on = false;
    for (int i = 0; i < 20 && !went_on; ++i) went_on = goes_on_when_killed();  // the machine may be busy
    CHECK(went_on);
}

// Launches cost next to nothing where there is no manager to be had.
void one_that_hangs_up_is_seldom_asked_again() {
    const std::string address = scratch + "/socket";
    const int listener = listener_at(address);
    int asked[2];
    REQUIRE(pipe2(asked, O_CLOEXEC | O_NONBLOCK) == 0);
    const pid_t manager = child_that([&] {
        for (;;) {
            const int connection = accept(listener, nullptr, nullptr);
            if (write(asked[1], "?", 1) != 1) return 1;
            close(connection);
        }
    });
    const pid_t client = child_that([&] {
        gate::reset_after_fork();
        setenv("EXPLSCHED_KM_SOCKET", address.c_str(), 1);
        gate::attach(0, kGpu);
        for (int i = 0; i < 500; ++i) {
            gate::admit(0, gate::kUncounted, kSmall);
            usleep(1000);
        }
        return 0;
    });
    CHECK(status_of(client) == 0);
    end(manager);
    close(listener);
    std::array<char, 64> times{};
    const ssize_t count = read(asked[0], times.data(), times.size());
    CHECK(count >= 2 && count <= 12);  // a minute of a busy machine has no more
    close(asked[0]);
    close(asked[1]);
}

void that_of_another_user_is_not_used() {
    if (geteuid() != 0) return;  // only root can become others
    CHECK(chmod(scratch.c_str(), 0777) == 0);
    const Outcome outcome = outcome_of({}, 65533);
    CHECK(!outcome.granted);
    CHECK(chmod(scratch.c_str(), 0700) == 0);
}

}  // namespace

int main() {
    std::string pattern = (std::filesystem::temp_directory_path() / "false-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    scratch = pattern;
    one_that_seems_true_is_used();
    what_does_not_fit_is_not_used();
    one_of_another_release_is_told_of();
    who_waits_for_one_that_is_killed_goes_on();
    one_that_hangs_up_is_seldom_asked_again();
    that_of_another_user_is_not_used();
    std::filesystem::remove_all(scratch);
    return check::result();
}
