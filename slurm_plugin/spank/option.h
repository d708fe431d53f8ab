/* The options that sbatch, srun and salloc gain: the table of explsched/job_options/table.py in C. */
#ifndef EXPLSCHED_SPANK_OPTION_H
#define EXPLSCHED_SPANK_OPTION_H

#include <stdbool.h>
#include <stddef.h>

#include "slurm_plugin/spank/value.h"

struct expl_option {
    const char *name;     /* long option */
    const char *argument; /* its name in the help text; NULL for a switch */
    const char *usage;    /* help text */
    const char *accepted; /* what an error message says about good values */
    const char *variable; /* environment twin; also what the tasks see */
    const char *key;      /* key of the job's `explsched:` comment */
    bool shares_gpu;      /* giving it asks for the kernels to be gated */
    bool is_consent;      /* holds for the job it was given to, not for jobs that this one submits */
    expl_canonical_f *canonical;
    const char *const *choices; /* ends with NULL */
};

extern const struct expl_option expl_options[];
extern const size_t expl_option_count;

enum { EXPL_OPTION_MAX = 16, EXPL_WORD_SIZE = 16 * (3 * EXPL_VALUE_SIZE + 32) };

/* The values of a job: an empty string stands for an option that was not given. */
struct expl_values {
    char text[EXPL_OPTION_MAX][EXPL_VALUE_SIZE];
};

/* The URL-encoded query that the daemon reads from the job's comment ("NAME=value&NAME=value"). False if
 * `size` is too small. */
bool expl_comment_word(const struct expl_values *values, char *word, size_t size);

/* Whether the job wants its kernels gated: one of the sharing options was given. */
bool expl_shares_gpu(const struct expl_values *values);

#endif
