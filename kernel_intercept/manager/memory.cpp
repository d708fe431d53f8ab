#include "kernel_intercept/manager/memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include "kernel_intercept/manager/log.hpp"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace explsched::manager {

shared::Descriptor sealed_memory(const char* name, std::size_t size, Access access, void*& address) {
    shared::Descriptor memory(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!memory || ftruncate(memory.get(), static_cast<off_t>(size)) != 0) fail("memfd_create");
    address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
    if (address == MAP_FAILED) fail("mmap of a memfd");
    const int seals =
        F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | (access == Access::kOthersRead ? F_SEAL_FUTURE_WRITE : 0);
    if (fcntl(memory.get(), F_ADD_SEALS, seals) != 0) fail("sealing a memfd");
    return memory;
}

}  // namespace explsched::manager
