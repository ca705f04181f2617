/* One character of a set as a byte automaton: the C interface of kernels/cpu/classes.cpp.
 *
 * Inside a JSON string a character may be written as itself (except `"`, the backslash and control characters), with its
 * short escape, as \uXXXX or as a surrogate pair. lmprog/constraints/lower.py says what each way is for.
 */
#ifndef LMPROG_CLASSES_H
#define LMPROG_CLASSES_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lmprog_class lmprog_class;
/* The characters of `count` ranges low, high, sorted, without halves of surrogate pairs. `way` 0: as UTF-8; in a JSON
 * string, 1: spelled in every way, 2: the same with printable ASCII never escaped, 3: in one way each, that of Python's
 * json. NULL: no memory. */
lmprog_class* lmprog_class_new(const int32_t* ranges, int64_t count, int32_t way);
void lmprog_class_sizes(const lmprog_class* made, int64_t* num_states, int64_t* num_edges);
/* edges: [edges][3], first and last byte and target, state by state; the rest by state; cost: fewest bytes to the end. */
void lmprog_class_copy(const lmprog_class* made, int32_t* edges, int32_t* num_edges, uint8_t* final, int64_t* cost);
void lmprog_class_free(lmprog_class* made);

#ifdef __cplusplus
}
#endif
#endif
