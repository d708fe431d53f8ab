#include "slurm_plugin/spank/option.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool among(const char *const *accepted, const char *text, char *value) {
    for (; *accepted != NULL; accepted++) {
        if (strcmp(*accepted, text) == 0) {
            snprintf(value, EXPL_VALUE_SIZE, "%s", text);
            return true;
        }
    }
    return false;
}

/* Names stand in a URL-encoded query and in file names: only characters that mean nothing there. */
static bool name(const char *text, char *value) {
    static const char *const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.@-";
    size_t const length = strlen(text);
    if (length == 0 || length > 64 || strspn(text, letters) != length) {
        return false;
    }
    snprintf(value, EXPL_VALUE_SIZE, "%s", text);
    return true;
}

/*
 * A share of a GPU, as permille. Above 1 the text is permille already: the variables of a task, which a step
 * started inside the job sees again as its environment, hold permille.
 */
static bool share(const char *text, char *value) {
    if (text[0] == '\0' || text[strspn(text, "0123456789.")] != '\0') {
        return false; /* no sign, no exponent, no "inf", no locale */
    }
    char *end = NULL;
    double const number = strtod(text, &end);
    double const permille = number > 1.0 ? number : number * 1000.0;
    if (*end != '\0' || permille < 0.5 || permille > 1000.0) {
        return false;
    }
    snprintf(value, EXPL_VALUE_SIZE, "%d", (int)(permille + 0.5));
    return true;
}

/* MIN-MAX GPUs, or MIN-MAX/N: only the form; the daemon says so if the numbers cannot be. */
static bool sizes(const char *text, char *value) {
    size_t const length = strlen(text);
    unsigned least = 0;
    unsigned most = 0;
    unsigned per_node = 1;
    int end = 0;
    if (strspn(text, "0123456789-/") != length || strchr(text, '-') != strrchr(text, '-')) {
        return false; /* a second minus would be a sign */
    }
    if (sscanf(text, "%6u-%6u%n/%6u%n", &least, &most, &end, &per_node, &end) < 2 || (size_t)end != length) {
        return false;
    }
    if (least < 1 || least >= most || per_node < 1) {
        return false;
    }
    snprintf(value, EXPL_VALUE_SIZE, "%s", text);
    return true;
}

static bool policy_class(const char *text, char *value) {
    static const char *const accepted[] = {"guaranteed", "opportunistic", NULL};
    return among(accepted, text, value);
}

static bool share_class(const char *text, char *value) {
    static const char *const accepted[] = {"high", "best-effort", NULL};
    return among(accepted, text, value);
}

static bool direction(const char *text, char *value) {
    static const char *const accepted[] = {"min", "max", NULL};
    return among(accepted, text, value);
}

/* Signals that a job can catch and that Slurm does not use itself. */
static bool checkpoint_signal(const char *text, char *value) {
    static const char *const accepted[] = {"USR1", "USR2", "HUP", "INT", "QUIT", "TERM", "ALRM", "URG", NULL};
    return among(accepted, strncmp(text, "SIG", 3) == 0 ? text + 3 : text, value);
}

static bool on(const char *text, char *value) {
    static const char *const accepted[] = {"1", NULL};
    return among(accepted, text, value);
}

const struct expl_option expl_options[] = {
    {"expl-policy-class", "CLASS", "[explsched] guaranteed: own GPUs; opportunistic: what others leave",
     "guaranteed, opportunistic", "EXPLSCHED_POLICY_CLASS", "class", false, policy_class},
    {"expl-sweep", "NAME", "[explsched] jobs of a sweep lend each other what is known of their curves",
     "letters, digits and _.@-, at most 64", "EXPLSCHED_SWEEP", "sweep", false, name},
    {"expl-utility", "METRIC", "[explsched] the metric that tells progress (default: loss)",
     "letters, digits and _.@-, at most 64", "EXPLSCHED_METRIC", "metric", false, name},
    {"expl-direction", "min|max", "[explsched] whether the metric falls or rises (default: min)", "min, max",
     "EXPLSCHED_DIRECTION", "direction", false, direction},
    {"expl-checkpoint", "SIGNAL",
     "[explsched] consent to preemption: on SIGNAL the job saves (give --requeue too)",
     "USR1, USR2, HUP, INT, QUIT, TERM, ALRM, URG", "EXPLSCHED_CHECKPOINT_SIGNAL", "checkpoint", false,
     checkpoint_signal},
    {"expl-stop", NULL, "[explsched] consent to being stopped when hopeless", "1", "EXPLSCHED_STOP", "stop",
     false, on},
    {"expl-elastic", "MIN-MAX[/N]",
     "[explsched] runs with MIN to MAX GPUs on one node, or with N on each of several",
     "sizes such as 1-8 or 8-32/8", "EXPLSCHED_ELASTIC", "elastic", false, sizes},
    {"expl-share", "CLASS", "[explsched] share the GPU: high comes first, best-effort takes what it leaves",
     "high, best-effort", "EXPLSCHED_CLASS", "share", true, share_class},
    {"expl-request", "FRACTION", "[explsched] share of the GPU's time that the job is promised",
     "0.001 to 1 (or 2 to 1000 permille)", "EXPLSCHED_REQUEST", "request", true, share},
    {"expl-limit", "FRACTION", "[explsched] share of the GPU's time that the job may use",
     "0.001 to 1 (or 2 to 1000 permille)", "EXPLSCHED_LIMIT", "limit", true, share},
};
const size_t expl_option_count = sizeof expl_options / sizeof expl_options[0];

_Static_assert(sizeof expl_options / sizeof expl_options[0] <= EXPL_OPTION_MAX, "raise EXPL_OPTION_MAX");

bool expl_comment_word(const struct expl_values *values, char *word, size_t size) {
    size_t used = 0;
    word[0] = '\0';
    for (size_t i = 0; i < expl_option_count; i++) {
        if (values->text[i][0] == '\0') {
            continue;
        }
        int const wanted = snprintf(word + used, size - used, "%s%s=%s", used > 0 ? "&" : "",
                                    expl_options[i].key, values->text[i]);
        if (wanted < 0 || (size_t)wanted >= size - used) {
            return false;
        }
        used += (size_t)wanted;
    }
    return true;
}

bool expl_shares_gpu(const struct expl_values *values) {
    for (size_t i = 0; i < expl_option_count; i++) {
        if (expl_options[i].shares_gpu && values->text[i][0] != '\0') {
            return true;
        }
    }
    return false;
}
