/* Whole stacks of blocks: self-attention, attention to a memory and feed-forward, each with its residual and norm; for
   one new position of each row of a decoder, or for all positions of some sentences of an encoder.

   Built from the functions of steps.c and products.c. A step of a narrow model takes less time than calling them from
   Python one by one, so a whole stack is one call.

       post:  x = Norm(x + Sublayer(x))          pre:  x = x + Sublayer(Norm(x)) */

#include "lanes.h"

/* Scratch space of one block; `block_workspace` counts it. */
struct workspace {
    float *wide, *read, *update, *normed, *between, *after, *score, *tiles, *thin, *scale;
    uint8_t *bytes;
};

static i64 widest(const struct block *b) {
    return max_i64(b->query_key_value.outputs, max_i64(b->query.outputs, b->inner.outputs));
}

static i64 most_heads(const struct block *b) { return max_i64(b->heads.count, b->cross_heads.count); }

static i64 most_inputs(const struct block *b) {
    return max_i64(b->inner.inputs, max_i64(b->outer.inputs, max_i64(b->mixed.inputs, b->crossed.inputs)));
}

static i64 most_rank(const struct block *b) {
    i64 mixer = max_i64(b->query_key_value.rank, b->mixed.rank), cross = max_i64(b->query.rank, b->crossed.rank);
    return max_i64(max_i64(mixer, cross), max_i64(b->inner.rank, b->outer.rank));
}

static i64 block_workspace(const struct block *b, i64 rows, i64 slots) {
    i64 width = b->outer.outputs, read = max_i64(b->mixed.inputs, b->crossed.inputs);
    return rows * (widest(b) + read + 4 * width + most_rank(b) + 1) + most_heads(b) * slots + tile_rows(rows) * most_inputs(b) +
           rows * (most_inputs(b) + 4) / 4 + 1;
}

/* The number of floats that a call needs as its workspace; `slots`: of the longest memory. */
i64 stack_workspace(const struct block *blocks, i64 count, i64 rows, i64 slots) {
    i64 floats = 0;
    for (i64 i = 0; i < count; i++) floats = max_i64(floats, block_workspace(blocks + i, rows, slots));
    return floats;
}

static struct workspace split(const struct block *b, i64 rows, i64 slots, float *floats) {
    struct workspace space;
    i64 width = b->outer.outputs;
    space.wide = floats;
    space.read = space.wide + rows * widest(b);
    space.update = space.read + rows * max_i64(b->mixed.inputs, b->crossed.inputs);
    space.normed = space.update + rows * width;
    space.between = space.normed + rows * width;
    space.after = space.between + rows * width;
    space.score = space.after + rows * width;
    space.tiles = space.score + most_heads(b) * slots;
    space.thin = space.tiles + tile_rows(rows) * most_inputs(b);
    space.scale = space.thin + rows * most_rank(b);
    space.bytes = (uint8_t *)(space.scale + rows);
    return space;
}

/* Add the product with the adapter of a matrix. */
static void adapt(const struct matrix *m, const float *x, float *y, i64 rows, bool relu, struct workspace *space) {
    project(x, m->down, 0, m->zeros, space->thin, rows, m->inputs, m->rank, m->inputs, false, space->tiles);
    for (i64 row = 0; row < rows; row++, y += m->outputs) {
        for (i64 r = 0; r < m->rank; r++) {
            float one = space->thin[row * m->rank + r];
            const float *up = m->up + r * m->outputs;
            for (i64 n = 0; n < m->outputs; n++) y[n] += one * up[n];
        }
        if (relu) for (i64 n = 0; n < m->outputs; n++) y[n] = y[n] < 0 ? 0.0f : y[n]; /* keeps NaN */
    }
}

static void multiply(const struct matrix *m, const float *x, float *y, i64 rows, bool relu, struct workspace *space) {
    bool last = relu && !m->rank;
    if (m->bytes) {
        project_int8(x, m->bytes, m->scale, m->sums, m->bias, space->bytes, space->scale, y, rows, m->inputs,
                     m->outputs, m->inputs, last);
    } else {
        project(x, m->packed, m->kind, m->bias, y, rows, m->inputs, m->outputs, m->inputs, last, space->tiles);
    }
    if (m->rank) adapt(m, x, y, rows, relu, space);
}

/* The input of a sublayer. */
static const float *sublayer_input(const struct block *b, const struct norm *norm, const float *x, i64 rows,
                                   struct workspace *space) {
    if (!b->pre) return x;
    add_norm(x, NULL, norm->gamma, norm->beta, space->normed, rows, b->outer.outputs, norm->epsilon);
    return space->normed;
}

