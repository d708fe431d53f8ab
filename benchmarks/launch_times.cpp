// Times kernel launches on the fake driver: through what a program gets from cuGetProcAddress ("seen"), which
// is the interposer's function where one is preloaded, and through the driver's own function ("bare"), in
// turns in the same process. Prints one line of JSON, times in ns.
//
// Arguments: number of rounds, or "idle" to launch once and then wait for the end of standard input.
//
// Twice over, because no clock is both fine and cheap. The usual time (p50) is that of sixteen launches in a
// row, divided, as counters of virtual machines may tick in steps of 10 ns. For the rare slow ones (p99, and
// "single_p50" to compare with) each launch is timed for itself, between fences that keep it from overlapping
// with what is around it.

#include <x86intrin.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/kernel/callers/session.hpp"

extern "C" decltype(&cuLaunchKernel) fakecuda_own_launch();

namespace {

using Launch = decltype(&cuLaunchKernel);

// As many as a program may have in flight between two synchronisations, and no more than credit lasts for.
constexpr int kLaunchesPerRound = 16;
constexpr int kWarmUpRounds = 1000;

Launch seen_launch() {
    void* function = nullptr;
    CHECK(cuGetProcAddress("cuLaunchKernel", &function, 12000, CU_GET_PROC_ADDRESS_DEFAULT, nullptr));
    return reinterpret_cast<Launch>(function);
}

std::uint64_t ticks() {
    _mm_lfence();
    const std::uint64_t now = __rdtsc();
    _mm_lfence();
    return now;
}

CUresult launch_one(Launch launch, CUfunction kernel) {
    return launch(kernel, 4, 1, 1, 256, 1, 1, 0, nullptr, nullptr, nullptr);
}

struct Times {
    std::vector<std::uint64_t> of_singles;
    std::vector<std::uint64_t> of_rows;  // of kLaunchesPerRound launches each
};

void round(Launch launch, CUfunction kernel, Times& took) {
    for (int i = 0; i < kLaunchesPerRound; ++i) {
        const std::uint64_t begin = ticks();
        const CUresult result = launch_one(launch, kernel);
        const std::uint64_t end = ticks();
        CHECK(result);
        took.of_singles.push_back(end - begin);
    }
    CHECK(cuStreamSynchronize(nullptr));
    int failed = 0;
    const std::uint64_t begin = ticks();
    for (int i = 0; i < kLaunchesPerRound; ++i) failed |= launch_one(launch, kernel);
    took.of_rows.push_back(ticks() - begin);
    REQUIRE(failed == 0);
    CHECK(cuStreamSynchronize(nullptr));
}

double percentile(std::vector<std::uint64_t> values, double share) {
    const auto at =
        values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
    std::nth_element(values.begin(), at, values.end());
    return static_cast<double>(*at);
}

struct Clocks {
    std::chrono::steady_clock::time_point time{std::chrono::steady_clock::now()};
    std::uint64_t ticks{::ticks()};
};

double ns_per_tick(const Clocks& from, const Clocks& to) {
    const std::chrono::duration<double, std::nano> passed = to.time - from.time;
    return passed.count() / static_cast<double>(to.ticks - from.ticks);
}

void print(const char* name, const Times& took, double ns) {
    std::printf(", \"%s_p50\": %.2f, \"%s_single_p50\": %.1f, \"%s_single_p99\": %.1f", name,
                percentile(took.of_rows, 0.5) * ns / kLaunchesPerRound, name,
                percentile(took.of_singles, 0.5) * ns, name, percentile(took.of_singles, 0.99) * ns);
}

void measure(CUfunction kernel, int rounds) {
    const Launch bare = fakecuda_own_launch();
    const Launch seen = seen_launch();
    Times of_bare;
    Times of_seen;
    for (int i = 0; i < kWarmUpRounds; ++i) {
        round(bare, kernel, of_bare);
        round(seen, kernel, of_seen);
    }
    of_bare = of_seen = Times{};
    const Clocks begin;
    for (int i = 0; i < rounds; ++i) {
        round(bare, kernel, of_bare);
        round(seen, kernel, of_seen);
    }
    const double ns = ns_per_tick(begin, Clocks{});
    std::printf("{\"intercepted\": %s", bare == seen ? "false" : "true");
    print("bare", of_bare, ns);
    print("seen", of_seen, ns);
    std::puts("}");
}

}  // namespace

int main(int, char** argv) {
    const caller::Session session = caller::open_session();
    if (std::strcmp(argv[1], "idle") != 0) {
        measure(session.add, std::atoi(argv[1]));
        return 0;
    }
    caller::launch(session.add, 1, nullptr);
    CHECK(cuStreamSynchronize(nullptr));
    std::puts("idle");
    std::fflush(stdout);
    while (std::getchar() != EOF) {
    }
    return 0;
}
