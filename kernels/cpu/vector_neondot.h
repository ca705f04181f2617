// Vectors of 4 with one instruction for the sum of four products of signed bytes (the extension "dotprod").
#pragma once
#include "vector_neon.h"

namespace lmprog {
namespace {

struct NeonDot : Neon {
    static LMPROG_INLINE i dot(i sum, w bytes, i more) {
        return vdotq_s32(sum, vreinterpretq_s8_u32(bytes), vreinterpretq_s8_s32(more));
    }

    // For digits.h.
    static constexpr int byte_shift = 0;
    static LMPROG_INLINE w shifted(w word) { return word; }
    static LMPROG_INLINE i weigh(i sum, w bytes, i digits) { return dot(sum, bytes, digits); }
    static LMPROG_INLINE void put_digits(int8_t *to, f values) {
        const i whole = vcvtnq_s32_f32(values), low = vandq_s32(whole, vdupq_n_s32(127));
        const int8x16_t both = vreinterpretq_s8_s32(vorrq_s32(vshrq_n_s32(whole, 7), vshlq_n_s32(low, 8)));
        const uint8x8_t order = {0, 4, 8, 12, 1, 5, 9, 13};
        vst1_s8(to, vqtbl1_s8(both, order));
    }
};

}  // namespace
}  // namespace lmprog
