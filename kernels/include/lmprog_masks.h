/* Token masks from a lazily determinised byte automaton: the C interface of kernels/cpu/masks.cpp.
 *
 * All arrays of a net and of a vocabulary are borrowed and must outlive the automaton. States are small integers
 * handed out as they are met; 0 is the dead state. Functions that can grow the automaton return LMPROG_MASKS_FULL
 * where it already holds max_states or max_positions: `collect` forgets states, then the call can be made again. They
 * return LMPROG_MASKS_LIMIT where one call would add as much again; the automaton then stays usable, but not for that
 * state. Calls on one automaton wait for one another, but for `collect`: nothing else may be under way then.
 */
#ifndef LMPROG_MASKS_H
#define LMPROG_MASKS_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LMPROG_MASKS_LIMIT (-1)
#define LMPROG_MASKS_FULL (-2)
#define LMPROG_MASKS_LATER (-3)
#define LMPROG_NUM_GROUPS 8

/* A trimmed net (see `Net` in lmprog/constraints/net.py for the meaning of every array). */
typedef struct {
    const uint8_t* kind;        /* [nodes] 0 leaf, 1 sequence, 2 alternation, 3 repetition, 4 each member once, 6 table */
    const int32_t* args;        /* [nodes][3] */
    const int32_t* items;       /* children of sequences and alternations; see `Net` for members of which each comes once;
                                   tables */
    const int64_t* node_cost;   /* [nodes] tokens */
    const int32_t* edge_start;  /* [leaf states + 1] */
    const int32_t* edges;       /* [edges][3]: first byte, last byte, target leaf state */
    const uint8_t* final_state; /* [leaf states] */
    const int64_t* state_cost;  /* [leaf states] tokens */
    const int32_t* string_state; /* [leaf states] see lmprog_nets.h */
    int32_t root;
    int32_t max_states;
    int64_t max_positions;
    int64_t max_row_bytes;      /* transition rows are dropped and refilled beyond this */
} lmprog_net;

/* Depth-first order; `sub` nodes make up the subtree; tokens order[first .. first + own) end at this node. */
typedef struct {
    uint32_t sub, first;
    uint16_t byte, depth;
    uint32_t own;
} lmprog_trie_node;

/* Tokens that are alike: those of every character in `groups` and of each of them at least one (groups 0: the rest, of
 * which nothing is known), behind one space where `lead` is 1. Texts in the trie are without that space. */
typedef struct {
    const lmprog_trie_node* nodes;
    int64_t num_nodes;
    const int32_t* order;
    const int32_t* roots;        /* [256] the node of depth 1 for each byte, or -1 */
    const int32_t* by_length;    /* the token ids, those of few characters first (not for the rest) */
    const int32_t* length_start; /* [longest + 1] how many have at most so many characters */
    const uint32_t* bits;        /* the mask of all of them; NULL where they are few */
    int64_t num_tokens;
    int32_t longest;             /* characters */
    uint8_t lead, groups;
} lmprog_bucket;

/* One deterministic byte automaton; state 0 is its start. */
typedef struct {
    const int32_t* edges;      /* [edges][3]: first byte, last byte, target */
    const int32_t* edge_start; /* [states + 1] */
    const uint8_t* final;      /* [states] */
    const int64_t* cost;       /* [states] fewest bytes to acceptance */
    int64_t num_states;
} lmprog_leaf_automaton;

/* A vocabulary's tokens by what they do inside of a JSON string: lmprog_strings.h. */
typedef struct lmprog_string_tokens lmprog_string_tokens;

typedef struct {
    const lmprog_bucket* buckets;
    int32_t num_buckets;
    int32_t deepest;
    int32_t num_words;
    int32_t num_eos;
    const int32_t* eos_ids;
    /* The groups of characters as byte automata: the states where a character of each begins, the edges of the states
     * (first byte, last byte, target), and target -1 where the character ends. */
    int32_t group_start[LMPROG_NUM_GROUPS];
    const int32_t* edge_start;
    const int32_t* edges;
    /* Where printable ASCII is never escaped; with every escape. */
    const lmprog_string_tokens* strings[2];
    /* Tokens that mean something else than their text: no content of a JSON string. Their texts stand in one piece. */
    const int32_t* symbols;
    const uint8_t* symbol_texts;
    const int32_t* symbol_begins; /* [num_symbols + 1] */
    int64_t num_symbols;
} lmprog_vocabulary;

typedef struct {
    int64_t count; /* allowed tokens, end-of-sequence included */
    int64_t worst; /* at least the highest cost of a state that an allowed token leads to */
    int64_t like;  /* not 0: no mask was made, it is the same as that of this state, which is not like another */
    int64_t digest; /* of the bits, where there are more than `max_ids` tokens: equal for equal masks */
    int64_t work;   /* that it took, in steps of some five nanoseconds; also where no mask was made */
} lmprog_mask_result;

