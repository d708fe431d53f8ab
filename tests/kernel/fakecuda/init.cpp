// cuInit, versions, names of errors.

#include <dlfcn.h>

#include "tests/kernel/fakecuda/call_log.hpp"
#include "tests/kernel/fakecuda/driver.hpp"
#include "tests/kernel/fakecuda/fault.hpp"

namespace {

// Drivers from 570 on resolve their own symbols so, through whatever dlsym the process has.
void look_up_own_symbols() {
    static_cast<void>(dlsym(RTLD_DEFAULT, "cuInit"));
    static_cast<void>(dlsym(RTLD_DEFAULT, "cuGetExportTable"));
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned int flags) {
    fakecuda::log_call("cuInit", __builtin_return_address(0));
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = fakecuda::initialise();
    if (result == CUDA_SUCCESS && fakecuda::fault == fakecuda::Fault::kDlsymInInit) look_up_own_symbols();
    return result;
}

CUresult cuDriverGetVersion(int* version) {
    if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *version = fakecuda::kDriverVersion;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
    switch (error) {
#define NAME(code)     \
    case code:         \
        *name = #code; \
        return CUDA_SUCCESS;
        NAME(CUDA_SUCCESS)
        NAME(CUDA_ERROR_INVALID_VALUE)
        NAME(CUDA_ERROR_OUT_OF_MEMORY)
        NAME(CUDA_ERROR_NOT_INITIALIZED)
        NAME(CUDA_ERROR_INVALID_DEVICE)
        NAME(CUDA_ERROR_INVALID_CONTEXT)
        NAME(CUDA_ERROR_INVALID_HANDLE)
        NAME(CUDA_ERROR_NOT_FOUND)
        NAME(CUDA_ERROR_NOT_READY)
        NAME(CUDA_ERROR_LAUNCH_FAILED)
        NAME(CUDA_ERROR_NOT_SUPPORTED)
        NAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        NAME(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        NAME(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED)
        NAME(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
        NAME(CUDA_ERROR_CAPTURED_EVENT)
        NAME(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
#undef NAME
        default:
            *name = nullptr;
            return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuGetErrorString(CUresult error, const char** text) { return cuGetErrorName(error, text); }

}  // extern "C"
