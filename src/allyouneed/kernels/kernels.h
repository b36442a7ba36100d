/* The interface of the kernels. header.py reads this file, so Python calls each function by these parameter names and
   fills each struct by these field names. Strides and sizes count elements, not bytes. */

#include <stdbool.h>
#include <stdint.h>

typedef int64_t i64;

/* Weights packed by `pack`, `pack_halves` or `pack_coded`, as `kind` says; or by `pack_int8` if `bytes` is set.
   An adapter adds (x down^T) up to the product: `down` (rank, inputs) is packed by `pack`, `up` (rank, outputs) is not;
   `zeros` is the bias of `down`. */
struct matrix {
    const float *packed;
    i64 kind;
    const int8_t *bytes;
    const float *scale;
    const int32_t *sums;
    const float *bias;
    i64 inputs, outputs;
    const float *down, *zeros, *up;
    i64 rank;
};

/* Layer norm, or RMS norm without beta. */
struct norm {
    const float *gamma, *beta;
    double epsilon;
};

/* `group` consecutive heads share one head of keys and values. */
struct heads {
    i64 count, group, key_width, value_width;
    double scale;
};

/* Blocks that read no memory have no cross heads. `pre`: norms come before the sublayers. `function`: 0 ReLU, 1 SiLU, 2
   GELU by tanh. `gated`: the function of the first half of the inner outputs is multiplied by the second half. */
struct block {
    struct matrix query_key_value, mixed, query, crossed, inner, outer;
    struct norm mixer_norm, cross_norm, feedforward_norm;
    struct heads heads, cross_heads;
    i64 pre, function, gated;
};

/* Keys and values with their strides, and the mask of visible slots (see `attend`). */
struct memory {
    float *k, *v;
    const bool *visible;
    i64 slots, k_row, k_head, k_slot, v_row, v_head, v_slot, visible_row;
};

/* steps.c */
void add_norm(const float *x, const float *y, const float *gamma, const float *beta, float *out, i64 rows, i64 width,
              float epsilon);
void attend(const float *q, const float *k, const float *v, const bool *visible, const float *bias,
            const i64 *memory_of_row, const i64 *row_of_slot, float *out, float *score, i64 rows, i64 sharing,
            i64 heads, i64 slots, i64 key_width, i64 value_width, i64 q_row, i64 k_memory, i64 k_head, i64 k_slot,
            i64 v_memory, i64 v_head, i64 v_slot, i64 visible_memory, i64 bias_row, i64 bias_head, i64 out_row,
            i64 group, float scale);
void gather(const float *x, float *y, const i64 *order, i64 rows, i64 slots, i64 width, i64 order_row, i64 order_slot,
            i64 x_row, i64 x_slot, i64 y_row, i64 y_slot);
void top_tokens(const float *logits, float *logprob, i64 *token, i64 rows, i64 columns, i64 first, i64 count);
void sample_tokens(const float *logits, const double *uniform, float *logprob, i64 *token, i64 rows, i64 columns,
                   i64 first, float temperature);

/* threads.c */
void use_threads(i64 threads);

/* products.c; `kind` of weights: 0 float32, 1 bfloat16, 2 float16, 3 bfloat16 in 12 bits (coded.c) */
void pack(const float *w, float *packed, i64 outputs, i64 inputs, i64 w_output, i64 w_input);
void pack_halves(const uint16_t *w, uint16_t *packed, i64 outputs, i64 inputs, i64 w_output, i64 w_input);
void unpack_rows(const float *packed, i64 kind, const i64 *output, float *rows, i64 count, i64 inputs);
void pack_some(const float *packed, const i64 *output, float *some, i64 outputs, i64 inputs);
i64 tile_rows(i64 rows);
void project(const float *x, const float *packed, i64 kind, const float *bias, float *y, i64 rows, i64 inputs,
             i64 outputs, i64 x_row, bool relu, float *tiles);

/* coded.c */
i64 coded_bytes(const uint16_t *w, i64 outputs, i64 inputs, i64 w_output, i64 w_input);
void pack_coded(const uint16_t *w, uint8_t *packed, i64 outputs, i64 inputs, i64 w_output, i64 w_input);
void unpack_coded(const uint8_t *packed, const i64 *output, float *rows, i64 count, i64 inputs);

/* int8.c */
void pack_int8(const float *w, int8_t *packed, float *scale, int32_t *sums, i64 outputs, i64 inputs, i64 w_output,
               i64 w_input);
void project_int8(const float *x, const int8_t *packed, const float *scale, const int32_t *sums, const float *bias,
                  uint8_t *bytes, float *x_scale, float *y, i64 rows, i64 inputs, i64 outputs, i64 x_row, bool relu);
void project_lists(const float *x, const int8_t *w, const float *scale, const int32_t *sums, const float *bias,
                   const i64 *output, const i64 *count, uint8_t *bytes, float *x_scale, float *y, i64 lists,
                   i64 sharing, i64 inputs, i64 columns, i64 lines, i64 x_row);

/* stack.c */
i64 stack_workspace(const struct block *blocks, i64 count, i64 rows, i64 slots);
void advance_stack(const struct block *blocks, i64 count, const struct norm *norm, const float *x, float *y, i64 rows,
                   const struct memory *cache, i64 slots, const bool *visible, const i64 *row_of_slot,
                   const struct memory *memory, const i64 *memory_of_row, const i64 *position, const float *cos,
                   const float *sin, float *workspace);
void encode_stack(const struct block *blocks, i64 count, const struct norm *norm, const float *x, float *y, i64 rows,
                  i64 sentences, const i64 *length, const float *cos, const float *sin, float *workspace);
