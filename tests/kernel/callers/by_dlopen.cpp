// dlopen and dlsym.

#include "tests/kernel/callers/caller.hpp"

int main() {
    caller::clear_trace();
    caller::launch_three(caller::from_dlopen);
    return caller::verdict(3, caller::three("cuLaunchKernel"));
}
