// The gate against a real manager: launches, waits, death and return of either side, forks.
// Argument: the manager's program.

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>

#include <cerrno>
#include <filesystem>
#include <thread>
#include <vector>

#include "kernel_intercept/gate/admission.hpp"
#include "kernel_intercept/gate/link.hpp"
#include "kernel_intercept/shared/clock.hpp"
#include "tests/kernel/manager/gate_client.hpp"

using namespace gate_client;
using daemon_under_test::number_in;

namespace {

std::string manager_program;

std::string pid_of(pid_t client) { return "{\"pid\": " + std::to_string(client) + ","; }

void without_a_manager_everything_passes() {
    unsetenv("EXPLSCHED_KM_SOCKET");
    gate::attach(0, kGpu);
    CHECK(admission_of(kSmall) == Admission::kPassThrough);
    CHECK(admission_of(kSmall, -1) == Admission::kPassThrough);
    CHECK(admission_of(kSmall, gate::kMaxGpus) == Admission::kPassThrough);
    CHECK(!gate::manages(0) && !gate::manages(-1) && !gate::manages(gate::kMaxGpus));
    CHECK(!known_cost(kHash));
    CHECK(!gate::sampling_due(kHash));
    gate::drained(0);
    gate::record(0, {kKey, kSmall, "name"});
    gate::record(-1, {kKey, kSmall, nullptr});
}

void launches_are_granted_and_counted() {
    const Daemon daemon(manager_program);
    in_client(daemon, "best-effort", [&] {
        CHECK(gate::manages(0) && !gate::manages(1));
        CHECK(granted_soon(kSmall));
        const long long before = number_in(daemon.status(), "launches");
        for (int i = 0; i < 100; ++i) admission_of(kSmall);  // those that pass a late manager count, too
        gate::drained(0);
        const std::string status = daemon.status();
        CHECK(number_in(status, "launches") == before + 100);
        CHECK(number_in(status, "gpu_ns") == (before + 100) * 1000);
        CHECK(number_in(status, "pid") != -1 && status.find("\"job\": \"7\"") != std::string::npos);
        CHECK(admission_of(kSmall, 1) == Admission::kPassThrough);  // another GPU, not attached
    });
    CHECK(soon([&] { return daemon.status().find("\"clients\": []") != std::string::npos; }));
}

// A high-priority client that keeps the GPU for an hour, and does nothing more.
pid_t hour_long_client() {
    return other_client("high", [] {
        CHECK(granted_soon({3'600'000'000'000, 900, 900}));
        pause();
    });
}

bool one_is_launched(const Daemon& daemon) {
    return soon([&] { return daemon.status().find("\"launches\": 1") != std::string::npos; });
}

// It is shut for another client, which has launched. To be called once a launch was granted.
bool our_gate_is_shut() {
    const gate::SignalMemory signals = gate::signals(0);
    REQUIRE(signals.memory != nullptr);
    const char* at = static_cast<const char*>(signals.memory) + signals.gate_offset;
    return !shared::is_open(*reinterpret_cast<const std::atomic<std::uint32_t>*>(at));
}

void launches_wait_for_room_and_get_it() {
    const Daemon daemon(manager_program);
    in_client(daemon, "best-effort", [&] {
        CHECK(granted_soon(kSmall));
        const pid_t other = hour_long_client();
        CHECK(soon(our_gate_is_shut));
        std::thread ender([&] {
            const std::string none = "\"waits\": 0";
            CHECK(soon([&] {  // of both clients
                const std::string status = daemon.status();
                return status.find(none) == status.rfind(none);
            }));
            end(other);
        });
        CHECK(granted_soon({1000, 500, 500}));
        ender.join();
    });
}

// Nothing waits for ever for a client that keeps the GPU, and what must not wait does not. Where the machine
// holds a launch up for longer than it would wait, the gate may have been opened for a while, or the manager
// may seem dead; the next launch waits again.
void what_never_fits_passes_in_the_end() {
    const Daemon daemon(manager_program);
    in_client(daemon, "best-effort", [&] {
        CHECK(granted_soon(kSmall));
        const pid_t other = hour_long_client();
        CHECK(soon(our_gate_is_shut));
        const shared::Counters& counters = gate::links[0].own_page()->slots[gate::links[0].slot].counters;
        gate::admit(0, gate::kUncounted, {1000, 500, 500}, gate::Patience::kMustNotWait);
        CHECK(counters.waits == 0);
        CHECK(soon([&] {
            const bool passes = admission_of({1000, 500, 500}) == Admission::kPassThrough;
            return passes && counters.passed == 1;
        }));
        end(other);
    });
}

int connection_of_another_client(const Daemon& daemon) {
    shared::Hello hello{};
    hello.preamble = shared::preamble(shared::MessageKind::kHello);
    hello.request_permille = hello.limit_permille = 1000;
    hello.gpu_uuid = kGpu.uuid;
    const int fd = daemon_under_test::connect_to(daemon.socket());
    char answer[shared::kLongestMessage];
    CHECK(send(fd, &hello, sizeof(hello), 0) == sizeof(hello));
    CHECK(recv(fd, answer, sizeof(answer), 0) == sizeof(shared::Welcome));
    return fd;
}

// It passes, says why, and is served when there is room. The first of all, so that no gate has been attached
// with another standard error.
void who_finds_all_slots_taken_is_told() {
    const Daemon daemon(manager_program);
    std::vector<int> others;
    for (std::uint32_t i = 0; i < shared::kSlots; ++i) others.push_back(connection_of_another_client(daemon));
    int pipe_ends[2];
    REQUIRE(pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK) == 0);
    const int kept = dup(STDERR_FILENO);
    dup2(pipe_ends[1], STDERR_FILENO);
    in_client(daemon, "best-effort", [&] {
        std::string said;
        CHECK(soon([&] {
            CHECK(admission_of(kSmall) == Admission::kPassThrough);
            char text[512];
            const ssize_t got = read(pipe_ends[0], text, sizeof(text));
            said.append(text, got < 0 ? 0 : static_cast<std::size_t>(got));
            return said.find('\n') != std::string::npos;
        }));
        dup2(kept, STDERR_FILENO);
        CHECK(said.find("64 processes use this GPU already") != std::string::npos);
        CHECK(number_in(daemon.status(), "malformed") == 0);
        CHECK(shutdown(others.front(), SHUT_RDWR) == 0);
        CHECK(granted_soon(kSmall));
    });
    dup2(kept, STDERR_FILENO);
    for (const int fd : {kept, pipe_ends[0], pipe_ends[1]}) close(fd);
    for (const int fd : others) close(fd);
}

