/* One step of a whole decoder block: attention over the past, over a memory, feed-forward, each with its residual and norm.

   The parts are those of steps.c and products.c. A step of a narrow model takes less time than asking for its parts one
   by one, so a block is asked for once.

       post:  x = Norm(x + Sublayer(x))          pre:  x = x + Sublayer(Norm(x)) */

#include "kernels.h"

struct matrix { /* packed for `project`, or, if there are bytes, for `project_int8` */
    const float *packed;
    const int8_t *bytes;
    const float *scale;
    const int32_t *sums;
    const float *bias;
    i64 inputs, outputs;
};

struct norm {
    const float *gamma, *beta; /* no beta: RMS norm */
    double epsilon;
};

struct heads {
    i64 count, key_width, value_width;
    double scale;
};

struct block {
    struct matrix query_key_value, mixed, query, crossed, inner, outer;
    struct norm mixer_norm, cross_norm, feedforward_norm;
    struct heads heads, cross_heads; /* no heads: no memory is read */
    i64 pre;
};

/* What is read: keys and values with their strides in floats, and what of it may be seen. */
struct memory {
    float *k, *v;
    const bool *visible;
    i64 slots, sharing, k_row, k_head, k_slot, v_row, v_head, v_slot, visible_row;
};

struct room { /* for numbers on the way, as `room_for_block` says */
    float *wide, *read, *update, *normed, *between, *score, *tiles, *scale;
    uint8_t *bytes;
};

static i64 most(i64 x, i64 y) { return x > y ? x : y; }

static i64 widest(const struct block *b) {
    return most(b->query_key_value.outputs, most(b->query.outputs, b->inner.outputs));
}

static i64 most_heads(const struct block *b) { return most(b->heads.count, b->cross_heads.count); }

static i64 most_inputs(const struct block *b) {
    return most(b->inner.inputs, most(b->outer.inputs, most(b->mixed.inputs, b->crossed.inputs)));
}

/* How many floats a call needs. */
i64 room_for_block(const struct block *b, i64 rows, i64 slots) {
    i64 width = b->outer.outputs, read = most(b->mixed.inputs, b->crossed.inputs);
    return rows * (widest(b) + read + 3 * width + 1) + most_heads(b) * slots + room_for_tiles(rows) * most_inputs(b) +
           rows * (most_inputs(b) + 4) / 4 + 1;
}

static struct room lay_out(const struct block *b, i64 rows, i64 slots, float *at) {
    struct room room;
    i64 width = b->outer.outputs;
    room.wide = at;
    room.read = room.wide + rows * widest(b);
    room.update = room.read + rows * most(b->mixed.inputs, b->crossed.inputs);
    room.normed = room.update + rows * width;
    room.between = room.normed + rows * width;
    room.score = room.between + rows * width;
    room.tiles = room.score + most_heads(b) * slots;
    room.scale = room.tiles + room_for_tiles(rows) * most_inputs(b);
    room.bytes = (uint8_t *)(room.scale + rows);
    return room;
}

static void multiply(const struct matrix *m, const float *x, float *y, i64 rows, bool relu, struct room *room) {
    if (m->bytes) {
        project_int8(x, m->bytes, m->scale, m->sums, m->bias, room->bytes, room->scale, y, rows, m->inputs, m->outputs,
                     m->inputs, relu);
    } else {
        project(x, m->packed, m->bias, y, rows, m->inputs, m->outputs, m->inputs, relu, room->tiles);
    }
}

/* What a sublayer is given. */
static const float *given(const struct block *b, const struct norm *norm, const float *x, i64 rows, struct room *room) {
    if (!b->pre) return x;
    add_norm(x, NULL, norm->gamma, norm->beta, room->normed, rows, b->outer.outputs, norm->epsilon);
    return room->normed;
}

/* What becomes of its update. */
static void add(const struct block *b, const struct norm *norm, const float *x, const float *update, float *y, i64 rows) {
    if (!b->pre) {
        add_norm(x, update, norm->gamma, norm->beta, y, rows, b->outer.outputs, norm->epsilon);
        return;
    }
    for (i64 i = 0; i < rows * b->outer.outputs; i++) y[i] = x[i] + update[i];
}

static void look(const struct heads *h, const float *query, i64 query_row, const struct memory *m, i64 rows,
                 struct room *room) {
    attend(query, m->k, m->v, m->visible, NULL, room->read, room->score, rows, m->sharing, h->count, m->slots,
           h->key_width, h->value_width, query_row, m->k_row, m->k_head, m->k_slot, m->v_row, m->v_head, m->v_slot,
           m->visible_row, 0, 0, h->count * h->value_width, h->scale);
}

/* Rotary positions: pairs of features (i, i + half) are turned; `sin` has the signs. */
static void turn(float *x, i64 heads, i64 width, const float *cos, const float *sin) {
    i64 half = width / 2;
    for (i64 head = 0; head < heads; head++, x += width) {
        for (i64 i = 0; i < half; i++) {
            float left = x[i], right = x[half + i];
            x[i] = left * cos[i] + right * sin[i];
            x[half + i] = right * cos[half + i] + left * sin[half + i];
        }
    }
}

/* x, y (rows, width). The last slot of the past is new: it is written here. `cos`, `sin`: of its position, or NULL.
   `floats` is what `room_for_block` asks for, with the slots of the longer memory. */
void advance_block(const struct block *b, const float *x, float *y, i64 rows, const struct memory *past,
                   const struct memory *memory, const float *cos, const float *sin, float *floats) {
    i64 slots = memory && memory->slots > past->slots ? memory->slots : past->slots;
    struct room room = lay_out(b, rows, slots, floats);
    i64 keys = b->heads.count * b->heads.key_width, values = b->heads.count * b->heads.value_width;
    i64 wide = 2 * keys + values;
    float *first = memory ? y : room.between;

    multiply(&b->query_key_value, given(b, &b->mixer_norm, x, rows, &room), room.wide, rows, false, &room);
    for (i64 row = 0; row < rows; row++) {
        float *mine = room.wide + row * wide;
        if (cos) turn(mine, 2 * b->heads.count, b->heads.key_width, cos, sin);
        memcpy(past->k + row * past->k_row + (past->slots - 1) * past->k_slot, mine + keys, keys * sizeof(float));
        memcpy(past->v + row * past->v_row + (past->slots - 1) * past->v_slot, mine + 2 * keys, values * sizeof(float));
    }
    look(&b->heads, room.wide, wide, past, rows, &room);
    multiply(&b->mixed, room.read, room.update, rows, false, &room);
    add(b, &b->mixer_norm, x, room.update, first, rows);
    if (memory) {
        multiply(&b->query, given(b, &b->cross_norm, first, rows, &room), room.wide, rows, false, &room);
        look(&b->cross_heads, room.wide, b->query.outputs, memory, rows, &room);
        multiply(&b->crossed, room.read, room.update, rows, false, &room);
        add(b, &b->cross_norm, first, room.update, room.between, rows);
    }
    multiply(&b->inner, given(b, &b->feedforward_norm, room.between, rows, &room), room.wide, rows, true, &room);
    multiply(&b->outer, room.wide, room.update, rows, false, &room);
    add(b, &b->feedforward_norm, room.between, room.update, y, rows);
}
