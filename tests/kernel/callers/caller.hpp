// What every caller program needs: to stop at the first error, and to tell whether its launches were seen.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace caller {

// Ends the program with status 1 if the call failed.
void check(CUresult result, const char* call);
void require(bool holds, const char* claim);

// One launch as the interposer's trace names it: entry point and kernel, grid, block, dynamic shared memory.
// A launch of a graph is one line: kernel "graph", and the number of its kernels as the grid's x.
struct Launched {
    std::string entry;
    std::string kernel;
    std::string grid;
    std::string block;
    std::string shared{"0"};
};

// The trace so far (EXPLSCHED_TRACE), one string per launch, without the last word; empty where no interposer
// is.
std::vector<std::string> traced();
void clear_trace();
bool is_traced();  // whether EXPLSCHED_TRACE is set

// Kernels that the fake driver has run in this process.
std::uint64_t kernels_run();

// The program's verdict: 0 if the driver ran so many kernels and, under the interposer, the trace lists
// exactly `launches`.
int verdict(std::uint64_t kernels, const std::vector<Launched>& launches);

// Finds a function of the driver by the name of its symbol.
using Find = std::function<void*(const char*)>;

// cuInit to context, module and function "add", and three launches of it with 4 blocks of 256 threads, all
// through functions that `find` gives.
void launch_three(const Find& find);

// What `launch_three` should leave in the trace, through this entry point.
std::vector<Launched> three(const std::string& entry);

void* from_dlopen(const char* symbol);  // dlopen("libcuda.so.1") and dlsym, as Triton and many bindings do

}  // namespace caller

#define CHECK(call) caller::check(call, #call)
#define REQUIRE(claim) caller::require(claim, #claim)
