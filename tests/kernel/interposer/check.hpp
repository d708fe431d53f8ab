// Checks that end the test with a message that says what was found.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

namespace explsched::test {

inline void require(bool holds, const std::string& what, const char* file, int line) {
    if (holds) return;
    std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
    std::exit(1);
}

inline std::string shown(const std::string& text) { return "\"" + text + "\""; }
template <typename T>
std::string shown(const T& value) {
    return std::to_string(value);
}

template <typename Found, typename Expected>
void require_equal(const Found& found, const Expected& expected, const char* what, const char* file,
                   int line) {
    require(found == expected, std::string(what) + " is " + shown(found) + ", expected " + shown(expected),
            file, line);
}

}  // namespace explsched::test

#define CHECK(condition) explsched::test::require((condition), #condition, __FILE__, __LINE__)
#define CHECK_EQUAL(found, expected) \
    explsched::test::require_equal((found), (expected), #found, __FILE__, __LINE__)
