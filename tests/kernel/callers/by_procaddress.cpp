// cuGetProcAddress for everything, as the runtime does. Arguments: "4" or "5" (which ABI of
// cuGetProcAddress), "legacy" or "per-thread" (which default stream).

#include <cstring>

#include "tests/kernel/callers/caller.hpp"

namespace {

using FourArguments = CUresult(const char*, void**, int, cuuint64_t);
using FiveArguments = CUresult(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

// The version of CUDA's that brought the ABI of which the test wants the functions.
constexpr int kVersionOfFour = 11030;
constexpr int kVersionOfFive = 13000;

// A name that the driver does not have, and an empty one, are no reason to fail.
void probe(FiveArguments* get) {
    void* function = &function;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    CHECK(get("", &function, 0, 0, &status));
    REQUIRE(function == nullptr);
    REQUIRE(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    CHECK(get("cuLaunchKernelEx", &function, 11000, 0, &status));
    REQUIRE(function == nullptr);
    REQUIRE(status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    CHECK(get("cuLaunchKernel", &function, kVersionOfFive, 0, nullptr));  // the status is optional
    REQUIRE(function != nullptr);
    // The function looks itself up: by version, the same name means one ABI or the other.
    CHECK(get("cuGetProcAddress", &function, kVersionOfFour, 0, &status));
    void* again = nullptr;
    CHECK(reinterpret_cast<FourArguments*>(function)("cuInit", &again, 2000, 0));
    REQUIRE(again != nullptr);
}

}  // namespace

int main(int, char** argv) {
    const bool five = std::strcmp(argv[1], "5") == 0;
    const bool per_thread = std::strcmp(argv[2], "per-thread") == 0;
    const cuuint64_t flags =
        per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_DEFAULT;
    caller::clear_trace();
    void* get = caller::from_dlopen(five ? "cuGetProcAddress_v2" : "cuGetProcAddress");
    REQUIRE(get != nullptr);
    if (five) probe(reinterpret_cast<FiveArguments*>(get));
    caller::launch_three([&](const char* base) {
        void* function = nullptr;
        if (five) {
            CHECK(reinterpret_cast<FiveArguments*>(get)(base, &function, kVersionOfFive, flags, nullptr));
        } else {
            CHECK(reinterpret_cast<FourArguments*>(get)(base, &function, kVersionOfFour, flags));
        }
        return function;
    });
    return caller::verdict(3, caller::three(per_thread ? "cuLaunchKernel_ptsz" : "cuLaunchKernel"));
}
