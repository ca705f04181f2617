/* From the parts of a net as a builder writes them to its arrays: the C interface of kernels/cpu/nets.cpp.
 *
 * lmprog/constraints/finish.py explains costs and trimming. All inputs are borrowed while a build lives. A build goes on in steps of bounded work, so that its owner can stop between two of them.
 */
#ifndef LMPROG_NETS_H
#define LMPROG_NETS_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LMPROG_NETS_MEMORY (-1)

/* A deterministic byte automaton: state q has num_edges[q] edges, the edges of all states are consecutive. */
typedef struct {
    const int32_t* edges;     /* [edges][3]: first byte, last byte, target */
    const int32_t* num_edges; /* [states] */
    const uint8_t* final;     /* [states] */
    const int64_t* cost;      /* [states] fewest bytes to acceptance */
    int64_t num_states;
} lmprog_leaf_automata;

/* One builder's nodes and leaves. A node's arguments: a leaf's number; the items of a sequence or an alternation; item,
 * low and high (or -1) of a repetition; for members of which each comes at most once: low, high (or -1), how many are
 * required, the one that may come again (or -1), the separator, and the members, the required ones first; the number of
 * another part, whose root stands here; a table, as lmprog_text_table.h lays it out. */
typedef struct {
    const uint8_t* kind;      /* [nodes] 0 leaf, 1 sequence, 2 alternation, 3 repetition, 4 members, 5 another part, 6 table */
    const int32_t* num_args;  /* [nodes] */
    const int32_t* args;      /* those of all nodes, consecutive */
    const uint8_t* leaf_kind; /* [leaves] 0 an automaton, 1 a text, 2 all contents of JSON strings but some names, 3 an
                                 automaton of one character of a JSON string, whichever, 4 an automaton of the content of
                                 a string, 5 a part of a JSON text */
    const int32_t* leaf_size; /* [leaves] states; bytes; number of names */
    const uint8_t* texts;     /* of the leaves of kinds 1, 2 and 5, consecutive; a zero byte ends each name */
    lmprog_leaf_automata automata; /* of the leaves of kinds 0, 3 and 4, consecutive; targets count from each one's first state */
    int64_t num_nodes, num_leaves;
    int32_t root;
    int32_t is_recursive;     /* whether some node may come before its parts */
} lmprog_net_part;

typedef struct {
    int64_t num_nodes, num_items, num_states, num_edges;
    int64_t root, root_cost;
} lmprog_net_sizes;

/* The vocabulary's tokens of at most 12 bytes, for covering texts. */
typedef struct lmprog_cover lmprog_cover;
lmprog_cover* lmprog_cover_new(const uint8_t* tokens, const int32_t* lengths, int64_t num_tokens);
void lmprog_cover_free(lmprog_cover* cover);

/* parts[0] is the net, the others what its nodes of kind 5 refer to; these have none of that kind. `any_text` is the
 * automaton of the contents of all JSON strings. `cover` may be NULL: texts then cost one token a byte; `in_strings` is that
 * of JSON texts. `spelled` has 256
 * flags, whether a byte has a token of its own; NULL where all have. NULL is returned where memory is short. */
typedef struct lmprog_net_build lmprog_net_build;
lmprog_net_build* lmprog_net_begin(const lmprog_net_part* const* parts, int32_t num_parts,
                                   const lmprog_leaf_automata* any_text, const lmprog_cover* cover,
                                   const lmprog_cover* in_strings, const uint8_t* spelled);
/* Does about so many units of work (nanoseconds, roughly). Returns 1 where there is more to do, 0 where `sizes` was
 * written, LMPROG_NETS_MEMORY where memory is short. */
int64_t lmprog_net_step(lmprog_net_build* build, int64_t work, lmprog_net_sizes* sizes);
/* The arrays of a finished build in one block, in this order: node_cost and state_cost (int64), args, items,
 * edge_start, string_state and edges (int32), kind and final (uint8). `string_state` of a state from which every content
 * of a JSON string goes on is the state in which every content may follow (final), or a character of it begins (not
 * final); -2 for other states inside of strings, -1 for all others. */
void lmprog_net_copy(const lmprog_net_build* build, void* block);
void lmprog_net_free(lmprog_net_build* build);

#ifdef __cplusplus
}
#endif
#endif
