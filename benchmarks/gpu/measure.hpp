// The parts of gpu_measure.
#pragma once

#include <string>

#include "benchmarks/gpu/driver.hpp"

namespace gpu_bench {

// The kernels of kernels.cu: a fat binary with code for sm_80 and sm_90 and PTX for others, where nvcc was
// there at build time; else PTX alone, which the driver compiles. Drivers older than that nvcc may refuse the
// fat binary, so the PTX of kernels.ptx, which all of them take, is there as well.
struct Kernels {
    Module module;
    bool compiled;
};
Kernels load_kernels();

// How many blocks of the kernels fill the GPU, and how many of their rounds take a microsecond alone.
struct Calibration {
    unsigned blocks{0};
    double rounds_per_us[2]{};  // of `arithmetic` and `memory`
};

// All probes of the driver, or the one of that name.
int probe(const std::string& one);

// A server beside a training, arm by arm.
int share(const std::string& program, double seconds, const std::string& interposer,
          const std::string& manager);

// One side of an arm. Its stamps go to the file `stamps`.
int work(const std::string& role, double seconds, const std::string& stamps, const Calibration& calibration);

// Prints what GPU and driver there are, in a second line the calibration, and stays until its input ends.
int device();

}  // namespace gpu_bench
