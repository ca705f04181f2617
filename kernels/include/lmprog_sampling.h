/* Tokens from logits, and log-probabilities: a plain C interface on raw pointers.
 *
 * The order is fixed: bias, repetition penalty, frequency and presence penalties, bans, mask; then temperature, min-p,
 * top-k, top-p. A token is drawn by one number from (seed, step): the kept tokens in vocabulary order, as wide as they
 * are likely, and the token at which the number points. Widths are whole numbers (2^44 for the most likely token), so
 * that sums are exact: nothing depends on what else is asked for, on threads, or on the order of additions.
 */
#ifndef LMPROG_SAMPLING_H
#define LMPROG_SAMPLING_H
#include "lmprog_engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Cells are pairs of a token and an amount; a pick has a stretch of them of each kind, in this order. */
enum {
    LMPROG_CELL_BIAS = 0,     /* added */
    LMPROG_CELL_REPEATED = 1, /* divides positive logits, multiplies others */
    LMPROG_CELL_COUNTED = 2,  /* subtracted */
    LMPROG_CELL_BANNED = 3,   /* never chosen */
    LMPROG_CELL_ALLOWED = 4,  /* nothing else is chosen, where only_cells */
    LMPROG_CELL_KINDS = 5
};

typedef struct {
    uint64_t seed, step;
    double top_p;             /* 1: off */
    const uint32_t *allowed;  /* a bit a token, 32 a word; NULL: all are allowed */
    int32_t allowed_words;    /* tokens beyond are not allowed */
    int32_t row;              /* of the logits */
    float temperature;        /* 0: the most likely token, the lowest of equals */
    float least;              /* log(min_p); -infinity: off */
    int32_t top_k;            /* 0: off */
    int32_t only_cells;
    int32_t weighed;          /* its odds are wanted; then top_p, least and top_k are off */
    int32_t cells[LMPROG_CELL_KINDS + 1]; /* kind i has the cells cells[i] .. cells[i + 1] */
} lmprog_pick;

typedef struct {
    int32_t row, token;
    int32_t top; /* most likely tokens wanted, at most `most` of the call */
} lmprog_reading;

typedef struct {
    const float *logits;
    int64_t stride; /* between rows */
    int32_t vocab, num_picks, num_readings, most;
    const lmprog_pick *picks;
    const int32_t *cell_tokens; /* tokens at or beyond vocab are passed over */
    const float *cell_amounts;
    const lmprog_reading *readings; /* token -1 - i: what pick i has chosen */
    int32_t *tokens;                /* [num_picks]; -1: the row has a number that is none, or nothing is allowed */
    float *logprobs;                /* [num_readings]; NaN where the row has a number that is none */
    int32_t *top_tokens;            /* [num_readings][most], best first, the lowest of equals first; -1: no more */
    float *top_logprobs;            /* [num_readings][most] */
    double *odds;                   /* [num_picks][2], of weighed picks: the logarithms of how likely the token was, and of
                                       how likely one that is allowed would have been if all were */
} lmprog_sampling;

/* All picks, then all readings, on the threads of the engine. */
LMPROG_API void lmprog_engine_sample(lmprog_engine *handle, const lmprog_sampling *sampling);

#ifdef __cplusplus
}
#endif
#endif
