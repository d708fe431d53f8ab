#include "kernel_intercept/manager/memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <system_error>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace explsched::manager {

SharedMemory::SharedMemory(const char* name, std::size_t size, Access access)
    : descriptor_(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)), size_(size), address_(MAP_FAILED) {
    if (!descriptor_ || ftruncate(descriptor_.get(), static_cast<off_t>(size)) != 0) {
        throw std::system_error(errno, std::generic_category(), "memfd_create");
    }
    address_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_.get(), 0);
    if (address_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap of a memfd");
    const int seals =
        F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | (access == Access::kOthersRead ? F_SEAL_FUTURE_WRITE : 0);
    if (fcntl(descriptor_.get(), F_ADD_SEALS, seals) != 0) {
        const int error = errno;
        munmap(address_, size_);
        throw std::system_error(error, std::generic_category(), "sealing a memfd");
    }
}

SharedMemory::~SharedMemory() { munmap(address_, size_); }

}  // namespace explsched::manager
