/*
 * SPANK plugin: plain sbatch, srun and salloc gain explsched's options. This file only tells where Slurm
 * calls us.
 *
 * An option is given on the command line or through its variable; the command line wins. sbatch and salloc
 * hand the options to slurmctld, where job_submit.lua writes them to the job's comment for the daemon;
 * slurmstepd puts them into the environment of the tasks. Nothing here fails a job or drains a node: what is
 * wrong is logged, and the job starts.
 */
#include <ctype.h>
#include <slurm/spank.h>
#include <stdio.h>
#include <stdlib.h>

#include "slurm_plugin/spank/option.h"
#include "slurm_plugin/spank/settings.h"
#include "slurm_plugin/spank/task.h"

#define PUBLIC __attribute__((visibility("default")))

/* The release of Slurm that the plugin is for, as 24.11, behind words that nothing else holds. */
struct expl_built_for {
    char words[sizeof "explsched:slurm"];
    char release[sizeof "24.11"];
};

PUBLIC extern const char plugin_name[];
PUBLIC extern const char plugin_type[];
PUBLIC extern const unsigned int plugin_version;
PUBLIC extern const unsigned int spank_plugin_version;
PUBLIC extern const struct expl_built_for explsched_built_for;
const char plugin_name[] = "explsched";
const char plugin_type[] = "spank";
const unsigned int plugin_version = SLURM_VERSION_NUMBER;
const unsigned int spank_plugin_version = 1;

/* What `sexplsched doctor` looks for in the file, which it cannot load outside Slurm. */
#define DIGITS(number) '0' + (number) / 10, '0' + (number) % 10
const struct expl_built_for explsched_built_for = {"explsched:slurm",
                                                   {DIGITS(SLURM_VERSION_MAJOR(SLURM_VERSION_NUMBER)), '.',
                                                    DIGITS(SLURM_VERSION_MINOR(SLURM_VERSION_NUMBER))}};

PUBLIC spank_f slurm_spank_init;
PUBLIC spank_f slurm_spank_init_post_opt;
PUBLIC spank_f slurm_spank_task_init;

enum { EXPL_FOUND_SIZE = 1024, EXPL_NAME_SIZE = 96 };

static struct expl_values given; /* one process serves one job: sbatch, srun, salloc or a slurmstepd */

/* Called once per option found in the environment of a step and once per option of the command line: the last
 * wins. */
static int take(int index, const char *text, int remote) {
    (void)remote;
    const struct expl_option *const option = &expl_options[index];
    const char *const value = option->argument != NULL ? text : "1";
    if (!option->canonical(option->choices, value, given.text[index])) {
        slurm_error("--%s=%s: accepted: %s", option->name, value, option->accepted);
        return -1;
    }
    return 0;
}

static bool is_submitted_by_a_job(spank_context_t context) {
    return context == S_CTX_ALLOCATOR && getenv("SLURM_JOB_ID") != NULL;
}

/* The variable by which Slurm hands an option on; `prefix` is "" for salloc and "SLURM_SPANK_" for sbatch. */
static void handed_on(const char *prefix, const char *name, char *variable) {
    snprintf(variable, EXPL_NAME_SIZE, "%s_SLURM_SPANK_OPTION_%s_%s", prefix, plugin_name, name);
    for (char *at = variable; *at != '\0'; at++) {
        *at = isalnum((unsigned char)*at) ? *at : '_';
    }
}

/*
 * Slurm gives all that runs in a job its options and control environment by variables, and takes them for
 * those of a job that is submitted there. Called before it does: that job inherits what `complete` lets it.
 */
static void forget_surrounding_job(const char *name) {
    static const char *const prefixes[] = {"", "SLURM_SPANK_"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        char variable[EXPL_NAME_SIZE];
        handed_on(prefixes[i], name, variable);
        unsetenv(variable);
    }
    unsetenv("SLURM_SPANK_" EXPL_CONTROL_VARIABLE);
}

int slurm_spank_init(spank_t job, int count, char *words[]) {
    (void)count;
    (void)words;
    spank_context_t const context = spank_context();
    if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR && context != S_CTX_REMOTE) {
        return 0;
    }
    for (size_t i = 0; i < expl_option_count; i++) {
        const struct expl_option *const option = &expl_options[i];
        if (is_submitted_by_a_job(context)) {
            forget_surrounding_job(option->name);
        }
        struct spank_option added = {
            .name = (char *)option->name, /* SPANK copies it */
            .arginfo = (char *)option->argument,
            .usage = (char *)option->usage,
            .has_arg = option->argument != NULL,
            .val = (int)i,
            .cb = take,
        };
        if (spank_option_register(job, &added) != ESPANK_SUCCESS) {
            slurm_error("explsched: option --%s cannot be registered", option->name);
        }
    }
    return 0;
}

/* A variable of the process or, in a step, of the job; NULL if it is not set. */
static const char *variable(spank_t job, spank_context_t context, const char *name, char *found, int size) {
    if (context != S_CTX_REMOTE) {
        return getenv(name);
    }
    return spank_getenv(job, name, found, size) == ESPANK_SUCCESS ? found : NULL;
}

/* Takes what the option's variable says, if it says anything. */
static void take_variable(spank_t job, spank_context_t context, size_t at) {
    const struct expl_option *const option = &expl_options[at];
    char found[EXPL_FOUND_SIZE] = "";
    const char *const text = variable(job, context, option->variable, found, sizeof found);
    if (text != NULL && text[0] != '\0' && !option->canonical(option->choices, text, given.text[at])) {
        slurm_error("explsched: %s=%s is ignored: accepted: %s", option->variable, text, option->accepted);
    }
}

/* With `sbatch --export=NONE` Slurm leaves the batch script's options in its variables and tells nobody. */
static void take_handed_on(spank_t job, size_t at) {
    const struct expl_option *const option = &expl_options[at];
    char name[EXPL_NAME_SIZE], found[EXPL_FOUND_SIZE] = "";
    handed_on("SLURM_SPANK_", option->name, name);
    if (spank_getenv(job, name, found, sizeof found) == ESPANK_SUCCESS &&
        !option->canonical(option->choices, option->argument != NULL ? found : "1", given.text[at])) {
        slurm_error("explsched: %s=%s is ignored: accepted: %s", name, found, option->accepted);
    }
}

/*
 * What was not given as an option is taken from its variable. Inside a job the variables are that job's own:
 * a job that it submits does not inherit its consents.
 */
static void complete(spank_t job, spank_context_t context) {
    for (size_t i = 0; i < expl_option_count; i++) {
        if (given.text[i][0] == '\0' && context == S_CTX_REMOTE) {
            take_handed_on(job, i);
        }
        if (given.text[i][0] == '\0' && !(expl_options[i].is_consent && is_submitted_by_a_job(context))) {
            take_variable(job, context, i);
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
    char word[EXPL_WORD_SIZE];
    if (expl_comment_word(&given, word, sizeof word) && word[0] != '\0' &&
        spank_job_control_setenv(job, EXPL_CONTROL_VARIABLE, word, 1) != ESPANK_SUCCESS) {
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
