// The table of one instruction set: products by type, and what happens to a row between products.
//
// V is a vector type, Bf16 its way to multiply bf16, Int8 its way to multiply bytes.
#pragma once
#include "integers.h"
#include "product_kernel.h"
#include "recurrence_kernel.h"

namespace lmprog {
namespace {

template <class V, class Bf16, class Int8>
struct Step {
    using F = typename V::f;
    static constexpr int W = V::width;
    static constexpr bool kRoundsBf16 = sizeof(typename Bf16::X) == 2;  // inputs become bf16 too

    static void multiply(const Multiply &m) {
        switch (m.weights->type) {
            case LMPROG_F32: return Product<Floating<F32<V>>>::run(m);
            case LMPROG_BF16: return Product<Floating<Bf16>>::run(m);
            case LMPROG_INT8: return Product<Integers<Int8>>::run(m);
            default: return Groups<Int8>::run(m);
        }
    }

    static long input_bytes(int type, long inputs) {
        if (type == LMPROG_F32 || (type == LMPROG_BF16 && !kRoundsBf16)) return 0;
        if (type == LMPROG_BF16) return inputs * 2;
        const long integers = inputs * static_cast<long>(sizeof(typename Int8::X));
        return type == LMPROG_INT8 ? integers : integers + inputs / kGroup * 4;
    }

    static void prepare(int type, const float *x, long inputs, char *to, float *scale) {
        if (type == LMPROG_BF16) {
            if constexpr (kRoundsBf16)
                for (long k = 0; k < inputs; k += W)
                    Bf16::put_all(reinterpret_cast<typename Bf16::X *>(to) + k, V::load(x + k));
            return;
        }
        F most = V::zero(), broken = V::zero();
        for (long k = 0; k < inputs; k += W) {
            const F v = V::load(x + k);
            most = V::max(V::max(v, V::sub(V::zero(), v)), most);
            broken = V::fma(v, V::zero(), broken);  // NaN where any number is no number or infinite: so is the result
        }
        const float top = V::max_of(most), inverse = top > 0 ? 127.0f / top : 0.0f;
        *scale = top / 127.0f + V::sum_of(broken);
        auto *out = reinterpret_cast<typename Int8::X *>(to);
        const int shift = type == LMPROG_INT8 ? Int8::shift : 0;
        for (long k = 0; k < inputs; k++) Int8::put(out, k, rounded(x[k] * inverse) + shift);
        if (type != LMPROG_INT4) return;
        char *sums = to + inputs * static_cast<long>(sizeof(typename Int8::X));
        for (long g = 0; g < inputs / kGroup; g++) {
            int32_t sum = 0;
            for (long k = g * kGroup; k < (g + 1) * kGroup; k++) sum += rounded(x[k] * inverse);
            sum *= 8;
            memcpy(sums + 4 * g, &sum, 4);
        }
    }

    // To the nearest whole number, ties to even, for |x| < 2^22.
    static LMPROG_INLINE int rounded(float x) {
        const float moved = x + 12582912.0f;  // 1.5 * 2^23: the last bits are the whole number
        int32_t bits;
        memcpy(&bits, &moved, 4);
        return static_cast<int8_t>(bits);
    }

    static void add(float *x, const float *y, float scale, long count) {
        const F by = V::set1(scale);
        for (long i = 0; i < count; i += W) V::store(x + i, V::fma(V::load(y + i), by, V::load(x + i)));
    }

    static void norm(const float *x, const float *weight, float eps, long size, float *out) {
        F squares = V::zero();
        long i = 0;
        for (; i + W <= size; i += W) squares = V::fma(V::load(x + i), V::load(x + i), squares);
        float sum = V::sum_of(squares);
        for (; i < size; i++) sum += x[i] * x[i];
        const float by = 1.0f / __builtin_sqrtf(sum / static_cast<float>(size) + eps);
        for (i = 0; i + W <= size; i += W)
            V::store(out + i, V::mul(V::mul(V::load(x + i), V::set1(by)), V::load(weight + i)));
        for (; i < size; i++) out[i] = x[i] * by * weight[i];
    }

    static void rotate(float *x, const float *cosines, const float *sines, int half) {
        int i = 0;
        for (; i + W <= half; i += W) {
            const F a = V::load(x + i), b = V::load(x + half + i), c = V::load(cosines + i), s = V::load(sines + i);
            V::store(x + i, V::sub(V::mul(a, c), V::mul(b, s)));
            V::store(x + half + i, V::add(V::mul(b, c), V::mul(a, s)));
        }
        for (; i < half; i++) {
            const float a = x[i], b = x[half + i];
            x[i] = a * cosines[i] - b * sines[i];
            x[half + i] = b * cosines[i] + a * sines[i];
        }
    }

