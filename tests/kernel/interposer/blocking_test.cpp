// A launch that returns when its kernel has ended, with CUDA_LAUNCH_BLOCKING=1, takes the GPU for the
// kernel's running time, once. Argument: the manager's program. Run under the interposer.

#include <cuda.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "tests/kernel/interposer/check.hpp"
#include "tests/kernel/manager/daemon.hpp"

using daemon_under_test::Daemon;
using daemon_under_test::number_in;

namespace {

constexpr std::uint64_t kLongNs = 20'000'000;

void write_kernels(const std::string& path) {
    std::ofstream(path) << "long 32 0 " << kLongNs << " 500 500\n";
    setenv("FAKECUDA_KERNELS", path.c_str(), 1);
}

void write_profiles(const std::string& path) {
    std::uint64_t hash = 0xcbf29ce484222325U;  // 64-bit FNV-1a
    for (const unsigned char letter : std::string("long")) hash = (hash ^ letter) * 0x100000001b3U;
    char line[200];
    std::snprintf(line, sizeof(line),
                  "%016" PRIx64 "\t4,1,1\t256,1,1\t0\t90\t32\t%" PRIu64 "\t500\t500\tncu\tlong\n", hash,
                  kLongNs);
    std::ofstream(path) << "# explsched kernel profiles 1\n"
                           "name_hash\tgrid\tblock\tshared_bytes\tcc\tsamples\tgpu_ns\tcompute_permille\t"
                           "bandwidth_permille\tsource\tname\n"
                        << line;
}

CUfunction long_kernel() {
    CUcontext context = nullptr;
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK_EQUAL(cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
    CHECK_EQUAL(cuModuleGetFunction(&function, module, "long"), CUDA_SUCCESS);
    return function;
}

}  // namespace

int main(int, char** argv) {
    Daemon daemon(argv[1]);
    CHECK_EQUAL(daemon.stop(), 0);
    write_kernels(daemon.directory() + "/kernels");
    write_profiles(daemon.profiles());
    daemon.start();
    setenv("EXPLSCHED_KM_SOCKET", daemon.socket().c_str(), 1);
    CUfunction function = long_kernel();
    // Where the manager misses a heartbeat on a busy machine, a launch passes uncounted, rightly.
    long long counted = 0;
    for (int tries = 0; tries < 1000 && counted < 3; ++tries) {
        CHECK_EQUAL(cuLaunchKernel(function, 4, 1, 1, 256, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_SUCCESS);
        const std::string status = daemon.status();
        counted = std::max(number_in(status, "launches"), 0LL);
        if (counted == 0) continue;
        CHECK_EQUAL(number_in(status, "gpu_ns"),
                    static_cast<long long>(kLongNs) * counted);  // its cost is known
    }
    CHECK_EQUAL(counted, 3);
}
