#include "slurm_plugin/spank/task.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "slurm_plugin/spank/library.h"

enum { PATHS_SIZE = 8192, SOCKET_SIZE = 108, KEEP = 0, REPLACE = 1, START_MS = 5000, ANOTHER_SERVES = 3 };

static const char MANAGER_SOCKET[] =
    "/kernel-manager.sock"; /* in the directory that a manager is started in */

static void set(spank_t job, const char *variable, const char *value, int overwrite) {
    spank_err_t const result = spank_setenv(job, variable, value, overwrite);
    if (result != ESPANK_SUCCESS && result != ESPANK_ENV_EXISTS) {
        slurm_error("explsched: %s: %s", variable, spank_strerror(result));
    }
}

/* Puts the library behind what the user preloads already, as `sxrun` does: what stands in front of it finds
 * it by RTLD_NEXT. A library that does not load is left out. */
static void preload(spank_t job, const char *library) {
    char message[512];
    if (!expl_library_usable(library, message, sizeof message)) {
        slurm_error("explsched: kernels are not gated: %s", message);
        return;
    }
    char present[PATHS_SIZE / 2] = "";
    spank_err_t const result = spank_getenv(job, "LD_PRELOAD", present, sizeof present);
    if (result == ESPANK_NOSPACE) {
        slurm_error("explsched: kernels are not gated: LD_PRELOAD is longer than %zu", sizeof present - 1);
        return;
    }
    if (strstr(present, library) != NULL) {
        return; /* a step inside a job that has it already */
    }
    char value[PATHS_SIZE];
    snprintf(value, sizeof value, "%s%s%s", present, present[0] != '\0' ? ":" : "", library);
    set(job, "LD_PRELOAD", value, REPLACE);
}

/* Whether a path lies in a directory of an `sxrun` (wrappers/runtime_directory.py) that is of another job, or
 * of another node: a job that is submitted from inside a job inherits its variables, a step on all nodes
 * those of the batch script. */
static bool is_of_another_sxrun(spank_t job, const char *path) {
    char room[32], job_id[16] = "nojob", own[sizeof job_id + 1];
    snprintf(room, sizeof room, "/explsched-%u-", (unsigned)geteuid());
    const char *const found = strstr(path, room);
    if (found == NULL) {
        return false;
    }
    const char *const whose = found + strlen(room);
    spank_getenv(job, "SLURM_JOB_ID", job_id, sizeof job_id);
    snprintf(own, sizeof own, "%s-", job_id);
    if (strncmp(whose, own, strlen(own)) == 0 || strncmp(whose, "gpu-", 4) == 0) {
        return access(path, F_OK) != 0;
    }
    size_t const digits = strspn(whose, "0123456789");
    return (digits > 0 && whose[digits] == '-') || strncmp(whose, "nojob-", 6) == 0;
}

/* The value that the user has chosen for the variable, false if there is none. */
static bool chosen(spank_t job, const char *variable, char *value, size_t size) {
    return spank_getenv(job, variable, value, (int)size) == ESPANK_SUCCESS &&
           !is_of_another_sxrun(job, value);
}

/* Without MPS the kernels of different processes take turns. A daemon that is not there must not be waited
 * for. */
static void mps(spank_t job, const char *directory) {
    char control[PATHS_SIZE], own[PATHS_SIZE];
    snprintf(control, sizeof control, "%s/control", directory);
    if (access(control, F_OK) == 0 && !chosen(job, "CUDA_MPS_PIPE_DIRECTORY", own, sizeof own)) {
        set(job, "CUDA_MPS_PIPE_DIRECTORY", directory, REPLACE);
    }
}

/* The socket of this user's manager. False if it is longer than an address can be. */
static bool socket_of_user(const char *pattern, char *path, size_t size) {
    const char *const mark = strstr(pattern, "%u");
    int const length = mark == NULL ? snprintf(path, size, "%s", pattern)
                                    : snprintf(path, size, "%.*s%u%s", (int)(mark - pattern), pattern,
                                               (unsigned)geteuid(), mark + 2);
    return length >= 0 && (size_t)length < size;
}

/* A fraction of the GPU's time, request or limit: only a manager can keep to it. */
static bool asks_for_a_share(const struct expl_values *values) {
    for (size_t i = 0; i < expl_option_count; i++) {
        if (values->text[i][0] != '\0' && expl_options[i].canonical == expl_fraction) {
            return true;
        }
    }
    return false;
}

