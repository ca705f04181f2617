// Recurrent layers' own work, for any vector type: causal convolutions, and a head's matrix token by token.
//
// Every token's numbers are computed from the state behind the token before it by the same operations in the same order,
// however many tokens a call has: cuts change no bit.
#pragma once
#include "product_task.h"
#include "tiles.h"

namespace lmprog {
namespace {

template <class V>
LMPROG_INLINE typename V::f sigmoid_of(typename V::f x) {
    const typename V::f power = exp_of<V>(V::min(V::set1(80.0f), V::sub(V::zero(), x)));
    return V::div(V::set1(1.0f), V::add(V::set1(1.0f), power));
}

template <class V>
struct Recurrent {
    using F = typename V::f;
    static constexpr int W = V::width;
    static constexpr int kMostTaps = 4, kAtOnce = 16;  // tokens: their channels stay in the cache

    // --- convolutions

    static void convolve(const Convolution &c) {
        for (int token = 0; token < c.tokens; token += kAtOnce) {
            const int count = c.tokens - token < kAtOnce ? c.tokens - token : kAtOnce;
            with_count<kMostTaps>(c.taps, [&](auto taps) {
                for (int at = 0; at < c.channels; at += W) channels<decltype(taps)::value>(c, at, token, count);
            });
        }
    }

    // W of them from `at` on, over tokens first .. first + count. The last inputs stay in registers.
    template <int Taps>
    static LMPROG_INLINE void channels(const Convolution &c, int at, int first, int count) {
        F weights[Taps], before[Taps];
        LMPROG_UNROLL for (int tap = 0; tap < Taps; tap++) weights[tap] = V::load(c.weights + tap * c.width + at);
        LMPROG_UNROLL for (int tap = 0; tap + 1 < Taps; tap++) before[tap] = V::load(c.before + tap * c.width + at);
        const F bias = c.bias == nullptr ? V::zero() : V::load(c.bias + at);
        for (long token = first; token < first + count; token++) {
            F x = V::load(c.x + token * c.stride + at);
            if (c.opening != nullptr) x = V::mul(x, V::load(c.opening + token * c.stride + at));
            F sum = bias;
            LMPROG_UNROLL for (int tap = 0; tap + 1 < Taps; tap++) sum = V::fma(before[tap], weights[tap], sum);
            sum = V::fma(x, weights[Taps - 1], sum);
            LMPROG_UNROLL for (int tap = 0; tap + 2 < Taps; tap++) before[tap] = before[tap + 1];
            if (Taps > 1) before[Taps > 1 ? Taps - 2 : 0] = x;
            if (c.activated) sum = V::mul(sum, sigmoid_of<V>(sum));
            if (c.closing != nullptr) sum = V::mul(sum, V::load(c.closing + token * c.stride + at));
            V::store(c.out + token * c.out_stride + at, sum);
        }
        LMPROG_UNROLL for (int tap = 0; tap + 1 < Taps; tap++) V::store(c.before + tap * c.width + at, before[tap]);
    }

    // --- matrices

    static void recur(const Recurrence &r) {
        r.corrects ? all_columns<true>(r) : all_columns<false>(r);
    }

    // Where registers are wide, two panels at once: what a token gains is known when all its sums are, so less is waited.
    template <bool Corrects>
    static LMPROG_INLINE void all_columns(const Recurrence &r) {
        for (int first = 0; first < r.values;) {
            float *state = r.state + static_cast<long>(first) * r.keys;
            const int left = r.values - first;
            if (W == 16 && left >= 2 * kPanel)
                columns<2 * kPanel / W, Corrects>(r, state, first), first += 2 * kPanel;
            else if (left >= kPanel)
                columns<kPanel / W, Corrects>(r, state, first), first += kPanel;
            else
                columns<kPanel / 2 / W, Corrects>(r, state, first), first += kPanel;
        }
    }

