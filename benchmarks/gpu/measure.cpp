// What to measure where a GPU is lent: the driver, and how it is shared. One program that needs the driver,
// which it loads itself, and nothing else: no CUDA toolkit, no Python. benchmarks/gpu/plan runs it.

#include "benchmarks/gpu/measure.hpp"

#include <cstdio>
#include <cstdlib>

const unsigned char gpu_bench::kKernels[] = {
#include "gpu_kernels.inc"
};

int main(int argc, char** argv) {
    const std::string action = argc > 1 ? argv[1] : "";
    if (action == "probe" && argc < 4) return gpu_bench::probe(argc == 3 ? argv[2] : "");
    if (action == "share" && argc == 5)
        return gpu_bench::share(argv[0], std::atof(argv[2]), argv[3], argv[4]);
    if (action == "worker" && argc == 5) return gpu_bench::work(argv[2], std::atof(argv[3]), argv[4]);
    if (action == "device") return gpu_bench::device();
    std::fprintf(stderr, "usage: gpu_measure probe [NAME] | share SECONDS INTERPOSER MANAGER | device\n");
    return 2;
}
