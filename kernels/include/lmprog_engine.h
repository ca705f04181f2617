/* One step of a decoder on the CPU in one call: tokens in, logits out. A plain C interface on raw pointers.
 *
 * Knows layers, weights and paged keys and values. Knows no framework, no checkpoint and no request. The caller owns
 * every array, weights and pages included; a handle owns its threads and scratch memory.
 *
 * PACKED WEIGHTS. A product's weights [outputs][inputs] are kept in panels of 32 outputs; a panel holds, for every step
 * of inputs, one 32-bit word of each output: one f32, two bf16, four int8, or eight 4-bit numbers. Outputs and inputs
 * are filled up to multiples of 32 with zeros. int8: one scale an output; int4: one scale an output and 32 inputs.
 * lmprog_engine_pack fills a packed array, row by row of what a checkpoint holds; arrays start on a multiple of 64
 * bytes and do not depend on the instruction set, so they can be kept in files.
 *
 * WHAT IS GUARANTEED. A token's logits are a function of the tokens it sees, of their positions, of the weights and of
 * the path (instruction set). To the last bit they do not depend on the other rows of the batch, on how a prompt was
 * cut into steps, on the number of threads, or on page numbers: every number is one chain of sums over its inputs in
 * their order, whatever is computed beside it. Different paths agree to rounding only.
 *
 * ROUNDING. Between products everything is f32. f32 weights: products and sums in f32. bf16 weights: the paths
 * "avx512bf16" and "neonbf16" round inputs to bf16 as well and sum in f32, the others keep inputs in f32. int8 and int4 weights:
 * each token's inputs are rounded to 8 bits with one scale; sums are exact integers (of 32 inputs for int4).
 *
 * RECURRENT LAYERS keep a state in place of keys and values, f32, in slots that the step names. A token's part of a state is
 * computed after that of the token before it, one by one, whatever prompt or chunk it comes in: so cuts change no bit here
 * either.
 *
 * THREADS. One call at a time on a handle. A handle of one thread never starts one.
 */
#ifndef LMPROG_ENGINE_H
#define LMPROG_ENGINE_H
#include "lmprog_attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Types of numbers in memory, besides those of lmprog_attention.h. */
enum { LMPROG_F16 = 2, LMPROG_INT4 = 4 };
/* What a gate and its partner become: silu(gate) * up, gelu(gate) * up; clamped: with gate at most `limit` and up within
 * -limit .. limit, gate * sigmoid(slope * gate) * (up + 1). Or there is no gate: gate_up is [inner][hidden], and relu(up)^2
 * comes of it. */
enum { LMPROG_SILU = 0, LMPROG_GELU_TANH = 1, LMPROG_CLAMPED = 2, LMPROG_RELU2 = 3 };

typedef struct lmprog_engine lmprog_engine;

typedef struct {
    int32_t type;            /* F32, BF16, INT8, INT4 */
    int32_t outputs, inputs; /* as the model has them */
} lmprog_product;

/* Where rows of a checkpoint's matrix go: row i becomes output (first + i) / 32 * 32 * step + offset * 32 + (first + i) % 32
 * of the product. step = 1, offset = 0: one after the other; gate and up projections alternate panel by panel (step 2). */
typedef struct {
    const void *data;
    int32_t type;    /* F32, BF16, F16 */
    int32_t rows;    /* all are packed */
    int64_t stride;  /* elements between rows */
    int32_t first, step, offset;
} lmprog_rows;

