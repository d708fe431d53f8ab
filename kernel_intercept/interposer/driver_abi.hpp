// The part of the CUDA driver's binary interface that the interposer touches.
//
// Written from the documented interface, so that the build needs no toolkit. Where one is installed, a
// test compares every size, offset and constant here with its cuda.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace explsched::intercept {

// Handles are opaque: only their values are compared.
using Handle = void*;
using Function = Handle;  // CUfunction, or a CUkernel cast to one
using Stream = Handle;
using Context = Handle;
using Event = Handle;
using Graph = Handle;
using GraphNode = Handle;
using GraphExec = Handle;
using Module = Handle;                     // CUmodule or CUlibrary
using DevicePointer = unsigned long long;  // CUdeviceptr
using Device = int;                        // CUdevice: the ordinal
using Result = int;                        // CUresult

constexpr Result kSuccess = 0;
constexpr Result kErrorOutOfMemory = 2;       // CUDA_ERROR_OUT_OF_MEMORY
constexpr Result kErrorNotReady = 600;        // CUDA_ERROR_NOT_READY
constexpr Result kErrorRegistered = 712;      // CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
constexpr Result kErrorSymbolNotFound = 302;  // CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND

// Errors after which a context does nothing more: CUDA_ERROR_ILLEGAL_ADDRESS and the like.
constexpr Result kLastingErrors[] = {214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810};

constexpr int kFunctionMaxThreads = 0;  // CU_FUNC_ATTRIBUTE_*
constexpr int kFunctionSharedBytes = 1;
constexpr int kFunctionRegisters = 4;

constexpr int kDeviceMultiprocessors = 16;  // CU_DEVICE_ATTRIBUTE_*
constexpr int kDeviceCapabilityMajor = 75;
constexpr int kDeviceCapabilityMinor = 76;

constexpr int kNotCapturing = 0;  // CU_STREAM_CAPTURE_STATUS_NONE

constexpr int kNodeKernel = 0;  // CU_GRAPH_NODE_TYPE_*
constexpr int kNodeChildGraph = 4;
constexpr int kNodeConditional = 13;

constexpr int kAttributeCooperative = 2;  // CU_LAUNCH_ATTRIBUTE_*
constexpr int kAttributeProgrammaticSerialization = 6;
constexpr int kAttributeProgrammaticEvent = 7;
constexpr int kAttributePriority = 8;

constexpr int kCaptureModeRelaxed = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED

constexpr unsigned kHostRegisterPortable = 1;  // CU_MEMHOSTREGISTER_*
constexpr unsigned kHostRegisterDeviceMap = 2;

constexpr unsigned kWaitValue32 = 1;  // CU_STREAM_MEM_OP_*
constexpr unsigned kWaitValue64 = 4;
constexpr unsigned kWriteValue64 = 5;
constexpr unsigned kWaitForBits = 2;  // CU_STREAM_WAIT_VALUE_AND

constexpr std::uintptr_t kLegacyStream = 1;     // CU_STREAM_LEGACY
constexpr std::uintptr_t kPerThreadStream = 2;  // CU_STREAM_PER_THREAD

constexpr int kLocationDevice = 1;  // CU_MEM_LOCATION_TYPE_DEVICE

constexpr int kTypeManaged = 2;  // CU_MEM_ALLOCATION_TYPE_MANAGED

constexpr int kPoolType = 9;  // CU_MEMPOOL_ATTR_*
constexpr int kPoolLocationId = 11;
constexpr int kPoolLocationType = 12;

constexpr int kFormatUint8 = 1;  // CU_AD_FORMAT_*; all others take four bytes a channel at most
constexpr int kFormatUint16 = 2;
constexpr int kFormatInt8 = 8;
constexpr int kFormatInt16 = 9;
constexpr int kFormatHalf = 16;
constexpr int kFormatNormal = 0xc0;  // UNORM_*, SNORM_*: three of 8 bits a channel, three of 16, and again
constexpr int kFormatLastNormal = 0xcb;

constexpr unsigned kArraySparse = 0x40;  // CUDA_ARRAY3D_*
constexpr unsigned kArrayDeferred = 0x80;

struct Uuid {
    unsigned char bytes[16];
};

union LaunchAttributeValue {  // CUlaunchAttributeValue
    char padding[64];
    int cooperative;
    int programmatic_serialization;
    int priority;
    Event programmatic_event;  // the first member of what the attribute holds
};

struct LaunchAttribute {  // CUlaunchAttribute
    int id;
    char padding[4];
    alignas(8) LaunchAttributeValue value;
};

struct LaunchConfig {  // CUlaunchConfig
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared_bytes;
    Stream stream;
    const LaunchAttribute* attributes;
    unsigned attribute_count;
};

struct MemoryOperation {  // CUstreamBatchMemOpParams
    unsigned operation;
    DevicePointer address;
    std::uint64_t value;
    unsigned flags;
    DevicePointer alias;
    std::uint64_t padding;
};

struct MemoryNodeParams {  // CUDA_BATCH_MEM_OP_NODE_PARAMS
    Context context;
    unsigned count;
    MemoryOperation* operations;
    unsigned flags;
};

struct MemoryPlace {  // the head of CUmemAllocationProp and of CUmemPoolProps
    int type;
    int handle_types;
    int location;
    int gpu;
};

struct FlatArrayShape {  // CUDA_ARRAY_DESCRIPTOR
    std::size_t width, height;
    int format;
    unsigned channels;
};

struct ArrayShape {  // CUDA_ARRAY3D_DESCRIPTOR
    std::size_t width, height, depth;
    int format;
    unsigned channels;
    unsigned flags;
};

struct LaunchParams {  // CUDA_LAUNCH_PARAMS
    Function function;
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared_bytes;
    Stream stream;
    void** kernel_params;
};

struct KernelNodeParams {  // CUDA_KERNEL_NODE_PARAMS_v2 and _v3; _v1 ends before `kernel`
    Function function;
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared_bytes;
    void** kernel_params;
    void** extra;
    Handle kernel;
    Context context;
};

struct GraphNodeParams {  // the head of CUgraphNodeParams, of which only kernel nodes are read
    int type;
    int reserved[3];
    KernelNodeParams kernel;
};

}  // namespace explsched::intercept
