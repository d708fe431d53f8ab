// Names and attributes of functions and kernels. Unlike launches, these do not take one handle for the other.

#include "tests/kernel/fakecuda/function.hpp"

#include "tests/kernel/fakecuda/driver.hpp"

using fakecuda::HandleKind;
using fakecuda::KernelSpec;
using fakecuda::launchable;

namespace {

const KernelSpec* spec_if(HandleKind kind, CUfunction handle) {
    const fakecuda::Launchable* found = launchable(handle);
    return found != nullptr && found->kind == kind ? found->spec : nullptr;
}

const KernelSpec* of_function(CUfunction handle) { return spec_if(HandleKind::kFunction, handle); }
const KernelSpec* of_kernel(CUkernel handle) {
    return spec_if(HandleKind::kKernel, reinterpret_cast<CUfunction>(handle));
}

CUresult attribute_of(const KernelSpec* spec, CUfunction_attribute attribute, int* value) {
    if (spec == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
            *value = 1024;
            return CUDA_SUCCESS;
        case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
            *value = spec->static_shared_bytes;
            return CUDA_SUCCESS;
        case CU_FUNC_ATTRIBUTE_NUM_REGS:
            *value = spec->registers;
            return CUDA_SUCCESS;
        case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
            *value = 90;
            return CUDA_SUCCESS;
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
            *value = 227 * 1024 - spec->static_shared_bytes;
            return CUDA_SUCCESS;
        default:
            *value = 0;
            return attribute < CU_FUNC_ATTRIBUTE_MAX ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult name_of(const KernelSpec* spec, const char** name) {
    if (spec == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *name = spec->name.c_str();
    return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
    return attribute_of(of_function(function), attribute, value);
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute, int) {
    return of_function(function) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char** name, CUfunction function) {
    return name_of(of_function(function), name);
}

CUresult cuFuncGetModule(CUmodule* module, CUfunction function) {
    if (of_function(function) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *module = function->module;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z) {
    if (of_function(function) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (x < 1 || y < 1 || z < 1) return CUDA_ERROR_INVALID_VALUE;
    function->block = {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
    return CUDA_SUCCESS;
}

CUresult cuFuncSetSharedSize(CUfunction function, unsigned int bytes) {
    if (of_function(function) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    function->dynamic_shared_bytes = bytes;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel, CUdevice ordinal) {
    if (fakecuda::device(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    return attribute_of(of_kernel(kernel), attribute, value);
}

CUresult cuKernelGetName(const char** name, CUkernel kernel) { return name_of(of_kernel(kernel), name); }

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
    const KernelSpec* spec = of_kernel(kernel);
    if (spec == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *function = fakecuda::function_in(kernel->library->module, *spec);
    return CUDA_SUCCESS;
}

CUresult cuKernelGetLibrary(CUlibrary* library, CUkernel kernel) {
    if (of_kernel(kernel) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *library = kernel->library;
    return CUDA_SUCCESS;
}

}  // extern "C"