/* Add the update of a sublayer to its input. */
static void add_residual(const struct block *b, const struct norm *norm, const float *x, const float *update, float *y,
                         i64 rows) {
    if (!b->pre) {
        add_norm(x, update, norm->gamma, norm->beta, y, rows, b->outer.outputs, norm->epsilon);
        return;
    }
    for (i64 i = 0; i < rows * b->outer.outputs; i++) y[i] = x[i] + update[i];
}

static void read_memory(const struct heads *h, const float *query, i64 query_row, const struct memory *m,
                        const i64 *memory_of_row, const i64 *row_of_slot, i64 rows, i64 sharing, float *out,
                        struct workspace *space) {
    attend(query, m->k, m->v, m->visible, NULL, memory_of_row, row_of_slot, out, space->score, rows, sharing, h->count,
           m->slots, h->key_width, h->value_width, query_row, m->k_row, m->k_head, m->k_slot, m->v_row, m->v_head,
           m->v_slot, m->visible_row, 0, 0, h->count * h->value_width, h->group, h->scale);
}

/* Rotary positions: rotate pairs of features (i, i + half); `sin` holds the signs. */
static void rotate(float *x, i64 heads, i64 width, const float *cos, const float *sin) {
    i64 half = width / 2;
    for (i64 head = 0; head < heads; head++, x += width) {
        for (i64 i = 0; i < half; i++) {
            float left = x[i], right = x[half + i];
            x[i] = left * cos[i] + right * sin[i];
            x[half + i] = right * cos[half + i] + left * sin[half + i];
        }
    }
}

static inline float sigmoid(float x) {
    float e = exp_below(x < 0 ? x : -x);
    return (x < 0 ? e : 1.0f) / (1.0f + e);
}

static inline float silu(float x) { return x * sigmoid(x); }

/* x Phi(x) with Phi approximated by tanh; (1 + tanh(u)) / 2 = sigmoid(2 u) */
static inline float gelu(float x) { return x * sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x)); }

/* The inner outputs through their function, in place; a gated layer keeps half of them, without gaps. */
static void activate(const struct block *b, float *x, i64 rows) {
    i64 width = b->inner.outputs;
    if (!b->gated) {
        if (b->function == 1) for (i64 i = 0; i < rows * width; i++) x[i] = silu(x[i]);
        if (b->function == 2) for (i64 i = 0; i < rows * width; i++) x[i] = gelu(x[i]);
        return;
    }
    i64 half = width / 2;
    for (i64 row = 0; row < rows; row++) {
        const float *gate = x + row * width, *value = gate + half;
        float *y = x + row * half;
        if (b->function == 1) for (i64 i = 0; i < half; i++) y[i] = silu(gate[i]) * value[i];
        if (b->function == 2) for (i64 i = 0; i < half; i++) y[i] = gelu(gate[i]) * value[i];
    }
}

static void feed_forward(const struct block *b, const float *x, float *y, i64 rows, struct workspace *space) {
    const float *input = sublayer_input(b, &b->feedforward_norm, x, rows, space);
    multiply(&b->inner, input, space->wide, rows, b->function == 0, space);
    activate(b, space->wide, rows);
    multiply(&b->outer, space->wide, space->update, rows, false, space);
    add_residual(b, &b->feedforward_norm, x, space->update, y, rows);
}

/* The number of features of all queries, of all keys and of all values. */
static i64 queries_of(const struct heads *h) { return h->count * h->key_width; }
static i64 keys_of(const struct heads *h) { return h->count / h->group * h->key_width; }
static i64 values_of(const struct heads *h) { return h->count / h->group * h->value_width; }

