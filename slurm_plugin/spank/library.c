#include "slurm_plugin/spank/library.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

bool expl_library_usable(const char *path, char *message, size_t size) {
    struct stat found;
    if (stat(path, &found) != 0) {
        snprintf(message, size, "%s: %s", path, strerror(errno));
        return false;
    }
    if (!S_ISREG(found.st_mode) || (found.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        snprintf(message, size, "%s: not a file that its owner alone may write", path);
        return false;
    }
    void *const handle = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (handle == NULL) {
        const char *const why = dlerror();
        snprintf(message, size, "%s", why != NULL ? why : path);
        return false;
    }
    dlclose(handle);
    return true;
}
