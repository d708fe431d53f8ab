// Modules and libraries. What an image holds does not matter: every module holds the kernels of the kernel
// table.
//
// A module belongs to a context and gives CUfunctions. A library (CUDA 12) belongs to none, is loaded into
// contexts as needed, and gives CUkernels.

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/kernel/fakecuda/driver.hpp"
#include "tests/kernel/fakecuda/fault.hpp"
#include "tests/kernel/fakecuda/function.hpp"

using fakecuda::HandleKind;
using fakecuda::KernelSpec;

namespace fakecuda {

CUfunction function_in(CUmod_st& module, const KernelSpec& spec) {
    for (const auto& function : module.functions) {
        if (function->spec == &spec) return function.get();
    }
    module.functions.push_back(
        std::make_unique<CUfunc_st>(CUfunc_st{{HandleKind::kFunction, &spec}, &module, {}, 0}));
    return module.functions.back().get();
}

}  // namespace fakecuda

namespace {

CUkernel kernel_in(CUlib_st& library, const KernelSpec& spec) {
    for (const auto& kernel : library.kernels) {
        if (kernel->spec == &spec) return kernel.get();
    }
    library.kernels.push_back(std::make_unique<CUkern_st>(CUkern_st{{HandleKind::kKernel, &spec}, &library}));
    return library.kernels.back().get();
}

CUresult load(CUmodule* module) {
    if (const CUresult not_ready = fakecuda::ready()) return not_ready;
    *module = new CUmod_st;
    return CUDA_SUCCESS;
}

bool can_read(const char* path) {
    std::FILE* file = std::fopen(path, "rb");
    if (file != nullptr) std::fclose(file);
    return file != nullptr;
}

}  // namespace

extern "C" {

CUresult cuModuleLoad(CUmodule* module, const char* path) {
    return can_read(path) ? load(module) : CUDA_ERROR_FILE_NOT_FOUND;
}
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    const bool is_text = std::memcmp(image, "//", 2) == 0;
    if (fakecuda::fault == fakecuda::Fault::kTextAlone && !is_text) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    return load(module);
}
CUresult cuModuleLoadDataEx(CUmodule* module, const void*, unsigned int, CUjit_option*, void**) {
    return load(module);
}
CUresult cuModuleLoadFatBinary(CUmodule* module, const void*) { return load(module); }

CUresult cuModuleUnload(CUmodule module) {
    if (CUcontext context = fakecuda::current_context()) fakecuda::synchronise(context);
    delete module;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    const KernelSpec* spec = fakecuda::kernels().find(name);
    if (spec == nullptr) return CUDA_ERROR_NOT_FOUND;
    *function = fakecuda::function_in(*module, *spec);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary* library, const void*, CUjit_option*, void**, unsigned int,
                           CUlibraryOption*, void**, unsigned int) {
    if (const CUresult not_ready = fakecuda::initialised()) return not_ready;
    *library = new CUlib_st;
    return CUDA_SUCCESS;
}

CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option* options, void** values,
                               unsigned int count, CUlibraryOption* library_options, void** library_values,
                               unsigned int library_count) {
    if (!can_read(path)) return CUDA_ERROR_FILE_NOT_FOUND;
    return cuLibraryLoadData(library, nullptr, options, values, count, library_options, library_values,
                             library_count);
}

CUresult cuLibraryUnload(CUlibrary library) {
    delete library;
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
    const KernelSpec* spec = fakecuda::kernels().find(name);
    if (spec == nullptr) return CUDA_ERROR_NOT_FOUND;
    *kernel = kernel_in(*library, *spec);
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library) {
    *module = &library->module;
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary) {
    *count = static_cast<unsigned>(fakecuda::kernels().listed().size());
    return CUDA_SUCCESS;
}

CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int count, CUlibrary library) {
    for (const KernelSpec* spec : fakecuda::kernels().listed()) {
        if (count == 0) break;
        *kernels++ = kernel_in(*library, *spec);
        --count;
    }
    return CUDA_SUCCESS;
}

}  // extern "C"
