// An amount of memory as job options give it (explsched/job_options/values.py): a whole number with K, M, G
// or T, in either case, powers of 1024; mebibytes without one.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>

namespace explsched::intercept {

// Bytes, of whole mebibytes; 0 for what is no such amount, or less than one. More than any GPU has is cut.
inline std::uint64_t bytes_of_amount(const char* text) noexcept {
    constexpr std::uint64_t kMost = std::uint64_t{1} << 62, kMiB = 1 << 20;
    constexpr std::ptrdiff_t kMostDigits = 12;
    const char* const all = text + std::strlen(text);
    std::uint64_t number = 0;  // strtoull would ask for glibc 2.38 where that is there
    const auto [end, error] = std::from_chars(text, all, number);
    if (error != std::errc{} || end - text > kMostDigits || all - end > 1) return 0;
    unsigned shift = 20;
    switch (*end | ('a' - 'A')) {
        case 'k':
            shift = 10;
            break;
        case 'm':
            break;
        case 'g':
            shift = 30;
            break;
        case 't':
            shift = 40;
            break;
        default:
            if (end != all) return 0;
    }
    return std::min(number, kMost >> shift) << shift & ~(kMiB - 1);
}

}  // namespace explsched::intercept
