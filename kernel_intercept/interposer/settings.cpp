#include "kernel_intercept/interposer/settings.hpp"

#include <strings.h>

#include <cstdlib>
#include <cstring>

#include "kernel_intercept/gate/gate.hpp"

namespace explsched::intercept {

std::atomic<Mode> g_mode{Mode::kUnread};

std::atomic<bool> g_gate_on_device{true};
std::atomic<bool> g_best_effort{false};

namespace {

std::atomic<char*> g_trace_path{nullptr};

bool is_off(const char* value) noexcept { return value != nullptr && strcasecmp(value, "off") == 0; }

// Keeps a copy: the program may change its environment later.
bool keep_trace_path(const char* value) noexcept {
    if (value == nullptr || value[0] == '\0') return false;
    char* copy = strdup(value);
    if (copy == nullptr) return false;
    char* none = nullptr;
    if (!g_trace_path.compare_exchange_strong(none, copy)) std::free(copy);  // another thread was first
    return true;
}

}  // namespace

Mode read_environment() noexcept {
    Mode found = Mode::kOn;
    const char* gate = std::getenv("EXPLSCHED_GATE");
    g_gate_on_device.store(gate == nullptr || std::strcmp(gate, "host") != 0, std::memory_order_relaxed);
    g_best_effort.store(gate::is_best_effort(), std::memory_order_relaxed);
    if (is_off(std::getenv("EXPLSCHED_INTERCEPT"))) {
        found = Mode::kOff;
    } else if (keep_trace_path(std::getenv("EXPLSCHED_TRACE"))) {
        found = Mode::kTracing;
    }
    g_mode.store(found, std::memory_order_release);
    return found;
}

const char* trace_path() noexcept { return g_trace_path.load(std::memory_order_acquire); }

}  // namespace explsched::intercept
