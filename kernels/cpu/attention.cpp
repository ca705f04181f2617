// The C interface of kernels/include/lmprog_attention.h: attention alone, for decoders that compute the rest themselves.
#include "lmprog_attention.h"

#include <algorithm>
#include <numeric>

#include "attention_run.h"
#include "processor.h"

using namespace lmprog;

struct lmprog_attention {
    Workers workers;
    AttentionRun run;

    lmprog_attention(const Kernels *chosen, int threads) : workers(threads), run(chosen, threads) {}
};

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
    for (const char *name : {"avx512bf16", "avx512vnni", "avx512", "avx2vnni", "avx2", "neonbf16", "neondot",
                             "neon", "generic"})
        if (kernels == nullptr && (path == nullptr || !strcmp(path, name))) kernels = attention_kernels(name);
    return kernels == nullptr || threads < 1 ? nullptr : new lmprog_attention(kernels, threads);
}

const char *lmprog_attention_path(const lmprog_attention *handle) { return handle->run.kernels()->name; }

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
    write_layer(handle->workers, layout_of(*shape), *batch, keys, values, *k, *v, false);
}

void lmprog_attention_attend(lmprog_attention *handle, const lmprog_attention_shape *shape,
                             const lmprog_attention_layer *layer, const lmprog_attention_batch *batch, const void *keys,
                             const void *values, const lmprog_attention_array *q, const lmprog_attention_array *out) {
    const Layout l = layout_of(*shape);
    const bool alone = attention_products(l, *layer, *batch) < kWorthWaking;
    const Plan plan(l, *layer, *batch, alone ? 1 : handle->workers.count());
    handle->run.attend(handle->workers, plan, l, *layer, *batch, keys, values, *q, *out, alone);
}

void lmprog_attention_copy(const lmprog_attention_shape *shape, void *keys, void *values, const int32_t *copies,
                           int32_t count) {
    const Layout l = layout_of(*shape);
    if (l.kv_type == LMPROG_F32)
        copy_slots<float>(l, keys, values, copies, count);
    else if (l.kv_type == LMPROG_INT8)
        copy_slots<int8_t>(l, keys, values, copies, count);
    else
        copy_slots<uint16_t>(l, keys, values, copies, count);
}

}  // extern "C"
