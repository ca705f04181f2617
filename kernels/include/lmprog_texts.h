/* Sets of texts as automata over characters: the C interface of kernels/cpu/texts.cpp.
 *
 * The texts that match all of some expressions, none of others, and are none of some words.
 * lmprog/constraints/text_set.py explains the idea. An exploration goes on in steps of bounded
 * work, so that its owner can stop between two of them.
 */
#ifndef LMPROG_TEXTS_H
#define LMPROG_TEXTS_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LMPROG_TEXTS_MEMORY (-1)
#define LMPROG_TEXTS_TOO_MANY (-2)

/* Expressions in postfix order, one after the other: 0 n low high ... (a character of n ranges); 1 n (a sequence of the
 * last n), 2 n (one of the last n), 3 low high (a repetition of the last; high -1: without end), 4 wanted (the rest of the
 * text has to match the last, or must not), 5 i wanted (the text so far has to match what is tracked as i, or must not), 6 n
 * (the last but n, of which the last n are tracked). */
typedef struct {
    const int32_t* program;
    int64_t length;
    int32_t num_within, num_outside; /* what must match, then what must not */
    /* The trie of the words: whether a word ends at a vertex, and its edges, vertex by vertex. No vertices: no words. */
    const uint8_t* is_word;
    const int32_t* child_start; /* [vertices + 1] */
    const int32_t* children;    /* [edges][2]: character, vertex */
    int32_t num_vertices;
    int32_t is_bounded; /* whether lengths are counted, so that nothing simpler stands for a rest */
    int64_t max_states, max_steps;
} lmprog_texts_input;

/* State 0 is the start. From every state a final one can be reached, if there is any state at all. */
typedef struct {
    int64_t num_states, num_edges, num_classes, num_ranges, num_rests, rests_length;
} lmprog_texts_sizes;

typedef struct {
    uint8_t* final;      /* [states] */
    int32_t* edge_start; /* [states + 1] */
    int32_t* targets;    /* [edges] */
    int32_t* labels;     /* [edges] the class of the characters */
    int32_t* range_start; /* [classes + 1] */
    int32_t* ranges;     /* [ranges][2] */
    /* States without edges, from which a simpler set goes on: state, vertex, length of a program. With length 0, every
     * text does but the words below the vertex (-1: every text); else one of the expressions of the program. */
    int32_t* rests;    /* [rests][3] */
    int32_t* programs; /* of all rests, consecutive */
} lmprog_texts_output;

typedef struct lmprog_texts lmprog_texts;
/* The input is borrowed while the exploration lives, but for the program. */
lmprog_texts* lmprog_texts_new(const lmprog_texts_input* input);
/* Does about so many units of work (nanoseconds, roughly). Returns 1 where there is more to do, 0 where `sizes` was
 * written, or one of the failures. */
int64_t lmprog_texts_step(lmprog_texts* texts, int64_t work, lmprog_texts_sizes* sizes);
void lmprog_texts_copy(const lmprog_texts* texts, const lmprog_texts_output* output);
void lmprog_texts_free(lmprog_texts* texts);

/* One expression, of which many texts are asked. What it finds out is kept for the next; one thread at a time. */
typedef struct lmprog_matcher lmprog_matcher;
lmprog_matcher* lmprog_matcher_new(const int32_t* program, int64_t length);
/* Whether the text of so many characters matches: 1, 0, or one of the failures, LMPROG_TEXTS_TOO_MANY beyond so many
 * terms that were followed. */
int64_t lmprog_matcher_takes(lmprog_matcher* matcher, const uint32_t* text, int64_t length, int64_t max_steps);
void lmprog_matcher_free(lmprog_matcher* matcher);

/* The table of a search that reads texts from their end (lmprog/constraints/search.py explains it). A state is where its
 * row begins; 0: no match leads here. */
typedef struct {
    const int32_t* moves;        /* [states * width] */
    const uint8_t* begins;       /* [states] bit p where a match may begin after what p names: 0 a character, 1 a line
                                  * break, 2 the start of the text */
    const int32_t* cuts;         /* [num_cuts] where the classes of characters change, the first one 0 ... */
    const int32_t* class_behind; /* [num_cuts] ... and the class from there on */
    int32_t num_cuts, width, line_break;
} lmprog_search;
/* Where in the text, which `before` precedes, the first match began that leads to `state` at its end; -1: none did. */
int64_t lmprog_search_begin(const lmprog_search* search, const uint32_t* text, int64_t length, int32_t state, int32_t before);

#ifdef __cplusplus
}
#endif
#endif
