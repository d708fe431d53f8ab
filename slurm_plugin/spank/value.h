/* The kinds of values of job options, as explsched/job_options/values.py has them. */
#ifndef EXPLSCHED_SPANK_VALUE_H
#define EXPLSCHED_SPANK_VALUE_H

#include <stdbool.h>

#include "explsched/job_options.h"

enum { EXPL_VALUE_SIZE = EXPL_PAIRS_BYTES + 8 };

/*
 * Writes the canonical form of `text` to `value` (EXPL_VALUE_SIZE bytes); false for what is not accepted.
 * `choices` ends with NULL and is empty for kinds whose values cannot be listed.
 */
typedef bool expl_canonical_f(const char *const *choices, const char *text, char *value);

expl_canonical_f expl_text;
expl_canonical_f expl_pairs;
expl_canonical_f expl_one_of;
expl_canonical_f expl_signal_name;
expl_canonical_f expl_fraction;
expl_canonical_f expl_sizes;
expl_canonical_f expl_stages;

#endif
