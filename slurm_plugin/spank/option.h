/* The options that sbatch, srun and salloc gain: one table that everything else reads. */
#ifndef EXPLSCHED_SPANK_OPTION_H
#define EXPLSCHED_SPANK_OPTION_H

#include <stdbool.h>
#include <stddef.h>

enum { EXPL_VALUE_SIZE = 80 };

/* Writes the canonical form of `text` to `value` (EXPL_VALUE_SIZE bytes); false when it is not acceptable. */
typedef bool expl_canonical_f(const char *text, char *value);

struct expl_option {
    const char *name;     /* long option */
    const char *argument; /* its name in the help text; NULL for a switch */
    const char *usage;    /* help text */
    const char *accepted; /* what an error message says about good values */
    const char *variable; /* environment twin; also what the tasks see */
    const char *key;      /* key of the job's `explsched:` comment */
    bool shares_gpu;      /* giving it asks for the kernels to be gated */
    expl_canonical_f *canonical;
};

extern const struct expl_option expl_options[];
extern const size_t expl_option_count;

enum { EXPL_OPTION_MAX = 16 };

/* The values of a job: an empty string stands for an option that was not given. */
struct expl_values {
    char text[EXPL_OPTION_MAX][EXPL_VALUE_SIZE];
};

/* The URL-encoded query that the daemon reads from the job's comment ("sweep=a&stop=1"). False if `size` is
 * too small. */
bool expl_comment_word(const struct expl_values *values, char *word, size_t size);

/* Whether the job wants its kernels gated: one of the sharing options was given. */
bool expl_shares_gpu(const struct expl_values *values);

#endif
