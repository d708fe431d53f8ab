#include "tests/kernel/callers/caller.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace caller {
namespace {

std::string line_of(const Launched& launch) {
    return "launch " + launch.entry + " " + launch.kernel + " " + launch.grid + " " + launch.block + " " +
           launch.shared;
}

// A graph's name holds a hash: "graph:0123456789abcdef".
std::string without_hash(const std::string& line) {
    const std::string mark = " graph:";
    const std::size_t at = line.find(mark);
    if (at == std::string::npos) return line;
    return line.substr(0, at) + " graph" + line.substr(line.find(' ', at + mark.size()));
}

void print(const char* title, const std::vector<std::string>& lines) {
    std::fprintf(stderr, "%s:\n", title);
    for (const std::string& line : lines) std::fprintf(stderr, "  %s\n", line.c_str());
}

}  // namespace

void check(CUresult result, const char* call) {
    if (result == CUDA_SUCCESS) return;
    std::fprintf(stderr, "%s: error %d\n", call, static_cast<int>(result));
    std::exit(1);
}

void require(bool holds, const char* claim) {
    if (holds) return;
    std::fprintf(stderr, "does not hold: %s\n", claim);
    std::exit(1);
}

bool is_traced() { return std::getenv("EXPLSCHED_TRACE") != nullptr; }

std::vector<std::string> traced() {
    std::vector<std::string> lines;
    if (!is_traced()) return lines;
    std::ifstream file(std::getenv("EXPLSCHED_TRACE"));
    for (std::string line; std::getline(file, line);)
        lines.push_back(without_hash(line.substr(0, line.rfind(' '))));
    return lines;
}

void clear_trace() {
    if (is_traced()) std::ofstream(std::getenv("EXPLSCHED_TRACE"), std::ios::trunc).flush();
}

std::uint64_t kernels_run() {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    require(driver != nullptr, "the driver is loaded");
    if (void* shim = dlsym(driver, "explsched_shim_driver")) driver = reinterpret_cast<void* (*)()>(shim)();
    const auto count = reinterpret_cast<std::uint64_t (*)()>(dlsym(driver, "fakecuda_kernels_run"));
    require(count != nullptr, "the driver is the fake one");
    return count();
}

int verdict(std::uint64_t kernels, const std::vector<Launched>& launches) {
    bool good = true;
    if (kernels_run() != kernels) {
        std::fprintf(stderr, "the driver ran %lu kernels, expected %lu\n", kernels_run(), kernels);
        good = false;
    }
    if (is_traced()) {
        std::vector<std::string> expected;
        for (const Launched& launch : launches) expected.push_back(line_of(launch));
        if (traced() != expected) {
            print("expected trace", expected);
            print("trace", traced());
            good = false;
        }
    }
    return good ? 0 : 1;
}

namespace {

template <typename Function>
Function* as(const Find& find, const char* symbol) {
    void* found = find(symbol);
    if (found == nullptr) std::fprintf(stderr, "not found: %s\n", symbol);
    require(found != nullptr, "the driver has the function");
    return reinterpret_cast<Function*>(found);
}

}  // namespace

#define DRIVER(name) as<decltype(name)>(find, #name)

void launch_three(const Find& find) {
    CUcontext context = nullptr;
    CUmodule module = nullptr;
    CUfunction add = nullptr;
    check(DRIVER(cuInit)(0), "cuInit");
    check(DRIVER(cuDevicePrimaryCtxRetain)(&context, 0), "cuDevicePrimaryCtxRetain");
    check(DRIVER(cuCtxSetCurrent)(context), "cuCtxSetCurrent");
    check(DRIVER(cuModuleLoadData)(&module, "image"), "cuModuleLoadData");
    check(DRIVER(cuModuleGetFunction)(&add, module, "add"), "cuModuleGetFunction");
    const auto launch = DRIVER(cuLaunchKernel);
    for (int i = 0; i < 3; ++i)
        check(launch(add, 4, 1, 1, 256, 1, 1, 0, nullptr, nullptr, nullptr), "cuLaunchKernel");
    check(DRIVER(cuStreamSynchronize)(nullptr), "cuStreamSynchronize");
}

std::vector<Launched> three(const std::string& entry) {
    return std::vector<Launched>(3, Launched{entry, "add", "4,1,1", "256,1,1"});
}

void* from_dlopen(const char* symbol) {
    static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
    require(driver != nullptr, "dlopen(\"libcuda.so.1\")");
    return dlsym(driver, symbol);
}

}  // namespace caller
