// Chunks become one result: the running maximum, total and sum, and the division at the end.
#pragma once
#include "attention_task.h"
#include "vector_math.h"

namespace lmprog {
namespace {

// Adds one chunk's maximum, total and sum to what earlier chunks gave. The first one is taken over as it is.
template <class V>
LMPROG_INLINE void merge_into(float *state, float *state_max, float *state_total, const float *sum, float max,
                              float total, int columns) {
    if (total == 0) return;  // nothing of this chunk was to be seen: a visible maximum alone weighs 1
    const float top = *state_max > max ? *state_max : max;
    const typename V::f old_part = exp_of<V>(V::set1(*state_max - top));
    const typename V::f new_part = exp_of<V>(V::set1(max - top));
    for (int i = 0; i < columns; i += V::width)
        V::store(state + i, V::fma(V::load(sum + i), new_part, V::mul(V::load(state + i), old_part)));
    const typename V::f sums = V::fma(V::set1(total), new_part, V::mul(V::set1(*state_total), old_part));
    *state_total = first_of<V>(sums);
    *state_max = top;
}

// What a query has before its first chunk: its sink, whose own weight is 1 and whose value is nothing.
LMPROG_INLINE void clear(float *state, float *max, float *total, float sink, int columns) {
    *max = sink;
    *total = sink > -__builtin_inff() ? 1.0f : 0.0f;
    memset(state, 0, static_cast<size_t>(columns) * 4);
}

inline void finish(const float *state, float total, int dim, int type, void *out) {
    const float part = 1.0f / total;
    if (type == LMPROG_F32) {
        float *to = static_cast<float *>(out);
        for (int i = 0; i < dim; i++) to[i] = state[i] * part;
    } else {
        uint16_t *to = static_cast<uint16_t *>(out);
        for (int i = 0; i < dim; i++) to[i] = to_bf16(state[i] * part);
    }
}

template <class V>
void merge_records(const Merge &merge, float *scratch) {
    const Layout &l = *merge.layout;
    float max, total;
    clear(scratch, &max, &total, merge.sink, l.columns);
    for (int i = 0; i < merge.count; i++) {
        const float *record = merge.records + static_cast<long>(i) * l.record;
        merge_into<V>(scratch, &max, &total, record, record[l.columns], record[l.columns + 1], l.columns);
    }
    finish(scratch, total, l.v_head_dim, merge.type, merge.out);
}

}  // namespace
}  // namespace lmprog
