#include "kernel_intercept/interposer/fork.hpp"

#include <pthread.h>

#include <atomic>

#include "kernel_intercept/gate/gate.hpp"
#include "kernel_intercept/interposer/boundaries.hpp"

namespace explsched::intercept {
namespace {

std::atomic<bool> g_watched{false};

// Runs in the child. The driver works there no more, so nothing of what is known of contexts is asked for.
void in_child() noexcept {
    gate::reset_after_fork();
    forget_tails_of_parent();
}

}  // namespace

void watch_forks() noexcept {
    if (g_watched.exchange(true, std::memory_order_acq_rel)) return;
    // It fails only without memory; the child then keeps the parent's place until its first new context.
    if (pthread_atfork(nullptr, nullptr, in_child) != 0) g_watched.store(false, std::memory_order_release);
}

}  // namespace explsched::intercept
