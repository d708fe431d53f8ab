#include "slurm_plugin/spank/option.h"

#include <stdio.h>
#include <string.h>

#define OPTION(name, argument, usage, accepted, variable, key, shares, consents, kind, ...) \
    {name, argument, usage,    accepted, variable,                                          \
     key,  shares,   consents, kind,     (const char *const[]){__VA_ARGS__}},
const struct expl_option expl_options[] = {EXPL_OPTIONS(OPTION)};
const size_t expl_option_count = sizeof expl_options / sizeof expl_options[0];

_Static_assert(sizeof expl_options / sizeof expl_options[0] <= EXPL_OPTION_MAX, "raise EXPL_OPTION_MAX");

/* Appends `letter` as a query has it; false if there is no room. */
static bool append(char *word, size_t size, size_t *used, char letter, bool is_value) {
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789" EXPL_UNQUOTED;
    bool const encode = is_value && strchr(plain, letter) == NULL;
    int const wanted = encode ? snprintf(word + *used, size - *used, "%%%02X", (unsigned char)letter)
                              : snprintf(word + *used, size - *used, "%c", letter);
    if (wanted < 0 || (size_t)wanted >= size - *used) {
        return false;
    }
    *used += (size_t)wanted;
    return true;
}

static bool append_all(char *word, size_t size, size_t *used, const char *text, bool is_value) {
    for (; *text != '\0'; text++) {
        if (!append(word, size, used, *text, is_value)) {
            return false;
        }
    }
    return true;
}

bool expl_comment_word(const struct expl_values *values, char *word, size_t size) {
    size_t used = 0;
    word[0] = '\0';
    for (size_t i = 0; i < expl_option_count; i++) {
        if (values->text[i][0] == '\0') {
            continue;
        }
        if (!append_all(word, size, &used, used > 0 ? "&" : "", false) ||
            !append_all(word, size, &used, expl_options[i].key, false) ||
            !append_all(word, size, &used, "=", false) ||
            !append_all(word, size, &used, values->text[i], true)) {
            return false;
        }
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
