// A forked child starts anew: it has no contexts and no place with the manager.
#pragma once

namespace explsched::intercept {

// Sees to it, once per process, that the child of a fork forgets what was the parent's.
void watch_forks() noexcept;

}  // namespace explsched::intercept
