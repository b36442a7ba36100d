/* Whole stacks of blocks: attention over the past or over each other, over a memory, feed-forward, each with its
   residual and norm; one position of each row of a decoder, or all positions of some sentences of an encoder.

   The parts are those of steps.c and products.c. A step of a narrow model takes less time than asking for its parts one
   by one, so a stack is asked for once.

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

/* What is read: keys and values with their strides in floats, what of it may be seen, and by whom (see `attend`). */
struct memory {
    float *k, *v;
    const bool *visible;
    i64 slots, k_row, k_head, k_slot, v_row, v_head, v_slot, visible_row;
};

struct room { /* for numbers on the way, as `room_for_block` says */
    float *wide, *read, *update, *normed, *between, *after, *score, *tiles, *scale;
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

static i64 room_for_block(const struct block *b, i64 rows, i64 slots) {
    i64 width = b->outer.outputs, read = most(b->mixed.inputs, b->crossed.inputs);
    return rows * (widest(b) + read + 4 * width + 1) + most_heads(b) * slots + room_for_tiles(rows) * most_inputs(b) +
           rows * (most_inputs(b) + 4) / 4 + 1;
}

/* How many floats a call needs, with the slots of the longest memory. */
i64 room_for_stack(const struct block *b, i64 count, i64 rows, i64 slots) {
    i64 room = 0;
    for (i64 i = 0; i < count; i++) room = most(room, room_for_block(b + i, rows, slots));
    return room;
}

static struct room lay_out(const struct block *b, i64 rows, i64 slots, float *at) {
    struct room room;
    i64 width = b->outer.outputs;
    room.wide = at;
    room.read = room.wide + rows * widest(b);
    room.update = room.read + rows * most(b->mixed.inputs, b->crossed.inputs);
    room.normed = room.update + rows * width;
    room.between = room.normed + rows * width;
    room.after = room.between + rows * width;
    room.score = room.after + rows * width;
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
static void add(const struct block *b, const struct norm *norm, const float *x, const float *update, float *y,
                i64 rows) {
    if (!b->pre) {
        add_norm(x, update, norm->gamma, norm->beta, y, rows, b->outer.outputs, norm->epsilon);
        return;
    }
    for (i64 i = 0; i < rows * b->outer.outputs; i++) y[i] = x[i] + update[i];
}

static void look(const struct heads *h, const float *query, i64 query_row, const struct memory *m, const i64 *which,
                 const i64 *order, i64 rows, i64 sharing, float *out, struct room *room) {
    attend(query, m->k, m->v, m->visible, NULL, which, order, out, room->score, rows, sharing, h->count, m->slots,
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

static void feed_forward(const struct block *b, const float *x, float *y, i64 rows, struct room *room) {
    multiply(&b->inner, given(b, &b->feedforward_norm, x, rows, room), room->wide, rows, true, room);
    multiply(&b->outer, room->wide, room->update, rows, false, room);
    add(b, &b->feedforward_norm, x, room->update, y, rows);
}

/* x, y (rows, width), which may be the same. The last slot of the past is new: it is written here, in the memory of the
   row's own number. */
static void advance_block(const struct block *b, const float *x, float *y, i64 rows, const struct memory *past,
                          const i64 *order, const struct memory *memory, const i64 *which, const i64 *place,
                          const float *cos, const float *sin, float *floats) {
    i64 slots = memory && memory->slots > past->slots ? memory->slots : past->slots;
    struct room room = lay_out(b, rows, slots, floats);
    i64 keys = b->heads.count * b->heads.key_width, values = b->heads.count * b->heads.value_width;
    i64 wide = 2 * keys + values, last = past->slots - 1;

    multiply(&b->query_key_value, given(b, &b->mixer_norm, x, rows, &room), room.wide, rows, false, &room);
    for (i64 row = 0; row < rows; row++) {
        float *mine = room.wide + row * wide;
        i64 wave = place ? place[row] * b->heads.key_width : 0;
        if (cos) turn(mine, 2 * b->heads.count, b->heads.key_width, cos + wave, sin + wave);
        memcpy(past->k + row * past->k_row + last * past->k_slot, mine + keys, keys * sizeof(float));
        memcpy(past->v + row * past->v_row + last * past->v_slot, mine + 2 * keys, values * sizeof(float));
    }
    look(&b->heads, room.wide, wide, past, NULL, order, rows, 1, room.read, &room);
    multiply(&b->mixed, room.read, room.update, rows, false, &room);
    add(b, &b->mixer_norm, x, room.update, room.between, rows);
    if (!memory) {
        feed_forward(b, room.between, y, rows, &room);
        return;
    }
    multiply(&b->query, given(b, &b->cross_norm, room.between, rows, &room), room.wide, rows, false, &room);
    look(&b->cross_heads, room.wide, b->query.outputs, memory, which, NULL, rows, 1, room.read, &room);
    multiply(&b->crossed, room.read, room.update, rows, false, &room);
    add(b, &b->cross_norm, room.between, room.update, room.after, rows);
    feed_forward(b, room.after, y, rows, &room);
}

/* One position of each row through `count` blocks; x, y (rows, width). Each block has its past, of which `slots` are
   there and `visible` (rows, slots) are seen, and, if there are any, its memory; `order` and `which` are those of
   `attend`. `cos`, `sin`: of the position, or of all positions if `place` has the one of each row, or NULL. */
void advance_stack(const struct block *b, i64 count, const struct norm *norm, const float *x, float *y, i64 rows,
                   const struct memory *past, i64 slots, const bool *visible, const i64 *order,
                   const struct memory *memory, const i64 *which, const i64 *place, const float *cos, const float *sin,
                   float *floats) {
    for (i64 i = 0; i < count; i++) {
        struct memory here = past[i];
        here.slots = slots;
        here.visible = visible;
        here.visible_row = slots;
        advance_block(b + i, i ? y : x, y, rows, &here, order, memory ? memory + i : NULL, which, place, cos, sin,
                      floats);
    }
    if (norm) add_norm(y, NULL, norm->gamma, norm->beta, y, rows, b->outer.outputs, norm->epsilon);
}

static void encode_block(const struct block *b, const float *x, float *y, i64 rows, i64 sentences, const i64 *length,
                         i64 longest, const float *cos, const float *sin, float *floats) {
    struct room room = lay_out(b, rows, longest, floats);
    i64 head = b->heads.key_width, keys = b->heads.count * head, values = b->heads.count * b->heads.value_width;
    i64 wide = 2 * keys + values;

    multiply(&b->query_key_value, given(b, &b->mixer_norm, x, rows, &room), room.wide, rows, false, &room);
    float *mine = room.wide, *read = room.read;
    for (i64 s = 0; s < sentences; mine += length[s] * wide, read += length[s] * values, s++) {
        for (i64 place = 0; cos && place < length[s]; place++) {
            turn(mine + place * wide, 2 * b->heads.count, head, cos + place * head, sin + place * head);
        }
        struct memory all = {.k = mine + keys, .k_head = head, .k_slot = wide, .slots = length[s],
                             .v = mine + 2 * keys, .v_head = b->heads.value_width, .v_slot = wide};
        look(&b->heads, mine, wide, &all, NULL, NULL, length[s], length[s], read, &room);
    }
    multiply(&b->mixed, room.read, room.update, rows, false, &room);
    add(b, &b->mixer_norm, x, room.update, room.between, rows);
    feed_forward(b, room.between, y, rows, &room);
}

/* Sentences that lie one behind the other, without padding, through `count` blocks; x, y (rows, width). Each position
   reads its own sentence. `cos`, `sin`: of all positions of the longest, or NULL. */
void encode_stack(const struct block *b, i64 count, const struct norm *norm, const float *x, float *y, i64 rows,
                  i64 sentences, const i64 *length, const float *cos, const float *sin, float *floats) {
    i64 longest = 0;
    for (i64 s = 0; s < sentences; s++) longest = most(longest, length[s]);
    for (i64 i = 0; i < count; i++) {
        encode_block(b + i, i ? y : x, y, rows, sentences, length, longest, cos, sin, floats);
    }
    if (norm) add_norm(y, NULL, norm->gamma, norm->beta, y, rows, b->outer.outputs, norm->epsilon);
}
