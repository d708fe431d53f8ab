/* The environment of a task: what the job asked for, as the programs inside read it. */
#ifndef EXPLSCHED_SPANK_TASK_H
#define EXPLSCHED_SPANK_TASK_H

#include <slurm/spank.h>

#include "slurm_plugin/spank/option.h"
#include "slurm_plugin/spank/settings.h"

/* Sets the variables. What cannot be set is logged and left out: the task starts in any case. */
void expl_task_environment(spank_t job, const struct expl_values *values,
                           const struct expl_settings *settings);

#endif
