// Every entry point of the driver that launches kernels, by the name of its symbol, and both kinds of
// handles.

#include "tests/kernel/callers/session.hpp"

namespace {

using caller::Launched;

// Functions of one type, found by dlsym. cuda.h declares no _ptsz names to programs.
template <typename Function>
Function* found(const std::string& symbol) {
    void* function = caller::from_dlopen(symbol.c_str());
    REQUIRE(function != nullptr);
    return reinterpret_cast<Function*>(function);
}

void plain(const std::string& entry, CUfunction function, std::vector<Launched>& expected) {
    CHECK(
        found<decltype(cuLaunchKernel)>(entry)(function, 2, 3, 4, 32, 2, 1, 512, nullptr, nullptr, nullptr));
    expected.push_back({entry, "add", "2,3,4", "32,2,1", "512"});
}

void ex(const std::string& entry, CUfunction function, std::vector<Launched>& expected) {
    CUlaunchConfig config{};
    config.gridDimX = 5;
    config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
    config.blockDimX = 64;
    CHECK(found<decltype(cuLaunchKernelEx)>(entry)(&config, function, nullptr, nullptr));
    expected.push_back({entry, "add", "5,1,1", "64,1,1"});
}

void cooperative(const std::string& entry, CUfunction function, std::vector<Launched>& expected) {
    CHECK(
        found<decltype(cuLaunchCooperativeKernel)>(entry)(function, 6, 1, 1, 128, 1, 1, 0, nullptr, nullptr));
    expected.push_back({entry, "add", "6,1,1", "128,1,1"});
}

using MultiDevice = CUresult(CUDA_LAUNCH_PARAMS*, unsigned, unsigned);  // deprecated, and still there

void multi_device(CUfunction function, std::vector<Launched>& expected) {
    CUstream stream = nullptr;
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUDA_LAUNCH_PARAMS params{};
    params.function = function;
    params.gridDimX = 7;
    params.gridDimY = params.gridDimZ = params.blockDimY = params.blockDimZ = 1;
    params.blockDimX = 32;
    params.hStream = stream;
    CHECK(found<MultiDevice>("cuLaunchCooperativeKernelMultiDevice")(&params, 1, 0));
    expected.push_back({"cuLaunchCooperativeKernelMultiDevice", "add", "7,1,1", "32,1,1"});
}

void deprecated(CUfunction function, std::vector<Launched>& expected) {
    CHECK(found<CUresult(CUfunction, int, int, int)>("cuFuncSetBlockShape")(function, 16, 4, 1));
    CHECK(found<CUresult(CUfunction, unsigned)>("cuFuncSetSharedSize")(function, 256));
    CHECK(found<CUresult(CUfunction)>("cuLaunch")(function));
    expected.push_back({"cuLaunch", "add", "1,1,1", "16,4,1", "256"});
    CHECK(found<CUresult(CUfunction, int, int)>("cuLaunchGrid")(function, 8, 2));
    expected.push_back({"cuLaunchGrid", "add", "8,2,1", "16,4,1", "256"});
    CHECK(found<CUresult(CUfunction, int, int, CUstream)>("cuLaunchGridAsync")(function, 9, 1, nullptr));
    expected.push_back({"cuLaunchGridAsync", "add", "9,1,1", "16,4,1", "256"});
}

}  // namespace

int main() {
    caller::clear_trace();
    const caller::Session session = caller::open_session();
    std::vector<Launched> expected;
    for (const std::string suffix : {"", "_ptsz"}) {
        // The runtime of CUDA 12 and later passes a CUkernel where a CUfunction is declared.
        for (CUfunction function : {session.add, reinterpret_cast<CUfunction>(session.library_add)}) {
            plain("cuLaunchKernel" + suffix, function, expected);
            ex("cuLaunchKernelEx" + suffix, function, expected);
            cooperative("cuLaunchCooperativeKernel" + suffix, function, expected);
        }
    }
    multi_device(session.add, expected);
    deprecated(session.add, expected);
    return caller::verdict(expected.size(), expected);
}