// A launch is no system call to a program: it looks at errno only after those that it makes.
void errno_is_kept() {
    Daemon daemon(manager_program);
    in_client(daemon, "best-effort", [&] {
        CHECK(granted_soon(kSmall));
        daemon.kill_hard();
        for (int i = 0; i < 300; ++i) {  // until it looks for another one
            errno = 77;
            admission_of({1000, 1000, 1000});
            gate::drained(0);
            CHECK(errno == 77);
            usleep(1000);
        }
    });
}

void a_dead_client_gives_back_what_it_held() {
    const Daemon daemon(manager_program);
    in_client(daemon, "best-effort", [&] {
        status_of(other_client("high", [] {
            CHECK(granted_soon({3'600'000'000'000, 900, 900}));  // an hour
            raise(SIGKILL);
        }));
        CHECK(soon([&] { return daemon.status().find("3600000") == std::string::npos; }));
        CHECK(granted_soon({1000, 500, 500}));
    });
}

std::ptrdiff_t open_files() {
    const std::filesystem::directory_iterator files("/proc/self/fd");
    return std::distance(begin(files), end(files));
}

void a_killed_manager_lets_pass_and_a_new_one_takes_over() {
    Daemon daemon(manager_program);
    in_client(daemon, "best-effort", [&] {
        CHECK(granted_soon(kSmall));
        const auto files = open_files();
        daemon.kill_hard();
        CHECK(soon([&] { return admission_of(kSmall) == Admission::kPassThrough; }));
        CHECK(admission_of({1000, 1000, 1000}) == Admission::kPassThrough);
        daemon.start();
        CHECK(granted_soon(kSmall) && open_files() == files);
        CHECK(number_in(daemon.status(), "launches") >= 1);
        daemon.kill_hard();
    });
}

