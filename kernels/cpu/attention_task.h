// What a worker is asked to do, between the planner (attention_plan.h) and the kernels of each instruction set.
// Plain data only: units compiled for different instruction sets include this, so nothing here may emit code that the
// linker could pick from the wrong unit (no std containers, no non-inline functions).
#pragma once
#include <stdint.h>

#include "lmprog_attention.h"

namespace lmprog {

enum : int {
    kBlock = 16,                       // slots in a block of memory
    kChunk = LMPROG_ATTENTION_CHUNK,   // positions whose softmax is computed at once; the unit of merging
    kBlocksPerChunk = kChunk / kBlock,
    kTile = 64,                        // queries (token, head) of one kv head that read the same keys together
};

// Sizes of the memory of one layer, in words of 32 bits unless said otherwise.
struct Layout {
    int head_dim, v_head_dim, kv_heads, group;  // group: query heads of one kv head
    int page_size, kv_type;
    int key_words;            // of one slot and head: head_dim, or half of it for bf16, a quarter for int8
    int columns;              // v_head_dim rounded up to 16
    int key_block;            // words of a block of one head; int8: its scales are the last 16
    int value_block;          // likewise
    int record;               // f32 numbers of a partial result: columns, then maximum and sum, padded to 16
};

// Queries of one kv head that stand on the same pages, and the chunks they are to read.
struct Task {
    const Layout *layout;
    const lmprog_attention_layer *layer;
    const uint32_t *keys, *values;  // of this kv head in block 0
    const int32_t *pages;
    int first_chunk, end_chunk;     // each holds a position that one of the queries sees
    int count, type;                // queries; their type and that of the results
    const void *queries[kTile];
    int begin[kTile], end[kTile];   // positions each query sees: begin .. end
    float sink[kTile];              // a score without a value; -infinity: none
    void *out[kTile];               // the finished result goes here ...
    float *partial[kTile];          // ... or, where not NULL, a record of each chunk seen, first_chunk's going here
};

// Partial results of one query over its chunks, in order of position.
struct Merge {
    const Layout *layout;
    const float *records;
    int count, type;
    float sink;  // as in Task
    void *out;
};

// One instruction set. `scratch` is 64-byte aligned, scratch_floats(layout) long, owned by the calling worker.
struct Kernels {
    const char *name;
    void (*attend)(const Task &task, float *scratch);
    void (*merge)(const Merge &merge, float *scratch);
};

// NULL where the unit was compiled without its instruction set.
const Kernels *kernels_generic();
const Kernels *kernels_avx2();
const Kernels *kernels_avx2vnni();
const Kernels *kernels_avx512();
const Kernels *kernels_avx512vnni();
const Kernels *kernels_avx512bf16();
const Kernels *kernels_neon();
const Kernels *kernels_neondot();
const Kernels *kernels_neonbf16();

// Scratch of one worker, in this order: see attention_kernel.h.
static constexpr long up16(long n) { return (n + 15) / 16 * 16; }
static constexpr long scratch_floats(const Layout &l) {
    return kTile * up16(4L * l.key_words)                                        // queries
           + 2L * kTile * kChunk                                                 // scores, weights
           + 2L * kTile * l.columns                                              // state, sum of this chunk
           + 4L * kTile                                                          // maxima and sums of both
           + 2L * l.columns                                                      // half-filled pairs of slots
           + static_cast<long>(kBlocksPerChunk) * (l.key_block + l.value_block); // gathered blocks
}

}  // namespace lmprog
