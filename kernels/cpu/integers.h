// int8 without instructions for it: weights and inputs widened to 16 bits, products of pairs added in 32.
//
// Inputs are laid out for that: of four inputs first the two even ones, then the two odd ones, as 16-bit numbers.
#pragma once
#include "ways.h"

namespace lmprog {
namespace {

// V has: i (32-bit integers), evens(w), odds(w): the bytes of each word as pairs of 16-bit numbers, signed;
// madd(a, b): sums of products of pairs; addi, subi, set1i, loadi, to_f.
template <class Vector>
struct WidenedInt8 {
    using V = Vector;
    using X = int16_t;
    using Sum = typename V::i;
    struct Word {
        typename V::i evens, odds;
    };
    static constexpr int per_word = 4, x_per_word = 4, shift = 0;
    static LMPROG_INLINE Sum zero() { return V::set1i(0); }
    static LMPROG_INLINE Word ready(typename V::w word) { return {V::evens(word), V::odds(word)}; }
    static LMPROG_INLINE Sum mac(Sum sum, Word word, const X *x) {
        int32_t pairs[2];
        memcpy(pairs, x, 8);
        sum = V::addi(sum, V::madd(word.evens, V::set1i(pairs[0])));
        return V::addi(sum, V::madd(word.odds, V::set1i(pairs[1])));
    }
    static LMPROG_INLINE Sum mac_unsigned(Sum sum, Word word, const X *x) { return mac(sum, word, x); }
    static LMPROG_INLINE typename V::f number(Sum sum, const int32_t *) { return V::to_f(sum); }
    static LMPROG_INLINE typename V::f minus(Sum sum, int32_t shifted) {
        return V::to_f(V::subi(sum, V::set1i(shifted)));
    }
    static LMPROG_INLINE void put(X *to, long k, int value) {
        to[k / 4 * 4 + k % 2 * 2 + k % 4 / 2] = static_cast<int16_t>(value);
    }
};

// int8 with one instruction for four products: unsigned by signed bytes. Weights of int8 are signed, so inputs are
// shifted by 128; nibbles are unsigned, so inputs are signed there.
template <class Vector>
struct DotInt8 {
    using V = Vector;
    using X = uint8_t;
    using Sum = typename V::i;
    using Word = typename V::w;
    static constexpr int per_word = 4, x_per_word = 4, shift = 128;
    static LMPROG_INLINE Sum zero() { return V::set1i(0); }
    static LMPROG_INLINE Word ready(Word word) { return word; }
    static LMPROG_INLINE Sum mac(Sum sum, Word word, const X *x) {
        int32_t four;
        memcpy(&four, x, 4);
        return V::dot(sum, V::set1i(four), word);
    }
    static LMPROG_INLINE Sum mac_unsigned(Sum sum, Word word, const X *x) {
        int32_t four;
        memcpy(&four, x, 4);
        return V::dot(sum, word, V::set1i(four));
    }
    static LMPROG_INLINE typename V::f number(Sum sum, const int32_t *shifted) {
        return V::to_f(V::subi(sum, V::loadi(shifted)));
    }
    static LMPROG_INLINE typename V::f minus(Sum sum, int32_t shifted) {
        return V::to_f(V::subi(sum, V::set1i(shifted)));
    }
    static LMPROG_INLINE void put(X *to, long k, int value) { to[k] = static_cast<uint8_t>(value); }
};

// int8 with one instruction for four products of signed bytes, which nibbles are too: nothing is shifted.
template <class Vector>
struct SignedDotInt8 {
    using V = Vector;
    using X = int8_t;
    using Sum = typename V::i;
    using Word = typename V::w;
    static constexpr int per_word = 4, x_per_word = 4, shift = 0;
    static LMPROG_INLINE Sum zero() { return V::set1i(0); }
    static LMPROG_INLINE Word ready(Word word) { return word; }
    static LMPROG_INLINE Sum mac(Sum sum, Word word, const X *x) {
        int32_t four;
        memcpy(&four, x, 4);
        return V::dot(sum, word, V::set1i(four));
    }
    static LMPROG_INLINE Sum mac_unsigned(Sum sum, Word word, const X *x) { return mac(sum, word, x); }
    static LMPROG_INLINE typename V::f number(Sum sum, const int32_t *) { return V::to_f(sum); }
    static LMPROG_INLINE typename V::f minus(Sum sum, int32_t shifted) {
        return V::to_f(V::subi(sum, V::set1i(shifted)));
    }
    static LMPROG_INLINE void put(X *to, long k, int value) { to[k] = static_cast<int8_t>(value); }
};

}  // namespace
}  // namespace lmprog
