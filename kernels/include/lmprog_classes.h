/* One character of a set as a byte automaton: the C interface of kernels/cpu/classes.cpp.
 *
 * lmprog/constraints/lower.py says what the spellings are for.
 */
#ifndef LMPROG_CLASSES_H
#define LMPROG_CLASSES_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lmprog_class lmprog_class;
/* The characters of `count` ranges low, high, sorted, without halves of surrogate pairs: as UTF-8, or, in a JSON string,
 * spelled in every way. NULL: no memory. */
lmprog_class* lmprog_class_new(const int32_t* ranges, int64_t count, int32_t in_json);
void lmprog_class_sizes(const lmprog_class* made, int64_t* num_states, int64_t* num_edges);
/* edges: [edges][3], first and last byte and target, state by state; the rest by state; cost: fewest bytes to the end. */
void lmprog_class_copy(const lmprog_class* made, int32_t* edges, int32_t* num_edges, uint8_t* final, int64_t* cost);
void lmprog_class_free(lmprog_class* made);

#ifdef __cplusplus
}
#endif
#endif
