// Vectors of 8 with one instruction for the sum of four products of bytes, for processors with AVX-VNNI.
#pragma once
#include "vector_avx2.h"

namespace lmprog {
namespace {

struct Avx2Vnni : Avx2 {
    static LMPROG_INLINE i dot(i sum, i bytes, i signed_bytes) {
        __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(bytes), "x"(signed_bytes));
        return sum;
    }

    // For digits.h.
    static constexpr int byte_shift = 128;
    static LMPROG_INLINE w shifted(w word) { return _mm256_xor_si256(word, _mm256_set1_epi8(-128)); }
    static LMPROG_INLINE i weigh(i sum, w bytes, i digits) { return dot(sum, digits, bytes); }
    static LMPROG_INLINE void put_digits(int8_t *to, f values) {
        const i whole = _mm256_cvtps_epi32(values), low = _mm256_and_si256(whole, _mm256_set1_epi32(127));
        const i both = _mm256_or_si256(_mm256_srli_epi32(whole, 7), _mm256_slli_epi32(low, 8));
        // Each half has the bytes of one word: the high digits of its four numbers, then the low ones.
        const i order = _mm256_broadcastsi128_si256(
            _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, -1, -1, -1, -1, -1, -1, -1, -1));
        const i digits = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(both, order), 0 | 2 << 2);
        _mm_storeu_si128(reinterpret_cast<__m128i *>(to), _mm256_castsi256_si128(digits));
    }
};

}  // namespace
}  // namespace lmprog
