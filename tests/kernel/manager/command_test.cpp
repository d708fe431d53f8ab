// The manager as a command: what it ends with, and what it takes along from whoever starts it. Argument: its
// program.

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "kernel_intercept/shared/protocol.hpp"
#include "tests/kernel/gate/check.hpp"
#include "tests/kernel/manager/daemon.hpp"

using namespace explsched::shared;
using daemon_under_test::connect_to;
using daemon_under_test::Daemon;
using daemon_under_test::number_in;

namespace {

std::string manager_program;

// What the command ends with, whose child makes itself ready first.
int status_of(std::vector<std::string> words, const std::function<void()>& make_ready) {
    words.insert(words.begin(), "sexplkmd");
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        make_ready();
        execv(manager_program.c_str(), arguments.data());
        _exit(127);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

// Of the manager that answers there, or -1.
pid_t pid_of_manager(const std::string& directory) {
    const int fd = connect_to(directory + "/kernel-manager.sock");
    const Preamble question = preamble(MessageKind::kStatus);
    std::string text(kLongestStatus, '\0');
    const bool answers =
        send(fd, &question, sizeof(question), MSG_NOSIGNAL) > 0 && recv(fd, text.data(), text.size(), 0) > 0;
    close(fd);
    return answers ? static_cast<pid_t>(number_in(text, "pid")) : -1;
}

void it_starts_without_standard_streams() {
    const Daemon daemon(manager_program);  // for its directory
    const std::string directory = daemon.directory() + "/other";
    CHECK(status_of({"--dir", directory, "--profiles", daemon.profiles()}, [] {
              for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(fd);
          }) == 0);
    const pid_t pid = pid_of_manager(directory);
    REQUIRE(pid > 1);
    // What Slurm sends to all processes of a step is for the job's command.
    for (const int number : {SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM}) CHECK(kill(pid, number) == 0);
    CHECK(pid_of_manager(directory) == pid);
    CHECK(kill(pid, SIGTERM) == 0);
}

// Whoever waits for the end of a pipe, or unmounts a directory, does not wait for the manager.
void it_holds_nothing_of_its_callers() {
    const Daemon daemon(manager_program);  // for its directory
    namespace fs = std::filesystem;
    const std::string caller = daemon.directory() + "/caller";
    fs::create_directory(caller);
    int pipe_ends[2];
    REQUIRE(pipe(pipe_ends) == 0);
    CHECK(status_of({"--dir", "km", "--profiles", "profiles/kernels"}, [&] {
              if (chdir(caller.c_str()) != 0) _exit(126);
              for (const int high : {77, 300}) dup2(pipe_ends[1], high);
          }) == 0);
    const pid_t pid = pid_of_manager(caller + "/km");
    REQUIRE(pid > 1);
    const fs::path process = "/proc/" + std::to_string(pid);
    CHECK(fs::read_symlink(process / "cwd") == "/");
    close(pipe_ends[1]);
    char byte = 0;
    pollfd ended{pipe_ends[0], POLLIN, 0};
    CHECK(poll(&ended, 1, 0) == 1 && read(pipe_ends[0], &byte, 1) == 0);
    close(pipe_ends[0]);
    const int fd = connect_to(caller + "/km/kernel-manager.sock");
    const Forget forget{preamble(MessageKind::kForget), {}};  // something to save
    CHECK(send(fd, &forget, sizeof(forget), MSG_NOSIGNAL) > 0 && read(fd, &byte, 1) == 1);
    close(fd);
    CHECK(kill(pid, SIGTERM) == 0);
    for (int i = 0; i < 20'000 && fs::exists(caller + "/km/kernel-manager.sock"); ++i) usleep(500);
    CHECK(fs::exists(caller + "/profiles/kernels"));
}

// Whoever starts one for a user must tell the two apart.
void its_status_says_whether_another_one_serves() {
    const Daemon daemon(manager_program);
    const std::string missing = daemon.directory() + "/missing/km";
    for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--foreground"}}) {
        const auto status = [&](const std::string& directory) {
            std::vector<std::string> words{"--dir", directory, "--profiles", daemon.profiles()};
            words.insert(words.end(), more.begin(), more.end());
            return status_of(words, [] { close(STDERR_FILENO); });
        };
        CHECK(status(daemon.directory()) == 3);
        CHECK(status(missing) == 1);
        std::filesystem::remove(daemon.directory() + "/kernel-manager.lock");
        CHECK(status(daemon.directory()) == 3);  // by its socket
    }
    CHECK(!daemon.status().empty());
}

}  // namespace

int main(int, char** argv) {
    manager_program = argv[1];
    it_starts_without_standard_streams();
    it_holds_nothing_of_its_callers();
    its_status_says_whether_another_one_serves();
    return check::result();
}
