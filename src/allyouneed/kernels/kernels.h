/* What the kernels share: sums and maxima, 16 numbers at a time.

   Compilers vectorise neither as long as the order of additions and NaN count, so the lanes are written out. */

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef int64_t i64;

enum { WIDE = 16 };

#define LARGEST(NAME, OF) \
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

LARGEST(largest_above, )
LARGEST(largest_size_above, fabsf)

static inline float largest_of(const float *x, i64 n) { return largest_above(x, n, -INFINITY); }
static inline float largest_size(const float *x, i64 n) { return largest_size_above(x, n, 0.0f); }

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

/* What a file offers to others. */
void add_norm(const float *x, const float *y, const float *gamma, const float *beta, float *out, i64 rows,
              i64 width, float epsilon);
void attend(const float *q, const float *k, const float *v, const bool *visible, const float *bias, const i64 *which,
            const i64 *order, float *out, float *score, i64 rows, i64 sharing, i64 heads, i64 slots, i64 key_width,
            i64 value_width, i64 q_row, i64 k_memory, i64 k_head, i64 k_slot, i64 v_memory, i64 v_head, i64 v_slot,
            i64 visible_memory, i64 bias_row, i64 bias_head, i64 out_row, float scale);
void project(const float *x, const float *packed, const float *bias, float *y, i64 rows, i64 inputs, i64 outputs,
             i64 x_row, bool relu, float *tiles);
i64 room_for_tiles(i64 rows);
void project_int8(const float *x, const int8_t *packed, const float *scale, const int32_t *sums, const float *bias,
                  uint8_t *bytes, float *x_scale, float *y, i64 rows, i64 inputs, i64 outputs, i64 x_row, bool relu);
