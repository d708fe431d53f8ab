// Memory of a fixed size that is shared with other processes by passing its descriptor.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>

#include <cstdint>
#include <new>

#include "kernel_intercept/manager/log.hpp"
#include "kernel_intercept/shared/descriptor.hpp"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace explsched::manager {

enum class Access : std::uint8_t { kBothWrite, kOthersRead };

// In a sealed memfd: nobody can resize it, nor, with `kOthersRead`, write to it through a later mapping.
template <typename Content>
class Shared {
   public:
    Shared(const char* name, Access access)
        : descriptor_(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
        if (!descriptor_ || ftruncate(descriptor(), sizeof(Content)) != 0) fail("memfd_create");
        void* at = mmap(nullptr, sizeof(Content), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor(), 0);
        if (at == MAP_FAILED) fail("mmap of a memfd");
        content_ = new (at) Content{};
        const int write = access == Access::kOthersRead ? F_SEAL_FUTURE_WRITE : 0;
        if (fcntl(descriptor(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | write) != 0)
            fail("sealing a memfd");
    }
    ~Shared() { munmap(content_, sizeof(Content)); }
    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;

    int descriptor() const { return descriptor_.get(); }
    Content& operator*() const { return *content_; }
    Content* operator->() const { return content_; }

   private:
    shared::Descriptor descriptor_;
    Content* content_;
};

}  // namespace explsched::manager
