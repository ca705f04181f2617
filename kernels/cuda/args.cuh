// What each kernel is called with: one struct by value. lmprog/runtime/engine/device/kernels.py
// declares the same ones.
//
// T is the type of activations, K that of keys and values in pages: T, or e4m3 floats, which a
// layer's scales turn into what they mean. Pointers first, then 32-bit numbers, so that no padding
// is hidden.
#pragma once
#include "dev.cuh"

// Indices into `counts`: how much of each static array this step uses. Kept on the device, so that
// one captured graph serves every batch that fits its buffers.
enum Count {
    kTokens = 0,
    kWrites = 1,
    kSmallItems = 2,
    kLargeItems = 3,
    kCopies = 4,
    kPicks = 5,
    kScores = 6,
    kLogits = 7
};

// A run of key positions [begin, end) of one page table, and queries that read it. See plan.py
// (`items`).
struct Item {
    i32 page_base;    // index in `pages` of the table's first page
    i32 begin, end;   // positions
    i32 query_base;   // index in `queries` of the first query
    i32 num_queries;  // tokens; times heads per kv head, they fit the tile
    i32 ordinal;      // which of its queries' partials this is, counted along the page table
    i32 first;        // where the run begins for the question whether a query sees any of it
    i32 is_masked;    // 0: every query sees every position of [begin, end)
};

template <class T, class K>
struct TreeArgs {
    const T *q;            // [tokens][heads][dim]
    const K *kv;           // one layer: [pages][2][kv_heads][page_size][dim]
    T *out;                // [tokens][heads][dim]
    float *partials;       // [partials][heads][dim], each divided by its sum of weights
    float *sums;           // [partials][heads]: base-2 logarithm of the sum of weights
    const Item *items;     // of this tile
    const i32 *counts;     // Count
    const i32 *pages;      // page tables of all rows
    const i32 *queries;    // token indices
    const i32 *positions;  // [tokens]
    const i32
        *part_starts;  // [tokens + 1]: a token's partials; one alone is written to `out` directly
    const i32 *first_parts;  // [tokens]: ordinal of a token's first partial
    i32 count_at;            // kSmallItems or kLargeItems
    i32 page_shift;          // log2 of the page size
    i32 heads, kv_heads;
    i32 window;     // positions that a token may look back on, itself included; 0: all
    float scale;    // of scores, with the scale of keys
    float softcap;  // 0: none
    float value_scale;  // of results; only where K is e4m3
};

template <class T>
struct MergeArgs {
    const float *partials, *sums;
    T *out;
    const i32 *counts, *part_starts;
    const float *sinks;  // [heads], base 2, in place of each token's last partial; null: none
    i32 heads;
    i32 unused;
};

template <class T, class K>
struct RopeArgs {
    const T *qkv;             // [tokens][heads + 2 * kv_heads][dim]
    T *q;                     // [tokens][heads][dim]
    K *kv;                    // one layer of the pool
    const T *norm;            // [heads + kv_heads][dim], null: heads are not normalized
    const Pair *rotations;    // [positions][dim / 2]: cosine and sine
    const i32 *positions;     // [tokens]
    const i32 *write_tokens;  // [writes]; the first `tokens` are 0, 1, 2 ...
    const i32 *write_slots;   // [writes]
    const i32 *counts;
    i32 heads, kv_heads, page_shift;
    float eps;
    float key_factor, value_factor;  // one over the scales; only where K is e4m3
};

template <class T>
struct NormArgs {
    T *x;             // [tokens][hidden], the residual stream
    const T *added;   // null: nothing is added
    const T *weight;  // [hidden], null: 1
    T *out;           // [tokens][hidden]
    const i32 *counts;
    i32 hidden;
    i32 count_at;  // whose count says how many tokens
    float eps;     // joins the square of the length: hidden * epsilon of the model
    float factor;
};

template <class T>
struct SiluArgs {
    const T *gate_up;  // [tokens][2 * inner]
    T *out;            // [tokens][inner]
    const i32 *counts;
    i32 inner;
    i32 count_at;
    i32 is_gelu;  // by its tanh approximation; 0: silu
    i32 unused;
};

// Weights as `product.cuh` describes them.
template <class T>
struct ProductArgs {
    const T *x;            // [tokens][inputs]
    const u8 *weights;     // [outputs][row_bytes]
    const float *scales;   // [outputs][groups]
    const T *bias;         // [outputs], null: none
    T *out;                // [tokens][outputs]
    const i32 *counts;
    i32 inputs, outputs;   // inputs: a multiple of 8
    i32 row_bytes;         // a multiple of 64
    i32 groups, group;     // inputs of a group: 32 for 4 bits, else a multiple of 64
    i32 count_at;
};

template <class T>
struct UnpackArgs {
    const u8 *weights;
    const float *scales;
    T *out;                // [outputs][inputs]
    i32 inputs, outputs, row_bytes, groups, group;
    i32 first;             // output that `out` begins with
};

struct SampleArgs {
    float *logits;       // [rows][vocab]; a pick's row is edited in place, and restored at the end
    const u32 *masks;    // bit rows of `mask_words` words
    const i32 *mask_of;  // [picks]: index of its bit row, -1 for none
    const i32 *row_of;   // [picks]
    const i32 *cell_starts;    // [picks + 1]
    const i32 *cell_tokens;    // tokens whose logit is edited, each once a pick
    const Pair *cell_changes;  // added first; taken away last (infinity: banned)
    const float *cell_repeat;  // repetition penalty, 1: none
    float *cell_kept;          // logits as they were
    const float *temperature;  // [picks], 0: greedy
    const float *least;        // [picks]: logarithm of min-p, -inf: none
    const i32 *top_k;          // [picks], 0: all
    const double *top_p;       // [picks], 1: all
    const double *point;       // [picks]: where in (0, 1) the choice falls
    i32 *chosen;               // [picks], -1: no logit was usable
    const i32 *counts;
    i32 vocab, mask_words;
    i32 width_bits;  // the most likely token is 2 ** width_bits wide
    i32 unused;
};

struct ScoreArgs {
    const float *logits;       // [rows][vocab]
    const i32 *row_of;         // [scores]
    const i32 *target_starts;  // [scores + 1]
    const i32 *targets;
    float *found;  // log-probabilities of the targets; nan where the row was not finite
    const i32 *counts;
    i32 vocab;
    i32 unused;
};

struct CopyArgs {
    u8 *pool;          // [all_layers][pages][2][kv_heads][page_size][bytes]
    u8 *staging;       // [rows][all_layers][2][kv_heads][bytes]; perhaps pinned memory of the host
    const i32 *slots;  // [copies]
    const i32 *rows;   // [copies]: of staging; null: 0, 1, 2 ...
    const i32 *counts;
    i32 layers, pages, kv_heads, page_shift;
    i32 bytes;       // of one head of one token, a multiple of 16
    i32 is_gather;   // 1: slots to staging; 0: back
    i32 first_layer;  // `layers` from here on are copied
    i32 all_layers;
};
