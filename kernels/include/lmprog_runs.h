/* Runs of pages that several rows of a batch share, as requests of an attention that reads each of them once.
 *
 * Rows stand on page tables. Two rows that have the same page at one place have the same pages before it: that is what
 * page tables of a tree mean, and what lets tables be compared by halves. Only pages before a row's first new token
 * count, since the step writes the others. Knows no keys, no values and no device. */
#ifndef LMPROG_RUNS_H
#define LMPROG_RUNS_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LMPROG_API __attribute__((visibility("default")))

typedef struct {
    int32_t num_rows;
    int32_t page_size;
    const int32_t *row_starts;  /* [rows + 1]: a row's new tokens */
    const int32_t *positions;   /* [tokens] */
    const int32_t *page_starts; /* [rows + 1] */
    const int32_t *pages;       /* [page_starts[rows]] */
} lmprog_paged_rows;

/* The runs of a batch. All arrays lie in `numbers`, one after the other:
 *   query_starts [requests + 1]   the queries of a request are those places of `gather`
 *   page_starts [requests + 1], pages [page_starts[requests]]
 *   gather [queries]              tokens
 *   parts [queries]               which partial result that is: a token's own row's comes before those of its requests
 *   part_starts [tokens + 1]
 *   depths [rows]                 pages of a row that are in requests
 * They are the caller's until the next call of the same thread. */
typedef struct {
    int32_t num_requests;
    int32_t num_queries;
    int32_t num_pages;
    int32_t num_numbers;
    const int32_t *numbers;
} lmprog_runs;

/* A run is a request where it saves at least `worth` positions of reading, which grows until there are at most
 * `most_parts` partial results. No request at all where nothing is worth one: then there are no numbers either. */
LMPROG_API void lmprog_shared_runs(const lmprog_paged_rows *rows, int64_t worth, int64_t most_parts, lmprog_runs *found);

#ifdef __cplusplus
}
#endif
#endif
