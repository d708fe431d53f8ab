// The two handles of a kernel.
#pragma once

#include "tests/kernel/fakecuda/objects.hpp"

namespace fakecuda {

// What a launch makes of its CUfunction, which may be a CUkernel in disguise; nullptr if it is neither.
inline const Launchable* launchable(CUfunction handle) {
    const auto* found = reinterpret_cast<const Launchable*>(handle);
    const bool valid =
        found != nullptr && (found->kind == HandleKind::kFunction || found->kind == HandleKind::kKernel);
    return valid ? found : nullptr;
}

// The module's function for a kernel, made at the first call.
CUfunction function_in(CUmod_st& module, const KernelSpec& spec);

}  // namespace fakecuda
