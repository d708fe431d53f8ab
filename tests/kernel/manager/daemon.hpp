// A manager as a child process, for tests: started in a directory of its own, ended with the object.
#pragma once

#include <sys/types.h>

#include <string>

namespace daemon_under_test {

class Daemon {
   public:
    // Starts `program` and waits until it listens. `options` are separated by spaces.
    Daemon(const std::string& program, const std::string& options = "");
    ~Daemon();
    Daemon(const Daemon&) = delete;
    Daemon& operator=(const Daemon&) = delete;

    void start();
    void kill_hard();            // SIGKILL
    int stop();                  // SIGTERM; its wait status
    void pause() const;          // SIGSTOP
    void go_on() const;          // SIGCONT
    std::string status() const;  // JSON; empty if it does not answer

    pid_t pid() const { return pid_; }
    const std::string& directory() const { return directory_; }
    std::string socket() const { return directory_ + "/kernel-manager.sock"; }
    std::string profiles() const { return directory_ + "/profiles.tsv"; }
    int open_files() const;
    int idle_files() const;  // as `open_files`, once it has seen that all connections so far are closed

   private:
    std::string program_, options_, directory_;
    pid_t pid_{-1};
};

// A connection to the socket, -1 if there is none.
int connect_to(const std::string& socket);

// The number that follows "name": in JSON text, -1 if there is none.
long long number_in(const std::string& json, const std::string& name);

}  // namespace daemon_under_test