/* A layer may be one half: without qkv and out it is a feed-forward, without gate_up and down it has none. */
typedef struct {
    const void *qkv;     /* heads, then key heads, then value heads; [(heads + 2 * kv_heads) * head_dim][hidden] */
    const void *out;     /* [hidden][heads * head_dim] */
    const void *gate_up; /* [2 * inner filled up to panels][hidden], panels of gate and up in turn */
    const void *down;    /* [hidden][inner] */
    /* Vectors of f32, filled up with zeros to multiples of 32; NULL: this model has none. */
    const float *qkv_bias, *out_bias, *gate_bias, *up_bias, *down_bias;
    const float *attention_norm, *attention_post_norm, *mlp_norm, *mlp_post_norm; /* [hidden] */
    const float *q_norm, *k_norm; /* [head_dim]; [heads * head_dim] and [kv_heads * head_dim] where qk_norm_wide */
    const float *v_norm;          /* [head_dim]: each value is normalized, too */
    lmprog_attention_layer attention;
    lmprog_attention_shape shape; /* all layers have the same pages */
    int32_t inner;                /* of the feed-forward */
    int32_t reads; /* keys and values are an earlier layer's: qkv has queries only, and nothing is written */
    /* Where they are not 0, what a half's norm gives, times this, is what its result is added to. */
    float carried, mlp_carried;
    /* A layer with a router has a mixture in place of its feed-forward: gate_up, down and their biases are those of all
     * experts, shared ones last, one after the other, each filled up to whole panels. NULL: none. */
    const void *router;       /* [experts][hidden], packed as F32 whatever the model's type; shared_gated: one row more */
    const float *router_bias; /* [experts] filled up to a multiple of 32, or NULL */
    const float *choice_bias; /* [experts] added to what experts are chosen by, not to their shares; NULL: nothing is */
    /* A layer with both has its feed-forward here. The router and the experts have norms of their own in place of mlp_norm;
     * what each of both gives is normalized before it is added. A chosen expert's share is multiplied by its scale. */
    const void *dense_gate_up, *dense_down;
    const float *router_norm, *experts_norm, *dense_post_norm, *experts_post_norm; /* [hidden] */
    const float *expert_scales;                                                    /* [experts] */
    int32_t rope; /* which of the model's rotations; -1: none */
    int32_t apart; /* its keys and values lie where `apart` of the step says */
    void *keys, *values;
    /* A layer with states is recurrent: qkv is then what comes in, out what goes out (lmprog_recurrent), and there are no
     * keys and values. */
    float *states;                       /* [num_slots + 1][state_bytes / 4]; the last is for rows that keep nothing */
    const void *gates;                   /* packed as F32: scores of rates, then of decays; Mamba 2: of steps */
    const float *conv, *conv_bias;       /* [taps][channels], the oldest token first; [channels] or NULL */
    const float *decay_log, *decay_bias; /* [heads] */
    const float *skip;                   /* [heads] of Mamba 2 */
    const float *state_norm;             /* [value_dim] of the delta net, [heads * value_dim] of Mamba 2 */
    /* Of a model with inputs per layer: behind the feed-forward out(activated(gate(x)) * input), normalized, is added. */
    const void *per_layer_gate, *per_layer_out; /* [per_layer][hidden], [hidden][per_layer] */
    const float *per_layer_post_norm;           /* [hidden] */
    const float *scale;                         /* one number: what the layer gives is multiplied by it; NULL: by 1 */
    /* The last layer of a model with recurrent layers may predict the token after the next one (multi-token prediction); it is
     * no part of the model's logits. What goes in is join of a token's embedding and what the layers before it gave, normalized
     * as for the head, at the token before, each by its norm. join_end_norm normalizes what comes out. NULL: it is a layer as all
     * others. */
    const void *join;                                                    /* [hidden][2 * hidden] */
    const float *join_embedding_norm, *join_given_norm, *join_end_norm; /* [hidden] */
    float *given; /* [num_slots + 1][hidden filled up to a multiple of 32]: what is kept beside states for the next token */
} lmprog_layer;

/* What a model's recurrent layers are. All begin with a causal convolution of each channel over its last `taps` tokens, at most 4.
 *
 * SHORT CONVOLUTION. in: b, c, x of [hidden]; out(c * conv(b * x)).
 * GATED DELTA NET. in: q and k of [groups * key_dim], v and z of [heads * value_dim]; q, k, v go through convolution and silu,
 * then q and k have length 1, and q is divided by the root of key_dim. Head h has the keys of group h * groups / heads, and a
 * matrix S, for each token: S = decay * S; S += k (rate * (v - S k)); S q is normalized and multiplied with silu(z). rate =
 * sigmoid(score), decay = exp(-exp(decay_log) * softplus(score + decay_bias)).
 * MAMBA 2. in: v of [heads * value_dim], k and q of [groups * key_dim], which all go through convolution and silu, and z. rate =
 * softplus(score + decay_bias), decay = exp(-exp(decay_log) * rate); S = decay * S; S += k (rate * v); (S q + skip * v) * silu(z)
 * is normalized by groups.
 * LINEAR ATTENTION. in: as of the delta net, each with keys of its own; q, k, v go through silu (a convolution of one tap).
 * decay = exp(-exp(decay_log)); S = decay * S; S += k v; S q is normalized over all heads and multiplied with sigmoid(z). */
