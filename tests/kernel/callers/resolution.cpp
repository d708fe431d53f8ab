// NVIDIA's own runtime, shared or static, on the fake driver. It gives up in the end, because it finds that
// the driver is not NVIDIA's; but before that it has looked up every function it may ever call. All of those
// look-ups must have passed the interposer.

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/kernel/callers/caller.hpp"

int main() {
    const char* calls = std::getenv("FAKECUDA_CALLS");
    REQUIRE(calls != nullptr);
    std::ofstream(calls, std::ios::trunc).flush();
    int count = 0;
    REQUIRE(cudaGetDeviceCount(&count) != cudaSuccess);

    int look_ups = 0;
    int of_launches = 0;
    int by_interposer = 0;
    std::ifstream file(calls);
    for (std::string line; std::getline(file, line);) {
        if (line.rfind("cuGetProcAddress ", 0) != 0) continue;
        ++look_ups;
        if (line.find(" cuLaunchKernel ") != std::string::npos) ++of_launches;
        if (line.find(" by libexplsched_intercept.so") != std::string::npos) ++by_interposer;
    }
    std::printf("%d look-ups, %d of them by the interposer\n", look_ups, by_interposer);
    REQUIRE(look_ups >= 400);
    REQUIRE(of_launches >= 2);  // with and without a default stream per thread
    return by_interposer == (caller::is_traced() ? look_ups : 0) ? 0 : 1;
}
