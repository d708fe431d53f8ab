// Memory of a fixed size that is shared with other processes by passing its descriptor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "kernel_intercept/shared/descriptor.hpp"

namespace explsched::manager {

enum class Access : std::uint8_t { kBothWrite, kOthersRead };

// A sealed memfd: nobody can resize it, and with `kOthersRead` nobody who maps it from now on can write to
// it.
class SharedMemory {
   public:
    SharedMemory(const char* name, std::size_t size, Access access);  // throws std::system_error
    ~SharedMemory();
    SharedMemory(const SharedMemory&) = delete;
    SharedMemory& operator=(const SharedMemory&) = delete;

    int descriptor() const { return descriptor_.get(); }
    void* address() const { return address_; }

   private:
    shared::Descriptor descriptor_;
    std::size_t size_;
    void* address_;
};

template <typename Content>
class Shared {
   public:
    Shared(const char* name, Access access)
        : memory_(name, sizeof(Content), access), content_(new (memory_.address()) Content{}) {}

    int descriptor() const { return memory_.descriptor(); }
    Content& operator*() const { return *content_; }
    Content* operator->() const { return content_; }

   private:
    SharedMemory memory_;
    Content* content_;
};

}  // namespace explsched::manager
