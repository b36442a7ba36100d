/* Sums and maxima over 16 lanes.

   Compilers do not vectorise these reductions as long as NaN and the order of additions matter, so the lanes are
   written out. */

#include <math.h>
#include <string.h>

#include "kernels.h"

enum { WIDE = 16 };

#define MAXIMUM(NAME, OF) \
    static inline float NAME(const float *x, i64 n, float least) { \
        float lane[WIDE], most = least; \
        i64 whole = n / WIDE * WIDE; \
        for (i64 j = 0; j < WIDE; j++) lane[j] = least; \
        for (i64 i = 0; i < whole; i += WIDE) { \
            for (i64 j = 0; j < WIDE; j++) lane[j] = OF(x[i + j]) > lane[j] ? OF(x[i + j]) : lane[j]; \
        } \
        for (i64 j = 0; j < WIDE; j++) most = lane[j] > most ? lane[j] : most; \
        for (i64 i = whole; i < n; i++) most = OF(x[i]) > most ? OF(x[i]) : most; \
        return most; \
    }

MAXIMUM(maximum_above, )
MAXIMUM(absolute_maximum_above, fabsf)

static inline float maximum(const float *x, i64 n) { return maximum_above(x, n, -INFINITY); }
static inline float absolute_maximum(const float *x, i64 n) { return absolute_maximum_above(x, n, 0.0f); }

#define SUM(NAME, TERM) \
    static inline float NAME { \
        float lane[WIDE] = {0}, sum = 0; \
        i64 whole = n / WIDE * WIDE; \
        for (i64 k = 0; k < whole; k += WIDE) { \
            for (i64 j = 0; j < WIDE; j++) { \
                i64 i = k + j; \
                lane[j] += TERM; \
            } \
        } \
        for (i64 i = whole; i < n; i++) sum += TERM; \
        for (i64 j = 0; j < WIDE; j++) sum += lane[j]; \
        return sum; \
    }

static inline i64 min_i64(i64 x, i64 y) { return x < y ? x : y; }
static inline i64 max_i64(i64 x, i64 y) { return x > y ? x : y; }
