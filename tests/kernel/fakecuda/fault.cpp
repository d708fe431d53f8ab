#include "tests/kernel/fakecuda/fault.hpp"

#include <array>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>

namespace fakecuda {
namespace {

constexpr std::array<std::pair<const char*, Fault>, 10> kNames{{
    {"launch_error", Fault::kLaunchError},
    {"failed_context", Fault::kFailedContext},
    {"slow_call", Fault::kSlowCall},
    {"slow_capture", Fault::kSlowCapture},
    {"no_wait_node", Fault::kNoWaitNode},
    {"slow_signal", Fault::kSlowSignal},
    {"dlsym_in_init", Fault::kDlsymInInit},
    {"aliased", Fault::kAliased},
    {"text_alone", Fault::kTextAlone},
    {"no_pool_places", Fault::kNoPoolPlaces},
}};

}  // namespace

Fault fault = Fault::kNone;

void read_fault_from_environment() {
    const char* wanted = std::getenv("FAKECUDA_FAULT");
    if (wanted == nullptr) return;
    for (const auto& [name, value] : kNames) {
        if (std::string(name) == wanted) {
            fault = value;
            return;
        }
    }
    throw std::runtime_error(std::string("FAKECUDA_FAULT: unknown fault ") + wanted);
}

}  // namespace fakecuda
