// RTLD_NEXT from a library in the middle: for a driver function, and for one that has nothing to do with
// CUDA.

#include "tests/kernel/callers/caller.hpp"
#include "tests/kernel/callers/middle.hpp"

int main() {
    caller::clear_trace();
    REQUIRE(middle_wrapped(4) == 41);
    caller::launch_three(middle_next);
    return caller::verdict(3, caller::three("cuLaunchKernel"));
}