// Two threads launch; the first has found the manager alive when it dies, the second finds it gone.
void a_launch_goes_on_when_another_thread_finds_the_manager_gone() {
    Daemon daemon(manager_program);
    in_client(daemon, "best-effort", [&] {
        CHECK(granted_soon(kSmall));
        gate::Link& link = gate::links[0];
        shared::Page* page = link.own_page();
        REQUIRE(page != nullptr);
        daemon.kill_hard();
        CHECK(soon([&] { return admission_of(kSmall) == Admission::kPassThrough && !link.page.load(); }));
        const gate::Decision decision =
            gate::admit_managed(link, *page, 0, kSmall, gate::Patience::kMayWait, shared::now_ns());
        CHECK(decision.admission == Admission::kPassThrough && !decision.boundary.waits);
    });
}

// What a launch counts must not change under it: the thread of one may be held up in the middle.
void a_new_manager_leaves_a_stream_to_the_thread_that_counts_in_it() {
    Daemon daemon(manager_program);
    in_client(daemon, "best-effort", [&] {
        CHECK(granted_soon(kSmall));
        gate::CountedStream& held = gate::links[0].streams[2];
        for (int stream = 2; stream < 4; ++stream)
            gate::admit(0, stream, kSmall, gate::Patience::kMustNotWait);
        held.taken = true;
        daemon.kill_hard();
        CHECK(soon([] { return admission_of(kSmall) == Admission::kPassThrough && !gate::links[0].page; }));
        daemon.start();
        CHECK(granted_soon(kSmall));
        CHECK(held.batches.launched(0) == kSmall.gpu_ns);
        CHECK(gate::links[0].streams[3].batches.launched(0) == 0);
        held.taken = false;
        daemon.kill_hard();
    });
}

void a_hung_manager_lets_pass_until_it_goes_on() {
    const Daemon daemon(manager_program);
    in_client(daemon, "best-effort", [&] {
        CHECK(granted_soon(kSmall));
        daemon.pause();
        CHECK(soon([&] { return admission_of(kSmall) == Admission::kPassThrough; }));
        daemon.go_on();
        CHECK(granted_soon(kSmall));
    });
}

void a_fork_registers_anew() {
    const Daemon daemon(manager_program);
    in_client(daemon, "best-effort", [&] {
        CHECK(granted_soon(kSmall));
        const long long before = number_in(daemon.status(), "launches");
        CHECK(status_of(child_that([] {
                  gate::reset_after_fork();
                  const bool passes = admission_of(kSmall) == Admission::kPassThrough;
                  gate::attach(0, kGpu);
                  return passes && granted_soon(kSmall) ? 0 : 1;
              })) == 0);
        CHECK(number_in(daemon.status(), "launches") == before);
        CHECK(granted_soon(kSmall));  // the parent goes on
        CHECK(number_in(daemon.status(), "launches") > before);
    });
}

void close_all() {
    for (int fd = 3; fd < 64; ++fd) close(fd);
}

