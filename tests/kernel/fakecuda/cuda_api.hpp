// cuda.h with every ABI that a function ever had, each under its own symbol: what a driver implements.
// (Programs see the newest one only, under the base name, through macros.)
#pragma once

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaTypedefs.h>
