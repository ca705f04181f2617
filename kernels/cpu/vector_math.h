// Functions of vectors that are the same for every instruction set: exp, tanh, conversions. V is one of the vector types
// (vector_generic.h, vector_avx2.h, vector_avx512.h):
//   f, w              a vector of V::width f32, of as many 32-bit words
//   fma(a, b, c)      a * b + c
//   max(a, b)         b where either is NaN, so max(limit, x) lets NaN through
//   scale2(p, n)      p * 2^n
//   keep(x, at, a, b, other)  lane i of x where a <= at + i < b, else other
//   below(x, limit, value, other)  value where x < limit, else other
// Everything is in the unnamed namespace: each unit has its own copy, compiled with its own flags.
#pragma once
#include <stdint.h>
#include <string.h>

#if defined(__clang__)
#define LMPROG_UNROLL _Pragma("unroll")
#else
#define LMPROG_UNROLL _Pragma("GCC unroll 16")
#endif
#define LMPROG_INLINE inline __attribute__((always_inline))

namespace lmprog {
namespace {

LMPROG_INLINE float from_bf16(uint16_t half) {
    uint32_t bits = static_cast<uint32_t>(half) << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// Round to nearest, ties to even; NaN stays NaN.
LMPROG_INLINE uint16_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

constexpr float kLowest = -87.3f;  // exp below this is taken as 0: 2^-126 is the last normal number

// exp(x) for x <= 80, about 1 unit in the last place; exactly 0 below kLowest, so also for -infinity.
template <class V>
LMPROG_INLINE typename V::f exp_of(typename V::f x) {
    auto set = [](float value) { return V::set1(value); };
    typename V::f clamped = V::max(set(kLowest), x);
    typename V::f n = V::round(V::mul(clamped, set(1.44269504f)));
    typename V::f r = V::fma(n, set(-0.693359375f), clamped);  // ln 2 in two parts
    r = V::fma(n, set(2.12194440e-4f), r);
    typename V::f p = V::fma(set(1.98756915e-4f), r, set(1.39819995e-3f));
    p = V::fma(p, r, set(8.33345191e-3f));
    p = V::fma(p, r, set(4.16657959e-2f));
    p = V::fma(p, r, set(1.66666655e-1f));
    p = V::fma(p, r, set(0.5f));
    p = V::fma(p, V::mul(r, r), V::add(r, set(1.0f)));
    return V::below(x, set(kLowest), V::zero(), V::scale2(p, n));
}

// tanh(x) to an absolute error of about 1e-7, which is what a score of a few units is rounded to anyway.
template <class V>
LMPROG_INLINE typename V::f tanh_of(typename V::f x) {
    const typename V::f one = V::set1(1.0f), minus = V::sub(V::zero(), x);
    const typename V::f doubled = V::min(V::set1(40.0f), V::max(V::add(x, x), V::add(minus, minus)));
    const typename V::f size = V::sub(one, V::div(V::set1(2.0f), V::add(exp_of<V>(doubled), one)));
    return V::below(x, V::zero(), V::sub(V::zero(), size), size);
}

template <class V>
LMPROG_INLINE float first_of(typename V::f x) {
    float lanes[V::width];
    V::store(lanes, x);
    return lanes[0];
}

}  // namespace
}  // namespace lmprog
