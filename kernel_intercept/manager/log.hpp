#pragma once

namespace explsched::manager {

// One line to standard error, which starts with the program's name.
__attribute__((format(printf, 1, 2))) void log(const char* format, ...);

}  // namespace explsched::manager
