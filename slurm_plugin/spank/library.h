/* Whether the interposer may be preloaded into a task. */
#ifndef EXPLSCHED_SPANK_LIBRARY_H
#define EXPLSCHED_SPANK_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

/*
 * True if `path` is a regular file that only root or its owner may write and that the dynamic linker loads.
 * Else a message says why not. To be called in a process that is about to become the task: loading runs no
 * code of the library (it has no constructors), but leaves traces in the linker's tables.
 */
bool expl_library_usable(const char *path, char *message, size_t size);

#endif
