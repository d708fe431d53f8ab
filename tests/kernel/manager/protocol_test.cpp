// What the manager answers, to clients and to anything else. Argument: the manager's program.

#include "kernel_intercept/shared/protocol.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

#include "kernel_intercept/gate/gate.hpp"
#include "kernel_intercept/manager/server.hpp"
#include "kernel_intercept/manager/settings.hpp"
#include "tests/kernel/gate/check.hpp"
#include "tests/kernel/manager/daemon.hpp"

using namespace explsched;
using namespace explsched::shared;
using daemon_under_test::connect_to;
using daemon_under_test::Daemon;
using daemon_under_test::number_in;

namespace {

std::string manager_program;

Hello good_hello() {
    Hello hello{};
    hello.preamble = preamble(MessageKind::kHello);
    hello.request_permille = 300;
    hello.limit_permille = 1000;
    hello.compute_capability = 90;
    hello.multiprocessors = 132;
    hello.gpu_uuid[0] = 1;
    std::strcpy(hello.job.data(), "4711");
    return hello;
}

// The kind of the answer to one message; nothing if the connection was closed without one.
struct Answer {
    bool any;
    MessageKind kind;
};

Answer answer_to(int fd, const void* message, std::size_t size) {
    send(fd, message, size, MSG_NOSIGNAL);
    std::array<char, kLongestMessage> data{};
    const ssize_t got = recv(fd, data.data(), data.size(), 0);
    Preamble head{};
    if (got < static_cast<ssize_t>(sizeof(head))) return {false, {}};
    std::memcpy(&head, data.data(), sizeof(head));
    return {true, head.kind};
}

bool refused(const Daemon& daemon, const void* message, std::size_t size) {
    const int fd = connect_to(daemon.socket());
    const Answer answer = answer_to(fd, message, size);
    char byte = 0;
    const bool closed = recv(fd, &byte, 1, 0) == 0;
    close(fd);
    return answer.any && answer.kind == MessageKind::kRefused && closed;
}

template <typename Change>
bool refuses_hello(const Daemon& daemon, const Change& change) {
    Hello hello = good_hello();
    change(hello);
    return refused(daemon, &hello, sizeof(hello));
}

void wrong_messages_are_refused_and_counted() {
    const Daemon daemon(manager_program);
    CHECK(refuses_hello(daemon, [](Hello& h) { h.preamble.magic = 1; }));
    CHECK(refuses_hello(daemon, [](Hello& h) { h.preamble.version = kProtocolVersion + 1; }));
    CHECK(refuses_hello(daemon, [](Hello& h) { h.preamble.kind = MessageKind::kWelcome; }));
    CHECK(refuses_hello(daemon, [](Hello& h) { h.preamble.kind = static_cast<MessageKind>(999); }));
    CHECK(refuses_hello(daemon, [](Hello& h) { h.priority = static_cast<Class>(7); }));
    CHECK(refuses_hello(daemon, [](Hello& h) { h.request_permille = 0; }));
    CHECK(refuses_hello(daemon, [](Hello& h) { h.limit_permille = 1001; }));
    CHECK(refuses_hello(daemon, [](Hello& h) { h.limit_permille = 299; }));
    CHECK(refuses_hello(daemon, [](Hello& h) { h.job.fill('x'); }));
    const Hello hello = good_hello();
    CHECK(refused(daemon, &hello, 1));
    CHECK(refused(daemon, &hello, sizeof(Preamble)));
    CHECK(refused(daemon, &hello, sizeof(hello) - 1));
    const std::vector<char> longer(100'000, 'x');
    CHECK(refused(daemon, longer.data(), longer.size()));
    std::vector<char> padded(sizeof(hello) + 1);
    std::memcpy(padded.data(), &hello, sizeof(hello));
    CHECK(refused(daemon, padded.data(), padded.size()));
    const Preamble notice = preamble(MessageKind::kNotify);
    CHECK(refused(daemon, &notice, sizeof(notice)));  // before it has said hello
    CHECK(number_in(daemon.status(), "malformed") == 15);
    const int fd = connect_to(daemon.socket());
    CHECK(answer_to(fd, &hello, sizeof(hello)).kind == MessageKind::kWelcome);  // still serves
    CHECK(answer_to(fd, &hello, sizeof(hello)).kind == MessageKind::kRefused);  // once is enough
    close(fd);
}

void only_the_same_user_is_served() {
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
    std::int32_t pid = 0;
    CHECK(belongs_to(pair[0], geteuid(), pid) && pid == getpid());
    CHECK(!belongs_to(pair[0], geteuid() + 1, pid));
    CHECK(!belongs_to(0x7fff, geteuid(), pid));
    close(pair[0]);
    close(pair[1]);
    if (geteuid() != 0) return;  // only root can become somebody else
    const Daemon daemon(manager_program);
    // Even where the directory lets others in.
    CHECK(chmod(daemon.directory().c_str(), 0755) == 0 && chmod(daemon.socket().c_str(), 0666) == 0);
    const pid_t stranger = fork();
    if (stranger == 0) {
        const Hello hello = good_hello();
        if (setuid(65534) != 0) _exit(2);
        const int fd = connect_to(daemon.socket());
        _exit(fd >= 0 && !answer_to(fd, &hello, sizeof(hello)).any ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(stranger, &status, 0) == stranger && status == 0);
    CHECK(number_in(daemon.status(), "foreign") == 1);
}

void slots_are_given_and_returned() {
    const Daemon daemon(manager_program);
    const int files = daemon.idle_files();
    const Hello hello = good_hello();
    for (int round = 0; round < 3; ++round) {
        std::vector<int> fds;
        for (std::uint32_t i = 0; i < kSlots; ++i) {
            fds.push_back(connect_to(daemon.socket()));
            CHECK(answer_to(fds.back(), &hello, sizeof(hello)).kind == MessageKind::kWelcome);
        }
        CHECK(refused(daemon, &hello, sizeof(hello)));  // all are taken
        const std::string full = daemon.status();
        CHECK(std::count(full.begin(), full.end(), '{') == static_cast<long>(kSlots) + 4);
        CHECK(full.find("\"job\": \"4711\"") != std::string::npos);
        for (const int fd : fds) close(fd);
        CHECK(daemon.status().find("\"clients\": []") != std::string::npos);
    }
    // One GPU's page and signals have come. The last connection may be closed a little later.
    bool settled = false;  // told by one look: at the next one the manager may be writing its profiles
    for (int i = 0; i < 5000 && !settled; ++i) {
        settled = daemon.open_files() == files + 2;
        usleep(1000);
    }
    CHECK(settled);
}

// Whatever a client writes into its page, which is here that of the first one.
void who_is_not_there_is_not_told_of() {
    const Daemon daemon(manager_program);
    const Hello hello = good_hello();
    const int client = connect_to(daemon.socket());
    CHECK(answer_to(client, &hello, sizeof(hello)).kind == MessageKind::kWelcome);
    for (const auto& file :
         std::filesystem::directory_iterator("/proc/" + std::to_string(daemon.pid()) + "/fd")) {
        std::error_code closed;
        if (std::filesystem::read_symlink(file, closed).string().find("explsched-gpu") == std::string::npos)
            continue;
        const int fd = open(file.path().c_str(), O_RDWR | O_CLOEXEC);
        void* at = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        REQUIRE(at != MAP_FAILED);
        static_cast<Page*>(at)->control.occupied = UINT64_MAX;
        munmap(at, sizeof(Page));
        close(fd);
    }
    const std::string status = daemon.status();
    CHECK(std::count(status.begin(), status.end(), '{') == 5);
    close(client);
}

bool has_no_clients_soon(const Daemon& daemon) {
    for (int i = 0; i < 5000 && daemon.status().find("\"clients\": []") == std::string::npos; ++i)
        usleep(1000);
    return daemon.status().find("\"clients\": []") != std::string::npos;
}

// Its connection may live on in a process that it has forked and that knows nothing of it.
void check_the_end_of_a_client_whose_connection_lives_on(const Daemon& daemon) {
    int held[2];
    REQUIRE(pipe(held) == 0);
    const pid_t client = fork();
    if (client == 0) {
        const Hello hello = good_hello();
        const int fd = connect_to(daemon.socket());
        const bool welcome = answer_to(fd, &hello, sizeof(hello)).kind == MessageKind::kWelcome;
        if (fork() != 0) _exit(welcome ? 0 : 1);
        char byte = 0;
        close(held[1]);
        _exit(read(held[0], &byte, 1) == 0 ? 0 : 1);  // until the test ends
    }
    int status = -1;
    CHECK(waitpid(client, &status, 0) == client && status == 0);
    CHECK(has_no_clients_soon(daemon));
    close(held[0]);
    close(held[1]);
}

void a_client_that_died_is_gone_though_its_connection_is_not() {
    const Daemon daemon(manager_program);
    check_the_end_of_a_client_whose_connection_lives_on(daemon);
}

// As between two containers: the manager cannot see the client's pid.
void a_client_of_another_pid_namespace_is_served_until_it_dies() {
    const shared::Descriptor outside(open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC));
    if (unshare(CLONE_NEWPID) != 0) {
        std::fprintf(stderr, "not tested: PID namespaces: %s\n", std::strerror(errno));
        return;
    }
    const Daemon daemon(manager_program);  // alone in the new one
    REQUIRE(setns(outside.get(), CLONE_NEWPID) == 0);
    const Hello hello = good_hello();
    const int fd = connect_to(daemon.socket());
    CHECK(answer_to(fd, &hello, sizeof(hello)).kind == MessageKind::kWelcome);
    CHECK(daemon.status().find("\"pid\": 0,") != std::string::npos);
    int process = -1;
    socklen_t size = sizeof(process);
    const bool is_told = getsockopt(fd, SOL_SOCKET, 77 /* SO_PEERPIDFD */, &process, &size) == 0;
    close(process);
    close(fd);
    CHECK(has_no_clients_soon(daemon));
    if (is_told) check_the_end_of_a_client_whose_connection_lives_on(daemon);
}

// Each takes megabytes, and no machine has as many.
void there_is_an_end_to_gpus() {
    const Daemon daemon(manager_program);
    for (std::uint32_t i = 0; i <= kSlots; ++i) {
        Hello hello = good_hello();
        hello.gpu_uuid[1] = static_cast<unsigned char>(i);
        const int fd = connect_to(daemon.socket());
        const MessageKind expected = i < kSlots ? MessageKind::kWelcome : MessageKind::kRefused;
        CHECK(answer_to(fd, &hello, sizeof(hello)).kind == expected);
        close(fd);
    }
    CHECK(refuses_hello(daemon, [](Hello& h) { h.request_permille = 0; }));
    const Hello known = good_hello();  // one of those there are
    const int fd = connect_to(daemon.socket());
    CHECK(answer_to(fd, &known, sizeof(known)).kind == MessageKind::kWelcome);
    close(fd);
}

// From now on it can open `more` files.
void let_open(const Daemon& daemon, int more) {
    const std::string files = "/proc/" + std::to_string(daemon.pid()) + "/fd/";
    rlimit limit{};
    REQUIRE(prlimit(daemon.pid(), RLIMIT_NOFILE, nullptr, &limit) == 0);
    for (limit.rlim_cur = 0; more > 0 || access((files + std::to_string(limit.rlim_cur)).c_str(), F_OK) == 0;
         ++limit.rlim_cur) {
        if (access((files + std::to_string(limit.rlim_cur)).c_str(), F_OK) != 0) --more;
    }
    REQUIRE(prlimit(daemon.pid(), RLIMIT_NOFILE, &limit, nullptr) == 0);
}

std::uint64_t computed_ns(pid_t pid) {
    clockid_t clock{};
    timespec time{};
    REQUIRE(clock_getcpuclockid(pid, &clock) == 0 && clock_gettime(clock, &time) == 0);
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
}

// Two descriptors a client: its socket and its process.
void clients_beyond_its_open_files_wait_and_cost_nothing() {
    const Daemon daemon(manager_program);
    const Hello hello = good_hello();
    daemon.idle_files();
    const int first = connect_to(daemon.socket());
    CHECK(answer_to(first, &hello, sizeof(hello)).kind == MessageKind::kWelcome);
    let_open(daemon, 0);
    const int second = connect_to(daemon.socket());
    CHECK(send(second, &hello, sizeof(hello), MSG_NOSIGNAL) > 0);
    usleep(50'000);
    const std::uint64_t before_ns = computed_ns(daemon.pid());
    usleep(400'000);
    CHECK(computed_ns(daemon.pid()) - before_ns < 100'000'000);
    close(first);
    Preamble head{};
    CHECK(recv(second, &head, sizeof(head), 0) == sizeof(head) && head.kind == MessageKind::kWelcome);
    close(second);
}

// Then its end is seen by that of its connection.
void a_client_whose_process_cannot_be_watched_is_served() {
    const Daemon daemon(manager_program);
    const Hello hello = good_hello();
    const int first = connect_to(daemon.socket());
    CHECK(answer_to(first, &hello, sizeof(hello)).kind == MessageKind::kWelcome);
    close(first);
    daemon.idle_files();
    let_open(daemon, 1);
    const int second = connect_to(daemon.socket());
    CHECK(answer_to(second, &hello, sizeof(hello)).kind == MessageKind::kWelcome);
    close(second);
    daemon.idle_files();
}

void it_opens_as_many_files_as_it_may() {
    rlimit before{};
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    const rlimit few{64, before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
    const Daemon daemon(manager_program);
    REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
    rlimit found{};
    CHECK(prlimit(daemon.pid(), RLIMIT_NOFILE, nullptr, &found) == 0 && found.rlim_cur == before.rlim_max);
}

[[maybe_unused]] void a_gpu_for_which_there_is_no_memory_is_refused() {
    const Daemon daemon(manager_program);
    daemon.idle_files();
    let_open(daemon, 2);  // the client's
    CHECK(refuses_hello(daemon, [](Hello&) {}));
    let_open(daemon, 10);
    const Hello hello = good_hello();
    const int fd = connect_to(daemon.socket());
    CHECK(answer_to(fd, &hello, sizeof(hello)).kind == MessageKind::kWelcome);
    close(fd);
}

void close_standard_streams() {
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(fd);
}

// What it prints must not go to the manager.
void a_program_without_standard_streams_has_none_of_the_gates() {
    const Daemon daemon(manager_program);
    const pid_t client = fork();
    if (client == 0) {
        setenv(kSocketVariable, daemon.socket().c_str(), 1);
        close_standard_streams();
        gate::attach(0, {{1}, 90, 132});
        const bool served = gate::signals(0).memory != nullptr;
        _exit(served && fcntl(0, F_GETFD) < 0 && fcntl(1, F_GETFD) < 0 && fcntl(2, F_GETFD) < 0 ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(client, &status, 0) == client && status == 0);
}

void it_stops_cleanly() {
    Daemon daemon(manager_program);
    CHECK(daemon.stop() == 0);
    CHECK(!std::filesystem::exists(daemon.socket()));
    daemon.start();
    CHECK(!daemon.status().empty());
}

bool rejects(std::vector<std::string> words) {
    words.insert(words.begin(), "sexplkmd");
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    try {
        manager::parse_command_line(static_cast<int>(words.size()), arguments.data());
        return false;
    } catch (const std::invalid_argument&) {
        return true;
    }
}

void command_lines_are_checked() {
    CHECK(!rejects({"--dir", "/tmp/x"}));
    CHECK(!rejects({"--dir", "/tmp/x", "--policy", "quota", "--cap-compute", "1", "--hp-share", "0"}));
    CHECK(!rejects({"--help"}));
    CHECK(!rejects({"--version"}));
    CHECK(rejects({}));
    CHECK(rejects({"--dir"}));
    CHECK(rejects({"--dir", std::string(200, 'x')}));
    CHECK(rejects({"--dir", "/tmp/x", "--policy", "best"}));
    CHECK(rejects({"--dir", "/tmp/x", "--cap-compute", "1.5"}));
    CHECK(rejects({"--dir", "/tmp/x", "--cap-bandwidth", "half"}));
    CHECK(rejects({"--dir", "/tmp/x", "--hp-share", "nan"}));
    CHECK(rejects({"--dir", "/tmp/x", "--unknown"}));
    CHECK(rejects({"--dir", "/tmp/x", "more"}));
}

}  // namespace

int main(int, char** argv) {
    manager_program = argv[1];
    wrong_messages_are_refused_and_counted();
    only_the_same_user_is_served();
    slots_are_given_and_returned();
    who_is_not_there_is_not_told_of();
    a_client_that_died_is_gone_though_its_connection_is_not();
    a_client_of_another_pid_namespace_is_served_until_it_dies();
    there_is_an_end_to_gpus();
    clients_beyond_its_open_files_wait_and_cost_nothing();
    a_client_whose_process_cannot_be_watched_is_served();
    it_opens_as_many_files_as_it_may();
#ifndef __SANITIZE_ADDRESS__  // UBSan takes a descriptor to look at an exception
    a_gpu_for_which_there_is_no_memory_is_refused();
#endif
    a_program_without_standard_streams_has_none_of_the_gates();
    it_stops_cleanly();
    command_lines_are_checked();
    return check::result();
}
