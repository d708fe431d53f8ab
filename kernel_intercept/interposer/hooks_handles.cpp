// Handles that appear and vanish: names are noted, and what was known of the dead is forgotten.

#include <array>
#include <atomic>

#include "kernel_intercept/gate/gate.hpp"
#include "kernel_intercept/interposer/capture.hpp"
#include "kernel_intercept/interposer/contexts.hpp"
#include "kernel_intercept/interposer/driver.hpp"
#include "kernel_intercept/interposer/epoch.hpp"
#include "kernel_intercept/interposer/functions.hpp"
#include "kernel_intercept/interposer/memory.hpp"
#include "kernel_intercept/interposer/settings.hpp"

namespace explsched::intercept {
namespace {

Result noted(Result result, Function* handle, HandleKind kind, const char* name) noexcept {
    if (result == kSuccess && handle != nullptr && mode() != Mode::kOff) note_handle(*handle, kind, name);
    return result;
}

// Before the driver frees the handles: afterwards another thread may get them anew.
template <Symbol kSymbol>
Result unload(Module module) {
    start_handle_epoch();
    return call_driver<kSymbol>(module);
}

void forget_work_of(Context context) noexcept {
    start_handle_epoch();
    forget_context(context);
    end_captures_of(context);
}

void forget(Context context) noexcept {
    forget_work_of(context);
    forget_memory_of(context);
}

template <Symbol kSymbol>
Result destroy_context(Context context) {
    forget(context);
    return call_driver<kSymbol>(context);
}

// As the program was given them: who asks for one that has failed is given its error.
std::array<std::atomic<Context>, gate::kMaxGpus> g_primary_contexts{};

std::atomic<Context>* primary_context(Device device) noexcept {
    const bool counted = mode() != Mode::kOff && device >= 0 && device < gate::kMaxGpus;
    return counted ? &g_primary_contexts[static_cast<std::size_t>(device)] : nullptr;
}

// False also where one has failed, whose state is its error.
bool lacks_primary_context(Device device) noexcept {
    unsigned flags = 0;
    int active = 0;
    return call_driver<Symbol::cuDevicePrimaryCtxGetState>(device, &flags, &active) == kSuccess &&
           active == 0;
}

// The primary context dies with its last user.
template <Symbol kSymbol>
Result end_primary_context(Device device) {
    const std::atomic<Context>* known = primary_context(device);
    const Context context = known == nullptr ? nullptr : known->load();
    const bool had_one = context != nullptr && !lacks_primary_context(device);
    const Result result = call_driver<kSymbol>(device);
    if (had_one && lacks_primary_context(device)) forget(context);
    return result;
}

}  // namespace

extern "C" {

Result cuModuleGetFunction(Function* function, Module module, const char* name) {
    return noted(call_driver<Symbol::cuModuleGetFunction>(function, module, name), function,
                 HandleKind::kFunction, name);
}

Result cuLibraryGetKernel(Function* kernel, Module library, const char* name) {
    return noted(call_driver<Symbol::cuLibraryGetKernel>(kernel, library, name), kernel, HandleKind::kKernel,
                 name);
}

Result cuLibraryEnumerateKernels(Function* kernels, unsigned count, Module library) {
    const Result result = call_driver<Symbol::cuLibraryEnumerateKernels>(kernels, count, library);
    for (unsigned i = 0; kernels != nullptr && i < count; ++i)
        noted(result, kernels + i, HandleKind::kKernel, nullptr);
    return result;
}

// Before CUDA 12.3 the driver names neither.
Result cuKernelGetFunction(Function* function, Function kernel) {
    return noted(call_driver<Symbol::cuKernelGetFunction>(function, kernel), function, HandleKind::kFunction,
                 noted_name(kernel));
}

Result cuModuleUnload(Module module) { return unload<Symbol::cuModuleUnload>(module); }

Result cuLibraryUnload(Module library) { return unload<Symbol::cuLibraryUnload>(library); }

Result cuCtxDestroy(Context context) { return destroy_context<Symbol::cuCtxDestroy>(context); }

Result cuCtxDestroy_v2(Context context) { return destroy_context<Symbol::cuCtxDestroy_v2>(context); }

// What was launched there was launched into a context of its own. But its memory is the primary context's
// (cuda.h, cuCtxFromGreenCtx), and stays.
Result cuGreenCtxDestroy(Handle green) {
    Context context = nullptr;
    if (call_driver<Symbol::cuCtxFromGreenCtx>(&context, green) != kSuccess)
        return call_driver<Symbol::cuGreenCtxDestroy>(green);
    forget_work_of(context);
    return call_driver<Symbol::cuGreenCtxDestroy>(green);
}

Result cuDevicePrimaryCtxRetain(Context* context, Device device) {
    const Result result = call_driver<Symbol::cuDevicePrimaryCtxRetain>(context, device);
    std::atomic<Context>* known = result == kSuccess ? primary_context(device) : nullptr;
    if (known != nullptr) known->store(*context);
    return result;
}

Result cuDevicePrimaryCtxRelease(Device device) {
    return end_primary_context<Symbol::cuDevicePrimaryCtxRelease>(device);
}

Result cuDevicePrimaryCtxRelease_v2(Device device) {
    return end_primary_context<Symbol::cuDevicePrimaryCtxRelease_v2>(device);
}

Result cuDevicePrimaryCtxReset(Device device) {
    return end_primary_context<Symbol::cuDevicePrimaryCtxReset>(device);
}

Result cuDevicePrimaryCtxReset_v2(Device device) {
    return end_primary_context<Symbol::cuDevicePrimaryCtxReset_v2>(device);
}

}  // extern "C"

}  // namespace explsched::intercept
