/* y = x W^T + b for a few rows of x: the projections of a decoding step.

   With few rows, a product is limited by how fast W arrives from memory and how often its rows are read again. So W is
   packed in panels of 32 outputs, in the order in which it is read. A tile of up to 12 rows keeps its sums in registers
   while it passes through a panel: 24 vectors of 16 floats.

   float32:  panel[k][32]                 y += x[k] panel[k]
   halves:   panel[k][16][2]              output j beside output 16 + j: a shift and a mask make two vectors of floats
   coded:    bfloat16 in 12 bits          see coded.c
   int8:     panel[k / 4][32][4]          one instruction (VNNI) multiplies four neighbours and adds them up

   Half precision (bfloat16 or float16) is converted in registers: half the bytes of float32, and the same sums. */

#include "tiles.h"

enum { FLOAT32, BFLOAT16, FLOAT16, CODED }; /* kinds of packed weights */

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
        case FLOAT16: panels(FLOAT16, p, first, last); break;
        default: coded_panels(job, first, last);
    }
}

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
