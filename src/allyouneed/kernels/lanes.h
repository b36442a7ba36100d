/* Sums and maxima over 16 lanes, and the exponential.

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

/* exp(x) for x <= 0, within 4e-6: 2^k * 2^f with |f| <= 1/2. No branches, so loops vectorise. */
static inline float exp_below(float x) {
    x = x < -87.0f ? -87.0f : x; /* keeps NaN */
    float scaled = x * 1.44269504088896341f;
    float whole = rintf(scaled);
    float f = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;
    float y = 1.9875691500e-4f;
    y = y * f + 1.3981999507e-3f;
    y = y * f + 8.3334519073e-3f;
    y = y * f + 4.1665795894e-2f;
    y = y * f + 1.6666665459e-1f;
    y = y * f + 5.0000001201e-1f;
    y = y * f * f + f + 1.0f;
    /* -126 is the least that `whole` can be; NaN becomes it, as NaN cannot be converted, and y is NaN anyway. */
    int32_t bits = ((int32_t)(whole >= -126.0f ? whole : -126.0f) + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return y * power;
}

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
