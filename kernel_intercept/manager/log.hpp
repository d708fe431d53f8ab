#pragma once

#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>

namespace explsched::manager {

// One line to standard error, which starts with the program's name.
inline void log(const std::string& text) { std::fprintf(stderr, "sexplkmd: %s\n", text.c_str()); }

// Throws std::system_error that names what has failed, and why.
[[noreturn]] inline void fail(const std::string& what, int error = errno) {
    throw std::system_error(error, std::generic_category(), what);
}

}  // namespace explsched::manager
