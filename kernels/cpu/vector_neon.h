// Vectors of 4 f32, for ARM processors of 64 bits (NEON, 32 registers).
#pragma once
#include <arm_neon.h>

#include "vector_math.h"

namespace lmprog {
namespace {

struct Neon {
    using f = float32x4_t;
    using w = uint32x4_t;
    static constexpr int width = 4, registers = 32, max_rows = 6;
    static constexpr int vectors(int rows) { return rows <= 3 ? 8 : 4; }  // at most 24 sums

    static LMPROG_INLINE f zero() { return vdupq_n_f32(0); }
    static LMPROG_INLINE f set1(float x) { return vdupq_n_f32(x); }
    static LMPROG_INLINE f load(const float *at) { return vld1q_f32(at); }
    static LMPROG_INLINE void store(float *at, f x) { vst1q_f32(at, x); }
    static LMPROG_INLINE w loadw(const uint32_t *at) { return vld1q_u32(at); }
    static LMPROG_INLINE f as_f(w x) { return vreinterpretq_f32_u32(x); }
    static LMPROG_INLINE f low_bf16(w x) { return as_f(vshlq_n_u32(x, 16)); }
    static LMPROG_INLINE f high_bf16(w x) { return as_f(vandq_u32(x, vdupq_n_u32(0xffff0000u))); }
    static LMPROG_INLINE f fma(f a, f b, f c) { return vfmaq_f32(c, a, b); }
    static LMPROG_INLINE f add(f a, f b) { return vaddq_f32(a, b); }
    static LMPROG_INLINE f sub(f a, f b) { return vsubq_f32(a, b); }
    static LMPROG_INLINE f mul(f a, f b) { return vmulq_f32(a, b); }
    static LMPROG_INLINE f div(f a, f b) { return vdivq_f32(a, b); }
    // b where either is NaN: the processor's own maximum would give NaN.
    static LMPROG_INLINE f max(f a, f b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
    static LMPROG_INLINE f min(f a, f b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
    static LMPROG_INLINE f round(f x) { return vrndnq_f32(x); }
    static LMPROG_INLINE f scale2(f p, f n) {
        const i power = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23);
        return mul(p, vreinterpretq_f32_s32(power));
    }
    static LMPROG_INLINE f below(f x, f limit, f value, f other) { return vbslq_f32(vcltq_f32(x, limit), value, other); }
    static LMPROG_INLINE f keep(f x, int at, int a, int b, f other) {
        const i lanes = {at, at + 1, at + 2, at + 3};
        return vbslq_f32(vandq_u32(vcgeq_s32(lanes, vdupq_n_s32(a)), vcltq_s32(lanes, vdupq_n_s32(b))), x, other);
    }
    static LMPROG_INLINE float max_of(f x) {
        float lanes[4];
        store(lanes, x);
        const float left = lanes[0] > lanes[1] ? lanes[0] : lanes[1], right = lanes[2] > lanes[3] ? lanes[2] : lanes[3];
        return left > right ? left : right;
    }
    static LMPROG_INLINE float sum_of(f x) {
        float lanes[4];
        store(lanes, x);
        return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
    }

    // Integers of 32 bits, and pairs of 16 bits in them.
    using i = int32x4_t;
    static LMPROG_INLINE i set1i(int32_t x) { return vdupq_n_s32(x); }
    static LMPROG_INLINE i loadi(const int32_t *at) { return vld1q_s32(at); }
    static LMPROG_INLINE i addi(i a, i b) { return vaddq_s32(a, b); }
    static LMPROG_INLINE i subi(i a, i b) { return vsubq_s32(a, b); }
    static LMPROG_INLINE i evens(w x) { return vreinterpretq_s32_s16(vshrq_n_s16(vshlq_n_s16(halves(x), 8), 8)); }
    static LMPROG_INLINE i odds(w x) { return vreinterpretq_s32_s16(vshrq_n_s16(halves(x), 8)); }
    static LMPROG_INLINE i madd(i a, i b) {
        const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
        return vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
    }
    // Byte `Number` of each word, the lowest first, as a signed number.
    template <int Number>
    static LMPROG_INLINE f byte(w x) {
        return vcvtq_f32_s32(vshrq_n_s32(vreinterpretq_s32_u32(vshlq_n_u32(x, 24 - 8 * Number)), 24));
    }
    static LMPROG_INLINE f to_f(i x) { return vcvtq_f32_s32(x); }
    static LMPROG_INLINE w low_nibbles(w x) { return vandq_u32(x, vdupq_n_u32(0x0f0f0f0fu)); }
    static LMPROG_INLINE w high_nibbles(w x) { return low_nibbles(vshrq_n_u32(x, 4)); }

  private:
    static LMPROG_INLINE int16x8_t halves(w x) { return vreinterpretq_s16_u32(x); }
};

}  // namespace
}  // namespace lmprog
