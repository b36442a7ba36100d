/* The small operations of a decoding step, each in one pass over its numbers.

   A step has one position for each row, so nothing here is large: what costs is how often memory is passed over and how
   many operations are called. Rows never mix: what a row gets does not depend on its neighbours.

   Compiled for the machine at hand by __init__.py, with a plain C compiler. */

#include "kernels.h"

/* exp(x) for x <= 0, within 4e-6 of it: 2^k * 2^f with |f| <= 1/2. No branches, so loops vectorise. */
static inline float exp_below(float x) {
    x = x < -87.0f ? -87.0f : x; /* NaN stays */
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
    int32_t bits = ((int32_t)whole + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return y * power;
}

SUM(sum_of(const float *x, i64 n), x[i])
SUM(product(const float *x, const float *y, i64 n), x[i] * y[i])
SUM(squares(const float *x, float mean, i64 n), (x[i] - mean) * (x[i] - mean))
SUM(exponentials(const float *x, float most, i64 n), exp_below(x[i] - most))
SUM(powers(const float *x, float most, float sharpness, i64 n), exp_below((x[i] - most) * sharpness))

/* out = Norm(x + y); y may be absent, and out may then be x. With beta: layer norm, without: RMS norm. */
void add_norm(const float *x, const float *y, const float *gamma, const float *beta, float *out, i64 rows,
              i64 width, float epsilon) {
    for (i64 row = 0; row < rows; row++, x += width, out += width) {
        if (y) {
            for (i64 i = 0; i < width; i++) out[i] = x[i] + y[row * width + i];
        } else if (out != x) {
            memcpy(out, x, width * sizeof(float));
        }
        float mean = beta ? sum_of(out, width) / width : 0.0f;
        float scale = 1.0f / sqrtf(squares(out, mean, width) / width + epsilon);
        if (beta) {
            for (i64 i = 0; i < width; i++) out[i] = (out[i] - mean) * scale * gamma[i] + beta[i];
        } else {
            for (i64 i = 0; i < width; i++) out[i] = out[i] * scale * gamma[i];
        }
    }
}

/* softmax(score), in place; nothing but zeros if nothing may be seen. */
static void weigh(float *score, i64 slots) {
    float most = largest_of(score, slots), total = 0;
    if (most == -INFINITY) { /* nothing may be seen, or scores are no numbers, which stay so */
        for (i64 slot = 0; slot < slots; slot++) score[slot] = score[slot] == -INFINITY ? 0.0f : score[slot];
        return;
    }
    for (i64 slot = 0; slot < slots; slot++) {
        score[slot] = score[slot] == -INFINITY ? 0.0f : exp_below(score[slot] - most);
        total += score[slot];
    }
    for (i64 slot = 0; slot < slots; slot++) score[slot] /= total;
}

enum { SOON = 4 }; /* slots ahead */

/* Numbers that are needed soon. Keys and values of many rows are more than the caches hold: 32 rows of 80 slots take 0.23
   ms instead of 0.55 if they are asked for ahead, 8 of 2,000 2.6 instead of 4.2; a few that are at hand a tenth more. */
static inline void fetch(const float *x, i64 n) {
    for (i64 i = 0; i < n; i += WIDE) __builtin_prefetch(x + i, 0, 2);
}

/* out_bh = softmax(q_bh k_h^T * scale + bias) v_h: one query of each row and head reads `slots` keys and values.

   `sharing` rows in a row read the same memory, unless `which` has its number for each row. `order` (rows, slots) has
   the memory in which each slot of a row lies, where that is not all one. Strides count floats: of q and out between
   rows (heads follow each other), of k and v between memories, heads and slots. `visible` (memories, slots) says what may be seen; who sees
   nothing reads zero. `bias` has a row for each head, and strides between rows of the batch and between heads. `score`
   is room for `heads` x `slots` numbers.

   What is read is far more than the caches hold, so it is read in the order in which it lies: slot by slot, all heads of
   each, or head by head where the slots of a head follow each other. */
void attend(const float *q, const float *k, const float *v, const bool *visible, const float *bias, const i64 *which,
            const i64 *order, float *out, float *score, i64 rows, i64 sharing, i64 heads, i64 slots, i64 key_width,
            i64 value_width, i64 q_row, i64 k_memory, i64 k_head, i64 k_slot, i64 v_memory, i64 v_head, i64 v_slot,
            i64 visible_memory, i64 bias_row, i64 bias_head, i64 out_row, float scale) {
    bool by_slots = k_head < k_slot;
    i64 outer = by_slots ? slots : heads, inner = by_slots ? heads : slots;
    for (i64 row = 0; row < rows; row++) {
        i64 memory = which ? which[row] : row / sharing;
        const i64 *lies = order ? order + row * slots : NULL;
        const bool *seen = visible ? visible + memory * visible_memory : NULL;
        const float *query = q + row * q_row;
        const float *more = bias ? bias + row * bias_row : NULL;
        float *sum = out + row * out_row;
        for (i64 i = 0; i < outer; i++) {
            if (by_slots && (!seen || seen[i])) {
                i64 next = i + SOON < slots ? i + SOON : i;
                fetch(k + (lies ? lies[next] : memory) * k_memory + next * k_slot, heads * key_width);
                fetch(v + (lies ? lies[i] : memory) * v_memory + i * v_slot, heads * value_width);
            }
            for (i64 j = 0; j < inner; j++) {
                i64 slot = by_slots ? i : j, head = by_slots ? j : i;
                if (seen && !seen[slot]) {
                    score[head * slots + slot] = -INFINITY;
                    continue;
                }
                const float *key = k + (lies ? lies[slot] : memory) * k_memory + head * k_head + slot * k_slot;
                float dot = product(query + head * key_width, key, key_width) * scale;
                score[head * slots + slot] = dot + (more ? more[head * bias_head + slot] : 0.0f);
            }
        }
        for (i64 head = 0; head < heads; head++) weigh(score + head * slots, slots);
        memset(sum, 0, heads * value_width * sizeof(float));
        for (i64 i = 0; i < outer; i++) {
            for (i64 j = 0; j < inner; j++) {
                i64 slot = by_slots ? i : j, head = by_slots ? j : i;
                float weight = score[head * slots + slot];
                if (weight == 0) continue; /* what is not seen may be no number */
                const float *one = v + (lies ? lies[slot] : memory) * v_memory + head * v_head + slot * v_slot;
                float *mine = sum + head * value_width;
                for (i64 r = 0; r < value_width; r++) mine[r] += weight * one[r];
            }
        }
    }
}

/* y[row][slot] = x[order[row][slot]][slot]: rows that may lie anywhere, in one pass. Strides count numbers. */
void gather(const float *x, float *y, const i64 *order, i64 rows, i64 slots, i64 width, i64 order_row, i64 order_slot,
            i64 x_row, i64 x_slot, i64 y_row, i64 y_slot) {
    for (i64 row = 0; row < rows; row++) {
        for (i64 slot = 0; slot < slots; slot++) {
            const float *from = x + order[row * order_row + slot * order_slot] * x_row + slot * x_slot;
            memcpy(y + row * y_row + slot * y_slot, from, width * sizeof(float));
        }
    }
}

enum { BLOCK = 4 * WIDE };

static inline i64 least_of(i64 x, i64 y) { return x < y ? x : y; }

/* log sum exp of a row whose largest number from column `first` on is known. */
static float log_sum(const float *x, i64 columns, i64 first, float most) {
    for (i64 i = 0; i < first; i++) most = x[i] > most ? x[i] : most;
    return most + (most > -INFINITY ? logf(exponentials(x, most, columns)) : 0.0f);
}

/* The `count` largest of each row from column `first` on, largest first (of equals the first ones), as
   log-probabilities among all columns. */
void top_words(const float *logits, float *logprob, int64_t *word, i64 rows, i64 columns, i64 first, i64 count) {
    for (i64 row = 0; row < rows; row++, logits += columns, logprob += count, word += count) {
        i64 found = 0;
        float least = -INFINITY; /* of those found, once there are `count` */
        for (i64 begin = first; begin < columns; begin += BLOCK) {
            i64 end = least_of(begin + BLOCK, columns);
            if (found == count && !(largest_of(logits + begin, end - begin) > least)) continue;
            for (i64 i = begin; i < end; i++) {
                float x = logits[i];
                if (found == count && !(x > least)) continue;
                i64 place = found < count ? found++ : count - 1;
                for (; place > 0 && x > logprob[place - 1]; place--) {
                    logprob[place] = logprob[place - 1];
                    word[place] = word[place - 1];
                }
                logprob[place] = x;
                word[place] = i;
                least = logprob[count - 1];
            }
        }
        float shift = log_sum(logits, columns, first, logprob[0]);
        for (i64 i = 0; i < count; i++) logprob[i] -= shift;
    }
}

/* A column of each row from `first` on, drawn with P ~ exp(logit / temperature) by a number in [0, 1): the first one at
   which the sum of probabilities is above it. Its log-probability is that among all columns, at temperature 1.

   Sums are those of blocks, in the order of the columns, so that the block that is looked for can be found again. */
void draw_words(const float *logits, const double *uniform, float *logprob, int64_t *word, i64 rows, i64 columns,
                i64 first, float temperature) {
    float sharpness = 1.0f / temperature;
    for (i64 row = 0; row < rows; row++, logits += columns) {
        float most = largest_of(logits + first, columns - first);
        double total = 0, before = 0;
        for (i64 begin = first; begin < columns; begin += BLOCK) {
            total += powers(logits + begin, most, sharpness, least_of(BLOCK, columns - begin));
        }
        /* The factor keeps a rounded product below the sum. */
        double wanted = uniform[row] * total * (1 - 0x1p-40), sum = 0;
        i64 begin = first, drawn = first;
        for (; begin < columns; begin += BLOCK) {
            sum = powers(logits + begin, most, sharpness, least_of(BLOCK, columns - begin));
            if (before + sum > wanted) break;
            before += sum;
        }
        if (begin >= columns) begin = first; /* no numbers */
        for (i64 i = begin; i < columns && i < begin + BLOCK; i++) {
            if (!(logits[i] > -INFINITY)) continue;
            drawn = i; /* the last one, should its block's sum be rounded up */
            before += exp_below((logits[i] - most) * sharpness);
            if (before > wanted) break;
        }
        word[row] = drawn;
        logprob[row] = logits[drawn] - log_sum(logits, columns, first, most);
    }
}
