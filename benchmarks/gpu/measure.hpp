// The parts of gpu_measure.
#pragma once

#include <string>

namespace gpu_bench {

// The kernels of kernels.cu: a fat binary with code for sm_80 and sm_90 and PTX for others, where nvcc was
// there at build time; else PTX alone, which the driver compiles.
extern const unsigned char kKernels[];

// All probes of the driver, or the one of that name.
int probe(const std::string& one);

// A server beside a training, arm by arm.
int share(const std::string& program, double seconds, const std::string& interposer,
          const std::string& manager);

// One side of an arm. Its stamps go to the file `stamps`.
int work(const std::string& role, double seconds, const std::string& stamps);

// What GPU and driver there are.
int device();

}  // namespace gpu_bench
