/* Products in int8 (see products.c for the panels).

   int8 is dynamic. A row of x is scaled by its own largest magnitude into 1 .. 255 (128 is zero, as the instruction
   takes unsigned times signed), a row of W by its own into -127 .. 127:
       y = s_x s_w (sum_k (q_x - 128) q_w) + b = s_x s_w (sum_k q_x q_w - 128 sum_k q_w) + b
   Sums are exact integers. */

#include "tiles.h"

/* Rows whose largest magnitude is TINY or less become zero: the factor 127 / TINY is still finite. */

#define TINY 1e-36f

static inline i64 fours(i64 inputs) { return (inputs + 3) / 4; }

void pack_int8(const float *w, int8_t *packed, float *scale, int32_t *sums, i64 outputs, i64 inputs, i64 w_output,
               i64 w_input) {
    for (i64 n = 0; n < outputs; n++) {
        float most = 0;
        for (i64 k = 0; k < inputs; k++) {
            float size = fabsf(w[n * w_output + k * w_input]);
            most = size > most ? size : most;
        }
        int broken = most > 3e38f; /* Inf or NaN */
        for (i64 k = 0; k < inputs; k++) broken |= isnan(w[n * w_output + k * w_input]);
        scale[n] = broken ? NAN : most > TINY ? most / 127.0f : 0.0f;
        sums[n] = 0;
        int8_t *panel = packed + n / PANEL * PANEL * 4 * fours(inputs) + n % PANEL * 4;
        for (i64 k = 0; k < inputs; k++) {
            int8_t q = scale[n] > 0 ? (int8_t)lrintf(w[n * w_output + k * w_input] / scale[n]) : 0;
            panel[k / 4 * 4 * PANEL + k % 4] = q;
            sums[n] += q;
        }
    }
}

/* Quantise a row of x, and return its scale. */
static float quantise(const float *x, uint8_t *q, i64 inputs) {
    float most = absolute_maximum(x, inputs);
    int broken = most > 3e38f;
    for (i64 k = 0; k < inputs; k++) broken |= isnan(x[k]);
    if (broken) { /* Inf or NaN: so are all outputs */
        memset(q, 128, 4 * fours(inputs));
        return NAN;
    }
    float factor = most > TINY ? 127.0f / most : 0.0f;
    for (i64 k = 0; k < inputs; k++) q[k] = (uint8_t)((int32_t)rintf(x[k] * factor) + 128);
    for (i64 k = inputs; k < 4 * fours(inputs); k++) q[k] = 0;
    return most > TINY ? most / 127.0f : 0.0f;
}

static inline __attribute__((always_inline)) void add_products(ints *sum, const uint8_t *x, const int8_t *w) {
#ifdef __AVX512VNNI__
    int32_t four;
    memcpy(&four, x, sizeof four);
    *sum = (ints)_mm512_dpbusd_epi32((__m512i)*sum, _mm512_set1_epi32(four), _mm512_loadu_si512(w));
#else
    for (int j = 0; j < WIDE; j++) {
        for (int i = 0; i < 4; i++) (*sum)[j] += (int32_t)x[i] * w[4 * j + i];
    }
#endif
}

struct panel {
    const int8_t *w;
    const float *scale;
    const int32_t *sums; /* of each output's weights */
    const float *bias;
};

/* Scale the integer sums of one row in one panel, and write them. */
static inline __attribute__((always_inline)) void write_scaled(ints low, ints high, float x_scale, struct panel panel,
                                                         bool relu, float *y, i64 count) {
    ints low_sum, high_sum;
    memcpy(&low_sum, panel.sums, sizeof low_sum);
    memcpy(&high_sum, panel.sums + WIDE, sizeof high_sum);
    floats first = __builtin_convertvector(low - 128 * low_sum, floats) * (x_scale * load(panel.scale));
    floats second = __builtin_convertvector(high - 128 * high_sum, floats) * (x_scale * load(panel.scale + WIDE));
    finish(first, second, panel.bias, relu, y, count);
}