/* Waits for a bounded time. A status as of waitpid, or -1. */
static int ended(pid_t child) {
    for (int waited_ms = 0; waited_ms < START_MS; waited_ms += 10) {
        int status = -1;
        pid_t const found = waitpid(child, &status, WNOHANG);
        if (found != 0) {
            return found == child ? status : -1;
        }
        nanosleep(&(struct timespec){.tv_nsec = 10000000L}, NULL);
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return -1;
}

/* Runs a program, which writes to `out`, for a bounded time. A status as of waitpid, or -1. */
static int run(char *const argv[], char *const environment[], int out) {
    pid_t const child = fork();
    if (child == 0) {
        int const nothing = open("/dev/null", O_RDWR);
        dup2(nothing, STDIN_FILENO);
        dup2(out < 0 ? nothing : out, STDOUT_FILENO);
        dup2(nothing, STDERR_FILENO);
        execve(argv[0], argv, environment);
        _exit(127);
    }
    return child < 0 ? -1 : ended(child);
}

/* A manager keeps the policy that it was started with. One that groups kernels does not heed shares. */
static void tell_if_it_groups(char *program, char *directory, char *const environment[]) {
    char *const argv[] = {program, "--dir", directory, "--status", NULL};
    char text[1024] = "";
    int ends[2];
    if (pipe(ends) != 0) {
        return;
    }
    run(argv, environment, ends[1]);
    close(ends[1]);
    ssize_t const length = read(ends[0], text, sizeof text - 1);
    close(ends[0]);
    if (length > 0 && strstr(text, "\"policy\": \"group\"") != NULL) {
        slurm_error(
            "explsched: request and limit do not count: this user's kernel manager in %s groups kernels",
            directory);
    }
}

/* Sees to it that a manager of the user's answers at `socket`. The program returns as soon as it does; that
 * another one serves already, which is as good, it tells by a status of its own. */
static void start_manager(spank_t job, const char *program, const char *socket, bool has_quota) {
    size_t const length = strlen(socket), suffix = strlen(MANAGER_SOCKET);
    if (length <= suffix || strcmp(socket + length - suffix, MANAGER_SOCKET) != 0) {
        slurm_error("explsched: plugstack.conf: with manager=, manager_socket= ends with %s", MANAGER_SOCKET);
        return;
    }
    /* Both say where the profiles are. */
    char directory[SOCKET_SIZE], home[PATHS_SIZE / 2] = "HOME=", cache[PATHS_SIZE / 2] = "XDG_CACHE_HOME=";
    snprintf(directory, sizeof directory, "%.*s", (int)(length - suffix), socket);
    spank_getenv(job, "HOME", home + strlen(home), (int)(sizeof home - strlen(home)));
    spank_getenv(job, "XDG_CACHE_HOME", cache + strlen(cache), (int)(sizeof cache - strlen(cache)));
    char *const argv[] = {
        (char *)program, "--dir", directory, "--policy", has_quota ? "quota" : "group", NULL};
    char *const environment[] = {home, cache, NULL};
    int const status = run(argv, environment, -1);
    if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != ANOTHER_SERVES)) {
        slurm_error("explsched: kernels are not managed: %s --dir %s does not start", program, directory);
        return;
    }
    if (has_quota && WEXITSTATUS(status) == ANOTHER_SERVES) {
        tell_if_it_groups((char *)program, directory, environment);
    }
}

static void manager(spank_t job, const struct expl_settings *settings, bool has_quota) {
    char path[SOCKET_SIZE];
    if (!socket_of_user(settings->manager_socket, path, sizeof path)) {
        slurm_error("explsched: plugstack.conf: manager_socket=%s: too long", settings->manager_socket);
        return;
    }
    char own[PATHS_SIZE];
    /* A step of a batch job has ours already; on the job's other nodes nobody serves there yet. */
    if (chosen(job, "EXPLSCHED_KM_SOCKET", own, sizeof own) && strcmp(own, path) != 0) {
        return; /* the user's choice */
    }
    if (settings->manager != NULL) {
        start_manager(job, settings->manager, path, has_quota);
    }
    set(job, "EXPLSCHED_KM_SOCKET", path, REPLACE);
}

/* The kill switch, in any case, as `sxrun` reads it. */
static bool is_switched_off(spank_t job) {
    char word[8];
    return spank_getenv(job, "EXPLSCHED_INTERCEPT", word, sizeof word) == ESPANK_SUCCESS &&
           strcasecmp(word, "off") == 0;
}

void expl_task_environment(spank_t job, const struct expl_values *values,
                           const struct expl_settings *settings) {
    for (size_t i = 0; i < expl_option_count; i++) {
        if (values->text[i][0] != '\0') {
            set(job, expl_options[i].variable, values->text[i], REPLACE);
        }
    }
    if (settings->spool != NULL) {
        set(job, "EXPLSCHED_SPOOL", settings->spool, KEEP);
    }
    if (!expl_shares_gpu(values) || is_switched_off(job)) {
        return;
    }
    if (settings->library != NULL) {
        preload(job, settings->library);
    }
    if (settings->manager_socket != NULL) {
        manager(job, settings, asks_for_a_share(values));
    }
    if (settings->mps_pipe_directory != NULL) {
        mps(job, settings->mps_pipe_directory);
    }
}
