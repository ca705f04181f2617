// The attention of one layer on a pool of threads: who writes which slots, who does which piece, who merges. What a piece
// is, the planner decides (attention_plan.h).
#pragma once
#include <math.h>

#include <algorithm>
#include <vector>

#include "attention_memory.h"
#include "attention_plan.h"
#include "attention_task.h"
#include "scratch.h"
#include "workers.h"

namespace lmprog {

// Products of numbers in one call: below kWorthWaking (some tens of microseconds) threads are left asleep.
constexpr long kWorthWaking = 500000;

inline long attention_products(const Layout &l, const lmprog_attention_layer &layer, const lmprog_attention_batch &batch) {
    long seen = 0;
    for (int row = 0; row < batch.num_rows; row++) {
        const long tokens = batch.row_starts[row + 1] - batch.row_starts[row], all = batch.kv_lens[row];
        seen += tokens * (layer.window > 0 ? std::min<long>(all, layer.window) : all);
    }
    return seen * l.kv_heads * l.group * (l.head_dim + l.v_head_dim);
}

// Where the numbers of one head of one token lie.
inline char *number(const lmprog_attention_array &array, long token, int head, int dim) {
    const long size = array.type == LMPROG_F32 ? 4 : 2;
    return static_cast<char *>(array.data) + (token * array.stride + static_cast<long>(head) * dim) * size;
}

// What attend was called with, and the records of split rows.
struct Call {
    const Layout &l;
    const lmprog_attention_layer &layer;
    const lmprog_attention_batch &batch;
    const lmprog_attention_array &q, &out;
    float *records;

    float sink(int head) const { return layer.sinks == nullptr ? -INFINITY : layer.sinks[head]; }
};

// One piece's queries of one kv head, as the kernels want them.
inline void fill(Task &task, const Call &call, const Plan &plan, const Piece &piece, int kv_head) {
    const Layout &l = call.l;
    task.count = 0;
    int before = 0;  // queries of earlier rows of the piece
    for (int at = piece.row_begin; at < piece.row_end; at++) {
        const int row = plan.row(at), queries = plan.tokens(row) * l.group;
        const int first = std::max(piece.first - before, 0), last = std::min(piece.last - before, queries);
        before += queries;
        for (int i = first; i < last; i++) {
            const int token = i / l.group, head = kv_head * l.group + i % l.group, n = task.count++;
            const long index = call.batch.row_starts[row] + token;
            const int chunk = piece.first_chunk - plan.first_chunk(row);
            task.begin[n] = plan.begin(row, token);
            task.end[n] = plan.end(row, token);
            task.sink[n] = call.sink(head);
            task.queries[n] = number(call.q, index, head, l.head_dim);
            task.out[n] = number(call.out, index, head, l.v_head_dim);
            task.partial[n] =
                plan.split[row] ? call.records + plan.record_of(row, kv_head, i, chunk) * l.record : nullptr;
        }
    }
}

inline void merge_row(const Kernels &kernels, const Call &call, const Plan &plan, int row, int kv_head,
                      float *scratch) {
    const Layout &l = call.l;
    for (int i = 0; i < plan.tokens(row) * l.group; i++) {
        const int token = i / l.group, head = kv_head * l.group + i % l.group;
        const int first = plan.begin(row, token) / kChunk, end = (plan.end(row, token) + kChunk - 1) / kChunk;
        const long index = call.batch.row_starts[row] + token;
        const float *records = call.records + plan.record_of(row, kv_head, i, first - plan.first_chunk(row)) * l.record;
        const Merge merge = {&l, records, end - first, call.out.type, call.sink(head),
                             number(call.out, index, head, l.v_head_dim)};
        kernels.merge(merge, scratch);
    }
}

inline void write_layer(Workers &workers, const Layout &l, const lmprog_attention_batch &batch, void *keys,
                        void *values, const lmprog_attention_array &k, const lmprog_attention_array &v, bool alone) {
    const bool from_wide = k.type == LMPROG_F32;
    const auto write = l.kv_type == LMPROG_F32    ? (from_wide ? write_slots<float, float> : write_slots<float, uint16_t>)
                       : l.kv_type == LMPROG_BF16 ? (from_wide ? write_slots<uint16_t, float> : write_slots<uint16_t, uint16_t>)
                                                  : (from_wide ? write_slots<int8_t, float> : write_slots<int8_t, uint16_t>);
    constexpr int kWritesPerPiece = 32;
    const int pieces = (batch.num_writes + kWritesPerPiece - 1) / kWritesPerPiece;
    workers.share(pieces, alone || pieces == 1, [&](int index, int) {
        const int first = index * kWritesPerPiece, last = std::min(first + kWritesPerPiece, batch.num_writes);
        write(l, batch, keys, values, k, v, first, last);
    });
}

// Scratch of the workers; one layer at a time.
class AttentionRun {
  public:
    AttentionRun(const Kernels *kernels, int threads) : kernels_(kernels), scratch_(threads) {}

    const Kernels *kernels() const { return kernels_; }

    // `plan` was made for this layer's window and `batch`, for one thread where `alone`.
    void attend(Workers &workers, const Plan &plan, const Layout &l, const lmprog_attention_layer &layer,
                const lmprog_attention_batch &batch, const void *keys, const void *values,
                const lmprog_attention_array &q, const lmprog_attention_array &out, bool alone) {
        const Call call = {l, layer, batch, q, out, records_.floats(plan.num_records * l.record)};
        for (Scratch &scratch : scratch_) scratch.floats(scratch_floats(l));
        const int pieces = static_cast<int>(plan.pieces.size());
        workers.share(pieces * l.kv_heads, alone, [&](int index, int worker) {
            const Piece &piece = plan.pieces[index / l.kv_heads];
            const int kv_head = index % l.kv_heads;
            Task task;
            task.layout = &l;
            task.layer = &layer;
            task.keys = static_cast<const uint32_t *>(keys) + static_cast<long>(kv_head) * l.key_block;
            task.values = static_cast<const uint32_t *>(values) + static_cast<long>(kv_head) * l.value_block;
            task.pages = batch.pages + batch.page_starts[plan.row(piece.row_begin)];
            task.first_chunk = piece.first_chunk;
            task.end_chunk = piece.end_chunk;
            task.type = q.type;
            fill(task, call, plan, piece, kv_head);
            kernels_->attend(task, scratch_[worker].floats(0));
        });
        merged_.clear();
        for (int row = 0; row < batch.num_rows; row++)
            if (plan.split[row]) merged_.push_back(row);
        workers.share(static_cast<int>(merged_.size()) * l.kv_heads, alone, [&](int index, int worker) {
            merge_row(*kernels_, call, plan, merged_[index / l.kv_heads], index % l.kv_heads,
                      scratch_[worker].floats(0));
        });
    }

  private:
    const Kernels *kernels_;
    std::vector<Scratch> scratch_;  // one each worker
    Scratch records_;
    std::vector<int> merged_;
};

}  // namespace lmprog
