// Vectors of 16 f32, for processors with AVX-512 F, BW, VL and DQ.
#pragma once
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 warns about its own AVX-512 header
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "vector_math.h"

namespace lmprog {
namespace {

struct Avx512 {
    using f = __m512;
    using w = __m512i;
    static constexpr int width = 16, registers = 32, max_rows = 6;
    // Vectors of positions or columns computed at once for `rows` queries: 24 of the 32 registers hold sums.
    static constexpr int vectors(int rows) { return rows <= 3 ? 8 : 4; }

    static LMPROG_INLINE f zero() { return _mm512_setzero_ps(); }
    static LMPROG_INLINE f set1(float x) { return _mm512_set1_ps(x); }
    static LMPROG_INLINE f load(const float *at) { return _mm512_loadu_ps(at); }
    static LMPROG_INLINE void store(float *at, f x) { _mm512_storeu_ps(at, x); }
    static LMPROG_INLINE w loadw(const uint32_t *at) { return _mm512_loadu_si512(at); }
    static LMPROG_INLINE f as_f(w x) { return _mm512_castsi512_ps(x); }
    static LMPROG_INLINE f low_bf16(w x) { return as_f(_mm512_slli_epi32(x, 16)); }
    static LMPROG_INLINE f high_bf16(w x) { return as_f(_mm512_and_si512(x, _mm512_set1_epi32(-65536))); }
    static LMPROG_INLINE f fma(f a, f b, f c) { return _mm512_fmadd_ps(a, b, c); }
    static LMPROG_INLINE f add(f a, f b) { return _mm512_add_ps(a, b); }
    static LMPROG_INLINE f sub(f a, f b) { return _mm512_sub_ps(a, b); }
    static LMPROG_INLINE f mul(f a, f b) { return _mm512_mul_ps(a, b); }
    static LMPROG_INLINE f div(f a, f b) { return _mm512_div_ps(a, b); }
    static LMPROG_INLINE f max(f a, f b) { return _mm512_max_ps(a, b); }
    static LMPROG_INLINE f min(f a, f b) { return _mm512_min_ps(a, b); }
    static LMPROG_INLINE f round(f x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static LMPROG_INLINE f scale2(f p, f n) { return _mm512_scalef_ps(p, n); }
    static LMPROG_INLINE f below(f x, f limit, f value, f other) {
        return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, limit, _CMP_LT_OQ), other, value);
    }
    static LMPROG_INLINE f keep(f x, int at, int a, int b, f other) {
        const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        const __mmask16 inside = _mm512_cmplt_epi32_mask(lanes, _mm512_set1_epi32(b - at)) &
                                 _mm512_cmpge_epi32_mask(lanes, _mm512_set1_epi32(a - at));
        return _mm512_mask_blend_ps(inside, other, x);
    }
    static LMPROG_INLINE float max_of(f x) { return _mm512_reduce_max_ps(x); }
    static LMPROG_INLINE float sum_of(f x) { return _mm512_reduce_add_ps(x); }

    // Integers of 32 bits, and pairs of 16 bits in them.
    using i = __m512i;
    static LMPROG_INLINE i set1i(int32_t x) { return _mm512_set1_epi32(x); }
    static LMPROG_INLINE i loadi(const int32_t *at) { return _mm512_loadu_si512(at); }
    static LMPROG_INLINE i addi(i a, i b) { return _mm512_add_epi32(a, b); }
    static LMPROG_INLINE i subi(i a, i b) { return _mm512_sub_epi32(a, b); }
    static LMPROG_INLINE i evens(w x) { return _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8); }
    static LMPROG_INLINE i odds(w x) { return _mm512_srai_epi16(x, 8); }
    static LMPROG_INLINE i madd(i a, i b) { return _mm512_madd_epi16(a, b); }
    // Byte `Number` of each word, the lowest first, as a signed number.
    template <int Number>
    static LMPROG_INLINE f byte(w x) {
        return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(x, 24 - 8 * Number), 24));
    }
    static LMPROG_INLINE f to_f(i x) { return _mm512_cvtepi32_ps(x); }
    static LMPROG_INLINE w low_nibbles(w x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
    static LMPROG_INLINE w high_nibbles(w x) { return low_nibbles(_mm512_srli_epi16(x, 4)); }
};

}  // namespace
}  // namespace lmprog
