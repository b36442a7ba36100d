/* bfloat16 in 12 bits, without loss (see products.c for the products).

   Weights of a trained model fill the 8 bits of the exponent badly: among the 32 rows of a panel, 16 exponents are those
   of all but one weight in ten thousand. So a weight is stored as sign and mantissa, a byte, and the number of its
   exponent in a table of the panel, half a byte. The few others are listed at the end, and replaced as the panel passes.
   The floats and the order of additions are those of bfloat16, so the sums are the same to the last bit, and a step of
   one row, which waits for memory, reads a quarter less.

   panel:  head, then for every four inputs three lines of 64 bytes
           numbers of exponents: inputs 0 and 1 in the low halves of bytes, inputs 2 and 3 in the high halves
           sign and mantissa of inputs 0 and 1, then of inputs 2 and 3; see `byte_of` for their order */

#include "tiles.h"

enum { CODES = 16, EXPONENTS = 256, NONE = 255, GROUP = 4, LINES = 3, END = INT32_MAX };

struct head {
    uint8_t exponent[CODES];
    i64 rare; /* bytes from here to the panel's rare weights */
    uint8_t padding[LINE - CODES - sizeof(i64)];
};

/* A weight whose exponent has no number; sorted by `place`, with END at the end. */
struct rare {
    int32_t place, half; /* input x PANEL + output */
};

static i64 panel_bytes(i64 inputs) { return sizeof(struct head) + inputs / GROUP * LINES * LINE; }

/* The byte of an output in a line of sign and mantissa; `odd`: of the second input. So bytes of exponents and of
   mantissas interleave to the pairs of outputs that `load_weights` in products.c reads. */
static inline i64 byte_of(i64 output, i64 odd) {
    i64 lane = output % WIDE;
    return lane / 4 * 16 + odd * 8 + lane % 4 * 2 + output / WIDE;
}

struct matrix_of_halves {
    const uint16_t *w;
    i64 outputs, inputs, w_output, w_input;
};

static inline uint16_t half_at(const struct matrix_of_halves *m, i64 output, i64 input) {
    return m->w[output * m->w_output + input * m->w_input];
}

/* Number the most frequent exponents of a panel, and return how many weights have another one. */
static i64 number_exponents(const struct matrix_of_halves *m, i64 begin, uint8_t *exponent, uint8_t *number) {
    int32_t count[EXPONENTS] = {0};
    i64 end = min_i64(begin + PANEL, m->outputs), rest = (end - begin) * m->inputs;
    for (i64 n = begin; n < end; n++) {
        for (i64 k = 0; k < m->inputs; k++) count[half_at(m, n, k) >> 7 & 0xff]++;
    }
    memset(number, NONE, EXPONENTS);
    for (int code = 0; code < CODES; code++) {
        int most = 0;
        for (int e = 1; e < EXPONENTS; e++) most = count[e] > count[most] ? e : most;
        exponent[code] = (uint8_t)most;
        if (count[most] <= 0) continue; /* fewer exponents than numbers */
        number[most] = (uint8_t)code;
        rest -= count[most];
        count[most] = -1;
    }
    return rest;
}

/* The bytes of a matrix of bfloat16 in this format; 0 if this processor cannot read it fast, or rare weights are many
   (one in 2^RARE). */
enum { RARE = 9 };

i64 coded_bytes(const uint16_t *w, i64 outputs, i64 inputs, i64 w_output, i64 w_input) {
#ifndef __AVX512VBMI__
    return 0;
#endif
    struct matrix_of_halves m = {w, outputs, inputs, w_output, w_input};
    uint8_t exponent[CODES], number[EXPONENTS];
    i64 rare = 0, panels = panel_count(outputs);
    if (inputs % GROUP || inputs > END / PANEL) return 0;
    for (i64 begin = 0; begin < outputs; begin += PANEL) {
        rare += number_exponents(&m, begin, exponent, number);
        if (rare > outputs * inputs >> RARE) return 0;
    }
    return panels * panel_bytes(inputs) + (rare + panels) * (i64)sizeof(struct rare);
}

