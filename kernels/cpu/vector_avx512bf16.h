// Pairs of bf16 multiplied by one instruction, for processors with AVX-512 BF16: both sides are bf16, sums f32.
#pragma once
#include "vector_avx512.h"
#include "ways.h"

namespace lmprog {
namespace {

struct PairsBf16 : FloatSums<Avx512, uint16_t, 2> {
    static LMPROG_INLINE __m512 mac(__m512 sum, __m512i word, const X *x) {
        int pair;
        memcpy(&pair, x, 4);
        // As assembly, because GCC 12 spills the array of sums around the intrinsic (three times slower).
        __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(word), "v"(_mm512_set1_epi32(pair)));
        return sum;
    }
    static LMPROG_INLINE void put(X *to, float value) { *to = to_bf16(value); }
    static LMPROG_INLINE __m512 put_all(X *to, __m512 values) {
        const __m256i halves = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values));
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), halves);
        return Avx512::low_bf16(_mm512_cvtepu16_epi32(halves));
    }
};

}  // namespace
}  // namespace lmprog
