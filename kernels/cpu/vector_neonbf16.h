// Pairs of bf16 multiplied by one instruction, for ARM processors with the extension "bf16".
#pragma once
#include "vector_neondot.h"
#include "ways.h"

namespace lmprog {
namespace {

struct NeonPairsBf16 : FloatSums<Neon, uint16_t, 2> {
    static LMPROG_INLINE V::f mac(V::f sum, V::w word, const X *x) {
        uint32_t pair;
        memcpy(&pair, x, 4);
        return vbfdotq_f32(sum, vreinterpretq_bf16_u32(word), vreinterpretq_bf16_u32(vdupq_n_u32(pair)));
    }
    static LMPROG_INLINE void put(X *to, float value) { *to = to_bf16(value); }
    static LMPROG_INLINE V::f put_all(X *to, V::f values) {
        const bfloat16x4_t halves = vcvt_bf16_f32(values);
        vst1_u16(to, vreinterpret_u16_bf16(halves));
        return V::low_bf16(vmovl_u16(vreinterpret_u16_bf16(halves)));
    }
};

}  // namespace
}  // namespace lmprog
