// Checks for test programs: a failed one is told with its place, and makes the program fail.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace check {

inline int failures = 0;

inline bool report(bool holds, const char* what, const char* file, int line) {
    if (!holds) {
        std::fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, what);
        ++failures;
    }
    return holds;
}

inline int result() {
    if (failures != 0) std::fprintf(stderr, "%d checks failed\n", failures);
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace check

#define CHECK(condition) check::report((condition), #condition, __FILE__, __LINE__)
// For what the rest of a test depends on.
#define REQUIRE(condition) \
    if (!CHECK(condition)) std::exit(check::result())
