/* Tiles of products: what products.c and int8.c share. */

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

static inline floats load(const float *x) { return *(const anywhere *)x; }

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

static inline i64 panel_count(i64 outputs) { return (outputs + PANEL - 1) / PANEL; }

/* Rows `top` to `bottom` of a product with floats; `tiles` has them in the order in which they are read, if there are
   many. */
struct product {
    const float *x, *packed, *bias, *tiles;
    float *y;
    i64 kind, top, bottom, height, inputs, outputs, x_row;
    bool relu, ordered;
};

/* coded.c */
void coded_panels(const void *job, i64 first, i64 last);
