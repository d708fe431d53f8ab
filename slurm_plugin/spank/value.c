#include "slurm_plugin/spank/value.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "explsched/job_options/permille.h"

static const char digits[] = "0123456789";

static bool accept(const char *text, char *value) {
    int const written = snprintf(value, EXPL_VALUE_SIZE, "%s", text);
    return written >= 0 && written < EXPL_VALUE_SIZE;
}

/* How many bytes the UTF-8 character there has, as RFC 3629 accepts it; 0 if there is none. */
static size_t character_bytes(const char *text) {
    static const unsigned least[] = {0, 0x80, 0x800, 0x10000};
    const unsigned char *const at = (const unsigned char *)text;
    if (*at < 0x80) {
        return 1;
    }
    if (*at < 0xc0 || *at > 0xf7) {
        return 0;
    }
    size_t const more = *at < 0xe0 ? 1 : *at < 0xf0 ? 2 : 3;
    unsigned code = *at & (0x3fU >> more);
    for (size_t i = 1; i <= more; i++) {
        if ((at[i] & 0xc0) != 0x80) {
            return 0;
        }
        code = code << 6 | (at[i] & 0x3f);
    }
    bool const is_surrogate = code >= 0xd800 && code <= 0xdfff;
    return code >= least[more] && code <= 0x10ffff && !is_surrogate ? more + 1 : 0;
}

/* Whether it has 1 to `most` bytes of UTF-8, and no control character. */
static bool is_text(const char *text, size_t most) {
    size_t length = 0;
    while (text[length] != '\0') {
        unsigned char const letter = (unsigned char)text[length];
        size_t const bytes = character_bytes(text + length);
        if (letter < ' ' || letter == 0x7f || bytes == 0) {
            return false;
        }
        length += bytes;
    }
    return length >= 1 && length <= most;
}

/* Of any characters but control characters: the comment has it URL-encoded. */
bool expl_text(const char *const *choices, const char *text, char *value) {
    (void)choices;
    return is_text(text, EXPL_TEXT_BYTES) && accept(text, value);
}

/* K=V,K=V: a name is a letter or _, then letters, digits and any of _./-; a value has no comma. */
bool expl_pairs(const char *const *choices, const char *text, char *value) {
    (void)choices;
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789./-";
    enum { FIRST = 53 };
    if (!is_text(text, EXPL_PAIRS_BYTES)) {
        return false;
    }
    for (const char *at = text;; at++) {
        size_t const length = strspn(at, letters);
        if (length < 1 || length > EXPL_TEXT_BYTES || memchr(letters, *at, FIRST) == NULL ||
            at[length] != '=') {
            return false;
        }
        at += strcspn(at, ",");
        if (*at == '\0') {
            return accept(text, value);
        }
    }
}

bool expl_one_of(const char *const *choices, const char *text, char *value) {
    for (; *choices != NULL; choices++) {
        if (strcmp(*choices, text) == 0) {
            return accept(text, value);
        }
    }
    return false;
}

bool expl_signal_name(const char *const *choices, const char *text, char *value) {
    const char *const name = strncasecmp(text, "SIG", 3) == 0 ? text + 3 : text;
    for (; *choices != NULL; choices++) {
        if (strcasecmp(*choices, name) == 0) {
            return accept(*choices, value);
        }
    }
    return false;
}

bool expl_fraction(const char *const *choices, const char *text, char *value) {
    (void)choices;
    unsigned const permille = expl_permille(text);
    if (permille == 0) {
        return false;
    }
    if (permille == 1000) {
        snprintf(value, EXPL_VALUE_SIZE, "1");
    } else {
        size_t length = (size_t)snprintf(value, EXPL_VALUE_SIZE, "0.%03u", permille);
        while (value[length - 1] == '0') {
            value[--length] = '\0';
        }
    }
    return true;
}

/* MIN-MAX GPUs, or MIN-MAX/N. */
bool expl_sizes(const char *const *choices, const char *text, char *value) {
    (void)choices;
    unsigned least = 0;
    unsigned most = 0;
    unsigned per_node = 1;
    int end = 0;
    size_t const length = strlen(text);
    if (strspn(text, "0123456789-/") != length || strchr(text, '-') != strrchr(text, '-')) {
        return false; /* a second minus would be a sign */
    }
    if (sscanf(text, "%6u-%6u%n/%6u%n", &least, &most, &end, &per_node, &end) < 2 || (size_t)end != length) {
        return false;
    }
    if (least < 1 || least >= most || most > EXPL_MAX_GPUS || per_node < 1) {
        return false;
    }
    return least % per_node == 0 && most % per_node == 0 && accept(text, value);
}

/* The length of a number of milliseconds, at most 9 digits and 6 behind a point; 0 if there is none. */
static size_t milliseconds(const char *text) {
    size_t const whole = strspn(text, digits);
    if (whole < 1 || whole > 9 || text[whole] != '.') {
        return whole > 9 ? 0 : whole;
    }
    size_t const part = strspn(text + whole + 1, digits);
    return part < 1 || part > 6 ? 0 : whole + 1 + part;
}

/* ITERATION/IO/GPU/NET; the iteration and one of the others must take time. */
bool expl_stages(const char *const *choices, const char *text, char *value) {
    (void)choices;
    enum { NUMBERS = 4 };
    const char *at = text;
    bool takes_time[NUMBERS];
    for (int i = 0; i < NUMBERS; i++) {
        size_t const length = milliseconds(at);
        takes_time[i] = strcspn(at, "123456789") < length;
        at += length;
        if (length == 0 || *at != (i + 1 < NUMBERS ? '/' : '\0')) {
            return false;
        }
        at++;
    }
    bool const right = takes_time[0] && (takes_time[1] || takes_time[2] || takes_time[3]);
    return right && accept(text, value);
}