/* Pack W (outputs, inputs), with strides, into zeros. */
void pack_coded(const uint16_t *w, uint8_t *packed, i64 outputs, i64 inputs, i64 w_output, i64 w_input) {
    struct matrix_of_halves m = {w, outputs, inputs, w_output, w_input};
    struct rare *rare = (struct rare *)(packed + panel_count(outputs) * panel_bytes(inputs));
    for (i64 begin = 0; begin < outputs; begin += PANEL, packed += panel_bytes(inputs)) {
        struct head *head = (struct head *)packed;
        uint8_t number[EXPONENTS], *line = packed + sizeof *head;
        number_exponents(&m, begin, head->exponent, number);
        head->rare = (uint8_t *)rare - packed;
        for (i64 k = 0; k < inputs; k++) {
            i64 second = k % GROUP / 2;
            for (i64 j = 0; j < PANEL && begin + j < outputs; j++) {
                uint16_t half = half_at(&m, begin + j, k);
                uint8_t code = number[half >> 7 & 0xff];
                i64 at = byte_of(j, k % 2);
                if (code == NONE) {
                    *rare++ = (struct rare){(int32_t)(k * PANEL + j), half};
                    code = 0;
                }
                line[at] |= (uint8_t)(code << 4 * second);
                line[(1 + second) * LINE + at] = (uint8_t)((half >> 8 & 0x80) | (half & 0x7f));
            }
            if (k % GROUP == GROUP - 1) line += LINES * LINE;
        }
        *rare++ = (struct rare){END, 0};
    }
}

static float bfloat16(uint32_t half) {
    uint32_t bits = half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The weights of some outputs, as rows of floats. */
void unpack_coded(const uint8_t *packed, const i64 *output, float *rows, i64 count, i64 inputs) {
    for (i64 i = 0; i < count; i++, rows += inputs) {
        const uint8_t *panel = packed + output[i] / PANEL * panel_bytes(inputs);
        const struct head *head = (const struct head *)panel;
        i64 j = output[i] % PANEL;
        for (i64 k = 0; k < inputs; k++) {
            const uint8_t *line = panel + sizeof *head + k / GROUP * LINES * LINE;
            i64 second = k % GROUP / 2, at = byte_of(j, k % 2);
            uint32_t rest = line[(1 + second) * LINE + at], e = head->exponent[line[at] >> 4 * second & 15];
            rows[k] = bfloat16((rest & 0x80) << 8 | e << 7 | (rest & 0x7f));
        }
        for (const struct rare *one = (const struct rare *)(panel + head->rare); one->place != END; one++) {
            if (one->place % PANEL == j) rows[one->place / PANEL] = bfloat16((uint32_t)one->half);
        }
    }
}

#ifdef __AVX512VBMI__
/* What a pass through a panel needs. `high` and `low`: the parts of each exponent in the two bytes of a half. */
struct reader {
    const uint8_t *line;
    const struct rare *rare;
    __m512i high, low;
};

static inline struct reader begin_panel(const uint8_t *panel) {
    const struct head *head = (const struct head *)panel;
    __m512i exponent = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)head->exponent));
    return (struct reader){.line = panel + sizeof *head, .rare = (const struct rare *)(panel + head->rare),
                           .high = _mm512_and_si512(_mm512_srli_epi16(exponent, 1), _mm512_set1_epi8(0x7f)),
                           .low = _mm512_and_si512(_mm512_slli_epi16(exponent, 7), _mm512_set1_epi8((char)0x80))};
}

/* Write the rare weights of two inputs into their pairs of outputs. */
static __attribute__((noinline, cold)) void mend(struct reader *from, i64 k, uint16_t *halves) {
    for (; from->rare->place < (k + 2) * PANEL; from->rare++) {
        i64 input = from->rare->place / PANEL - k, j = from->rare->place % PANEL;
        halves[input * PANEL + j % WIDE * 2 + j / WIDE] = (uint16_t)from->rare->half;
    }
}

