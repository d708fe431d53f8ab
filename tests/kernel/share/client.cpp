// A process that uses the GPU, for benchmarks/kernel_share.py: an inference server (requests with pauses
// between them) or a training (steps that follow at once).
//
//   share_client KERNELS PAUSE_MS START_NS SECONDS
//
// KERNELS: the kernels of a request or step, e.g. "conv*2,norm"; they are launched at once, then the client
// waits for all. PAUSE_MS: mean of the exponentially distributed pauses; 0 for none. START_NS:
// CLOCK_MONOTONIC at which all clients begin; SECONDS later they end.
//
// Prints one JSON object: latencies_us (of each request or step, from its first launch to its end) and
// launches.

#include <cuda.h>
#include <time.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace {

void check(CUresult result, const char* call) {
    if (result == CUDA_SUCCESS) return;
    std::fprintf(stderr, "%s: error %d\n", call, static_cast<int>(result));
    std::exit(1);
}
#define CHECK(call) check(call, #call)

std::uint64_t now_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(now.tv_nsec);
}

void sleep_until(std::uint64_t time_ns) {
    const timespec until{static_cast<time_t>(time_ns / 1'000'000'000U),
                         static_cast<long>(time_ns % 1'000'000'000U)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) != 0) {
    }
}

// "conv*2,norm" -> conv, conv, norm
std::vector<CUfunction> functions_of(const std::string& list, CUmodule module) {
    std::vector<CUfunction> functions;
    std::istringstream items(list);
    for (std::string item; std::getline(items, item, ',');) {
        const std::size_t star = item.find('*');
        CUfunction function = nullptr;
        CHECK(cuModuleGetFunction(&function, module, item.substr(0, star).c_str()));
        const int count = star == std::string::npos ? 1 : std::atoi(item.c_str() + star + 1);
        for (int i = 0; i < count; ++i) functions.push_back(function);
    }
    return functions;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 5) {
        std::fprintf(stderr, "usage: share_client KERNELS PAUSE_MS START_NS SECONDS\n");
        return 2;
    }
    const double pause_ms = std::atof(argv[2]);
    const std::uint64_t start_ns = std::strtoull(argv[3], nullptr, 10);
    const std::uint64_t end_ns = start_ns + static_cast<std::uint64_t>(std::atof(argv[4]) * 1e9);

    CUcontext context = nullptr;
    CUmodule module = nullptr;
    CUstream stream = nullptr;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuModuleLoadData(&module, "image"));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    const std::vector<CUfunction> kernels = functions_of(argv[1], module);

    std::mt19937_64 random(20240607);
    std::exponential_distribution<double> pause(pause_ms > 0 ? 1 / pause_ms : 1);
    std::vector<double> latencies_us;
    std::uint64_t launches = 0;
    sleep_until(start_ns);
    while (now_ns() < end_ns) {
        if (pause_ms > 0) sleep_until(now_ns() + static_cast<std::uint64_t>(pause(random) * 1e6));
        const std::uint64_t began_ns = now_ns();
        for (const CUfunction kernel : kernels) {
            CHECK(cuLaunchKernel(kernel, 132, 1, 1, 256, 1, 1, 0, stream, nullptr, nullptr));
            ++launches;
        }
        CHECK(cuStreamSynchronize(stream));
        latencies_us.push_back(static_cast<double>(now_ns() - began_ns) / 1e3);
    }
    std::printf("{\"launches\": %llu, \"steps\": %zu, \"latencies_us\": [",
                static_cast<unsigned long long>(launches), latencies_us.size());
    for (std::size_t i = 0; i < latencies_us.size(); ++i)
        std::printf("%s%.1f", i == 0 ? "" : ", ", latencies_us[i]);
    std::printf("]}\n");
    return 0;
}