void a_program_that_closes_our_files_goes_on() {
    const Daemon daemon(manager_program);
    in_client(daemon, "best-effort", [&] {
        CHECK(granted_soon(kSmall));
        close_all();
        // The manager sees the hang-up and frees the slot; the client must not write into whatever comes
        // next.
        int pairs[4][2];
        for (int(&pair)[2] : pairs) REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
        const pid_t other = hour_long_client();  // so that launches wait and ring
        for (int i = 0; i < 50; ++i) {
            admission_of({1000, 1000, 1000});
            gate::drained(0);
        }
        gate::reset_after_fork();  // as in a child: closes what is ours, and that alone
        for (const int(&pair)[2] : pairs) {
            char byte = 0;
            for (const int fd : pair) CHECK(recv(fd, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
        }
        end(other);
    });
}

// Open sockets, each with a message to read: what a program opens after it has closed all files, ours
// included.
class ForeignSockets {
   public:
    ForeignSockets() {
        for (int(&pair)[2] : pairs_) {
            REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
            for (const int fd : pair) CHECK(send(fd, "m", 1, 0) == 1);
        }
    }
    bool untouched() const {
        char text[8];
        for (const int(&pair)[2] : pairs_) {
            for (const int fd : pair) {
                if (recv(fd, text, sizeof(text), MSG_DONTWAIT) != 1 || text[0] != 'm') return false;
                if (recv(fd, text, sizeof(text), MSG_DONTWAIT) != -1 || errno != EAGAIN) return false;
            }
        }
        return true;
    }

   private:
    int pairs_[4][2];
};

// The manager sees the connection end, and gives the slot to whoever comes next.
void who_closed_its_connection_leaves_its_slot_alone() {
    const Daemon daemon(manager_program);
    in_client(daemon, "best-effort", [&] {
        CHECK(granted_soon(kSmall));
        close_all();
        CHECK(soon([&] { return daemon.status().find("\"clients\": []") != std::string::npos; }));
        const pid_t other = hour_long_client();
        CHECK(one_is_launched(daemon));
        const ForeignSockets files;
        gate::drained(0);
        gate::record(0, {kKey, kSmall, "name"});
        CHECK(granted_soon({1000, 50, 50}));
        const std::string status = daemon.status();
        CHECK(number_in(status, "launches") == 1);
        CHECK(number_in(status, "outstanding_ns") > 0 && number_in(status, "drains") == 0);
        CHECK(status.find(pid_of(getpid())) != std::string::npos);
        CHECK(files.untouched());
        end(other);
    });
}

// Without a say of its own yet, a client has a connection all the same.
void an_answer_is_looked_for_on_our_own_connection() {
    const Daemon daemon(manager_program);
    daemon.pause();
    in_client(daemon, "best-effort", [&] {
        close_all();
        const ForeignSockets files;
        for (int i = 0; i < 300; ++i) {
            admission_of(kSmall);
            usleep(100);
        }
        gate::reset_after_fork();  // as in a child
        CHECK(files.untouched());
    });
    daemon.go_on();
}

void a_file_opened_as_standard_error_is_not_written_to() {
    Daemon daemon(manager_program);
    in_client(daemon, "best-effort", [&] {
        CHECK(granted_soon(kSmall));
        int pipe_ends[2];
        REQUIRE(pipe2(pipe_ends, O_NONBLOCK | O_CLOEXEC) == 0);
        const int kept = dup(STDERR_FILENO);
        REQUIRE(dup2(pipe_ends[1], STDERR_FILENO) == STDERR_FILENO);
        daemon.kill_hard();
        CHECK(soon([&] { return admission_of(kSmall) == Admission::kPassThrough; }));
        daemon.start();
        CHECK(granted_soon(kSmall));  // by the new one: the end of the old one has been seen
        dup2(kept, STDERR_FILENO);
        char byte = 0;
        CHECK(read(pipe_ends[0], &byte, 1) == -1 && errno == EAGAIN);
        daemon.kill_hard();
    });
}

void launch_once(const KernelCost& cost) { gate::admit(0, gate::kUncounted, cost); }

void threads_share_one_registration() {
    const Daemon daemon(manager_program);
    in_client(daemon, "best-effort", [&] {
        CHECK(granted_soon(kSmall));
        const long long before = number_in(daemon.status(), "launches");
        // Another client, so that room must be reserved.
        const pid_t other = other_client("high", [] {
            for (;;) launch_once({50'000, 600, 600});
        });
        std::vector<std::thread> threads;
        for (int i = 0; i < 4; ++i) {
            threads.emplace_back([] {
                for (int n = 0; n < 200; ++n) launch_once({20'000, 300, 300});
            });
        }
        for (std::thread& thread : threads) thread.join();
        end(other);
        CHECK(number_in(daemon.status(), "launches") == before + 800);
    });
}

}  // namespace

int main(int, char** argv) {
    manager_program = argv[1];
    who_finds_all_slots_taken_is_told();
    without_a_manager_everything_passes();
    launches_are_granted_and_counted();
    launches_wait_for_room_and_get_it();
    what_never_fits_passes_in_the_end();
    errno_is_kept();
    a_dead_client_gives_back_what_it_held();
    a_killed_manager_lets_pass_and_a_new_one_takes_over();
    a_launch_goes_on_when_another_thread_finds_the_manager_gone();
    a_new_manager_leaves_a_stream_to_the_thread_that_counts_in_it();
    a_hung_manager_lets_pass_until_it_goes_on();
    a_fork_registers_anew();
    a_program_that_closes_our_files_goes_on();
    who_closed_its_connection_leaves_its_slot_alone();
    an_answer_is_looked_for_on_our_own_connection();
    a_file_opened_as_standard_error_is_not_written_to();
    threads_share_one_registration();
    return check::result();
}
