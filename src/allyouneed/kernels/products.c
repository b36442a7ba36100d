/* y = x W^T + b for a few rows of x: the projections of a decoding step.

   With few rows, a product is limited by how fast W arrives from memory and how often its rows are read again. So W is
   packed in panels of 32 outputs, in the order in which it is read. A tile of up to 12 rows keeps its sums in registers
   while it passes through a panel: 24 vectors of 16 floats.

   float32:  panel[k][32]                 y += x[k] panel[k]
   halves:   panel[k][16][2]              output j beside output 16 + j: a shift and a mask make two vectors of floats
   int8:     panel[k / 4][32][4]          one instruction (VNNI) multiplies four neighbours and adds them up

   int8 is dynamic. A row of x is scaled by its own largest magnitude into 1 .. 255 (128 is zero, as the instruction
   takes unsigned times signed), a row of W by its own into -127 .. 127:
       y = s_x s_w (sum_k (q_x - 128) q_w) + b = s_x s_w (sum_k q_x q_w - 128 sum_k q_w) + b
   Sums are exact integers.

   Half precision (bfloat16 or float16) is converted in registers: half the bytes of float32, and the same sums. */

#include "team.h"

#if defined(__AVX512VNNI__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

typedef float floats __attribute__((vector_size(64)));
typedef int32_t ints __attribute__((vector_size(64)));
typedef float anywhere __attribute__((vector_size(64), aligned(4), may_alias));

/* Sums stay in registers only if loops over them are unrolled. */
#define UNROLL _Pragma("GCC unroll 12")

/* BLOCK: the most rows that go through all panels before the next ones; more would need too many page addresses.
   FEW: up to this many rows, x is read in place; more are copied in the order in which they are read. Rows of x are
   often 4,096 bytes apart, and the cache holds only some addresses with the same low bits. AHEAD: floats to prefetch
   ahead; LISTED_AHEAD: outputs of a list. */
enum { PANEL = 2 * WIDE, TILE = 12, BLOCK = 8 * TILE, FEW = 4, AHEAD = 32 * PANEL, LINE = 64, LISTED_AHEAD = 8 };

enum { FLOAT32, BFLOAT16, FLOAT16 }; /* kinds of packed weights */

static inline floats load(const float *x) { return *(const anywhere *)x; }

static inline float float_of(uint16_t half, i64 kind) {
    uint32_t bits = (uint32_t)half << 16;
    if (kind == FLOAT16) {
        uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
        if (rest >= 0x7c00) { /* Inf or NaN */
            bits = sign | 0x7f800000 | (rest & 0x3ff) << 13;
        } else if (rest >= 0x400) {
            bits = sign | ((rest << 13) + ((127 - 15) << 23));
        } else {
            float small = (float)rest * 0x1p-24f;
            return sign ? -small : small;
        }
    }
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The 32 weights of one input: outputs 0 .. 15 and 16 .. 31. */
static inline __attribute__((always_inline)) void load_weights(const int kind, const float *panel, floats *low,
                                                               floats *high) {
    if (kind == FLOAT32) {
        *low = load(panel);
        *high = load(panel + WIDE);
        return;
    }
    ints pairs;
    memcpy(&pairs, panel, sizeof pairs);
    if (kind == BFLOAT16) {
        *low = (floats)(pairs << 16);
        *high = (floats)(pairs & (int32_t)0xffff0000);
        return;
    }
#ifdef __AVX512F__
    *low = (floats)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)pairs));
    *high = (floats)_mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)pairs, 16)));
#else
    for (int j = 0; j < WIDE; j++) {
        (*low)[j] = float_of((uint16_t)pairs[j], FLOAT16);
        (*high)[j] = float_of((uint16_t)((uint32_t)pairs[j] >> 16), FLOAT16);
    }
#endif
}

/* Write the sums of one row in one panel: the first `count` of them, at most PANEL. */
static inline void finish(floats low, floats high, const float *bias, bool relu, float *y, i64 count) {
    low += load(bias);
    high += load(bias + WIDE);
    if (relu) {
        for (int j = 0; j < WIDE; j++) {
            low[j] = low[j] < 0 ? 0.0f : low[j]; /* keeps NaN */
            high[j] = high[j] < 0 ? 0.0f : high[j];
        }
    }
    if (count >= PANEL) {
        memcpy(y, &low, sizeof low);
        memcpy(y + WIDE, &high, sizeof high);
    } else {
        float both[PANEL];
        memcpy(both, &low, sizeof low);
        memcpy(both + WIDE, &high, sizeof high);
        memcpy(y, both, count * sizeof(float));
    }
}

