/*
 * Reads a fraction of a GPU, as explsched/job_options/values.py does: for C and C++, in whole numbers,
 * because the locale decides what strtod reads.
 */
#ifndef EXPLSCHED_PERMILLE_H
#define EXPLSCHED_PERMILLE_H

#include <stdbool.h>
#include <stddef.h>

/* Thousandths from 1 to 1000; 0 for what is no fraction from 0.001 to 1. */
static inline unsigned expl_permille(const char *text) {
    enum { CHARACTERS = 20, UNIT = 10000 };
    unsigned long whole = 0;
    unsigned long part = 0;
    unsigned long weight = UNIT;
    size_t digits = 0;
    bool has_point = false;
    size_t length = 0;
    for (; text[length] != '\0'; length++) {
        char const letter = text[length];
        if (length >= CHARACTERS || (letter == '.' && has_point)) {
            return 0;
        }
        if (letter == '.') {
            has_point = true;
            continue;
        }
        if (letter < '0' || letter > '9') {
            return 0;
        }
        unsigned long const digit = (unsigned long)(letter - '0');
        digits++;
        if (has_point) {
            weight /= 10; /* 0 from the fifth digit on: those are passed over */
            part += digit * weight;
        } else if (whole <= 1) {
            whole = whole * 10 + digit;
        }
    }
    unsigned long const value = whole * UNIT + part;
    return digits > 0 && value <= UNIT ? (unsigned)((value + 5) / 10) : 0;
}

#endif
