// Faults to inject, by FAKECUDA_FAULT:
//   launch_error    every launch fails with CUDA_ERROR_LAUNCH_FAILED
//   failed_context  every wait fails with CUDA_ERROR_ILLEGAL_ADDRESS, and whoever asks for the primary
//   context slow_call       every launch takes a millisecond before it returns slow_capture    a capture that
//   has begun takes a millisecond until the call for it returns no_wait_node    batch memory operations are
//   refused as nodes of graphs slow_signal     memory operations take a millisecond before they look at their
//   stream dlsym_in_init   cuInit asks dlsym for the driver's own symbols, as drivers from 570 on do aliased
//   cuGetProcAddress returns other addresses than dlsym text_alone      images of modules other than PTX are
//   refused, as by a driver older than their compiler
// (An old driver that lacks symbols is a build of its own: see CMakeLists.txt.)
#pragma once

namespace fakecuda {

enum class Fault {
    kNone,
    kLaunchError,
    kFailedContext,
    kSlowCall,
    kSlowCapture,
    kNoWaitNode,
    kSlowSignal,
    kDlsymInInit,
    kAliased,
    kTextAlone
};

void read_fault_from_environment();  // throws std::runtime_error for an unknown name

extern Fault fault;

}  // namespace fakecuda
