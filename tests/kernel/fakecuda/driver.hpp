// The driver as a whole: what cuInit sets up, and which context a call is meant for.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>

#include "tests/kernel/fakecuda/current_context.hpp"
#include "tests/kernel/fakecuda/objects.hpp"

namespace fakecuda {

// The driver's CUDA version, 1000 * major + 10 * minor. Older builds of the double leave newer symbols out.
extern const int kDriverVersion;

// cuInit. Later calls do nothing; in the child of a fork after the first call they fail, as CUDA's do.
CUresult initialise();

// True after cuInit, but not in a child forked after it.
extern std::atomic<bool> usable;
inline CUresult initialised() {
    return usable.load(std::memory_order_acquire) ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

// Valid after cuInit.
std::deque<Device>& devices();
Device* device(CUdevice ordinal);  // nullptr if there is none
KernelTable& kernels();

// CUDA_SUCCESS if the driver is initialised and a context is current; else the error that CUDA gives.
inline CUresult ready() {
    if (initialised() != CUDA_SUCCESS) return CUDA_ERROR_NOT_INITIALIZED;
    return current_context() == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

enum class DefaultStream { kLegacy, kPerThread };

// The stream behind a handle in the current context: 0, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD are no
// pointers.
CUstream resolve(CUstream handle, DefaultStream zero_means);

// The queues of the virtual GPU that work submitted to `stream` must wait for: the legacy stream waits for
// every blocking stream of its context, and they for it.
std::vector<std::int32_t> implicit_dependencies(CUstream stream);

// Waits until everything submitted to the stream (and, for the legacy stream, to those it waits for) has
// ended.
void synchronise(CUstream stream);
void synchronise(CUcontext context);

// What the context has registered is gone. Aborts if work accesses such memory.
void forget_registered_memory(CUcontext context);
void check_registered(CUdeviceptr address);

}  // namespace fakecuda
