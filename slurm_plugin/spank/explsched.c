/*
 * SPANK plugin: plain sbatch, srun and salloc gain explsched's options. This file only tells where Slurm
 * calls us.
 *
 * An option is given on the command line or through its variable; the command line wins. sbatch and salloc
 * hand the options to slurmctld, where job_submit.lua writes them to the job's comment for the daemon;
 * slurmstepd puts them into the environment of the tasks. Nothing here fails a job or drains a node: what is
 * wrong is logged, and the job starts.
 */
#include <slurm/spank.h>
#include <stdlib.h>

#include "slurm_plugin/spank/option.h"
#include "slurm_plugin/spank/settings.h"
#include "slurm_plugin/spank/task.h"

#define PUBLIC __attribute__((visibility("default")))

PUBLIC extern const char plugin_name[];
PUBLIC extern const char plugin_type[];
PUBLIC extern const unsigned int plugin_version;
PUBLIC extern const unsigned int spank_plugin_version;
const char plugin_name[] = "explsched";
const char plugin_type[] = "spank";
const unsigned int plugin_version = SLURM_VERSION_NUMBER;
const unsigned int spank_plugin_version = 1;

PUBLIC spank_f slurm_spank_init;
PUBLIC spank_f slurm_spank_init_post_opt;
PUBLIC spank_f slurm_spank_task_init;

static struct expl_values given; /* one process serves one job: sbatch, srun, salloc or a slurmstepd */

/* Called once per option found in the environment of a step and once per option of the command line: the last
 * wins. */
static int take(int index, const char *text, int remote) {
    (void)remote;
    const struct expl_option *const option = &expl_options[index];
    if (!option->canonical(option->argument != NULL ? text : "1", given.text[index])) {
        slurm_error("--%s=%s: accepted: %s", option->name, text, option->accepted);
        return -1;
    }
    return 0;
}

int slurm_spank_init(spank_t job, int count, char *words[]) {
    (void)count;
    (void)words;
    spank_context_t const context = spank_context();
    if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR && context != S_CTX_REMOTE) {
        return 0;
    }
    for (size_t i = 0; i < expl_option_count; i++) {
        struct spank_option option = {
            .name = (char *)expl_options[i].name, /* SPANK copies it */
            .arginfo = (char *)expl_options[i].argument,
            .usage = (char *)expl_options[i].usage,
            .has_arg = expl_options[i].argument != NULL,
            .val = (int)i,
            .cb = take,
        };
        if (spank_option_register(job, &option) != ESPANK_SUCCESS) {
            slurm_error("explsched: option --%s cannot be registered", expl_options[i].name);
        }
    }
    return 0;
}

/* What was not given as an option is taken from its variable. */
static void complete(spank_t job, spank_context_t context) {
    for (size_t i = 0; i < expl_option_count; i++) {
        if (given.text[i][0] != '\0') {
            continue;
        }
        char found[EXPL_VALUE_SIZE] = "";
        const char *text = found;
        if (context != S_CTX_REMOTE) {
            text = getenv(expl_options[i].variable);
        } else if (spank_getenv(job, expl_options[i].variable, found, sizeof found) != ESPANK_SUCCESS) {
            continue;
        }
        if (text != NULL && text[0] != '\0' && !expl_options[i].canonical(text, given.text[i])) {
            slurm_error("explsched: %s=%s is ignored: accepted: %s", expl_options[i].variable, text,
                        expl_options[i].accepted);
        }
    }
}

/* On the submitting side: what the scheduler must know travels with the job's control environment. */
int slurm_spank_init_post_opt(spank_t job, int count, char *words[]) {
    (void)count;
    (void)words;
    spank_context_t const context = spank_context();
    if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR) {
        return 0;
    }
    complete(job, context);
    char word[EXPL_OPTION_MAX * EXPL_VALUE_SIZE];
    if (expl_comment_word(&given, word, sizeof word) && word[0] != '\0' &&
        spank_job_control_setenv(job, "EXPLSCHED_OPTIONS", word, 1) != ESPANK_SUCCESS) {
        slurm_error("explsched: the scheduler will not know of this job's options");
    }
    return 0;
}

/* In the process that becomes the task, as its user. */
int slurm_spank_task_init(spank_t job, int count, char *words[]) {
    struct expl_settings settings;
    char message[512];
    if (!expl_settings_read(count, words, &settings, message, sizeof message)) {
        slurm_error("explsched: %s", message);
        return 0;
    }
    complete(job, S_CTX_REMOTE);
    expl_task_environment(job, &given, &settings);
    return 0;
}
