// A descriptor by its number, and what it was when it was taken.
//
// Programs close descriptors that they do not know, daemons all they have, and the next file they open gets
// the number. Nothing may be done to that one: `is_ours` is to be asked right before each use.
#pragma once

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace explsched::gate {

class KeptDescriptor {
   public:
    void keep(int fd) noexcept {
        struct stat info {};
        const bool known = fd >= 0 && syscall(SYS_fstat, fd, &info) == 0;
        device_.store(known ? info.st_dev : 0, std::memory_order_relaxed);
        inode_.store(known ? info.st_ino : 0, std::memory_order_relaxed);
        number_.store(known ? fd : -1, std::memory_order_release);
    }
    void drop() noexcept { number_.store(-1, std::memory_order_relaxed); }

    int number() const noexcept { return number_.load(std::memory_order_acquire); }

    bool is_ours() const noexcept {
        struct stat info {};
        const int fd = number();
        return fd >= 0 && syscall(SYS_fstat, fd, &info) == 0 &&
               info.st_ino == inode_.load(std::memory_order_relaxed) &&
               info.st_dev == device_.load(std::memory_order_relaxed);
    }

   private:
    std::atomic<int> number_{-1};
    std::atomic<std::uint64_t> device_{0}, inode_{0};
};

}  // namespace explsched::gate
