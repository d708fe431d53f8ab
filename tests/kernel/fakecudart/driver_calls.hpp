// The driver's functions, found as NVIDIA's runtime finds them: dlopen, one dlsym, then cuGetProcAddress for
// all.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

namespace fakecudart {

struct DriverCalls {
#define DRIVER(base, version, suffix) PFN_##base##_v##version##suffix base##suffix;
#include "tests/kernel/fakecudart/driver_calls.def"
#undef DRIVER
};

// Looks the functions up, calls cuInit and makes the primary context current in the calling thread, each
// once. Ends the program with a message if there is no driver: this is a test double.
const DriverCalls& driver();

}  // namespace fakecudart
