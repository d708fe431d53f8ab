// What code compiled by nvcc calls by itself: before main it registers its device code and kernels, and each
// <<<...>>> pushes its shape, which the kernel's stub pops again.

#include "tests/kernel/fakecudart/registration.hpp"

#include <map>
#include <string>
#include <vector>

#include "tests/kernel/fakecudart/driver_calls.hpp"

namespace fakecudart {
namespace {

// The device code of one compilation, loaded when its first kernel is launched.
struct FatBinary {
    const void* image;
    CUlibrary library{nullptr};
};

struct Registered {
    FatBinary* binary;
    std::string name;
    CUkernel kernel{nullptr};
};

// Made at the first registration, which happens before this file's own static objects may exist; never
// destroyed.
std::map<const void*, Registered>& kernels() {
    static auto* const all = new std::map<const void*, Registered>;
    return *all;
}

struct CallConfiguration {
    dim3 grid;
    dim3 block;
    size_t shared_bytes;
    cudaStream_t stream;
};

thread_local std::vector<CallConfiguration> pushed;

}  // namespace

CUkernel kernel_of(const void* host_function) {
    const auto found = kernels().find(host_function);
    if (found == kernels().end()) return nullptr;
    Registered& registered = found->second;
    const DriverCalls& calls = driver();
    if (registered.binary->library == nullptr) {
        calls.cuLibraryLoadData(&registered.binary->library, registered.binary->image, nullptr, nullptr, 0,
                                nullptr, nullptr, 0);
    }
    if (registered.kernel == nullptr) {
        calls.cuLibraryGetKernel(&registered.kernel, registered.binary->library, registered.name.c_str());
    }
    return registered.kernel;
}

}  // namespace fakecudart

using fakecudart::CallConfiguration;
using fakecudart::FatBinary;
using fakecudart::kernels;

extern "C" {

void** __cudaRegisterFatBinary(void* image) { return reinterpret_cast<void**>(new FatBinary{image}); }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void** handle) { delete reinterpret_cast<FatBinary*>(handle); }

void __cudaRegisterFunction(void** handle, const char* host_function, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
    kernels()[host_function] = {reinterpret_cast<FatBinary*>(handle), name};
}

char __cudaInitModule(void**) { return 1; }

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream) {
    fakecudart::pushed.push_back({grid, block, shared_bytes, stream});
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
    if (fakecudart::pushed.empty()) return cudaErrorMissingConfiguration;
    const CallConfiguration top = fakecudart::pushed.back();
    fakecudart::pushed.pop_back();
    *grid = top.grid;
    *block = top.block;
    *shared_bytes = top.shared_bytes;
    *static_cast<cudaStream_t*>(stream) = top.stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host_function) {
    *kernel = reinterpret_cast<cudaKernel_t>(fakecudart::kernel_of(host_function));
    return *kernel == nullptr ? cudaErrorInvalidDeviceFunction : cudaSuccess;
}

}  // extern "C"
