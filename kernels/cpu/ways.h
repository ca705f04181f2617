// The ways to multiply words of 32 bits that lie in memory with numbers that are the same for all lanes: f32, bf16
// widened to f32, bytes widened to f32, and (in vector_avx512bf16.h) bf16 in pairs, (in digits.h) bytes by digits.
#pragma once
#include "attention_task.h"
#include "vector_math.h"

namespace lmprog {
namespace {

// What ways share whose sums are f32. `X` is what queries and weights are kept as, `per_word` how many numbers belong to
// one word of memory; `scaled`: every slot's numbers have a scale of their own. mac adds the products of one word of every
// lane with one X group, the same for all lanes.
template <class Vector, class Kept, int PerWord, bool Scaled = false>
struct FloatSums {
    using V = Vector;
    using X = Kept;
    using Sum = typename V::f;
    using Key = typename V::w;
    using Value = typename V::w;
    static constexpr bool in_digits = false, scaled = Scaled;
    static constexpr int per_word = PerWord, tokens_per_word = PerWord, x_per_word = PerWord, x_per_token = 1;
    static constexpr int max_rows = V::max_rows;
    static constexpr int vectors(int rows) { return V::vectors(rows); }
    static LMPROG_INLINE Sum zero() { return V::zero(); }
    static LMPROG_INLINE Key key(typename V::w word) { return word; }
    static LMPROG_INLINE Value value(typename V::w word) { return word; }
    static LMPROG_INLINE Sum number(Sum sum, const X *) { return sum; }
};

template <class Vector>
struct F32 : FloatSums<Vector, float, 1> {
    using V = Vector;
    using X = float;
    static LMPROG_INLINE typename V::f mac(typename V::f sum, typename V::w word, const X *x) {
        return V::fma(V::as_f(word), V::set1(*x), sum);
    }
    static LMPROG_INLINE void put(X *to, float value) { *to = value; }
    // Stores weights and returns them as rounded.
    static LMPROG_INLINE typename V::f put_all(X *to, typename V::f values) {
        V::store(to, values);
        return values;
    }
};

template <class Vector>
struct WidenedBf16 : FloatSums<Vector, float, 2> {
    using V = Vector;
    using X = float;
    static LMPROG_INLINE typename V::f mac(typename V::f sum, typename V::w word, const X *x) {
        sum = V::fma(V::low_bf16(word), V::set1(x[0]), sum);
        return V::fma(V::high_bf16(word), V::set1(x[1]), sum);
    }
    static LMPROG_INLINE void put(X *to, float value) { *to = value; }
    static LMPROG_INLINE typename V::f put_all(X *to, typename V::f values) {
        V::store(to, values);
        return values;
    }
};

template <class Vector>
struct WidenedBytes : FloatSums<Vector, float, 4, true> {
    using V = Vector;
    using X = float;
    static LMPROG_INLINE typename V::f mac(typename V::f sum, typename V::w word, const X *x) {
        sum = V::fma(V::template byte<0>(word), V::set1(x[0]), sum);
        sum = V::fma(V::template byte<1>(word), V::set1(x[1]), sum);
        sum = V::fma(V::template byte<2>(word), V::set1(x[2]), sum);
        return V::fma(V::template byte<3>(word), V::set1(x[3]), sum);
    }
    static LMPROG_INLINE void put(X *to, float value) { *to = value; }
    static LMPROG_INLINE typename V::f put_all(X *to, typename V::f values) {
        V::store(to, values);
        return values;
    }
};

}  // namespace
}  // namespace lmprog