    // N vectors of values from `first` on. One pass over the matrix for each token: it gains what the token before gave,
    // and its products with this token's k and q are summed. Since S is scaled by a number alone between two tokens, those
    // of the scaled matrix are the scaled products.
    template <int N, bool Corrects>
    static LMPROG_INLINE void columns(const Recurrence &r, float *state, int first) {
        F known[N], seen[N], gained[N];
        pass<N, Corrects, false, true>(r, state, 0, gained, known, seen);
        for (int token = 0; token < r.tokens; token++) {
            const F rate = V::set1(r.rates[token * r.gate_stride]), decay = V::set1(r.decays[token * r.gate_stride]);
            const F match = V::set1(dot(r.q + token * r.stride, r.k + token * r.stride, r.keys));
            LMPROG_UNROLL for (int n = 0; n < N; n++) {
                F v = V::load(r.v + token * r.stride + first + n * W);
                if (Corrects) v = V::sub(v, V::mul(decay, known[n]));
                gained[n] = V::mul(rate, v);
                V::store(r.out + token * r.out_stride + first + n * W, V::fma(gained[n], match, V::mul(decay, seen[n])));
            }
            if (token + 1 < r.tokens)
                pass<N, Corrects, true, true>(r, state, token + 1, gained, known, seen);
            else
                pass<N, Corrects, true, false>(r, state, token + 1, gained, known, seen);
        }
    }

    // Gains: the matrix takes what token - 1 gave. Reads: its products with the k and q of `token`.
    template <int N, bool Corrects, bool Gains, bool Reads>
    static LMPROG_INLINE void pass(const Recurrence &r, float *state, long token, const F *gained, F *known, F *seen) {
        constexpr int U = N >= 4 ? 1 : 4 / N;  // sums beside one another: enough for the latency of one
        F k_sums[U][N], q_sums[U][N];
        LMPROG_UNROLL for (int u = 0; u < U; u++)
            LMPROG_UNROLL for (int n = 0; n < N; n++) k_sums[u][n] = q_sums[u][n] = V::zero();
        const float *k = r.k + token * r.stride, *q = r.q + token * r.stride, *last = k - r.stride;
        const F decay = Gains ? V::set1(r.decays[(token - 1) * r.gate_stride]) : V::zero();
        constexpr int kVectors = kPanel / W;  // of a panel
        const long panel = static_cast<long>(r.keys) * kPanel;
        const auto take = [&](int key, int u) __attribute__((always_inline)) {
            const F k_now = V::set1(Reads && Corrects ? k[key] : 0.0f), q_now = V::set1(Reads ? q[key] : 0.0f);
            const F k_last = V::set1(Gains ? last[key] : 0.0f);
            LMPROG_UNROLL for (int n = 0; n < N; n++) {
                float *at = state + n / kVectors * panel + static_cast<long>(key) * kPanel + n % kVectors * W;
                F s = V::load(at);
                if (Gains) {
                    s = V::fma(k_last, gained[n], V::mul(s, decay));
                    V::store(at, s);
                }
                if (Reads && Corrects) k_sums[u][n] = V::fma(k_now, s, k_sums[u][n]);
                if (Reads) q_sums[u][n] = V::fma(q_now, s, q_sums[u][n]);
            }
        };
        int key = 0;
        for (; key + U <= r.keys; key += U) LMPROG_UNROLL for (int u = 0; u < U; u++) take(key + u, u);
        for (; key < r.keys; key++) take(key, 0);
        if (!Reads) return;
        LMPROG_UNROLL for (int n = 0; n < N; n++) {
            known[n] = k_sums[0][n], seen[n] = q_sums[0][n];
            LMPROG_UNROLL for (int u = 1; u < U; u++) {
                known[n] = V::add(known[n], k_sums[u][n]);
                seen[n] = V::add(seen[n], q_sums[u][n]);
            }
        }
    }

    static LMPROG_INLINE float dot(const float *a, const float *b, int count) {
        F sums = V::zero();
        int i = 0;
        for (; i + W <= count; i += W) sums = V::fma(V::load(a + i), V::load(b + i), sums);
        float sum = V::sum_of(sums);
        for (; i < count; i++) sum += a[i] * b[i];
        return sum;
    }
};

}  // namespace
}  // namespace lmprog
