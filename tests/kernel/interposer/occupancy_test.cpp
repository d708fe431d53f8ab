// Our occupancy against the toolkit's calculator where there is one, and against known figures anywhere.

#include "kernel_intercept/interposer/occupancy.hpp"

#include <initializer_list>

#include "tests/kernel/interposer/check.hpp"

#if __has_include(<cuda_occupancy.h>)
#include <cuda_occupancy.h>
#define HAVE_CALCULATOR 1
#endif

namespace ours = explsched::intercept;

namespace {

std::uint32_t blocks(std::uint32_t capability, ours::BlockNeeds needs) {
    return ours::blocks_per_multiprocessor(ours::multiprocessor_limits(capability), needs);
}

void test_known_figures() {
    CHECK_EQUAL(blocks(90, {256, 32, 0}), 8U);
    CHECK_EQUAL(blocks(90, {256, 64, 0}), 4U);
    CHECK_EQUAL(blocks(90, {256, 255, 0}), 1U);
    CHECK_EQUAL(blocks(90, {128, 168, 0}), 3U);
    CHECK_EQUAL(blocks(90, {384, 168, 227 * 1024}), 1U);
    CHECK_EQUAL(blocks(90, {64, 16, 0}), 32U);
    CHECK_EQUAL(blocks(90, {128, 40, 16 * 1024}), 12U);
    CHECK_EQUAL(blocks(90, {0, 32, 0}), 0U);
    CHECK_EQUAL(blocks(90, {1025, 32, 0}), 0U);
    CHECK_EQUAL(blocks(90, {32, 32, 0xFFFFFFFFU}), 0U);
}

void test_share_of_the_gpu() {
    CHECK_EQUAL(ours::multiprocessor_permille(1, 8, 132), 7U);
    CHECK_EQUAL(ours::multiprocessor_permille(528, 8, 132), 500U);
    CHECK_EQUAL(ours::multiprocessor_permille(529, 8, 132), 507U);
    CHECK_EQUAL(ours::multiprocessor_permille(1056, 8, 132), 1000U);
    CHECK_EQUAL(ours::multiprocessor_permille(1'000'000'000'000ULL, 8, 132), 1000U);
    CHECK_EQUAL(ours::multiprocessor_permille(1, 32, 10'000), 1U);
    CHECK_EQUAL(ours::multiprocessor_permille(66, 0, 132), 500U);
}

#ifdef HAVE_CALCULATOR
std::uint32_t calculated(std::uint32_t capability, ours::BlockNeeds needs) {
    const ours::MultiprocessorLimits limits = ours::multiprocessor_limits(capability);
    cudaOccDeviceProp device;
    device.computeMajor = static_cast<int>(capability / 10);
    device.computeMinor = static_cast<int>(capability % 10);
    device.maxThreadsPerBlock = 1024;
    device.maxThreadsPerMultiprocessor = static_cast<int>(limits.threads);
    device.regsPerBlock = 65536;
    device.regsPerMultiprocessor = 65536;
    device.warpSize = 32;
    device.reservedSharedMemPerBlock = limits.reserved_shared_bytes_per_block;
    device.sharedMemPerMultiprocessor = limits.shared_bytes;
    device.sharedMemPerBlock = 48 * 1024;
    device.sharedMemPerBlockOptin = limits.shared_bytes - limits.reserved_shared_bytes_per_block;
    device.numSms = 100;
    cudaOccFuncAttributes function;
    function.maxThreadsPerBlock = 1024;
    function.numRegs = static_cast<int>(needs.registers_per_thread);
    function.sharedSizeBytes = 0;
    function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    function.maxDynamicSharedSizeBytes = device.sharedMemPerBlockOptin;
    function.partitionedGCConfig = PARTITIONED_GC_OFF;
    function.numBlockBarriers = 1;
    const cudaOccDeviceState state;
    cudaOccResult result{};
    const cudaOccError error = cudaOccMaxActiveBlocksPerMultiprocessor(
        &result, &device, &function, &state, static_cast<int>(needs.threads), needs.shared_bytes);
    CHECK_EQUAL(static_cast<int>(error), static_cast<int>(CUDA_OCC_SUCCESS));
    return static_cast<std::uint32_t>(result.activeBlocksPerMultiprocessor);
}

void test_against_calculator() {
    for (const std::uint32_t capability : {70U, 75U, 80U, 86U, 87U, 89U, 90U, 100U, 103U, 110U, 120U, 121U}) {
        for (const std::uint32_t threads :
             {1U, 32U, 33U, 64U, 96U, 128U, 192U, 256U, 384U, 512U, 640U, 768U, 1024U}) {
            for (const std::uint32_t registers : {16U, 24U, 32U, 33U, 40U, 64U, 72U, 96U, 128U, 168U, 255U}) {
                for (const std::uint32_t shared :
                     {0U, 1U, 1000U, 16384U, 33000U, 49152U, 65536U, 100000U, 166912U, 232448U}) {
                    const ours::BlockNeeds needs{threads, registers, shared};
                    const std::uint32_t found = blocks(capability, needs);
                    const std::uint32_t expected = calculated(capability, needs);
                    if (found == expected) continue;
                    std::fprintf(stderr,
                                 "capability %u, %u threads, %u registers, %u bytes: %u, calculator %u\n",
                                 capability, threads, registers, shared, found, expected);
                    std::exit(1);
                }
            }
        }
    }
}
#endif

}  // namespace

int main() {
    test_known_figures();
    test_share_of_the_gpu();
#ifdef HAVE_CALCULATOR
    test_against_calculator();
#endif
}