static inline __attribute__((always_inline)) void tile_float(
    const int kind, const int rows, const bool ordered, const float *x, i64 x_row, const float *panel, const float *bias, bool relu,
    float *y, i64 y_row, i64 inputs, i64 count) {
    floats low[TILE], high[TILE];
    UNROLL
    for (int r = 0; r < rows; r++) low[r] = high[r] = (floats){0};
    const i64 step = kind == FLOAT32 ? PANEL : WIDE; /* floats that the weights of one input take */
    for (i64 k = 0; k < inputs; k++, panel += step) {
        floats first, second;
        load_weights(kind, panel, &first, &second);
        /* Prefetch the next panel, or, with few rows, a page ahead. */
        i64 ahead = rows > 3 ? inputs * step : AHEAD;
        __builtin_prefetch(panel + ahead, 0, 2);
        if (kind == FLOAT32) __builtin_prefetch(panel + ahead + WIDE, 0, 2);
        UNROLL
        for (int r = 0; r < rows; r++) {
            float one = ordered ? x[k * rows + r] : x[r * x_row + k];
            low[r] += one * first;
            high[r] += one * second;
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) finish(low[r], high[r], bias, relu, y + r * y_row, count);
}

/* Rows that are read in place are few; a tile of ordered rows has at least FEW + 1. */
#define FEW_ROWS(DO) case 1: DO(1); break; case 2: DO(2); break; case 3: DO(3); break;
#define MORE_ROWS(DO) \
    case 5: DO(5); break; case 6: DO(6); break; case 7: DO(7); break; case 8: DO(8); break; \
    case 9: DO(9); break; case 10: DO(10); break; case 11: DO(11); break;
#define EACH_TILE(DO) switch (left) { FEW_ROWS(DO) case 4: DO(4); break; MORE_ROWS(DO) default: DO(12); }
#define EACH_FEW(DO) switch (left) { FEW_ROWS(DO) default: DO(4); }
#define EACH_MORE(DO) switch (left) { MORE_ROWS(DO) default: DO(12); }

/* Tiles have nearly equal heights: 32 rows are 11 + 11 + 10, not 12 + 12 + 8. */
static inline i64 tile_height(i64 rows) {
    i64 tiles = (rows + TILE - 1) / TILE;
    return (rows + tiles - 1) / tiles;
}

/* Blocks have nearly equal heights, too. */
static inline i64 block_height(i64 rows) {
    i64 blocks = (rows + BLOCK - 1) / BLOCK;
    return blocks ? (rows + blocks - 1) / blocks : 1;
}

/* Tiles of x as [k][row of the tile], one after another. */
static void order_tiles(const float *x, float *out, i64 rows, i64 height, i64 inputs, i64 x_row) {
    for (i64 top = 0; top < rows; top += height) {
        i64 count = rows - top < height ? rows - top : height;
        for (i64 r = 0; r < count; r++) {
            for (i64 k = 0; k < inputs; k++) out[k * count + r] = x[(top + r) * x_row + k];
        }
        out += count * inputs;
    }
}

/* `project` takes scratch space for tile_rows(rows) x inputs floats as `tiles`. */
i64 tile_rows(i64 rows) { return rows > FEW ? min_i64(rows, BLOCK) : 0; }

/* Rows `top` to `bottom` of a product; `tiles` has them in the order in which they are read, if there are many. */
struct product {
    const float *x, *packed, *bias, *tiles;
    float *y;
    i64 kind, top, bottom, height, inputs, outputs, x_row;
    bool relu, ordered;
};

static inline __attribute__((always_inline)) void panels(const int kind, const struct product *p, i64 first, i64 last) {
    for (i64 begin = first * PANEL; begin < last * PANEL; begin += PANEL) {
        const float *panel = p->packed + begin * p->inputs / (kind == FLOAT32 ? 1 : 2);
        for (i64 row = p->top; row < p->bottom; row += p->height) {
            i64 left = p->bottom - row < p->height ? p->bottom - row : p->height, count = p->outputs - begin;
            const float *from = p->ordered ? p->tiles + (row - p->top) * p->inputs : p->x + row * p->x_row;
            float *to = p->y + row * p->outputs + begin;
            if (p->ordered) {
#define DO(R) \
    tile_float(kind, R, true, from, p->x_row, panel, p->bias + begin, p->relu, to, p->outputs, p->inputs, count)
                EACH_MORE(DO)
#undef DO
            } else {
#define DO(R) \
    tile_float(kind, R, false, from, p->x_row, panel, p->bias + begin, p->relu, to, p->outputs, p->inputs, count)
                EACH_FEW(DO)
#undef DO
            }
        }
    }
}

static void some_panels(const void *job, i64 first, i64 last) {
    const struct product *p = job;
    switch (p->kind) {
        case FLOAT32: panels(FLOAT32, p, first, last); break;
        case BFLOAT16: panels(BFLOAT16, p, first, last); break;
        default: panels(FLOAT16, p, first, last);
    }
}

static i64 panel_count(i64 outputs) { return (outputs + PANEL - 1) / PANEL; }

void project(const float *x, const float *packed, i64 kind, const float *bias, float *y, i64 rows, i64 inputs,
             i64 outputs, i64 x_row, bool relu, float *tiles) {
    i64 most = block_height(rows), bytes = outputs * inputs * (kind == FLOAT32 ? 4 : 2);
    bool ordered = tile_rows(rows) > 0;
    for (i64 top = 0; top < rows; top += most) {
        i64 bottom = rows < top + most ? rows : top + most, height = tile_height(bottom - top);
        if (ordered) order_tiles(x + top * x_row, tiles, bottom - top, height, inputs, x_row);
        struct product job = {.x = x, .packed = packed, .bias = bias, .tiles = tiles, .y = y, .kind = kind, .top = top,
                              .bottom = bottom, .height = height, .inputs = inputs, .outputs = outputs, .x_row = x_row,
                              .relu = relu, .ordered = ordered};
        share(some_panels, &job, panel_count(outputs), bytes);
    }
}

/* Pack W (outputs, inputs), with strides, into panels; padding is zero. */
void pack(const float *w, float *packed, i64 outputs, i64 inputs, i64 w_output, i64 w_input) {
    for (i64 begin = 0; begin < outputs; begin += PANEL) {
        for (i64 k = 0; k < inputs; k++) {
            for (i64 j = 0; j < PANEL; j++) {
                *packed++ = begin + j < outputs ? w[(begin + j) * w_output + k * w_input] : 0.0f;
            }
        }
    }
}

/* The same for halves; see `load_weights` for their order. */
void pack_halves(const uint16_t *w, uint16_t *packed, i64 outputs, i64 inputs, i64 w_output, i64 w_input) {
    for (i64 begin = 0; begin < outputs; begin += PANEL) {
        for (i64 k = 0; k < inputs; k++) {
            for (i64 j = 0; j < PANEL; j++) {
                i64 n = begin + j % 2 * WIDE + j / 2;
                *packed++ = n < outputs ? w[n * w_output + k * w_input] : 0;
            }
        }
    }
}

/* The weights of some outputs, as rows of floats. */
void unpack_rows(const float *packed, i64 kind, const i64 *output, float *rows, i64 count, i64 inputs) {
    const uint16_t *halves = (const uint16_t *)packed;
    for (i64 i = 0; i < count; i++, rows += inputs) {
        i64 begin = output[i] / PANEL * PANEL * inputs, j = output[i] % PANEL, place = j % WIDE * 2 + j / WIDE;
        for (i64 k = 0; k < inputs; k++) {
            i64 at = begin + k * PANEL;
            rows[k] = kind == FLOAT32 ? packed[at + j] : float_of(halves[at + place], kind);
        }
    }
}

/* Pack some outputs of packed weights. Neighbours are often in the same panel, so they are read together. */
void pack_some(const float *packed, const i64 *output, float *some, i64 outputs, i64 inputs) {
    for (i64 begin = 0; begin < outputs; begin += PANEL, some += PANEL * inputs) {
        i64 count = outputs - begin < PANEL ? outputs - begin : PANEL;
        const float *from[PANEL];
        for (i64 j = 0; j < count; j++) {
            i64 n = output[begin + j];
            from[j] = packed + n / PANEL * PANEL * inputs + n % PANEL;
        }
        for (i64 k = 0; k < inputs; k++) {
            for (i64 j = 0; j < count; j++) some[k * PANEL + j] = from[j][k * PANEL];
        }
    }
}

/* int8. Rows whose largest magnitude is TINY or less become zero: the factor 127 / TINY is still finite. */

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