    // x * sigmoid(slope * x)
    static LMPROG_INLINE F silu(F x, float slope) {
        const F power = exp_of<V>(V::min(V::set1(80.0f), V::mul(V::set1(-slope), x)));
        return V::div(x, V::add(V::set1(1.0f), power));
    }

    static LMPROG_INLINE F gelu(F x) {
        const F cube = V::mul(V::mul(x, x), x);
        const F inner = V::mul(V::set1(0.7978845608f), V::fma(V::set1(0.044715f), cube, x));  // sqrt(2 / pi)
        return V::mul(V::mul(V::set1(0.5f), x), V::add(V::set1(1.0f), tanh_of<V>(inner)));
    }

    static LMPROG_INLINE F clamped(const Activation &how, F gate, F up) {
        const F most = V::set1(how.limit), least = V::set1(-how.limit);
        const F opened = silu(V::min(most, gate), how.slope);
        return V::fma(opened, V::max(least, V::min(most, up)), opened);
    }

    static LMPROG_INLINE F squared(F x) { return V::mul(x, x); }

    static void activate(const Activation &how, const float *gate, const float *up, float *out, long count) {
        for (long i = 0; i < count; i += W) {
            const F g = V::load(gate + i), u = V::load(up + i);
            V::store(out + i, how.kind == LMPROG_SILU        ? V::mul(silu(g, 1.0f), u)
                              : how.kind == kSigmoid         ? V::mul(sigmoid_of<V>(g), u)
                              : how.kind == LMPROG_GELU_TANH ? V::mul(gelu(g), u)
                              : how.kind == LMPROG_RELU2     ? squared(V::max(V::zero(), u))
                                                             : clamped(how, g, u));
        }
    }

    static void bound(float *x, float scale, float cap, long count) {
        const F limit = V::set1(cap);
        for (long i = 0; i < count; i += W) {
            F v = V::mul(V::load(x + i), V::set1(scale));
            if (cap > 0) v = V::mul(limit, tanh_of<V>(V::div(v, limit)));
            V::store(x + i, v);
        }
    }

    // Calls full(i) for whole vectors and last(lanes, i, count) for the rest, filled up with `fill`.
    template <class Full>
    static LMPROG_INLINE void over(const float *x, long count, float fill, Full &&full) {
        long i = 0;
        for (; i + W <= count; i += W) full(V::load(x + i), i);
        if (i == count) return;
        float rest[W];
        for (int lane = 0; lane < W; lane++) rest[lane] = i + lane < count ? x[i + lane] : fill;
        full(V::load(rest), i);
    }

    static bool best(const float *x, long count, float *best, long *at) {
        F top = V::set1(-__builtin_inff()), broken = V::zero();
        over(x, count, x[0], [&](F v, long) {
            top = V::max(v, top);
            broken = V::fma(v, V::zero(), broken);
        });
        *best = V::max_of(top);
        *at = 0;
        while (*at < count && x[*at] != *best) ++*at;
        return V::sum_of(broken) == 0.0f;
    }

    static void widths(const float *x, float best, float temperature, float scale, float *relative, float *widths,
                       long count) {
        over(x, count, best, [&](F v, long i) {
            const F r = V::div(V::sub(v, V::set1(best)), V::set1(temperature));
            const F w = V::mul(exp_of<V>(r), V::set1(scale));
            if (i + W <= count) {
                V::store(relative + i, r);
                V::store(widths + i, w);
                return;
            }
            float lanes[2][W];
            V::store(lanes[0], r);
            V::store(lanes[1], w);
            for (int lane = 0; i + lane < count; lane++) {
                relative[i + lane] = lanes[0][lane];
                widths[i + lane] = lanes[1][lane];
            }
        });
    }

    static int64_t whole_sum(const float *x, long count) {
        int64_t sum = 0;
        for (long i = 0; i < count; i++) sum += static_cast<int64_t>(x[i]);
        return sum;
    }

    static float exp_sum(const float *x, float best, long count) {
        F sum = V::zero();
        over(x, count, -__builtin_inff(), [&](F v, long) { sum = V::add(sum, exp_of<V>(V::sub(v, V::set1(best)))); });
        return V::sum_of(sum);
    }

    static constexpr StepKernels table(const char *name) {
        return {name,  multiply, input_bytes, prepare, add,    norm,   rotate,   activate,
                bound, Recurrent<V>::convolve, Recurrent<V>::recur, best, widths, whole_sum, exp_sum};
    }
};

}  // namespace
}  // namespace lmprog