static inline __attribute__((always_inline)) void tile_int8(
    const int rows, const uint8_t *x, const float *x_scale, struct panel panel, bool relu, float *y, i64 y_row,
    i64 groups, i64 count) {
    ints low[TILE], high[TILE];
    UNROLL
    for (int r = 0; r < rows; r++) low[r] = high[r] = (ints){0};
    const int8_t *w = panel.w;
    for (i64 k = 0; k < groups; k++, w += 4 * PANEL) {
        if (rows < 4) {
            __builtin_prefetch(w + 4 * AHEAD, 0, 2);
            __builtin_prefetch(w + 4 * AHEAD + LINE, 0, 2);
        }
        UNROLL
        for (int r = 0; r < rows; r++) {
            add_products(&low[r], x + 4 * (r * groups + k), w);
            add_products(&high[r], x + 4 * (r * groups + k), w + 4 * WIDE);
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) write_scaled(low[r], high[r], x_scale[r], panel, relu, y + r * y_row, count);
}

struct int8_product {
    const int8_t *packed;
    const float *scale, *bias, *x_scale;
    const int32_t *sums;
    const uint8_t *bytes;
    float *y;
    i64 top, bottom, height, groups, outputs;
    bool relu;
};

static void some_int8_panels(const void *job, i64 first, i64 last) {
    const struct int8_product *p = job;
    i64 byte_row = 4 * p->groups;
    for (i64 begin = first * PANEL; begin < last * PANEL; begin += PANEL) {
        struct panel panel = {p->packed + begin * byte_row, p->scale + begin, p->sums + begin, p->bias + begin};
        for (i64 row = p->top; row < p->bottom; row += p->height) {
            i64 left = p->bottom - row < p->height ? p->bottom - row : p->height;
            const uint8_t *from = p->bytes + row * byte_row;
            float *to = p->y + row * p->outputs + begin;
#define DO(R) \
    tile_int8(R, from, p->x_scale + row, panel, p->relu, to, p->outputs, p->groups, p->outputs - begin)
            EACH_TILE(DO)
#undef DO
        }
    }
}

/* Scratch space: `bytes` for rows x 4 ceil(inputs / 4) bytes, `x_scale` for a float of each row. */
void project_int8(const float *x, const int8_t *packed, const float *scale, const int32_t *sums, const float *bias,
                  uint8_t *bytes, float *x_scale, float *y, i64 rows, i64 inputs, i64 outputs, i64 x_row, bool relu) {
    i64 groups = fours(inputs), byte_row = 4 * groups;
    for (i64 row = 0; row < rows; row++) x_scale[row] = quantise(x + row * x_row, bytes + row * byte_row, inputs);
    i64 most = block_height(rows);
    for (i64 top = 0; top < rows; top += most) {
        i64 bottom = rows < top + most ? rows : top + most;
        struct int8_product job = {.packed = packed, .scale = scale, .bias = bias, .x_scale = x_scale, .sums = sums,
                                   .bytes = bytes, .y = y, .top = top, .bottom = bottom,
                                   .height = tile_height(bottom - top), .groups = groups, .outputs = outputs,
                                   .relu = relu};
        share(some_int8_panels, &job, panel_count(outputs), outputs * byte_row);
    }
}

/* Multiply one output's weights by some rows of x; both are padded to whole lines, the weights with zeros. */
static inline __attribute__((always_inline)) void line_sums(const int rows, const uint8_t *x, const int8_t *w,
                                                            i64 lines, int32_t *sum) {
#ifdef __AVX512VNNI__
    __m512i lanes[TILE];
    UNROLL
    for (int r = 0; r < rows; r++) lanes[r] = _mm512_setzero_si512();
    for (i64 k = 0; k < lines; k++) {
        __m512i weights = _mm512_loadu_si512(w + k * LINE);
        UNROLL
        for (int r = 0; r < rows; r++) {
            lanes[r] = _mm512_dpbusd_epi32(lanes[r], _mm512_loadu_si512(x + (r * lines + k) * LINE), weights);
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) sum[r * PANEL] = _mm512_reduce_add_epi32(lanes[r]);
#else
    for (int r = 0; r < rows; r++) {
        int32_t total = 0;
        for (i64 i = 0; i < lines * LINE; i++) total += (int32_t)x[r * lines * LINE + i] * w[i];
        sum[r * PANEL] = total;
    }
#endif
}

/* The same product for lists of outputs: each group of `sharing` rows computes `count` outputs, numbered by a row of
   `output`. Weights are read in place, so `w` has one output after another, each padded to `lines` lines. Rows of y
   have `columns` columns, the length of the longest list; those beyond a shorter list are minus infinity. */
void project_lists(const float *x, const int8_t *w, const float *scale, const int32_t *sums, const float *bias,
                   const i64 *output, const i64 *count, uint8_t *bytes, float *x_scale, float *y, i64 lists,
                   i64 sharing, i64 inputs, i64 columns, i64 lines, i64 x_row) {
    for (i64 list = 0; list < lists; list++, output += columns, x += sharing * x_row, y += sharing * columns) {
        for (i64 r = 0; r < sharing; r++) {
            x_scale[r] = quantise(x + r * x_row, bytes + r * lines * LINE, inputs);
            for (i64 i = count[list]; i < columns; i++) y[r * columns + i] = -INFINITY;
        }
        for (i64 begin = 0; begin < count[list]; begin += PANEL) {
            i64 here = min_i64(count[list] - begin, PANEL);
            float scales[PANEL] = {0}, biases[PANEL] = {0};
            int32_t all[PANEL] = {0}, sum[TILE * PANEL] = {0};
            for (i64 j = 0; j < here; j++) {
                i64 n = output[begin + j];
                scales[j] = scale[n], biases[j] = bias[n], all[j] = sums[n];
            }
            struct panel panel = {NULL, scales, all, biases};
            i64 height = tile_height(sharing);
            for (i64 row = 0; row < sharing; row += height) {
                i64 left = sharing - row < height ? sharing - row : height;
                const uint8_t *from = bytes + row * lines * LINE;
                for (i64 j = 0; j < here; j++) {
                    const int8_t *weights = w + output[begin + j] * lines * LINE;
                    /* The processor cannot predict where the next ones are. */
                    i64 next = begin + j + LISTED_AHEAD < count[list] ? begin + j + LISTED_AHEAD : begin + j;
                    for (i64 k = 0; k < lines; k++) __builtin_prefetch(w + (output[next] * lines + k) * LINE, 0, 3);
#define DO(R) line_sums(R, from, weights, lines, sum + j)
                    EACH_TILE(DO)
#undef DO
                }
                for (i64 r = 0; r < left; r++) {
                    ints low, high;
                    memcpy(&low, sum + r * PANEL, sizeof low);
                    memcpy(&high, sum + r * PANEL + WIDE, sizeof high);
                    write_scaled(low, high, x_scale[row + r], panel, false, y + (row + r) * columns + begin, here);
                }
            }
        }
    }
}
