// The one source that is compiled anew for every build of the fake driver.

#include "tests/kernel/fakecuda/driver.hpp"

namespace fakecuda {

const int kDriverVersion = FAKECUDA_DRIVER_VERSION;

}  // namespace fakecuda
