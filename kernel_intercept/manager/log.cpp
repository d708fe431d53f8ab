#include "kernel_intercept/manager/log.hpp"

#include <array>
#include <cstdarg>
#include <cstdio>

namespace explsched::manager {

void log(const char* format, ...) {
    std::array<char, 512> text;
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text.data(), text.size(), format, arguments);
    va_end(arguments);
    std::fprintf(stderr, "sexplkmd: %s\n", text.data());
}

}  // namespace explsched::manager
