// Faults to inject, by FAKECUDA_FAULT: the names are in fault.cpp. (An old driver that lacks symbols is a
// build of its own: see CMakeLists.txt.)
#pragma once

namespace fakecuda {

enum class Fault {
    kNone,
    kLaunchError,    // every launch fails with CUDA_ERROR_LAUNCH_FAILED
    kFailedContext,  // every wait and request for the primary context fails: CUDA_ERROR_ILLEGAL_ADDRESS
    kSlowCall,       // every launch takes a millisecond before it returns
    kSlowCapture,    // a capture that has begun takes a millisecond until the call for it returns
    kNoWaitNode,     // batch memory operations are refused as nodes of graphs
    kSlowSignal,     // memory operations take a millisecond before they look at their stream
    kDlsymInInit,    // cuInit asks dlsym for the driver's own symbols, as drivers from 570 on do
    kAliased,        // cuGetProcAddress returns other addresses than dlsym
    kTextAlone,      // images of modules other than PTX are refused, as by a driver older than their compiler
    kNoPoolPlaces,   // pools tell neither their type nor where they are, as before CUDA 13.3
};

void read_fault_from_environment();  // throws std::runtime_error for an unknown name

extern Fault fault;

}  // namespace fakecuda