enum { LMPROG_SHORT_CONV = 1, LMPROG_DELTA_NET = 2, LMPROG_MAMBA2 = 3, LMPROG_LINEAR = 4 };

typedef struct {
    int32_t kind; /* 0: the model has no recurrent layers */
    int32_t taps, channels, heads, groups, key_dim, value_dim, num_slots;
    float norm_eps, rate_scale; /* of state_norm; what rates of a delta net are multiplied by */
    float least_step;           /* rates of Mamba 2 are at least this */
} lmprog_recurrent;

/* Each token goes through the `used` experts with the greatest scores of the router, the first of equal ones. Their
 * results are added in the order of their numbers, each times its share: of the softmax over all experts, or over those
 * used (`normalized`), so that shares sum to 1. Each token goes through the `shared` experts behind these too, with a share
 * of 1, or (`shared_gated`) of the sigmoid of the router's last score. */
typedef struct {
    int32_t experts, used, inner, shared, normalized, shared_gated;
    int32_t sigmoid;                 /* shares are of the sigmoid of each score, not of a softmax */
    float share_floor, share_scale; /* added to the sum that shares are divided by; what each is multiplied by */
} lmprog_mixture;

typedef struct {
    const float *frequencies; /* [rotary_dim / 2] radians per position */
    float amplitude;
    int32_t rotary_dim; /* leading dimensions of a head that are rotated, in halves */
} lmprog_rope;

typedef struct {
    int32_t vocab, hidden, num_layers, num_ropes;
    int32_t weight_type, activation, qk_norm_wide;
    int32_t gated_attention; /* behind the values qkv has a gate of each query head: attention times its sigmoid goes out */
    /* Rotations turn neighbours; queries and keys are normalized behind the rotation. */
    int32_t rotates_pairs, norms_rotated;
    float growth; /* queries are multiplied by 1 + growth * log(1 + position / grows_every); 0: they are not */
    int32_t grows_every;
    float activation_slope, activation_limit; /* of the clamped activation */
    lmprog_mixture mixture;                   /* of layers with a router */
    lmprog_recurrent recurrent;
    float norm_eps, embedding_scale, residual_scale, logit_scale, logit_softcap; /* softcap 0: none */
    const lmprog_layer *layers;
    const lmprog_rope *ropes;
    const void *head;      /* [vocab][hidden], packed */
    const void *embedding; /* [vocab][hidden] of embedding_type, rows one after the other; NULL: the packed head */
    int32_t embedding_type;
    const float *norm; /* [hidden] */
    /* Each token's input of each layer, `per_layer` numbers, a multiple of 16: (norm(projection(embedding) / root of hidden)
     * + root of per_layer * its own) / root of 2. 0: the model has none. */
    int32_t per_layer, per_layer_type;
    const void *per_layer_embedding;  /* [vocab][num_layers * per_layer] of per_layer_type, rows one after the other */
    const void *per_layer_projection; /* [num_layers * per_layer][hidden], packed */
    const float *per_layer_norm;      /* [per_layer] */
} lmprog_model;

/* What an adapter adds to a product: outputs first .. first + outputs gain `up` times the numbers rank_first .. of what
 * `down` gives for the same inputs. Both are f32 in panels of 32 outputs as above, inputs not filled up. */
typedef struct {
    const float *up; /* [outputs][rank] */
    int32_t outputs, rank, first, rank_first;
} lmprog_raised;

typedef struct {
    const float *down; /* [ranks][inputs] */
    int32_t ranks, inputs, num_raised; /* no ranks: the adapter leaves the product as it is */
    const lmprog_raised *raised;
} lmprog_low_rank;

/* The products of a layer that adapters change. Of gate_up the ups come after all gates, filled up to a multiple of 32. Gates
 * are those of recurrent layers. */
enum {
    LMPROG_ADAPTED_QKV = 0,
    LMPROG_ADAPTED_OUT = 1,
    LMPROG_ADAPTED_GATE_UP = 2,
    LMPROG_ADAPTED_DOWN = 3,
    LMPROG_ADAPTED_GATES = 4,
    LMPROG_ADAPTED = 5
};

