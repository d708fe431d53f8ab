#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "kernel_intercept/manager/log.hpp"
#include "kernel_intercept/manager/server.hpp"
#include "kernel_intercept/manager/start.hpp"

namespace {

using namespace explsched;

int print_status(const manager::Settings& settings) {
    const shared::Descriptor connection = manager::connected_to(manager::socket_path(settings), 0);
    const timeval patience{2, 0};
    setsockopt(connection.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    const shared::Preamble question = shared::preamble(shared::MessageKind::kStatus);
    std::string text(shared::kLongestStatus, '\0');
    ssize_t got = send(connection.get(), &question, sizeof(question), MSG_NOSIGNAL);
    if (got > 0) got = recv(connection.get(), text.data(), text.size(), 0);
    if (got <= 0) throw std::runtime_error(settings.directory + ": no manager answers");
    text.resize(static_cast<std::size_t>(got));
    std::puts(text.c_str());
    return 0;
}

// The daemon holds none of its caller's files: whoever reads the command's output is to see its end.
void close_standard_streams(const manager::Settings& settings) {
    const shared::Descriptor nothing(open("/dev/null", O_RDWR | O_CLOEXEC));
    const std::string path = settings.directory + "/kernel-manager.log";
    const shared::Descriptor log(
        open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!nothing || !log) manager::fail(path);
    dup2(nothing.get(), STDIN_FILENO);
    dup2(nothing.get(), STDOUT_FILENO);
    dup2(log.get(), STDERR_FILENO);
}

// All but the standard streams and `kept`: whoever waits for the end of a pipe of the caller's, or unmounts
// what it has open, is not to wait for the daemon.
void close_files_of_caller(int kept) {
    using Files = std::filesystem::directory_iterator;
    for (const auto& file : std::vector(Files("/proc/self/fd"), Files())) {
        const int fd = std::stoi(file.path().filename());
        if (fd > STDERR_FILENO && fd != kept) close(fd);
    }
}

// Returns in the daemon. The command itself ends when the daemon is ready, or with the status that it fails
// with.
int detach() {
    int ready[2];
    if (pipe2(ready, O_CLOEXEC) != 0) manager::fail("pipe");
    const pid_t child = fork();
    if (child < 0) manager::fail("fork");
    if (child != 0) {
        close(ready[1]);
        char byte = 0;
        if (read(ready[0], &byte, 1) == 1) _exit(0);
        int status = 0;
        const bool has_failed = waitpid(child, &status, 0) == child && WIFEXITED(status);
        _exit(has_failed ? WEXITSTATUS(status) : 1);
    }
    close_files_of_caller(ready[1]);
    if (chdir("/") != 0) manager::fail("/");
    setsid();
    // Slurm sends what asks for a checkpoint to all processes of a step: by the SPANK plugin this is one.
    for (const int number : {SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM}) signal(number, SIG_IGN);
    return ready[1];
}

int serve(const manager::Settings& settings) {
    if (rlimit files{}; getrlimit(RLIMIT_NOFILE, &files) == 0) {  // each client takes two
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    manager::request_short_timeslice();
    prctl(PR_SET_TIMERSLACK, 1);  // waiting clients are woken when it is time, not 50 us later
    const shared::Descriptor ready(settings.foreground ? -1 : detach());
    manager::Server server(settings);
    if (ready) close_standard_streams(settings);
    if (ready && write(ready.get(), "1", 1) != 1)
        throw std::runtime_error("the command that started this is gone");
    server.run();
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    // Whoever was started without standard streams: no file of ours is to have their numbers.
    for (int fd = 0; fd >= 0 && fd <= STDERR_FILENO;) fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    try {
        const manager::CommandLine line = manager::parse_command_line(argc, argv);
        if (line.action == manager::Action::kHelp) return std::fputs(manager::kUsage, stdout) < 0 ? 1 : 0;
        if (line.action == manager::Action::kVersion) return std::puts("sexplkmd " EXPLSCHED_VERSION) < 0;
        return line.action == manager::Action::kStatus ? print_status(line.settings) : serve(line.settings);
    } catch (const std::invalid_argument& error) {
        manager::log(error.what());
        return 2;
    } catch (const std::system_error& error) {
        manager::log(error.what());
        return error.code() == std::errc::address_in_use ? 3 : 1;
    } catch (const std::exception& error) {
        manager::log(error.what());
        return 1;
    }
}