/* The weights of inputs k and k + 1, in pairs of outputs; `second`: the last two of a group. */
static inline __attribute__((always_inline)) void read_pairs(struct reader *from, i64 k, const int second, ints *pairs) {
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    __m512i number = _mm512_loadu_si512(from->line), rest = _mm512_loadu_si512(from->line + (1 + second) * LINE);
    if (second) number = _mm512_srli_epi16(number, 4);
    /* The table is repeated four times, so the upper bits of a number do not matter. */
    __m512i high = _mm512_permutexvar_epi8(number, from->high), low = _mm512_permutexvar_epi8(number, from->low);
    high = _mm512_ternarylogic_epi32(high, rest, sign, 0xf8); /* high | (rest & sign) */
    low = _mm512_ternarylogic_epi32(low, rest, sign, 0xf4);   /* low | (rest & ~sign) */
    pairs[0] = (ints)_mm512_unpacklo_epi8(low, high);
    pairs[1] = (ints)_mm512_unpackhi_epi8(low, high);
    if (__builtin_expect(from->rare->place < (k + 2) * PANEL, 0)) {
        uint16_t halves[2 * PANEL];
        memcpy(halves, pairs, sizeof halves);
        mend(from, k, halves);
        memcpy(pairs, halves, sizeof halves);
    }
}

/* One or two panels at once: the sums of one row in one panel would wait for each other. */
static inline __attribute__((always_inline)) void tile_coded(
    const int rows, const int panels, const bool ordered, const float *x, i64 x_row, const uint8_t *panel,
    const float *bias, bool relu, float *y, i64 y_row, i64 inputs, i64 count) {
    floats low[TILE], high[TILE];
    struct reader from[2];
    UNROLL
    for (int r = 0; r < rows * panels; r++) low[r] = high[r] = (floats){0};
    for (int p = 0; p < panels; p++) from[p] = begin_panel(panel + p * panel_bytes(inputs));
    for (i64 k = 0; k < inputs; k += GROUP) {
        UNROLL
        for (int second = 0; second < 2; second++) {
            UNROLL
            for (int p = 0; p < panels; p++) {
                ints pairs[2];
                read_pairs(&from[p], k + 2 * second, second, pairs);
                UNROLL
                for (int odd = 0; odd < 2; odd++) {
                    floats first = (floats)(pairs[odd] << 16), other = (floats)(pairs[odd] & (int32_t)0xffff0000);
                    i64 at = k + 2 * second + odd;
                    UNROLL
                    for (int r = 0; r < rows; r++) {
                        float one = ordered ? x[at * rows + r] : x[r * x_row + at];
                        low[p * rows + r] += one * first;
                        high[p * rows + r] += one * other;
                    }
                }
            }
        }
        UNROLL
        for (int p = 0; p < panels; p++) {
            UNROLL
            for (int line = 0; line < LINES; line++) __builtin_prefetch(from[p].line + 4 * AHEAD + line * LINE, 0, 2);
            from[p].line += LINES * LINE;
        }
    }
    UNROLL
    for (int p = 0; p < panels; p++) {
        UNROLL
        for (int r = 0; r < rows; r++) {
            finish(low[p * rows + r], high[p * rows + r], bias + p * PANEL, relu, y + r * y_row + p * PANEL,
                   count - p * PANEL);
        }
    }
}

static inline __attribute__((always_inline)) void rows_of_panels(const struct product *p, i64 begin, const int panels) {
    const uint8_t *panel = (const uint8_t *)p->packed + begin / PANEL * panel_bytes(p->inputs);
    for (i64 row = p->top; row < p->bottom; row += p->height) {
        i64 left = p->bottom - row < p->height ? p->bottom - row : p->height, count = p->outputs - begin;
        float *to = p->y + row * p->outputs + begin;
        if (panels == 1 && p->ordered) {
            const float *from = p->tiles + (row - p->top) * p->inputs;
#define DO(R) \
    tile_coded(R, 1, true, from, 0, panel, p->bias + begin, p->relu, to, p->outputs, p->inputs, count)
            EACH_MORE(DO)
#undef DO
        } else {
            const float *from = p->x + row * p->x_row;
#define DO(R) \
    tile_coded(R, panels, false, from, p->x_row, panel, p->bias + begin, p->relu, to, p->outputs, p->inputs, count)
            EACH_FEW(DO)
#undef DO
        }
    }
}

void coded_panels(const void *job, i64 first, i64 last) {
    const struct product *p = job;
    for (; !p->ordered && first + 1 < last; first += 2) rows_of_panels(p, first * PANEL, 2);
    for (; first < last; first++) rows_of_panels(p, first * PANEL, 1);
}
#else
void coded_panels(const void *job, i64 first, i64 last) { (void)job, (void)first, (void)last; } /* never packed */
#endif
