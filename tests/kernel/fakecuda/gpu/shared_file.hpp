// The file behind a virtual GPU: mapped by every process, guarded by a mutex that outlives its owners.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/kernel/fakecuda/gpu/state.hpp"

namespace fakecuda::gpu {

class SharedFile {
   public:
    // Maps `path`. If no living process uses it, it is a new GPU with these settings; else it keeps those it
    // has. Throws std::system_error or std::runtime_error (in use with another layout, or no process slot
    // left).
    SharedFile(const std::string& path, const Settings& settings);
    ~SharedFile();
    SharedFile(const SharedFile&) = delete;
    SharedFile& operator=(const SharedFile&) = delete;

    State& state() const { return *state_; }
    std::int32_t process() const { return process_; }

    // The slots of processes that have died since they took them. The caller holds the lock.
    std::vector<std::int32_t> dead_processes() const;

    // A lock on state().mutex. If its last owner died, the state is valid all the same: see state.hpp.
    class Lock {
       public:
        explicit Lock(State& state);
        ~Lock();
        Lock(const Lock&) = delete;
        Lock& operator=(const Lock&) = delete;

       private:
        State& state_;
    };

   private:
    void set_up(const Settings& settings);
    void take_slot();
    bool is_in_use() const;
    bool is_alive(std::int32_t process) const;

    int fd_;
    State* state_;
    std::int32_t process_{kNone};
};

std::int64_t monotonic_ns();

}  // namespace fakecuda::gpu
