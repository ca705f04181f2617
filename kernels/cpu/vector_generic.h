// Vectors of 4 f32 in the compiler's own vector types (SSE2, NEON, or plain code), for every other machine.
#pragma once
#include "vector_math.h"

namespace lmprog {
namespace {

struct Generic {
    typedef float f __attribute__((vector_size(16)));
    typedef uint32_t w __attribute__((vector_size(16)));
    typedef int32_t i __attribute__((vector_size(16)));
    static constexpr int width = 4, registers = 16, max_rows = 2;
    static constexpr int vectors(int rows) { return rows == 1 ? 8 : 4; }

    static LMPROG_INLINE f zero() { return set1(0); }
    static LMPROG_INLINE f set1(float x) { return f{x, x, x, x}; }
    static LMPROG_INLINE f load(const float *at) {
        f x;
        memcpy(&x, at, sizeof x);
        return x;
    }
    static LMPROG_INLINE void store(float *at, f x) { memcpy(at, &x, sizeof x); }
    static LMPROG_INLINE w loadw(const uint32_t *at) {
        w x;
        memcpy(&x, at, sizeof x);
        return x;
    }
    static LMPROG_INLINE f as_f(w x) { return reinterpret_cast<f>(x); }
    static LMPROG_INLINE f low_bf16(w x) { return as_f(x << 16); }
    static LMPROG_INLINE f high_bf16(w x) { return as_f(x & 0xffff0000u); }
    static LMPROG_INLINE f fma(f a, f b, f c) { return a * b + c; }
    static LMPROG_INLINE f add(f a, f b) { return a + b; }
    static LMPROG_INLINE f sub(f a, f b) { return a - b; }
    static LMPROG_INLINE f mul(f a, f b) { return a * b; }
    static LMPROG_INLINE f div(f a, f b) { return a / b; }
    static LMPROG_INLINE f choose(i mask, f yes, f no) {
        return reinterpret_cast<f>((mask & reinterpret_cast<i>(yes)) | (~mask & reinterpret_cast<i>(no)));
    }
    static LMPROG_INLINE f max(f a, f b) { return choose(a > b, a, b); }
    static LMPROG_INLINE f min(f a, f b) { return choose(a < b, a, b); }
    static LMPROG_INLINE f round(f x) { return (x + set1(12582912.0f)) - set1(12582912.0f); }  // 1.5 * 2^23
    static LMPROG_INLINE f scale2(f p, f n) {
        i power;
        for (int lane = 0; lane < width; lane++) power[lane] = n[lane] == n[lane] ? static_cast<int32_t>(n[lane]) : 0;
        return p * reinterpret_cast<f>((power + 127) << 23);
    }
    static LMPROG_INLINE f below(f x, f limit, f value, f other) { return choose(x < limit, value, other); }
    static LMPROG_INLINE f keep(f x, int at, int a, int b, f other) {
        const i lanes = {at, at + 1, at + 2, at + 3};
        return choose((lanes >= a) & (lanes < b), x, other);
    }
    static LMPROG_INLINE float max_of(f x) {
        const float left = x[0] > x[1] ? x[0] : x[1], right = x[2] > x[3] ? x[2] : x[3];
        return left > right ? left : right;
    }
    static LMPROG_INLINE float sum_of(f x) { return (x[0] + x[2]) + (x[1] + x[3]); }

    // Integers of 32 bits, and pairs of 16 bits in them.
    typedef int16_t h __attribute__((vector_size(16)));
    static LMPROG_INLINE i set1i(int32_t x) { return i{x, x, x, x}; }
    static LMPROG_INLINE i addi(i a, i b) { return a + b; }
    static LMPROG_INLINE i subi(i a, i b) { return a - b; }
    static LMPROG_INLINE i evens(w x) { return reinterpret_cast<i>((reinterpret_cast<h>(x) << 8) >> 8); }
    static LMPROG_INLINE i odds(w x) { return reinterpret_cast<i>(reinterpret_cast<h>(x) >> 8); }
    static LMPROG_INLINE i madd(i a, i b) { return (a >> 16) * (b >> 16) + ((a << 16) >> 16) * ((b << 16) >> 16); }
    // Byte `Number` of each word, the lowest first, as a signed number.
    template <int Number>
    static LMPROG_INLINE f byte(w x) {
        return to_f(reinterpret_cast<i>(x << (24 - 8 * Number)) >> 24);
    }
    static LMPROG_INLINE f to_f(i x) { return __builtin_convertvector(x, f); }
    static LMPROG_INLINE w low_nibbles(w x) { return x & 0x0f0f0f0fu; }
    static LMPROG_INLINE w high_nibbles(w x) { return (x >> 4) & 0x0f0f0f0fu; }
};

}  // namespace
}  // namespace lmprog
