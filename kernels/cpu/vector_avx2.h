// Vectors of 8 f32, for processors with AVX2 and FMA (16 registers).
#pragma once
#include <immintrin.h>

#include "vector_math.h"

namespace lmprog {
namespace {

struct Avx2 {
    using f = __m256;
    using w = __m256i;
    static constexpr int width = 8, registers = 16, max_rows = 6;
    static constexpr int vectors(int rows) { return rows == 1 ? 8 : rows == 2 ? 4 : 2; }  // at most 12 sums

    static LMPROG_INLINE f zero() { return _mm256_setzero_ps(); }
    static LMPROG_INLINE f set1(float x) { return _mm256_set1_ps(x); }
    static LMPROG_INLINE f load(const float *at) { return _mm256_loadu_ps(at); }
    static LMPROG_INLINE void store(float *at, f x) { _mm256_storeu_ps(at, x); }
    static LMPROG_INLINE w loadw(const uint32_t *at) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(at));
    }
    static LMPROG_INLINE f as_f(w x) { return _mm256_castsi256_ps(x); }
    static LMPROG_INLINE f low_bf16(w x) { return as_f(_mm256_slli_epi32(x, 16)); }
    static LMPROG_INLINE f high_bf16(w x) { return as_f(_mm256_and_si256(x, _mm256_set1_epi32(-65536))); }
    static LMPROG_INLINE f fma(f a, f b, f c) { return _mm256_fmadd_ps(a, b, c); }
    static LMPROG_INLINE f add(f a, f b) { return _mm256_add_ps(a, b); }
    static LMPROG_INLINE f sub(f a, f b) { return _mm256_sub_ps(a, b); }
    static LMPROG_INLINE f mul(f a, f b) { return _mm256_mul_ps(a, b); }
    static LMPROG_INLINE f div(f a, f b) { return _mm256_div_ps(a, b); }
    static LMPROG_INLINE f max(f a, f b) { return _mm256_max_ps(a, b); }
    static LMPROG_INLINE f min(f a, f b) { return _mm256_min_ps(a, b); }
    static LMPROG_INLINE f round(f x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static LMPROG_INLINE f scale2(f p, f n) {
        const w power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
        return mul(p, as_f(power));
    }
    static LMPROG_INLINE f below(f x, f limit, f value, f other) {
        return _mm256_blendv_ps(other, value, _mm256_cmp_ps(x, limit, _CMP_LT_OQ));
    }
    static LMPROG_INLINE f keep(f x, int at, int a, int b, f other) {
        const w lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const w before_end = _mm256_cmpgt_epi32(_mm256_set1_epi32(b - at), lanes);
        const w before_begin = _mm256_cmpgt_epi32(_mm256_set1_epi32(a - at), lanes);
        return _mm256_blendv_ps(other, x, as_f(_mm256_andnot_si256(before_begin, before_end)));
    }
    static LMPROG_INLINE float max_of(f x) {
        float lanes[8], top;
        store(lanes, x);
        top = lanes[0];
        for (int i = 1; i < 8; i++) top = lanes[i] > top ? lanes[i] : top;
        return top;
    }
    static LMPROG_INLINE float sum_of(f x) {
        float lanes[8];
        store(lanes, x);
        return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
    }

    // Integers of 32 bits, and pairs of 16 bits in them.
    using i = __m256i;
    static LMPROG_INLINE i set1i(int32_t x) { return _mm256_set1_epi32(x); }
    static LMPROG_INLINE i loadi(const int32_t *at) { return loadw(reinterpret_cast<const uint32_t *>(at)); }
    static LMPROG_INLINE i addi(i a, i b) { return _mm256_add_epi32(a, b); }
    static LMPROG_INLINE i subi(i a, i b) { return _mm256_sub_epi32(a, b); }
    static LMPROG_INLINE i evens(w x) { return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8); }
    static LMPROG_INLINE i odds(w x) { return _mm256_srai_epi16(x, 8); }
    static LMPROG_INLINE i madd(i a, i b) { return _mm256_madd_epi16(a, b); }
    // Byte `Number` of each word, the lowest first, as a signed number.
    template <int Number>
    static LMPROG_INLINE f byte(w x) {
        return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(x, 24 - 8 * Number), 24));
    }
    static LMPROG_INLINE f to_f(i x) { return _mm256_cvtepi32_ps(x); }
    static LMPROG_INLINE w low_nibbles(w x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
    static LMPROG_INLINE w high_nibbles(w x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }
};

}  // namespace
}  // namespace lmprog
