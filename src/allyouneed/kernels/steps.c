/* The small operations of a decoding step, each in one pass over its data.

   A step has one position for each row, so all tensors are small. The cost is in passes over memory and in the number
   of calls. Rows are independent: the result of a row does not depend on its neighbours. */

#include "lanes.h"

SUM(sum_of(const float *x, i64 n), x[i])
SUM(product(const float *x, const float *y, i64 n), x[i] * y[i])
SUM(squares(const float *x, float mean, i64 n), (x[i] - mean) * (x[i] - mean))
SUM(exponentials(const float *x, float most, i64 n), exp_below(x[i] - most))
SUM(powers(const float *x, float most, float sharpness, i64 n), exp_below((x[i] - most) * sharpness))

/* out = Norm(x + y), or Norm(x) without y; then out may be x. Layer norm with beta, RMS norm without. */
void add_norm(const float *x, const float *y, const float *gamma, const float *beta, float *out, i64 rows, i64 width,
              float epsilon) {
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

/* softmax(score), in place. Fully masked rows become zeros. */
static void softmax(float *score, i64 slots) {
    float most = maximum(score, slots), total = 0;
    if (most == -INFINITY) { /* all masked, or NaN, which is kept */
        for (i64 slot = 0; slot < slots; slot++) score[slot] = score[slot] == -INFINITY ? 0.0f : score[slot];
        return;
    }
    for (i64 slot = 0; slot < slots; slot++) {
        score[slot] = score[slot] == -INFINITY ? 0.0f : exp_below(score[slot] - most);
        total += score[slot];
    }
    for (i64 slot = 0; slot < slots; slot++) score[slot] /= total;
}

enum { AHEAD = 4 }; /* slots to prefetch ahead */

/* Keys and values of many rows exceed the caches. With prefetching, 32 rows of 80 slots take 0.23 ms instead of 0.55, 8
   of 2,000 take 2.6 instead of 4.2; a few rows that are cached take a tenth longer. */
static inline void prefetch(const float *x, i64 n) {
    for (i64 i = 0; i < n; i += WIDE) __builtin_prefetch(x + i, 0, 2);
}

/* out_bh = softmax(q_bh k_h^T * scale + bias) v_h: one query of each row and head reads `slots` keys and values.

   Each memory is read by `sharing` consecutive rows, unless `memory_of_row` has the memory of each row. `row_of_slot`
   (rows, slots) has the memory that holds each slot of a row, if slots of a row are spread over several. Strides: of q
   and out between rows (heads are contiguous), of k and v between memories, heads and slots. `visible` (memories,
   slots) is the mask; fully masked rows return zeros. `bias` has a row for each head, with strides between batch rows
   and between heads. `group` consecutive heads read one head of keys and values. `score` is scratch space for heads x
   slots floats.

   Keys and values exceed the caches, so they are read in the order of memory: slot by slot with all heads of each, or
   head by head where the slots of a head are contiguous. */
void attend(const float *q, const float *k, const float *v, const bool *visible, const float *bias,
            const i64 *memory_of_row, const i64 *row_of_slot, float *out, float *score, i64 rows, i64 sharing,
            i64 heads, i64 slots, i64 key_width, i64 value_width, i64 q_row, i64 k_memory, i64 k_head, i64 k_slot,
            i64 v_memory, i64 v_head, i64 v_slot, i64 visible_memory, i64 bias_row, i64 bias_head, i64 out_row,
            i64 group, float scale) {
    bool by_slots = k_head < k_slot;
    i64 outer = by_slots ? slots : heads, inner = by_slots ? heads : slots;
    for (i64 row = 0; row < rows; row++) {
        i64 memory = memory_of_row ? memory_of_row[row] : row / sharing;
        const i64 *holder = row_of_slot ? row_of_slot + row * slots : NULL;
        const bool *seen = visible ? visible + memory * visible_memory : NULL;
        const float *query = q + row * q_row;
        const float *row_bias = bias ? bias + row * bias_row : NULL;
        float *sum = out + row * out_row;
        for (i64 i = 0; i < outer; i++) {
            if (by_slots && (!seen || seen[i])) {
                i64 next = i + AHEAD < slots ? i + AHEAD : i;
                prefetch(k + (holder ? holder[next] : memory) * k_memory + next * k_slot, heads / group * key_width);
                prefetch(v + (holder ? holder[i] : memory) * v_memory + i * v_slot, heads / group * value_width);
            }
            for (i64 j = 0; j < inner; j++) {
                i64 slot = by_slots ? i : j, head = by_slots ? j : i;
                if (seen && !seen[slot]) {
                    score[head * slots + slot] = -INFINITY;
                    continue;
                }
                const float *key = k + (holder ? holder[slot] : memory) * k_memory + head / group * k_head + slot * k_slot;
                float dot = product(query + head * key_width, key, key_width) * scale;
                score[head * slots + slot] = dot + (row_bias ? row_bias[head * bias_head + slot] : 0.0f);
            }
        }
        for (i64 head = 0; head < heads; head++) softmax(score + head * slots, slots);
        memset(sum, 0, heads * value_width * sizeof(float));
        for (i64 i = 0; i < outer; i++) {
            for (i64 j = 0; j < inner; j++) {
                i64 slot = by_slots ? i : j, head = by_slots ? j : i;
                float weight = score[head * slots + slot];
                if (weight == 0) continue; /* masked values may be NaN */
                const float *value = v + (holder ? holder[slot] : memory) * v_memory + head / group * v_head + slot * v_slot;
                float *head_sum = sum + head * value_width;
                for (i64 r = 0; r < value_width; r++) head_sum[r] += weight * value[r];
            }
        }
    }
}

/* y[row][slot] = x[order[row][slot]][slot], with any strides. */
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

/* log sum exp of a row; `most` is its maximum from column `first` on. */
static float log_sum(const float *x, i64 columns, i64 first, float most) {
    for (i64 i = 0; i < first; i++) most = x[i] > most ? x[i] : most;
    return most + (most > -INFINITY ? logf(exponentials(x, most, columns)) : 0.0f);
}

/* The `count` largest of each row from column `first` on, largest first (ties: the first column wins), as
   log-probabilities among all columns. */
void top_tokens(const float *logits, float *logprob, i64 *token, i64 rows, i64 columns, i64 first, i64 count) {
    for (i64 row = 0; row < rows; row++, logits += columns, logprob += count, token += count) {
        i64 found = 0;
        float least = -INFINITY; /* of those found, once `count` are */
        for (i64 begin = first; begin < columns; begin += BLOCK) {
            i64 end = min_i64(begin + BLOCK, columns);
            if (found == count && !(maximum(logits + begin, end - begin) > least)) continue;
            for (i64 i = begin; i < end; i++) {
                float x = logits[i];
                if (found == count && !(x > least)) continue;
                i64 place = found < count ? found++ : count - 1;
                for (; place > 0 && x > logprob[place - 1]; place--) {
                    logprob[place] = logprob[place - 1];
                    token[place] = token[place - 1];
                }
                logprob[place] = x;
                token[place] = i;
                least = logprob[count - 1];
            }
        }
        float shift = log_sum(logits, columns, first, logprob[0]);
        for (i64 i = 0; i < count; i++) logprob[i] -= shift;
    }
}

/* Sample a column of each row from `first` on with P ~ exp(logit / temperature): the first one at which the cumulative
   probability exceeds the row's uniform number. Its log-probability is that among all columns, at temperature 1.

   Sums are taken by blocks in the order of the columns, so that a second pass finds the same block again. */
void sample_tokens(const float *logits, const double *uniform, float *logprob, i64 *token, i64 rows, i64 columns,
                   i64 first, float temperature) {
    float sharpness = 1.0f / temperature;
    for (i64 row = 0; row < rows; row++, logits += columns) {
        float most = maximum(logits + first, columns - first);
        double total = 0, before = 0;
        for (i64 begin = first; begin < columns; begin += BLOCK) {
            total += powers(logits + begin, most, sharpness, min_i64(BLOCK, columns - begin));
        }
        /* The factor keeps a rounded product below the sum. */
        double target = uniform[row] * total * (1 - 0x1p-40), sum = 0;
        i64 begin = first, chosen = first;
        for (; begin < columns; begin += BLOCK) {
            sum = powers(logits + begin, most, sharpness, min_i64(BLOCK, columns - begin));
            if (before + sum > target) break;
            before += sum;
        }
        if (begin >= columns) begin = first; /* NaN */
        for (i64 i = begin; i < columns && i < begin + BLOCK; i++) {
            if (!(logits[i] > -INFINITY)) continue;
            chosen = i; /* the last one, in case its block's sum was rounded up */
            before += exp_below((logits[i] - most) * sharpness);
            if (before > target) break;
        }
        token[row] = chosen;
        logprob[row] = logits[chosen] - log_sum(logits, columns, first, most);
    }
}
