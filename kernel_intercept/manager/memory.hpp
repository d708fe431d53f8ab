// Memory of a fixed size that is shared with other processes by passing its descriptor.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>

#include "kernel_intercept/shared/descriptor.hpp"

namespace explsched::manager {

enum class Access : std::uint8_t { kBothWrite, kOthersRead };

// A sealed memfd, mapped at `address`: nobody can resize it, and with `kOthersRead` nobody who maps it from
// now on can write to it. Throws std::system_error.
shared::Descriptor sealed_memory(const char* name, std::size_t size, Access access, void*& address);

template <typename Content>
class Shared {
   public:
    Shared(const char* name, Access access)
        : descriptor_(sealed_memory(name, sizeof(Content), access, address_)),
          content_(new (address_) Content{}) {}
    ~Shared() { munmap(address_, sizeof(Content)); }
    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;

    int descriptor() const { return descriptor_.get(); }
    Content& operator*() const { return *content_; }
    Content* operator->() const { return content_; }

   private:
    void* address_{nullptr};
    shared::Descriptor descriptor_;
    Content* content_;
};

}  // namespace explsched::manager
