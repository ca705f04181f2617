// Bytes in memory by queries and weights of two digits, with one instruction for four products of bytes.
//
// A query becomes whole numbers of -kMost .. kMost with a scale of its own, the weights of a chunk 0 .. kMost with one:
// a high digit and a low one of 7 bits each, four of either for a word of memory. Sums of products are exact; rounding to
// digits costs about a hundredth of what rounding the memory to bytes has cost.
#pragma once
#include <math.h>

#include "ways.h"

namespace lmprog {
namespace {

// Vector has
//   dot(sum, bytes, digits)     digits of both signs, bytes as shifted(word) gives them, which adds `byte_shift` to each
//   weigh(sum, bytes, digits)   digits of 0 .. 127, bytes as they are
//   put_digits(to, values)      V::width numbers of 0 .. kMost, rounded, as digits
template <class Vector>
struct Digits {
    using V = Vector;
    using X = int8_t;
    using F = typename V::f;
    struct Sum {
        typename V::i high, low;
    };
    struct Key {
        typename V::w bytes;
    };
    struct Value {
        typename V::w bytes;
    };
    // Behind the digits of a query, and of a chunk's weights.
    struct Tail {
        float scale;
        int32_t shifted[2];  // what `byte_shift` has added to the sums of high digits, and of low ones
    };
    static constexpr bool in_digits = true, scaled = true;
    static constexpr int per_word = 4, tokens_per_word = 4, x_per_word = 8, x_per_token = 2;
    static constexpr float kMost = 127 * 128, kLeast = 1e-34f;  // of what a scale is made; kMost over less may be infinite
    // A sum takes two registers; a block's positions are computed together at least.
    static constexpr int max_rows = V::width == 16 ? 6 : 3;
    static constexpr int vectors(int rows) {
        const int half = V::vectors(rows) / 2, block = 16 / V::width;
        return half > block ? half : block;
    }

    static LMPROG_INLINE Sum zero() { return {V::set1i(0), V::set1i(0)}; }
    static LMPROG_INLINE Key key(typename V::w word) { return {V::shifted(word)}; }
    static LMPROG_INLINE Value value(typename V::w word) { return {word}; }
    static LMPROG_INLINE Sum mac(Sum sum, Key key, const X *x) {
        return {V::dot(sum.high, key.bytes, four(x)), V::dot(sum.low, key.bytes, four(x + 4))};
    }
    static LMPROG_INLINE Sum mac(Sum sum, Value value, const X *x) {
        return {V::weigh(sum.high, value.bytes, four(x)), V::weigh(sum.low, value.bytes, four(x + 4))};
    }
    // What sums mean, with the tail of their digits.
    static LMPROG_INLINE F number(Sum sum, const X *at) {
        Tail tail;
        memcpy(&tail, at, sizeof tail);
        const F high = V::to_f(V::subi(sum.high, V::set1i(tail.shifted[0])));
        const F low = V::to_f(V::subi(sum.low, V::set1i(tail.shifted[1])));
        return V::mul(V::fma(high, V::set1(128.0f), low), V::set1(tail.scale));
    }

    template <class Number>
    static void put_query(X *to, int dims, int words, Number &&number) {
        float top = 0, broken = 0;
        for (int d = 0; d < dims; d++) {
            const float size = fabsf(number(d));
            top = size > top ? size : top;
            broken += size * 0.0f;  // NaN where a number is none or infinite: so is every score
        }
        const float inverse = top > kLeast && broken == 0 ? kMost / top : 0.0f;
        Tail tail = {top / kMost + broken, {0, 0}};
        for (int d = 0; d < words * per_word; d++) {
            const int whole = d < dims && broken == 0 ? static_cast<int>(lrintf(number(d) * inverse)) : 0;
            const int high = (whole + 64) >> 7, low = whole - high * 128;
            to[d / 4 * 8 + d % 4] = static_cast<X>(high);
            to[d / 4 * 8 + d % 4 + 4] = static_cast<X>(low);
            tail.shifted[0] += V::byte_shift * high;
            tail.shifted[1] += V::byte_shift * low;
        }
        memcpy(to + words * x_per_word, &tail, sizeof tail);
    }

    // `count` weights from `from` on, of which `top` is the greatest; their digits start at to[x_per_token * from].
    static LMPROG_INLINE void put_weights(X *to, const float *weights, int from, int count, float top, float broken) {
        const F inverse = V::set1(top > kLeast ? kMost / top : 0.0f);
        for (int i = from; i < from + count; i += V::width)
            V::put_digits(to + x_per_token * i, V::mul(V::load(weights + i), inverse));
        const Tail tail = {top / kMost + broken, {0, 0}};
        memcpy(to + x_per_token * kChunk, &tail, sizeof tail);
    }

  private:
    static LMPROG_INLINE typename V::i four(const X *x) {
        int32_t digits;
        memcpy(&digits, x, 4);
        return V::set1i(digits);
    }
};

}  // namespace
}  // namespace lmprog
