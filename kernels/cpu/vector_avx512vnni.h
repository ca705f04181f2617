// Vectors of 16 with one instruction for the sum of four products of bytes.
#pragma once
#include "vector_avx512.h"

namespace lmprog {
namespace {

struct Avx512Vnni : Avx512 {
    static LMPROG_INLINE i dot(i sum, i bytes, i signed_bytes) {
        // As assembly, because GCC 12 spills the array of sums around the intrinsic.
        __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(signed_bytes));
        return sum;
    }

    // For digits.h.
    static constexpr int byte_shift = 128;
    static LMPROG_INLINE w shifted(w word) { return _mm512_xor_si512(word, _mm512_set1_epi8(-128)); }
    static LMPROG_INLINE i weigh(i sum, w bytes, i digits) { return dot(sum, digits, bytes); }
    static LMPROG_INLINE void put_digits(int8_t *to, f values) {
        const i whole = _mm512_cvtps_epi32(values);
        const __m128i high = _mm512_cvtepi32_epi8(_mm512_srli_epi32(whole, 7));
        const __m128i low = _mm512_cvtepi32_epi8(_mm512_and_si512(whole, _mm512_set1_epi32(127)));
        _mm_storeu_si128(reinterpret_cast<__m128i *>(to), _mm_unpacklo_epi32(high, low));
        _mm_storeu_si128(reinterpret_cast<__m128i *>(to) + 1, _mm_unpackhi_epi32(high, low));
    }
};

}  // namespace
}  // namespace lmprog