typedef struct {
    lmprog_attention_batch rows; /* order and common may be NULL */
    int32_t num_tokens, num_logits, num_copies;
    const int32_t *tokens, *positions;
    const int32_t *logit_tokens; /* [num_logits] tokens whose logits are wanted, in ascending order */
    const int32_t *copies;       /* [num_copies][2] slots; done before anything is computed */
    const int32_t *adapters;     /* [num_tokens] each token's adapter from 1 on, 0 for none; NULL: none has any */
    /* [rows] the slots that states are read from and written to; -1: nothing is, before the first token or for good. NULL: so for
     * all rows. A row reads what rows before it write. */
    const int32_t *state_sources, *state_targets;
    const int32_t *snapshots; /* [num_snapshots][3]: of a row, after so many of its tokens, a slot that the state is left in too */
    int32_t num_snapshots;
    /* `rows` and `copies` of layers whose keys and values lie apart: the same rows with pages and slots of their own. NULL: no
     * layer's do. */
    const lmprog_attention_batch *apart;
    const int32_t *copies_apart; /* [num_copies][2] */
} lmprog_step;

LMPROG_API int64_t lmprog_engine_packed_bytes(const lmprog_product *product);
/* Packs rows first_row .. end_row of `rows`; rows of one panel are packed by one call at a time. `packed` must
 * have been zero, and places that no row is packed to stay so. */
LMPROG_API void lmprog_engine_pack(const lmprog_product *product, void *packed, const lmprog_rows *rows,
                                   int32_t first_row, int32_t end_row);
/* The numbers of one output as the product uses them. # [inputs] */
LMPROG_API void lmprog_engine_unpack(const lmprog_product *product, const void *packed, int32_t output, float *to);

/* `path` is "generic", "avx2", "avx2vnni", "avx512", "avx512vnni", "avx512bf16", "neon", "neondot",
 * "neonbf16", or NULL for the best one of this processor. NULL is returned where this processor (or this build) lacks it. `model` is copied, what it points to is not. */
LMPROG_API lmprog_engine *lmprog_engine_open(const lmprog_model *model, int32_t threads, const char *path);
LMPROG_API const char *lmprog_engine_path(const lmprog_engine *handle);
LMPROG_API const char *lmprog_engine_best_path(void);
LMPROG_API void lmprog_engine_close(lmprog_engine *handle);
/* The adapters of later steps: [count][num_layers][LMPROG_ADAPTED], which must outlive the handle. */
LMPROG_API void lmprog_engine_adapters(lmprog_engine *handle, const lmprog_low_rank *low_ranks, int32_t count);

/* Of one slot, in one layer. */
LMPROG_API int64_t lmprog_engine_state_bytes(const lmprog_recurrent *recurrent);

/* Computes the step's tokens, keeps their keys and values, and writes the wanted logits to logits[i * stride ..];
 * stride >= vocab filled up to a multiple of 32. Returns 0, or 1 where
 * a token, position, wanted logit, adapter or slot of a state is out of range, or pages apart are missing. */
LMPROG_API int32_t lmprog_engine_step(lmprog_engine *handle, const lmprog_step *step, float *logits, int64_t stride);

/* Of a model whose last layer predicts: one token for each row, whose key and value it keeps as a step does, and the logits of what
 * may follow. What the layers gave at the token before is read from the slots `state_sources`, or, where they are NULL, from `given`
 * [num_tokens][hidden], which has what the layer gives afterwards. Returns as lmprog_engine_step; 1 also where no layer predicts. */
LMPROG_API int32_t lmprog_engine_predict(lmprog_engine *handle, const lmprog_step *step, float *given, float *logits,
                                         int64_t stride);

/* One product alone, for tests and measurements: out[r * stride + o] = sum of x[r][i] * weight[o][i]; x has rows of
 * inputs filled up to a multiple of 32 with zeros, out of outputs filled up likewise. 1 where `path` cannot run here. */
LMPROG_API int32_t lmprog_engine_multiply(const char *path, const lmprog_product *product, const void *packed,
                                          const float *x, int32_t rows, float *out, int64_t stride);

#ifdef __cplusplus
}
#endif
#endif
