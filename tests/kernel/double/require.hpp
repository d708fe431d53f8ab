// The smallest test framework there is.
#pragma once

#include <cstdio>
#include <cstdlib>

#define REQUIRE(claim)                                                                      \
    do {                                                                                    \
        if (!(claim)) {                                                                     \
            std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #claim); \
            std::exit(1);                                                                   \
        }                                                                                   \
    } while (false)
