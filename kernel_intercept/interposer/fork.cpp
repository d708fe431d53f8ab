#include "kernel_intercept/interposer/fork.hpp"

#include <pthread.h>

#include <atomic>

#include "kernel_intercept/gate/gate.hpp"
#include "kernel_intercept/interposer/capture.hpp"
#include "kernel_intercept/interposer/contexts.hpp"
#include "kernel_intercept/interposer/epoch.hpp"

namespace explsched::intercept {
namespace {

std::atomic<bool> g_watched{false};

// Runs in the child. Calls no driver: the parent's contexts are invalid there, and their events with them.
void in_child() noexcept {
    forget_all_contexts();
    forget_captures();
    start_handle_epoch();
    gate::reset_after_fork();
}

}  // namespace

void watch_forks() noexcept {
    if (g_watched.exchange(true, std::memory_order_acq_rel)) return;
    // It fails only without memory; the child then keeps the parent's place until its first new context.
    if (pthread_atfork(nullptr, nullptr, in_child) != 0) g_watched.store(false, std::memory_order_release);
}

}  // namespace explsched::intercept