/* x, y (rows, width) may be the same. Row b writes the last slot of the cache in cache row b. */
static void advance_block(const struct block *b, const float *x, float *y, i64 rows, const struct memory *cache,
                          const i64 *row_of_slot, const struct memory *memory, const i64 *memory_of_row,
                          const i64 *position, const float *cos, const float *sin, float *floats) {
    i64 slots = memory && memory->slots > cache->slots ? memory->slots : cache->slots;
    struct workspace space = split(b, rows, slots, floats);
    i64 queries = queries_of(&b->heads), keys = keys_of(&b->heads), values = values_of(&b->heads);
    i64 wide = queries + keys + values, last = cache->slots - 1, turning = b->heads.count + b->heads.count / b->heads.group;

    multiply(&b->query_key_value, sublayer_input(b, &b->mixer_norm, x, rows, &space), space.wide, rows, false, &space);
    for (i64 row = 0; row < rows; row++) {
        float *projected = space.wide + row * wide;
        i64 angle = position ? position[row] * b->heads.key_width : 0;
        if (cos) rotate(projected, turning, b->heads.key_width, cos + angle, sin + angle);
        memcpy(cache->k + row * cache->k_row + last * cache->k_slot, projected + queries, keys * sizeof(float));
        memcpy(cache->v + row * cache->v_row + last * cache->v_slot, projected + queries + keys, values * sizeof(float));
    }
    read_memory(&b->heads, space.wide, wide, cache, NULL, row_of_slot, rows, 1, space.read, &space);
    multiply(&b->mixed, space.read, space.update, rows, false, &space);
    add_residual(b, &b->mixer_norm, x, space.update, space.between, rows);
    if (!memory) {
        feed_forward(b, space.between, y, rows, &space);
        return;
    }
    const float *query = sublayer_input(b, &b->cross_norm, space.between, rows, &space);
    multiply(&b->query, query, space.wide, rows, false, &space);
    read_memory(&b->cross_heads, space.wide, b->query.outputs, memory, memory_of_row, NULL, rows, 1, space.read,
                &space);
    multiply(&b->crossed, space.read, space.update, rows, false, &space);
    add_residual(b, &b->cross_norm, space.between, space.update, space.after, rows);
    feed_forward(b, space.after, y, rows, &space);
}

/* One new position of each row through `count` blocks; x, y (rows, width). Each block has its cache, of which `slots`
   are in use and `visible` (rows, slots) is the mask, and, if there are any, its memory. `row_of_slot` and
   `memory_of_row` are those of `attend`. `cos`, `sin`: of the new position, or of all positions if `position` has that
   of each row, or NULL. */
void advance_stack(const struct block *blocks, i64 count, const struct norm *norm, const float *x, float *y, i64 rows,
                   const struct memory *cache, i64 slots, const bool *visible, const i64 *row_of_slot,
                   const struct memory *memory, const i64 *memory_of_row, const i64 *position, const float *cos,
                   const float *sin, float *workspace) {
    for (i64 i = 0; i < count; i++) {
        struct memory here = cache[i];
        here.slots = slots;
        here.visible = visible;
        here.visible_row = slots;
        advance_block(blocks + i, i ? y : x, y, rows, &here, row_of_slot, memory ? memory + i : NULL, memory_of_row,
                      position, cos, sin, workspace);
    }
    if (norm) add_norm(y, NULL, norm->gamma, norm->beta, y, rows, blocks->outer.outputs, norm->epsilon);
}

static void encode_block(const struct block *b, const float *x, float *y, i64 rows, i64 sentences, const i64 *length,
                         i64 longest, const float *cos, const float *sin, float *floats) {
    struct workspace space = split(b, rows, longest, floats);
    i64 head = b->heads.key_width, queries = queries_of(&b->heads), keys = keys_of(&b->heads);
    i64 wide = queries + keys + values_of(&b->heads), turning = b->heads.count + b->heads.count / b->heads.group;
    i64 values = b->heads.count * b->heads.value_width; /* that are read */

    multiply(&b->query_key_value, sublayer_input(b, &b->mixer_norm, x, rows, &space), space.wide, rows, false, &space);
    float *sentence = space.wide, *read = space.read;
    for (i64 s = 0; s < sentences; sentence += length[s] * wide, read += length[s] * values, s++) {
        for (i64 at = 0; cos && at < length[s]; at++) {
            rotate(sentence + at * wide, turning, head, cos + at * head, sin + at * head);
        }
        struct memory all = {.k = sentence + queries, .k_head = head, .k_slot = wide, .slots = length[s],
                             .v = sentence + queries + keys, .v_head = b->heads.value_width, .v_slot = wide};
        read_memory(&b->heads, sentence, wide, &all, NULL, NULL, length[s], length[s], read, &space);
    }
    multiply(&b->mixed, space.read, space.update, rows, false, &space);
    add_residual(b, &b->mixer_norm, x, space.update, space.between, rows);
    feed_forward(b, space.between, y, rows, &space);
}

/* Concatenated sentences, without padding, through `count` blocks; x, y (rows, width). Each position reads its own
   sentence. `cos`, `sin`: of all positions of the longest sentence, or NULL. */
void encode_stack(const struct block *blocks, i64 count, const struct norm *norm, const float *x, float *y, i64 rows,
                  i64 sentences, const i64 *length, const float *cos, const float *sin, float *workspace) {
    i64 longest = 0;
    for (i64 s = 0; s < sentences; s++) longest = max_i64(longest, length[s]);
    for (i64 i = 0; i < count; i++) {
        encode_block(blocks + i, i ? y : x, y, rows, sentences, length, longest, cos, sin, workspace);
    }
    if (norm) add_norm(y, NULL, norm->gamma, norm->beta, y, rows, blocks->outer.outputs, norm->epsilon);
}
