#pragma once

#include <cstdio>
#include <string>

namespace explsched::manager {

// One line to standard error, which starts with the program's name.
inline void log(const std::string& text) { std::fprintf(stderr, "sexplkmd: %s\n", text.c_str()); }

}  // namespace explsched::manager
