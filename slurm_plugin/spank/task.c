#include "slurm_plugin/spank/task.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "slurm_plugin/spank/library.h"

enum { PATHS_SIZE = 8192, KEEP = 0, REPLACE = 1 };

static void set(spank_t job, const char *variable, const char *value, int overwrite) {
    spank_err_t const result = spank_setenv(job, variable, value, overwrite);
    if (result != ESPANK_SUCCESS && result != ESPANK_ENV_EXISTS) {
        slurm_error("explsched: %s: %s", variable, spank_strerror(result));
    }
}

/* Puts the library before what the user preloads already; a library that does not load is left out. */
static void preload(spank_t job, const char *library) {
    char message[512];
    if (!expl_library_usable(library, message, sizeof message)) {
        slurm_error("explsched: kernels are not gated: %s", message);
        return;
    }
    char present[PATHS_SIZE / 2] = "";
    spank_err_t const result = spank_getenv(job, "LD_PRELOAD", present, sizeof present);
    if (result == ESPANK_NOSPACE || strstr(present, library) != NULL) {
        return; /* a step inside a job that has it already, or a list too long to extend */
    }
    char value[PATHS_SIZE];
    snprintf(value, sizeof value, "%s%s%s", library, present[0] != '\0' ? ":" : "", present);
    set(job, "LD_PRELOAD", value, REPLACE);
}

/* Without MPS the kernels of different processes take turns. A daemon that is not there must not be waited
 * for. */
static void mps(spank_t job, const char *directory) {
    char control[PATHS_SIZE];
    snprintf(control, sizeof control, "%s/control", directory);
    if (access(control, F_OK) == 0) {
        set(job, "CUDA_MPS_PIPE_DIRECTORY", directory, KEEP);
    }
}

void expl_task_environment(spank_t job, const struct expl_values *values,
                           const struct expl_settings *settings) {
    for (size_t i = 0; i < expl_option_count; i++) {
        if (values->text[i][0] == '\0') {
            continue;
        }
        set(job, expl_options[i].variable, values->text[i], REPLACE);
        if (expl_options[i].is_read_in_job && expl_options[i].former_variable != NULL) {
            set(job, expl_options[i].former_variable, values->text[i], REPLACE); /* for one release more */
        }
    }
    if (settings->spool != NULL) {
        set(job, "EXPLSCHED_SPOOL", settings->spool, KEEP);
    }
    if (!expl_shares_gpu(values)) {
        return;
    }
    if (settings->library != NULL) {
        preload(job, settings->library);
    }
    if (settings->manager_socket != NULL) {
        set(job, "EXPLSCHED_KM_SOCKET", settings->manager_socket, KEEP);
    }
    if (settings->mps_pipe_directory != NULL) {
        mps(job, settings->mps_pipe_directory);
    }
}
