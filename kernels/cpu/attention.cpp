// The C interface of kernels/include/lmprog_attention.h: choice of the instruction set, threads, and who does what.
#include "lmprog_attention.h"

#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <numeric>

#include "attention_memory.h"
#include "attention_plan.h"
#include "attention_task.h"
#include "workers.h"

using namespace lmprog;

// Scratch memory that only grows. malloc's blocks are moved up to a multiple of 64 bytes.
struct Scratch {
    void *block = nullptr;
    size_t size = 0;

    float *floats(long count) {
        const size_t wanted = static_cast<size_t>(count) * sizeof(float) + 64;
        if (wanted > size) {
            free(block);
            block = malloc(wanted);
            if (block == nullptr) abort();  // a few megabytes: the process is beyond help
            size = wanted;
        }
        return reinterpret_cast<float *>((reinterpret_cast<uintptr_t>(block) + 63) / 64 * 64);
    }
    ~Scratch() { free(block); }
};

struct lmprog_attention {
    const Kernels *kernels;
    Workers workers;
    std::vector<Scratch> scratch;  // one each worker
    Scratch records;

    lmprog_attention(const Kernels *chosen, int threads) : kernels(chosen), workers(threads), scratch(threads) {}
};

static const Kernels *usable(const char *name) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (!strcmp(name, "avx512bf16"))
        return avx512 && __builtin_cpu_supports("avx512bf16") ? kernels_avx512bf16() : nullptr;
    if (!strcmp(name, "avx512")) return avx512 ? kernels_avx512() : nullptr;
    if (!strcmp(name, "avx2"))
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? kernels_avx2() : nullptr;
#endif
    return !strcmp(name, "generic") ? kernels_generic() : nullptr;
}

// Products of numbers in one call: below kWorthWaking (some tens of microseconds) threads are left asleep.
constexpr long kWorthWaking = 500000;

static long products(const Layout &l, const lmprog_attention_layer &layer, const lmprog_attention_batch &batch) {
    long seen = 0;
    for (int row = 0; row < batch.num_rows; row++) {
        const long tokens = batch.row_starts[row + 1] - batch.row_starts[row], all = batch.kv_lens[row];
        seen += tokens * (layer.window > 0 ? std::min<long>(all, layer.window) : all);
    }
    return seen * l.kv_heads * l.group * (l.head_dim + l.v_head_dim);
}

// Where the numbers of one head of one token lie.
static char *number(const lmprog_attention_array &array, long token, int head, int dim) {
    const long size = array.type == LMPROG_F32 ? 4 : 2;
    return static_cast<char *>(array.data) + (token * array.stride + static_cast<long>(head) * dim) * size;
}

// What attend was called with, and the records of split rows.
struct Call {
    const Layout &l;
    const lmprog_attention_batch &batch;
    const lmprog_attention_array &q, &out;
    float *records;
};

// One piece's queries of one kv head, as the kernels want them.
static void fill(Task &task, const Call &call, const Plan &plan, const Piece &piece, int kv_head) {
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
            task.queries[n] = number(call.q, index, head, l.head_dim);
            task.out[n] = number(call.out, index, head, l.v_head_dim);
            task.partial[n] =
                plan.split[row] ? call.records + plan.record_of(row, kv_head, i, chunk) * l.record : nullptr;
        }
    }
}

static void merge_row(const Kernels &kernels, const Call &call, const Plan &plan, int row, int kv_head,
                      float *scratch) {
    const Layout &l = call.l;
    for (int i = 0; i < plan.tokens(row) * l.group; i++) {
        const int token = i / l.group, head = kv_head * l.group + i % l.group;
        const int first = plan.begin(row, token) / kChunk, end = (plan.end(row, token) + kChunk - 1) / kChunk;
        const long index = call.batch.row_starts[row] + token;
        const float *records = call.records + plan.record_of(row, kv_head, i, first - plan.first_chunk(row)) * l.record;
        const Merge merge = {&l, records, end - first, call.out.type, number(call.out, index, head, l.v_head_dim)};
        kernels.merge(merge, scratch);
    }
}

