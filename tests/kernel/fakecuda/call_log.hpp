// Who called: FAKECUDA_CALLS names a file that gets one line per call of cuInit and per look-up, with the
// file name of the library (or program) that the call came from. So a test sees whether an interposer sat in
// between.
#pragma once

#include <string>

namespace fakecuda {

void log_call(const std::string& what, const void* return_address);

}  // namespace fakecuda
