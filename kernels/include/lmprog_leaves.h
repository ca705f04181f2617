/* Small byte automata, the leaves of a net: one character of a set, the magnitudes of numbers within bounds. The C
 * interface of kernels/cpu/classes.cpp and numbers.cpp.
 */
#ifndef LMPROG_LEAVES_H
#define LMPROG_LEAVES_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lmprog_leaf lmprog_leaf;

/* The characters of `count` ranges low, high, sorted, without halves of surrogate pairs. Inside a JSON string a character
 * may be written as itself (except `"`, the backslash and control characters), with its short escape, as \uXXXX or as a
 * surrogate pair. `way` 0: as UTF-8; in a JSON string, 1: spelled in every way, 2: the same with printable ASCII never
 * escaped, 3: in one way each, that of Python's json; lmprog/constraints/lower.py says what each is for. NULL: no memory. */
lmprog_leaf* lmprog_class_new(const int32_t* ranges, int64_t count, int32_t way);

/* Numbers that are not negative. A bound is its digits before and behind the point, without needless zeros, each ended by
 * a zero byte; without an upper one `has_high` is 0 and its digits are empty. `modulus`, at most 32,767: of the numbers times
 * 10**scale, which are multiples of `step` (0: of anything) and of none of `others`; 0: whichever. */
typedef struct {
    const char *low_before, *low_behind, *high_before, *high_behind;
    const int32_t* others;
    int64_t num_others, most_states;
    int32_t has_high, low_exclusive, high_exclusive;
    int32_t integer, fractional; /* at most one of them: without, or with a fraction that is not zero */
    int32_t step, scale, modulus;
    int32_t most_places; /* behind the point */
} lmprog_magnitudes;
/* NULL: no memory, or (with *too_many set) more than `most_states`. */
lmprog_leaf* lmprog_magnitudes_new(const lmprog_magnitudes* of, int32_t* too_many);

void lmprog_leaf_sizes(const lmprog_leaf* made, int64_t* num_states, int64_t* num_edges);
/* edges: [edges][3], first and last byte and target, state by state; the rest by state; cost: fewest bytes to the end. */
void lmprog_leaf_copy(const lmprog_leaf* made, int32_t* edges, int32_t* num_edges, uint8_t* final, int64_t* cost);
void lmprog_leaf_free(lmprog_leaf* made);

#ifdef __cplusplus
}
#endif
#endif