/* `any` is the automaton of all contents of strings, or of one of their characters. `strings` of the vocabulary are not
 * read. NULL where memory is short. */
lmprog_string_tokens* lmprog_string_tokens_new(const lmprog_vocabulary* vocabulary, const lmprog_leaf_automaton* any);
void lmprog_string_tokens_free(lmprog_string_tokens* tokens);

typedef struct lmprog_automaton lmprog_automaton;

/* The vocabulary is borrowed like the net. NULL where the limits do not even hold the start. */
lmprog_automaton* lmprog_automaton_new(const lmprog_net* net, const lmprog_vocabulary* vocabulary);
void lmprog_automaton_free(lmprog_automaton* automaton);
int64_t lmprog_automaton_start(lmprog_automaton* automaton);
int64_t lmprog_automaton_run(lmprog_automaton* automaton, uint32_t state, const uint8_t* bytes, int64_t length);
int64_t lmprog_automaton_row(lmprog_automaton* automaton, uint32_t state, uint32_t* next256);
/* The bytes that every continuation starts with, at most max_length of them; returns how many, or the limit. */
int64_t lmprog_automaton_forced(lmprog_automaton* automaton, uint32_t state, uint8_t* bytes, int64_t max_length);
/* The distinct bytes of all tokens, sorted. */
typedef struct {
    const uint8_t* bytes;
    const int32_t* begins; /* [count + 1] */
    int64_t count;
    int64_t longest;       /* bytes */
} lmprog_token_texts;
/* What may stand across the end of the bytes that are forced in `state`, and behind it, as lmprog_doubts.h says. Returns
 * the length of that, which `lmprog_doubts_copy` then copies, or the limit. */
int64_t lmprog_automaton_doubts(lmprog_automaton* automaton, uint32_t state, const uint8_t* forced, int64_t length,
                                const lmprog_token_texts* texts);
void lmprog_doubts_copy(uint8_t* bytes);
/* Takes texts one after the other, `ends` tells where each ends, while the state behind the i-th costs less than `left` -
 * i tokens; `state` becomes the one behind them. Returns how many, or the limit; stops before bytes that lead nowhere. */
int64_t lmprog_automaton_follow(lmprog_automaton* automaton, uint32_t* state, const uint8_t* bytes, const int64_t* ends,
                                int64_t count, int64_t left);
int64_t lmprog_automaton_cost(const lmprog_automaton* automaton, uint32_t state);
int32_t lmprog_automaton_final(const lmprog_automaton* automaton, uint32_t state);
/* Whether one of the state's positions is at this leaf state. */
int32_t lmprog_automaton_stands_at(const lmprog_automaton* automaton, uint32_t state, int32_t leaf_state);
int64_t lmprog_automaton_states(const lmprog_automaton* automaton);
/* Of one state. */
int64_t lmprog_automaton_positions(const lmprog_automaton* automaton, uint32_t state);

/* Forgets all states but the start and those of `states`, and writes their new numbers to `moved`. The first `needed`
 * of them are kept whatever they take; the others only while half of the memory is free, and get 0 where they are not
 * kept. Returns 0 or LMPROG_MASKS_LIMIT, after which nothing has changed. */
int64_t lmprog_automaton_collect(lmprog_automaton* automaton, const uint32_t* states, int64_t count, int64_t needed,
                                 uint32_t* moved);
int64_t lmprog_automaton_bytes(const lmprog_automaton* automaton); /* an estimate */

/* Makes the mask of `state`, unless it is like that of another and `most` bars nothing; only tokens whose next state
 * costs at most `most` are allowed. Where these are at most `max_ids`, they go to `ids` in ascending order; where they
 * are more, `lmprog_mask_bits` has them. Returns 0, or LMPROG_MASKS_LIMIT, or LMPROG_MASKS_LATER where it takes more
 * than `most_work` (0: as much as a call may). With `is_apart`, other calls on the automaton are let in meanwhile, but
 * for those of masks. */
int64_t lmprog_mask(lmprog_automaton* automaton, uint32_t state, int64_t most, int32_t* ids, int64_t max_ids,
                    int64_t most_work, int32_t is_apart, lmprog_mask_result* result);

/* The bits of the last mask that this thread made, if it had more than `max_ids` tokens: `num_words` of them. */
void lmprog_mask_bits(uint32_t* bits);
/* Whether that mask has these bits. */
int32_t lmprog_mask_is(const uint32_t* bits);

#ifdef __cplusplus
}
#endif
#endif
