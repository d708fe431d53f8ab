// Amounts of memory, as the command line takes them, too (tests/explsched/job_options).

#include "kernel_intercept/interposer/memory_amount.hpp"

#include <string>

#include "tests/kernel/interposer/check.hpp"

using explsched::intercept::bytes_of_amount;

int main() {
    constexpr std::uint64_t kMiB = 1 << 20;
    for (const char* text : {"20480", "20480M", "20480m", "20G", "20g", "20971520K", "20971520k", "020G"})
        CHECK_EQUAL(bytes_of_amount(text), 20480 * kMiB);
    CHECK_EQUAL(bytes_of_amount("2T"), (std::uint64_t{2} << 20) * kMiB);
    CHECK_EQUAL(bytes_of_amount("3000K"), 2 * kMiB);
    CHECK(bytes_of_amount("999999999999T") > std::uint64_t{1} << 50);
    for (const char* text : {"", "0", "1023K", "G", "-1G", "+1G", " 1G", "1 G", "1GB", "1GiB", "1.5G", "0x10",
                             "1P", "1234567890123", "99999999999999999999", "all"})
        CHECK_EQUAL(bytes_of_amount(text), std::uint64_t{0});
    return 0;
}
