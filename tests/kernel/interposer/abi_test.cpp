// Our declarations of the driver's interface against NVIDIA's header. Checked when compiled.

#include <cuda.h>

#include <cstddef>
#include <iterator>

#include "kernel_intercept/interposer/driver_abi.hpp"

namespace ours = explsched::intercept;

#define SAME_FIELD(ours_type, our_field, theirs, their_field) \
    static_assert(offsetof(ours_type, our_field) == offsetof(theirs, their_field))

static_assert(sizeof(ours::LaunchConfig) == sizeof(CUlaunchConfig));
SAME_FIELD(ours::LaunchConfig, block_x, CUlaunchConfig, blockDimX);
SAME_FIELD(ours::LaunchConfig, shared_bytes, CUlaunchConfig, sharedMemBytes);
SAME_FIELD(ours::LaunchConfig, stream, CUlaunchConfig, hStream);
SAME_FIELD(ours::LaunchConfig, attributes, CUlaunchConfig, attrs);
SAME_FIELD(ours::LaunchConfig, attribute_count, CUlaunchConfig, numAttrs);

static_assert(sizeof(ours::LaunchAttribute) == sizeof(CUlaunchAttribute));
SAME_FIELD(ours::LaunchAttribute, value, CUlaunchAttribute, value);
static_assert(sizeof(ours::LaunchAttributeValue) == sizeof(CUlaunchAttributeValue));

static_assert(sizeof(ours::MemoryOperation) == sizeof(CUstreamBatchMemOpParams));
static_assert(offsetof(ours::MemoryOperation, address) ==
              offsetof(CUstreamBatchMemOpParams, waitValue.address));
static_assert(offsetof(ours::MemoryOperation, value) ==
              offsetof(CUstreamBatchMemOpParams, waitValue.value64));
static_assert(offsetof(ours::MemoryOperation, flags) == offsetof(CUstreamBatchMemOpParams, waitValue.flags));
static_assert(sizeof(ours::MemoryNodeParams) == sizeof(CUDA_BATCH_MEM_OP_NODE_PARAMS));
SAME_FIELD(ours::MemoryNodeParams, operations, CUDA_BATCH_MEM_OP_NODE_PARAMS, paramArray);
static_assert(sizeof(ours::DevicePointer) == sizeof(CUdeviceptr));
static_assert(ours::kWaitValue32 == CU_STREAM_MEM_OP_WAIT_VALUE_32);
static_assert(ours::kWaitValue64 == CU_STREAM_MEM_OP_WAIT_VALUE_64);
static_assert(ours::kWriteValue64 == CU_STREAM_MEM_OP_WRITE_VALUE_64);
static_assert(ours::kWaitForBits == CU_STREAM_WAIT_VALUE_AND);
static_assert(ours::kHostRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(ours::kHostRegisterDeviceMap == CU_MEMHOSTREGISTER_DEVICEMAP);
#if CUDA_HEADERS >= 13030
static_assert(ours::kPoolType == CU_MEMPOOL_ATTR_ALLOCATION_TYPE);
static_assert(ours::kPoolLocationId == CU_MEMPOOL_ATTR_LOCATION_ID);
static_assert(ours::kPoolLocationType == CU_MEMPOOL_ATTR_LOCATION_TYPE);
#endif
static_assert(ours::kCaptureModeRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);

// Those of which cuda.h says that the process, or the context, is of no more use.
constexpr CUresult kLastingErrors[] = {
    CUDA_ERROR_ECC_UNCORRECTABLE,     CUDA_ERROR_NVLINK_UNCORRECTABLE, CUDA_ERROR_CONTAINED,
    CUDA_ERROR_ILLEGAL_ADDRESS,       CUDA_ERROR_LAUNCH_TIMEOUT,       CUDA_ERROR_ASSERT,
    CUDA_ERROR_HARDWARE_STACK_ERROR,  CUDA_ERROR_ILLEGAL_INSTRUCTION,  CUDA_ERROR_MISALIGNED_ADDRESS,
    CUDA_ERROR_INVALID_ADDRESS_SPACE, CUDA_ERROR_INVALID_PC,           CUDA_ERROR_LAUNCH_FAILED,
    CUDA_ERROR_TENSOR_MEMORY_LEAK,    CUDA_ERROR_MPS_CLIENT_TERMINATED};
constexpr bool same_errors() {
    for (std::size_t i = 0; i < std::size(kLastingErrors); ++i) {
        if (static_cast<ours::Result>(kLastingErrors[i]) != ours::kLastingErrors[i]) return false;
    }
    return std::size(kLastingErrors) == std::size(ours::kLastingErrors);
}
static_assert(same_errors());

static_assert(sizeof(ours::LaunchParams) == sizeof(CUDA_LAUNCH_PARAMS));
SAME_FIELD(ours::LaunchParams, block_x, CUDA_LAUNCH_PARAMS, blockDimX);
SAME_FIELD(ours::LaunchParams, stream, CUDA_LAUNCH_PARAMS, hStream);

static_assert(sizeof(ours::KernelNodeParams) == sizeof(CUDA_KERNEL_NODE_PARAMS_v2));
static_assert(offsetof(ours::KernelNodeParams, kernel) == sizeof(CUDA_KERNEL_NODE_PARAMS_v1));
SAME_FIELD(ours::KernelNodeParams, block_x, CUDA_KERNEL_NODE_PARAMS_v2, blockDimX);
SAME_FIELD(ours::KernelNodeParams, shared_bytes, CUDA_KERNEL_NODE_PARAMS_v2, sharedMemBytes);
SAME_FIELD(ours::KernelNodeParams, kernel, CUDA_KERNEL_NODE_PARAMS_v2, kern);
static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS_v3) == sizeof(CUDA_KERNEL_NODE_PARAMS_v2));
SAME_FIELD(ours::GraphNodeParams, kernel, CUgraphNodeParams, kernel);

