// A page as a manager makes it, for tests without one.
#pragma once

#include <sys/mman.h>

#include <new>

#include "kernel_intercept/shared/layout.hpp"

namespace page_under_test {

using namespace explsched::shared;

constexpr std::uint64_t kUs = 1000, kMs = 1'000'000;
constexpr std::uint64_t kNow = 1'000'000'000'000;

// In memory of its own kind, as the clients see it.
struct SharedPage {
    SharedPage()
        : at(mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
          page(*new (at) Page{}) {
        page.control.policy = Policy::kGroup;
        page.control.cap_compute_permille = 950;
        page.control.cap_bandwidth_permille = 950;
        page.control.high_share_permille = 25;
        page.control.ahead_ns = 2 * kMs;
    }
    ~SharedPage() { munmap(at, sizeof(Page)); }
    SharedPage(const SharedPage&) = delete;
    SharedPage& operator=(const SharedPage&) = delete;

    void occupy(std::uint32_t slot, Class priority = Class::kBestEffort) {
        page.control.occupied.fetch_or(std::uint64_t{1} << slot);
        if (priority == Class::kHigh) page.control.high.fetch_or(std::uint64_t{1} << slot);
    }

    void* at;
    Page& page;
};

// Ends are kept in ticks.
inline bool about(std::uint64_t time_ns, std::uint64_t expected_ns) {
    return time_ns >= expected_ns && time_ns <= expected_ns + 2 * 256;
}

}  // namespace page_under_test
