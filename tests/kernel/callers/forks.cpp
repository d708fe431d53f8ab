// fork before and after cuInit. Argument: "before" or "after".

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "tests/kernel/callers/caller.hpp"

namespace {

int status_of(pid_t child) {
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// The child is a process like any other.
int fork_first() {
    const pid_t child = fork();
    if (child == 0) {
        caller::launch_three(caller::from_dlopen);
        _exit(caller::verdict(3, caller::three("cuLaunchKernel")));
    }
    REQUIRE(status_of(child) == 0);
    caller::clear_trace();
    caller::launch_three(caller::from_dlopen);
    return caller::verdict(3, caller::three("cuLaunchKernel"));
}

// In the child CUDA does not work, and says so; it must not hang. The parent goes on as before.
int fork_last() {
    caller::launch_three(caller::from_dlopen);
    const pid_t child = fork();
    if (child == 0) {
        alarm(20);
        const auto init = reinterpret_cast<decltype(cuInit)*>(caller::from_dlopen("cuInit"));
        const auto launch =
            reinterpret_cast<decltype(cuLaunchKernel)*>(caller::from_dlopen("cuLaunchKernel"));
        REQUIRE(init(0) == CUDA_ERROR_NOT_INITIALIZED);
        REQUIRE(launch(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) ==
                CUDA_ERROR_NOT_INITIALIZED);
        _exit(0);
    }
    REQUIRE(status_of(child) == 0);
    caller::clear_trace();
    caller::launch_three(caller::from_dlopen);
    return caller::verdict(6, caller::three("cuLaunchKernel"));
}

}  // namespace

int main(int, char** argv) {
    caller::clear_trace();
    return std::strcmp(argv[1], "before") == 0 ? fork_first() : fork_last();
}
