// The kernels of gpu_measure, loaded through the driver. kernels.ptx is what nvcc makes of them, for builds
// without nvcc: make it anew with the command in benchmarks/CMakeLists.txt.
//
// Each writes when it began and when its last block ended, by the clock that all processes of a GPU share, to
// the place `number` of `stamps`, which is to be zero before, unless that is null.

namespace {

__device__ unsigned long long now_ns() {
    unsigned long long ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

struct Stamp {
    unsigned long long began_ns, ended_ns;
};

__device__ void begin(Stamp* stamps, unsigned number) {
    if (stamps != nullptr && blockIdx.x == 0 && threadIdx.x == 0) stamps[number].began_ns = now_ns();
}

__device__ void end(Stamp* stamps, unsigned number) {
    if (stamps != nullptr && threadIdx.x == 0) atomicMax(&stamps[number].ended_ns, now_ns());
}

}  // namespace

// Of one thread block.
extern "C" __global__ void spin(unsigned long long for_ns) {
    const unsigned long long from_ns = now_ns();
    while (now_ns() - from_ns < for_ns) {
    }
}

extern "C" __global__ void arithmetic(float* memory, unsigned rounds, Stamp* stamps, unsigned number) {
    begin(stamps, number);
    float value = 1.0f;
    const float factor = 0.99998474f;
    for (unsigned i = 0; i < rounds; ++i) value = __fmaf_rn(value, factor, factor);
    memory[0] = value;
    end(stamps, number);
}

extern "C" __global__ void memory(float* memory, unsigned rounds, Stamp* stamps, unsigned number) {
    constexpr unsigned kMask = (1U << 26) - 1;  // of 256 MiB
    begin(stamps, number);
    const unsigned stride = blockDim.x * gridDim.x;
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    for (unsigned i = 0; i < rounds; ++i, at += stride) sum += __ldcv(memory + (at & kMask));
    if (sum == __int_as_float(0x7f800000)) memory[0] = sum;  // never: it keeps the loads
    end(stamps, number);
}
