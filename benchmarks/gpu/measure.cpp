// What to measure where a GPU is lent: the driver, and how it is shared. One program that needs the driver,
// which it loads itself, and nothing else: no CUDA toolkit, no Python. benchmarks/gpu/plan runs it.

#include "benchmarks/gpu/measure.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr unsigned char kKernels[] = {
#include "gpu_kernels.inc"
};
constexpr unsigned char kText[] = {
#include "gpu_kernels_ptx.inc"
};
constexpr unsigned char kFatBinary[] = {0x50, 0xed, 0x55, 0xba};

}  // namespace

gpu_bench::Kernels gpu_bench::load_kernels() {
    Kernels kernels{nullptr, std::memcmp(kKernels, kFatBinary, sizeof(kFatBinary)) == 0};
    const auto load = [&](const unsigned char* image) {
        return result_of("cuModuleLoadData", &kernels.module, static_cast<const void*>(image));
    };
    if (kernels.compiled && load(kKernels) == kSuccess) return kernels;
    kernels.compiled = false;
    if (const Result result = load(kText); result != kSuccess) fail("cuModuleLoadData", result);
    return kernels;
}

int main(int argc, char** argv) {
    static char buffer[1 << 16];  // lines are written whole, so that whoever ends this leaves none in half
    std::setvbuf(stdout, buffer, _IOFBF, sizeof(buffer));
    const std::string action = argc > 1 ? argv[1] : "";
    if (action == "probe" && argc < 4) return gpu_bench::probe(argc == 3 ? argv[2] : "");
    if (action == "share" && argc == 5)
        return gpu_bench::share(argv[0], std::atof(argv[2]), argv[3], argv[4]);
    if (action == "worker" && argc == 8)
        return gpu_bench::work(
            argv[2], std::atof(argv[3]), argv[4],
            {static_cast<unsigned>(std::atoi(argv[5])), {std::atof(argv[6]), std::atof(argv[7])}});
    if (action == "device") return gpu_bench::device();
    std::fprintf(stderr, "usage: gpu_measure probe [NAME] | share SECONDS INTERPOSER MANAGER | device\n");
    return 2;
}
