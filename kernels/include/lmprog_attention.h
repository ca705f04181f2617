/* Attention over paged keys and values on the CPU: a plain C interface on raw pointers.
 *
 * Knows pages, heads and layers of numbers. Knows no framework, no model and no request. The caller owns every array;
 * nothing is kept between calls but the handle's threads and scratch memory.
 *
 * MEMORY. A *slot* holds the keys and values of one token in one layer; position p of a row lives in slot
 * pages[p / page_size] * page_size + p % page_size. Slots are kept in blocks of 16, whatever the page size:
 *   keys   [blocks][kv_heads][key words][16]            a word is one f32, or two bf16 of neighboring dimensions
 *   values f32  [blocks][kv_heads][16][columns]         columns = v_head_dim rounded up to 16
 *          bf16 [blocks][kv_heads][8][columns][2]       neighboring slots in one word
 *   int8: a word is four bytes, of four neighboring dimensions (keys) or slots (values [4][columns][4]); behind the
 *   words of a block's head come its 16 slots' scales, f32
 * What a last key word has too many is written as zero. Page sizes that are multiples of 16 are read in place; others are gathered first
 * (correct, slower). lmprog_attention_key_bytes and _value_bytes say how much memory a layer needs; both arrays start
 * on a multiple of 64 bytes. Memory that was never written may hold anything, NaN included.
 *
 * WHAT IS GUARANTEED. The result of one token and head is a function of its query, of the keys and values at the
 * positions it may see, of its position, of the layer's numbers and of the path (instruction set). To the last bit it
 * does NOT depend on: the other rows of the batch; how a prompt was cut into steps; the number of threads and who ran
 * first; page size and page numbers; whether a shared prefix was read once for several rows. This holds because keys
 * are taken in chunks of LMPROG_ATTENTION_CHUNK positions counted from position 0, each chunk's softmax and sum start
 * from nothing, and chunks are merged in order of position. (Up to the sign of zeros; and while all keys and values
 * that were written are finite: a NaN or infinity at a visible position makes the tokens that see it NaN, and may reach
 * other tokens of the same row and step too, never another row's, unless that row stands on the same slot.)
 * Different paths agree to rounding only.
 *
 * ROUNDING. f32 memory: products and sums in f32. bf16 memory: keys and values are rounded to nearest even; the path
 * "avx512bf16" and "neonbf16" round queries and softmax weights to bf16 as well and sum in f32; the others keep both in f32.
 * int8 memory: each token's key and value of a head are rounded to 8 bits with a scale of their own, their greatest
 * number being 127 of it. Paths that multiply bytes by fours ("avx512bf16", "avx512vnni", "avx2vnni", "neonbf16", "neondot")
 * round each query, and the weights of a chunk with their values' scales, to 14 bits of their greatest, and sum these exactly;
 * in the others queries, weights and sums are f32.
 *
 * THREADS. One call at a time on a handle. A handle of one thread never starts one.
 */
#ifndef LMPROG_ATTENTION_H
#define LMPROG_ATTENTION_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define LMPROG_API __attribute__((visibility("default")))
#else
#define LMPROG_API
#endif

enum { LMPROG_F32 = 0, LMPROG_BF16 = 1, LMPROG_INT8 = 3 };
enum { LMPROG_ATTENTION_CHUNK = 256 };

typedef struct lmprog_attention lmprog_attention;

typedef struct {
    int32_t num_heads, num_kv_heads; /* num_heads is a multiple of num_kv_heads; query head h reads h / (ratio) */
    int32_t head_dim, v_head_dim;    /* any positive numbers */
    int32_t page_size;
    int32_t kv_type; /* LMPROG_F32, LMPROG_BF16 or LMPROG_INT8 */
} lmprog_attention_shape;

typedef struct {
    float scale;
    int32_t window; /* how many positions a token may see, itself included; 0: all */
    float softcap;  /* scores become softcap * tanh(score / softcap); 0: not */
    const float *sinks; /* [num_heads] one more score of each head, which takes its share of the softmax and has no
                           value; NULL: none */
} lmprog_attention_layer;

typedef struct {
    int32_t num_rows, num_writes;
    const int32_t *row_starts;   /* [rows + 1]: row r has the tokens row_starts[r] .. row_starts[r + 1] */
    const int32_t *kv_lens;      /* [rows]: positions the row's last token may see, itself included */
    const int32_t *page_starts;  /* [rows + 1] */
    const int32_t *pages;        /* the rows' page tables, one after the other */
    const int32_t *write_tokens; /* [writes]: token write_tokens[i] goes to ... */
    const int32_t *write_slots;  /* [writes]: ... slot write_slots[i]; no slot twice */
    const int32_t *order;        /* [rows] or NULL: rows so sorted that those with common pages are neighbors */
    const int32_t *common;       /* [rows] or NULL: leading positions that order[i] and order[i + 1] share */
} lmprog_attention_batch;

/* Numbers [tokens][heads][dim], heads and dims contiguous, `stride` elements between tokens. */
typedef struct {
    void *data;
    int64_t stride;
    int32_t type; /* LMPROG_F32 or LMPROG_BF16 */
} lmprog_attention_array;

LMPROG_API int64_t lmprog_attention_key_bytes(const lmprog_attention_shape *shape, int64_t num_slots);
LMPROG_API int64_t lmprog_attention_value_bytes(const lmprog_attention_shape *shape, int64_t num_slots);

/* `path` is "generic", "avx2", "avx2vnni", "avx512", "avx512vnni", "avx512bf16", "neon", "neondot", "neonbf16", or NULL for the
 * best one of this processor. NULL is returned where this processor (or this build) lacks it. */
LMPROG_API lmprog_attention *lmprog_attention_open(int32_t threads, const char *path);
LMPROG_API const char *lmprog_attention_path(const lmprog_attention *handle);
LMPROG_API void lmprog_attention_close(lmprog_attention *handle);

/* Fills `order` and `common` of a batch, once a step; they let attend read a shared prefix once. */
LMPROG_API void lmprog_attention_group(const lmprog_attention_batch *batch, int32_t page_size, int32_t *order,
                                       int32_t *common);

/* Writes the step's keys and values of one layer to their slots. */
LMPROG_API void lmprog_attention_write(lmprog_attention *handle, const lmprog_attention_shape *shape,
                                       const lmprog_attention_batch *batch, void *keys, void *values,
                                       const lmprog_attention_array *k, const lmprog_attention_array *v);

/* Causal attention of every token of the batch over its row's pages; all of the step's writes come first. */
LMPROG_API void lmprog_attention_attend(lmprog_attention *handle, const lmprog_attention_shape *shape,
                                        const lmprog_attention_layer *layer, const lmprog_attention_batch *batch,
                                        const void *keys, const void *values, const lmprog_attention_array *q,
                                        const lmprog_attention_array *out);

/* copies [count][2]: slot copies[i][0] to slot copies[i][1]; every source is read before any target is written. */
LMPROG_API void lmprog_attention_copy(const lmprog_attention_shape *shape, void *keys, void *values,
                                      const int32_t *copies, int32_t count);

#ifdef __cplusplus
}
#endif
#endif
