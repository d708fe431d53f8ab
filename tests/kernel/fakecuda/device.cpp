// Devices and their attributes: an H200-class GPU (compute capability 9.0).

#include <algorithm>
#include <cstring>

#include "tests/kernel/fakecuda/driver.hpp"

using fakecuda::device;
using fakecuda::devices;
using fakecuda::initialised;

namespace {

constexpr std::size_t kMemoryBytes = 141ULL << 30;

CUresult attribute_of(const fakecuda::Device& device, CUdevice_attribute attribute, int& value) {
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
            value = device.gpu == nullptr ? 132 : device.gpu->settings().multiprocessors;
            return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
            value = 9;
            return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
            value = 0;
            return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
            value = 1024;
            return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
            value = 2048;
            return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
            value = 32;
            return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
            value = 32;
            return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
            value = 65536;
            return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
            value = 228 * 1024;
            return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
            value = 227 * 1024;
            return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
            value = 48 * 1024;
            return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
            value = 1024;
            return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
            value = 1'980'000;
            return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
            value = 3'201'000;
            return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
            value = 6144;
            return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
        case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
        case CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH:
        case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
            value = 1;
            return CUDA_SUCCESS;
        default:  // a feature that this GPU lacks
            value = 0;
            return attribute < CU_DEVICE_ATTRIBUTE_MAX ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
}

}  // namespace

extern "C" {

CUresult cuDeviceGetCount(int* count) {
    if (initialised() != CUDA_SUCCESS) return CUDA_ERROR_NOT_INITIALIZED;
    *count = static_cast<int>(devices().size());
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* handle, int ordinal) {
    if (initialised() != CUDA_SUCCESS) return CUDA_ERROR_NOT_INITIALIZED;
    if (device(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    *handle = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int size, CUdevice ordinal) {
    if (device(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (size < 1) return CUDA_ERROR_INVALID_VALUE;
    const std::string_view text = "Fake GPU";
    name[text.copy(name, static_cast<std::size_t>(size) - 1)] = '\0';
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice ordinal) {
    if (device(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    *uuid = device(ordinal)->uuid;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice ordinal) { return cuDeviceGetUuid(uuid, ordinal); }

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice ordinal) {
    if (device(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    return attribute_of(*device(ordinal), attribute, *value);
}

CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice ordinal) {
    if (device(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = kMemoryBytes;
    return CUDA_SUCCESS;
}

}  // extern "C"
