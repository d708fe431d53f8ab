/*
 * explsched-site-factors: sets the site factors of many jobs, with several requests to slurmctld under way at
 * a time.
 *
 * scontrol waits for each answer before it sends the next request; for a new order of a thousand jobs most of
 * that time is latency. Standard input: lines "JOBID FACTOR". Standard output: a line "JOBID message" for
 * each job that Slurm refuses. Exit status: 0 when every line was tried, 1 when slurmctld cannot be reached,
 * 2 for wrong usage.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* More do not help: slurmctld changes jobs one at a time. They only have the next request ready when it is.
 */
enum { THREADS = 4, LONGEST_LINE = 64 };

struct change {
    uint32_t job_id;
    int32_t factor;
};

static struct change *changes;
static size_t count;
static atomic_size_t next;
static atomic_bool unreachable;
static pthread_mutex_t output = PTHREAD_MUTEX_INITIALIZER;

/* Errors of the connection: no other job would fare better. */
static bool is_unreachable(int error) {
    return (error >= SLURM_COMMUNICATIONS_CONNECTION_ERROR && error <= SLURM_COMMUNICATIONS_SHUTDOWN_ERROR) ||
           error == SLURMCTLD_COMMUNICATIONS_CONNECTION_ERROR || error == SLURM_PROTOCOL_SOCKET_IMPL_TIMEOUT;
}

static void set_one(const struct change *change) {
    job_desc_msg_t request;
    slurm_init_job_desc_msg(&request);
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 11, 0)
    request.step_id.job_id = change->job_id;
#else
    request.job_id = change->job_id;
#endif
    request.site_factor = (uint32_t)((int64_t)NICE_OFFSET + change->factor);
    if (slurm_update_job(&request) == SLURM_SUCCESS) {
        return;
    }
    int const error = errno;
    if (is_unreachable(error)) {
        atomic_store(&unreachable, true);
    }
    pthread_mutex_lock(&output);
    printf("%" PRIu32 " %s\n", change->job_id, slurm_strerror(error));
    pthread_mutex_unlock(&output);
}

static void *work(void *unused) {
    (void)unused;
    size_t i;
    while (!atomic_load(&unreachable) && (i = atomic_fetch_add(&next, 1)) < count) {
        set_one(&changes[i]);
    }
    return NULL;
}

static bool read_changes(void) {
    char line[LONGEST_LINE];
    size_t room = 0;
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (count == room) {
            room = room > 0 ? 2 * room : 1024;
            struct change *const grown = realloc(changes, room * sizeof *changes);
            if (grown == NULL) {
                fprintf(stderr, "explsched-site-factors: no memory for %zu jobs\n", room);
                return false;
            }
            changes = grown;
        }
        char extra;
        if (sscanf(line, "%" SCNu32 " %" SCNd32 " %c", &changes[count].job_id, &changes[count].factor,
                   &extra) != 2) {
            line[strcspn(line, "\n")] = '\0';
            fprintf(stderr, "explsched-site-factors: line %zu: '%s' is not JOBID FACTOR\n", count + 1, line);
            return false;
        }
        count++;
    }
    return true;
}

int main(int argc, char *argv[]) {
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf("%d.%02d\n", SLURM_VERSION_MAJOR(SLURM_VERSION_NUMBER),
               SLURM_VERSION_MINOR(SLURM_VERSION_NUMBER));
        return 0;
    }
    if (argc != 1) {
        fprintf(stderr, "usage: %s [--version] < file with lines JOBID FACTOR\n", argv[0]);
        return 2;
    }
    if (!read_changes()) {
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0); /* whoever kills us for being slow reads what we have told */
    signal(SIGPIPE, SIG_IGN);         /* slurmctld may close a connection while we write */
    slurm_init(NULL);
    pthread_t threads[THREADS];
    size_t started = 0;
    while (started < THREADS && pthread_create(&threads[started], NULL, work, NULL) == 0) {
        started++;
    }
    if (started == 0) {
        work(NULL);
    }
    for (size_t i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
    }
    slurm_fini();
    free(changes);
    return fflush(stdout) == 0 && !atomic_load(&unreachable) ? 0 : 1;
}
