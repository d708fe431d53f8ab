// The daemon's event loop: clients come and go, launches that wait are served.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "kernel_intercept/manager/gpu.hpp"
#include "kernel_intercept/manager/profile_keeper.hpp"
#include "kernel_intercept/manager/profile_store.hpp"
#include "kernel_intercept/manager/settings.hpp"
#include "kernel_intercept/shared/descriptor.hpp"

namespace explsched::manager {

struct Connection {
    shared::Descriptor socket;
    shared::Descriptor process;  // pidfd
    std::int32_t pid;
    Gpu* gpu;  // nullptr until it has said hello
    std::uint32_t slot;
};

struct Totals {
    std::uint64_t accepted;
    std::uint64_t foreign;    // peers of another user
    std::uint64_t malformed;  // messages
};

class Server {
   public:
    explicit Server(const Settings& settings);  // throws system_error; runtime_error if another one serves
    ~Server();
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    // Until SIGTERM or SIGINT, which must be blocked. Saves the profiles at the end.
    void run();

    std::string status() const;

   private:
    void watch(int descriptor, std::uint64_t what);
    void handle(std::uint64_t what);
    void accept_clients();
    void hear(std::uint64_t id);
    const char* answer(Connection& connection, std::uint64_t id, const char* data, std::size_t size);
    const char* welcome(Connection& connection, const shared::Hello& hello);
    void refuse(Connection& connection, std::uint64_t id, const char* reason);
    void drop(std::uint64_t id);
    void work();

    Settings settings_;
    shared::Descriptor lock_, listener_, epoll_, timer_, signals_;
    ProfileStore profiles_;
    ProfileKeeper keeper_;
    std::map<std::string, std::unique_ptr<Gpu>> gpus_;  // by UUID
    std::map<std::uint64_t, Connection> connections_;
    std::uint64_t next_id_{0};
    std::uint64_t next_beat_ns_{0};
    Totals totals_{};
    bool stopping_{false};
};

}  // namespace explsched::manager