SAME_FIELD(ours::MemoryPlace, location, CUmemAllocationProp, location.type);
SAME_FIELD(ours::MemoryPlace, gpu, CUmemAllocationProp, location.id);
SAME_FIELD(ours::MemoryPlace, type, CUmemPoolProps, allocType);
SAME_FIELD(ours::MemoryPlace, location, CUmemPoolProps, location.type);
SAME_FIELD(ours::MemoryPlace, gpu, CUmemPoolProps, location.id);
static_assert(ours::kLocationDevice == CU_MEM_LOCATION_TYPE_DEVICE);
static_assert(ours::kTypeManaged == CU_MEM_ALLOCATION_TYPE_MANAGED);
static_assert(sizeof(CUmemGenericAllocationHandle) == sizeof(ours::DevicePointer));
static_assert(sizeof(ours::FlatArrayShape) == sizeof(CUDA_ARRAY_DESCRIPTOR));
SAME_FIELD(ours::FlatArrayShape, format, CUDA_ARRAY_DESCRIPTOR, Format);
SAME_FIELD(ours::FlatArrayShape, channels, CUDA_ARRAY_DESCRIPTOR, NumChannels);
static_assert(sizeof(ours::ArrayShape) == sizeof(CUDA_ARRAY3D_DESCRIPTOR));
SAME_FIELD(ours::ArrayShape, depth, CUDA_ARRAY3D_DESCRIPTOR, Depth);
SAME_FIELD(ours::ArrayShape, channels, CUDA_ARRAY3D_DESCRIPTOR, NumChannels);
static_assert(ours::kFormatUint8 == CU_AD_FORMAT_UNSIGNED_INT8);
static_assert(ours::kFormatUint16 == CU_AD_FORMAT_UNSIGNED_INT16);
static_assert(ours::kFormatInt8 == CU_AD_FORMAT_SIGNED_INT8);
static_assert(ours::kFormatInt16 == CU_AD_FORMAT_SIGNED_INT16);
static_assert(ours::kFormatHalf == CU_AD_FORMAT_HALF);
static_assert(ours::kFormatNormal == CU_AD_FORMAT_UNORM_INT8X1);
static_assert(ours::kFormatLastNormal == CU_AD_FORMAT_SNORM_INT16X4);
static_assert(ours::kArraySparse == CUDA_ARRAY3D_SPARSE);
static_assert(ours::kArrayDeferred == CUDA_ARRAY3D_DEFERRED_MAPPING);
static_assert(ours::kAttributePriority == CU_LAUNCH_ATTRIBUTE_PRIORITY);
static_assert(ours::kErrorOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);

static_assert(sizeof(ours::Uuid) == sizeof(CUuuid));
static_assert(sizeof(ours::Result) == sizeof(CUresult));
static_assert(sizeof(ours::Device) == sizeof(CUdevice));

static_assert(ours::kErrorSymbolNotFound == CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND);
static_assert(ours::kErrorNotReady == CUDA_ERROR_NOT_READY);
static_assert(ours::kErrorRegistered == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
static_assert(ours::kFunctionMaxThreads == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
static_assert(ours::kFunctionSharedBytes == CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
static_assert(ours::kFunctionRegisters == CU_FUNC_ATTRIBUTE_NUM_REGS);
static_assert(ours::kDeviceMultiprocessors == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(ours::kDeviceCapabilityMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(ours::kDeviceCapabilityMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(ours::kNotCapturing == CU_STREAM_CAPTURE_STATUS_NONE);
static_assert(ours::kNodeKernel == CU_GRAPH_NODE_TYPE_KERNEL);
static_assert(ours::kNodeChildGraph == CU_GRAPH_NODE_TYPE_GRAPH);
static_assert(ours::kNodeConditional == CU_GRAPH_NODE_TYPE_CONDITIONAL);
static_assert(ours::kAttributeCooperative == CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
static_assert(ours::kAttributeProgrammaticSerialization ==
              CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
static_assert(ours::kAttributeProgrammaticEvent == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT);

int main() {
    // Constants that are casts in the header, so not known to the compiler.
    const bool same = reinterpret_cast<CUstream>(ours::kLegacyStream) == CU_STREAM_LEGACY &&
                      reinterpret_cast<CUstream>(ours::kPerThreadStream) == CU_STREAM_PER_THREAD;
    return same ? 0 : 1;
}
