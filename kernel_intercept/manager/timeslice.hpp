#pragma once

namespace explsched::manager {

// Asks the system for short turns on a core, which come sooner where others compute: managers work for
// microseconds at a time, and launches wait for them. Of use from Linux 6.12 on (EEVDF); before, and where it
// is refused, nothing changes.
void request_short_timeslice() noexcept;

}  // namespace explsched::manager