extern "C" {

int64_t lmprog_attention_key_bytes(const lmprog_attention_shape *shape, int64_t num_slots) {
    const Layout l = layout_of(*shape);
    return (num_slots + kBlock - 1) / kBlock * l.kv_heads * l.key_block * 4;
}

int64_t lmprog_attention_value_bytes(const lmprog_attention_shape *shape, int64_t num_slots) {
    const Layout l = layout_of(*shape);
    return (num_slots + kBlock - 1) / kBlock * l.kv_heads * l.value_block * 4;
}

lmprog_attention *lmprog_attention_open(int32_t threads, const char *path) {
    const Kernels *kernels = nullptr;
    if (path != nullptr) {
        kernels = usable(path);
    } else {
        for (const char *name : {"avx512bf16", "avx512", "avx2", "generic"})
            if (kernels == nullptr) kernels = usable(name);
    }
    return kernels == nullptr || threads < 1 ? nullptr : new lmprog_attention(kernels, threads);
}

const char *lmprog_attention_path(const lmprog_attention *handle) { return handle->kernels->name; }

void lmprog_attention_close(lmprog_attention *handle) { delete handle; }

void lmprog_attention_group(const lmprog_attention_batch *batch, int32_t page_size, int32_t *order, int32_t *common) {
    const auto begin = [batch](int32_t row) { return batch->pages + batch->page_starts[row]; };
    const auto end = [batch](int32_t row) { return batch->pages + batch->page_starts[row + 1]; };
    std::iota(order, order + batch->num_rows, 0);
    std::sort(order, order + batch->num_rows, [&](int32_t a, int32_t b) {
        const auto differ = std::mismatch(begin(a), end(a), begin(b), end(b));
        if (differ.second == end(b)) return differ.first == end(a) && a < b;
        return differ.first == end(a) || *differ.first < *differ.second;
    });
    for (int32_t i = 0; i < batch->num_rows; i++) {
        common[i] = 0;
        if (i + 1 == batch->num_rows) break;
        const int32_t a = order[i], b = order[i + 1];
        const int64_t pages = std::mismatch(begin(a), end(a), begin(b), end(b)).first - begin(a);
        common[i] = static_cast<int32_t>(std::min<int64_t>(pages * page_size, INT32_MAX));
    }
}

void lmprog_attention_write(lmprog_attention *handle, const lmprog_attention_shape *shape,
                            const lmprog_attention_batch *batch, void *keys, void *values,
                            const lmprog_attention_array *k, const lmprog_attention_array *v) {
    const Layout l = layout_of(*shape);
    const bool wide = l.kv_type == LMPROG_F32, from_wide = k->type == LMPROG_F32;
    const auto write = wide ? (from_wide ? write_slots<float, float> : write_slots<float, uint16_t>)
                            : (from_wide ? write_slots<uint16_t, float> : write_slots<uint16_t, uint16_t>);
    constexpr int kWritesPerPiece = 32;
    const int pieces = (batch->num_writes + kWritesPerPiece - 1) / kWritesPerPiece;
    handle->workers.share(pieces, pieces == 1, [&](int index, int) {
        const int first = index * kWritesPerPiece, last = std::min(first + kWritesPerPiece, batch->num_writes);
        write(l, *batch, keys, values, *k, *v, first, last);
    });
}

void lmprog_attention_attend(lmprog_attention *handle, const lmprog_attention_shape *shape,
                             const lmprog_attention_layer *layer, const lmprog_attention_batch *batch, const void *keys,
                             const void *values, const lmprog_attention_array *q, const lmprog_attention_array *out) {
    const Layout l = layout_of(*shape);
    const bool alone = products(l, *layer, *batch) < kWorthWaking;
    const Plan plan(l, *layer, *batch, alone ? 1 : handle->workers.count());
    const Call call = {l, *batch, *q, *out, handle->records.floats(plan.num_records * l.record)};
    for (Scratch &scratch : handle->scratch) scratch.floats(scratch_floats(l));
    const int pieces = static_cast<int>(plan.pieces.size());
    handle->workers.share(pieces * l.kv_heads, alone, [&](int index, int worker) {
        const Piece &piece = plan.pieces[index / l.kv_heads];
        const int kv_head = index % l.kv_heads;
        Task task;
        task.layout = &l;
        task.layer = layer;
        task.keys = static_cast<const uint32_t *>(keys) + static_cast<long>(kv_head) * l.key_block;
        task.values = static_cast<const uint32_t *>(values) + static_cast<long>(kv_head) * l.value_block;
        task.pages = batch->pages + batch->page_starts[plan.row(piece.row_begin)];
        task.first_chunk = piece.first_chunk;
        task.end_chunk = piece.end_chunk;
        task.type = q->type;
        fill(task, call, plan, piece, kv_head);
        handle->kernels->attend(task, handle->scratch[worker].floats(0));
    });
    std::vector<int> merged;
    for (int row = 0; row < batch->num_rows; row++)
        if (plan.split[row]) merged.push_back(row);
    handle->workers.share(static_cast<int>(merged.size()) * l.kv_heads, alone, [&](int index, int worker) {
        merge_row(*handle->kernels, call, plan, merged[index / l.kv_heads], index % l.kv_heads,
                  handle->scratch[worker].floats(0));
    });
}

void lmprog_attention_copy(const lmprog_attention_shape *shape, void *keys, void *values, const int32_t *copies,
                           int32_t count) {
    const Layout l = layout_of(*shape);
    if (l.kv_type == LMPROG_F32)
        copy_slots<float>(l, keys, values, copies, count);
    else
        copy_slots<uint16_t>(l, keys, values, copies, count);
}

}  // extern "C"
