#include "tests/kernel/manager/daemon.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "kernel_intercept/shared/descriptor.hpp"
#include "kernel_intercept/shared/protocol.hpp"

namespace daemon_under_test {

namespace shared = explsched::shared;

Daemon::Daemon(const std::string& program, const std::string& options)
    : program_(program), options_(options) {
    std::string pattern = (std::filesystem::temp_directory_path() / "sexplkmd-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp");
    directory_ = pattern;
    start();
}

Daemon::~Daemon() {
    if (pid_ > 0) kill_hard();
    std::filesystem::remove_all(directory_);
}

void Daemon::start() {
    std::vector<std::string> words{program_, "--dir", directory_, "--profiles", profiles(), "--foreground"};
    std::istringstream options(options_);
    for (std::string word; options >> word;) words.push_back(word);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
        execv(program_.c_str(), arguments.data());
        _exit(127);
    }
    for (int i = 0; i < 20'000; ++i) {
        const int fd = connect_to(socket());
        if (fd >= 0) {
            close(fd);
            return;
        }
        if (waitpid(pid_, nullptr, WNOHANG) == pid_) break;
        usleep(500);
    }
    throw std::runtime_error(program_ + " does not listen");
}

// Returns when it has ended and holds no lock: also where a child of the test does this, of which the daemon
// is no child.
void Daemon::kill_hard() {
    const shared::Descriptor process(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
    kill(pid_, SIGKILL);
    pollfd ended{process.get(), POLLIN, 0};
    while (process && poll(&ended, 1, -1) < 1) {
    }
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
}

int Daemon::stop() {
    int status = 0;
    kill(pid_, SIGTERM);
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
}

void Daemon::pause() const { kill(pid_, SIGSTOP); }
void Daemon::go_on() const { kill(pid_, SIGCONT); }

std::string Daemon::status() const {
    const int fd = connect_to(socket());
    if (fd < 0) return {};
    const shared::Preamble question = shared::preamble(shared::MessageKind::kStatus);
    std::string text(shared::kLongestStatus, '\0');
    ssize_t got = -1;
    if (send(fd, &question, sizeof(question), MSG_NOSIGNAL) > 0) got = recv(fd, text.data(), text.size(), 0);
    close(fd);
    text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    return text;
}

int Daemon::open_files() const {
    const std::filesystem::directory_iterator files("/proc/" + std::to_string(pid_) + "/fd");
    return static_cast<int>(std::distance(begin(files), end(files)));
}

// The connection by which `start` looks whether it listens may be closed late on a busy machine. Its answer
// to a later one tells that it has accepted that; then its last socket is the one it listens on.
int Daemon::idle_files() const {
    if (status().empty()) throw std::runtime_error(program_ + " does not answer");
    for (int i = 0; i < 20'000; ++i) {
        int sockets = 0, files = 0;
        for (const auto& file :
             std::filesystem::directory_iterator("/proc/" + std::to_string(pid_) + "/fd")) {
            std::error_code closed_meanwhile;
            const std::string target = std::filesystem::read_symlink(file.path(), closed_meanwhile).string();
            if (closed_meanwhile) continue;
            ++files;
            if (target.rfind("socket:", 0) == 0 && std::stoi(file.path().filename()) > STDERR_FILENO)
                ++sockets;
        }
        if (sockets == 1) return files;
        usleep(1000);
    }
    throw std::runtime_error(program_ + " keeps connections that are closed");
}

int connect_to(const std::string& path) {
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
    close(fd);
    return -1;
}

long long number_in(const std::string& json, const std::string& name) {
    const std::string mark = "\"" + name + "\": ";
    const std::size_t at = json.find(mark);
    return at == std::string::npos ? -1 : std::atoll(json.c_str() + at + mark.size());
}

}  // namespace daemon_under_test
