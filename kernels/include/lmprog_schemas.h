/* The frequent part of JSON Schema read into nodes of a net: the C interface of kernels/cpu/schemas.cpp.
 *
 * lmprog/constraints/schema (objects.py, arrays.py, build.py) is its plain twin and explains what the nodes mean. What
 * is not read here is *wanted*: the caller makes a node of it and answers with its number. So one net is built by two
 * readers, each of whom may ask the other.
 */
#ifndef LMPROG_SCHEMAS_H
#define LMPROG_SCHEMAS_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LMPROG_SCHEMAS_MEMORY (-1)
#define LMPROG_SCHEMAS_NOT_READ (-2)

/* `keywords`: all that say anything about validity, each ended by a zero byte; others are passed over. `comma` and
 * `colon` stand between members, and between a name and its value. NULL where memory is short. */
typedef struct lmprog_schemas_style lmprog_schemas_style;
lmprog_schemas_style* lmprog_schemas_style_new(const char* keywords, int64_t length, const char* comma,
                                               const char* colon);
void lmprog_schemas_style_free(lmprog_schemas_style* style);

/* A document in UTF-8; the text is borrowed while it lives, and so is the style. NULL where it is not read: it is no
 * JSON, or one that readers may take differently, or has names (`$id`, `$anchor`) below its root. */
typedef struct lmprog_schemas lmprog_schemas;
lmprog_schemas* lmprog_schemas_new(const char* text, int64_t length, const lmprog_schemas_style* style);
void lmprog_schemas_free(lmprog_schemas* document);

/* The schema at a path like `#/properties/a~1b`, or LMPROG_SCHEMAS_NOT_READ. The root is 0. */
int64_t lmprog_schemas_find(const lmprog_schemas* document, const char* path, int64_t length);

/* What must be answered before a schema is built: texts, each ended by a zero byte, that begin with its number and a
 * blank. Behind that `p` and the path of a schema; or `c` and a schema as JSON text whose place does not matter; or `s`,
 * the content of any JSON string. Valid until the next call. */
typedef struct {
    const char* texts;
    int64_t length;
} lmprog_schemas_wanted;
/* Returns 0, or LMPROG_SCHEMAS_NOT_READ where the schema itself has to be read by the caller. */
int64_t lmprog_schemas_plan(lmprog_schemas* document, int64_t schema, lmprog_schemas_wanted* wanted);
void lmprog_schemas_answer(lmprog_schemas* document, int64_t number, int32_t node);

/* New nodes and leaves, as lmprog_nets.h lays them out. Valid until the next call. */
typedef struct {
    const uint8_t* kind;
    const int32_t* num_args;
    const int32_t* args;
    const uint8_t* leaf_kind; /* 1 a text, 2 all contents of strings but some names */
    const int32_t* leaf_size; /* bytes; number of names */
    const uint8_t* texts;
    int64_t num_nodes, num_all_args, num_leaves, texts_length;
    int32_t root;
    int32_t is_recursive;
} lmprog_schemas_nodes;
/* Builds a planned schema whose wants are answered. Nodes 0 and 1 are the empty text and no text at all; new ones are
 * numbered from `first_node` on, new leaves from `first_leaf` on. Returns 0, or LMPROG_SCHEMAS_MEMORY. */
int64_t lmprog_schemas_build(lmprog_schemas* document, int64_t schema, int32_t first_node, int32_t first_leaf,
                             lmprog_schemas_nodes* nodes);

#ifdef __cplusplus
}
#endif
#endif
