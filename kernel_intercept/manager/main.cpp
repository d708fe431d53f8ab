#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>

#include "kernel_intercept/manager/log.hpp"
#include "kernel_intercept/manager/server.hpp"
#include "kernel_intercept/manager/start.hpp"

namespace {

using namespace explsched;

int print_status(const manager::Settings& settings) {
    const shared::Descriptor connection(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, manager::socket_path(settings).c_str(), sizeof(address.sun_path) - 1);
    const timeval patience{2, 0};
    setsockopt(connection.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    const shared::Preamble question = shared::preamble(shared::MessageKind::kStatus);
    std::string text(shared::kLongestStatus, '\0');
    ssize_t got = -1;
    if (connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
        send(connection.get(), &question, sizeof(question), MSG_NOSIGNAL) == sizeof(question)) {
        got = recv(connection.get(), text.data(), text.size(), 0);
    }
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
    if (!nothing || !log) throw std::runtime_error(path + ": " + std::strerror(errno));
    dup2(nothing.get(), STDIN_FILENO);
    dup2(nothing.get(), STDOUT_FILENO);
    dup2(log.get(), STDERR_FILENO);
}

// Returns in the daemon. The command itself ends when the daemon is ready (0) or has failed (1).
int detach() {
    int ready[2];
    if (pipe2(ready, O_CLOEXEC) != 0) throw std::runtime_error(std::string("pipe: ") + std::strerror(errno));
    const pid_t child = fork();
    if (child < 0) throw std::runtime_error(std::string("fork: ") + std::strerror(errno));
    if (child != 0) {
        close(ready[1]);
        char byte = 0;
        _exit(read(ready[0], &byte, 1) == 1 ? 0 : 1);
    }
    close(ready[0]);
    setsid();
    // Slurm sends what asks for a checkpoint to all processes of a step, of which this is one by the SPANK
    // plugin.
    for (const int number : {SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM}) signal(number, SIG_IGN);
    return ready[1];
}

int serve(const manager::Settings& settings) {
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
    } catch (const std::exception& error) {
        manager::log(error.what());
        return 1;
    }
}
