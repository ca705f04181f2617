// Products of rows with packed weights, for any vector type and any way to multiply.
//
// Lanes are outputs. Every output of every row is one chain of sums over the inputs in their order, so a tile's size
// changes no bit of it. A tile of R rows and N vectors keeps R * N sums in registers.
//
// Weights come from far away once, and memory is as slow as multiplying 16 rows: so each tile asks for weights that
// later ones need, evenly, while it multiplies its own.
#pragma once
#include "product_task.h"
#include "tiles.h"
#include "ways.h"

namespace lmprog {
namespace {

// How many rows, and vectors of outputs for so many rows, are computed at once: what the registers hold.
template <int Width, int Registers>
struct Tiling;
template <>
struct Tiling<16, 32> {
    static constexpr int rows = 12;
    static constexpr int vectors(int) { return 2; }
};
template <>
struct Tiling<8, 16> {
    static constexpr int rows = 6;
    static constexpr int vectors(int r) { return r <= 2 ? 4 : 2; }
};
template <>
struct Tiling<4, 32> {
    static constexpr int rows = 6;
    static constexpr int vectors(int r) { return r <= 3 ? 8 : 4; }
};
template <>
struct Tiling<4, 16> {
    static constexpr int rows = 2;
    static constexpr int vectors(int r) { return r == 1 ? 8 : 4; }
};

constexpr int kBlockSteps = 8;   // of inputs, between requests for later weights
constexpr int kLine = 64;        // bytes that come from memory at once
constexpr int kFar = 8192;       // bytes: a request this early is answered in time

// Later weights, which are asked for some lines at a time.
struct Ahead {
    const char *at, *end;
    int lines;

    LMPROG_INLINE void ask() {
        for (int line = 0; line < lines && at < end; line++, at += kLine) __builtin_prefetch(at);
    }
};

// For all rows of a task that meet `panel` in `tiles` tiles, each of which asks `times` times. One tile alone asks for
// what it will soon read itself. Of several only the first would wait for memory, which then rested while the others
// multiply: they share the requests for the whole next panel.
inline Ahead ahead_of(const Panels &weights, int panel, int tiles, int times) {
    const char *next = weights.data + (panel + 1) * weights.stride;
    const int lines = static_cast<int>((weights.stride + kLine - 1) / kLine), turns = tiles * times;
    if (!turns) return {next, next, 0};
    if (tiles == 1) return {next - weights.stride + kFar, next + kFar, (lines + times - 1) / times};
    return {next, next + weights.stride, (lines + turns - 1) / turns};
}

template <class Way>
struct Product {
    using V = typename Way::V;
    using X = typename Way::X;
    static constexpr int kPerPanel = kPanel / V::width;
    using Tile = Tiling<V::width, V::registers>;

    // Whether N words find room in registers beside the sums and an input.
    template <int R, int N>
    static constexpr bool kWordsFirst = R * N + N < V::registers;

    // Vectors vector .. vector + N of a panel.
    template <int R, int N>
    static void tile(const Multiply &m, int row, int panel, int vector, Ahead &ahead) {
        const Panels &w = *m.weights;
        const char *weights = w.data + (m.first_panel + panel) * w.stride;
        const uint32_t *at = reinterpret_cast<const uint32_t *>(weights) + vector * V::width;
        const X *x = reinterpret_cast<const X *>(m.x->data + (m.first_row + row) * m.x->stride);
        const long ldx = m.x->stride / static_cast<long>(sizeof(X));
        typename Way::Sum sum[R][N];
        LMPROG_UNROLL for (int r = 0; r < R; r++) LMPROG_UNROLL for (int n = 0; n < N; n++) sum[r][n] = Way::zero();
        const int steps = w.inputs / Way::per_word, whole = steps / kBlockSteps * kBlockSteps;
        const auto take = [&](int k) __attribute__((always_inline)) {
            const X *step = x + static_cast<long>(k) * Way::x_per_word;
            const auto word = [&](int n) {
                return Way::ready(V::loadw(at + static_cast<long>(k) * kPanel + n * V::width));
            };
            if constexpr (kWordsFirst<R, N>) {  // one load of each input serves all vectors
                typename Way::Word words[N];
                LMPROG_UNROLL for (int n = 0; n < N; n++) words[n] = word(n);
                LMPROG_UNROLL for (int r = 0; r < R; r++)
                    LMPROG_UNROLL for (int n = 0; n < N; n++) sum[r][n] = Way::mac(sum[r][n], words[n], step + r * ldx);
            } else {
                LMPROG_UNROLL for (int n = 0; n < N; n++) {
                    const typename Way::Word one = word(n);
                    LMPROG_UNROLL for (int r = 0; r < R; r++) sum[r][n] = Way::mac(sum[r][n], one, step + r * ldx);
                }
            }
        };
        for (int begin = 0; begin < whole; begin += kBlockSteps) {
            ahead.ask();
            for (int k = begin; k < begin + kBlockSteps; k++) take(k);
        }
        for (int k = whole; k < steps; k++) take(k);  // of few inputs, as an adapter's rank
        const char *tail = weights + w.stride - 2 * kPanel * 4;
        float *out = m.out + row * m.stride + static_cast<long>(panel) * kPanel;
        LMPROG_UNROLL for (int r = 0; r < R; r++)
            LMPROG_UNROLL for (int n = 0; n < N; n++) {
                const int lane = (vector + n) * V::width;
                const int from = m.first_row + row + r;
                V::store(out + r * m.stride + lane, Way::value(sum[r][n], tail, lane, m.x->scales, from));
            }
    }

    // One panel stays in the cache while all rows pass.
    static void run(const Multiply &m) {
        const int tiles = (m.rows + Tile::rows - 1) / Tile::rows;
        const int blocks = m.weights->inputs / Way::per_word / kBlockSteps;
        for (int panel = 0; panel < m.panels; panel++) {
            Ahead ahead = ahead_of(*m.weights, m.first_panel + panel, tiles, blocks);
            by_rows<Tile::rows>(m.rows, [&](int r, auto count) {
                constexpr int R = decltype(count)::value, N = Tile::vectors(R);
                for (int vector = 0; vector < kPerPanel; vector += N) tile<R, N>(m, r, panel, vector, ahead);
            });
        }
    }
};

// Floating types: the ways of ways.h, with words used as they are.
template <class Base>
struct Floating : Base {
    using V = typename Base::V;
    using Sum = typename V::f;
    using Word = typename V::w;
    static constexpr int x_per_word = Base::per_word;
    static LMPROG_INLINE Sum zero() { return V::zero(); }
    static LMPROG_INLINE Word ready(Word word) { return word; }
    static LMPROG_INLINE Sum value(Sum sum, const char *, int, const float *, int) { return sum; }
};

// int8: exact sums, minus what the inputs' shift by `Base::shift` has added, times both scales.
template <class Base>
struct Integers : Base {
    using V = typename Base::V;
    using Sum = typename Base::Sum;
    static LMPROG_INLINE typename V::f value(Sum sum, const char *tail, int lane, const float *scales, int row) {
        const float *scale = reinterpret_cast<const float *>(tail) + lane;
        const int32_t *shifted = reinterpret_cast<const int32_t *>(tail) + kPanel + lane;
        return V::mul(V::mul(Base::number(sum, Base::shift ? shifted : nullptr), V::load(scale)), V::set1(scales[row]));
    }
};

// int4: groups of 32 inputs; the integer sum of a group is exact, groups are added in f32.
template <class Base>
struct Groups {
    using V = typename Base::V;
    using X = typename Base::X;
    using F = typename V::f;
    // Whether the registers hold integer and float sums of many rows, beside words that may be kept as two.
    static constexpr bool kMany =
        V::registers == 32 && (V::width == 16 || sizeof(typename Base::Word) == sizeof(typename V::w));
    static constexpr int kPerPanel = kPanel / V::width, kRows = kMany ? 5 : 2;
    static constexpr int kVectors = kMany ? 2 : 1;

    template <int R>
    static void tile(const Multiply &m, int row, int panel, int vector, Ahead &ahead) {
        const Panels &w = *m.weights;
        const char *group = w.data + (m.first_panel + panel) * w.stride;
        const X *x = reinterpret_cast<const X *>(m.x->data + (m.first_row + row) * m.x->stride);
        const long ldx = m.x->stride / static_cast<long>(sizeof(X));
        const int groups = w.inputs / kGroup;
        const long sums_at = static_cast<long>(w.inputs) * Base::x_per_word / 4;  // in X; see prepare
        F total[R][kVectors];
        LMPROG_UNROLL for (int r = 0; r < R; r++)
            LMPROG_UNROLL for (int n = 0; n < kVectors; n++) total[r][n] = V::zero();
        for (int g = 0; g < groups; g++, group += kGroupBytes) {
            typename Base::Sum sum[R][kVectors];
            LMPROG_UNROLL for (int r = 0; r < R; r++)
                LMPROG_UNROLL for (int n = 0; n < kVectors; n++) sum[r][n] = Base::zero();
            ahead.ask();
            LMPROG_UNROLL for (int k = 0; k < kGroup / 8; k++) {
                const X *at = x + (static_cast<long>(g) * (kGroup / 4) + 2 * k) * Base::x_per_word;
                LMPROG_UNROLL for (int n = 0; n < kVectors; n++) {
                    const auto word = V::loadw(reinterpret_cast<const uint32_t *>(group) + k * kPanel +
                                               (vector + n) * V::width);
                    const auto low = Base::ready(V::low_nibbles(word)), high = Base::ready(V::high_nibbles(word));
                    LMPROG_UNROLL for (int r = 0; r < R; r++) {
                        sum[r][n] = Base::mac_unsigned(sum[r][n], low, at + r * ldx);
                        sum[r][n] = Base::mac_unsigned(sum[r][n], high, at + r * ldx + Base::x_per_word);
                    }
                }
            }
            const float *scales = reinterpret_cast<const float *>(group + kPanel * kGroup / 2) + vector * V::width;
            LMPROG_UNROLL for (int r = 0; r < R; r++) {
                int32_t shifted;  // 8 * the sum of the group's inputs, since 4 bits hold weight + 8
                memcpy(&shifted, reinterpret_cast<const char *>(x + r * ldx + sums_at) + 4 * g, 4);
                LMPROG_UNROLL for (int n = 0; n < kVectors; n++)
                    total[r][n] = V::fma(Base::minus(sum[r][n], shifted), V::load(scales + n * V::width), total[r][n]);
            }
        }
        LMPROG_UNROLL for (int r = 0; r < R; r++)
            LMPROG_UNROLL for (int n = 0; n < kVectors; n++)
                V::store(m.out + (row + r) * m.stride + static_cast<long>(panel) * kPanel + (vector + n) * V::width,
                         V::mul(total[r][n], V::set1(m.x->scales[m.first_row + row + r])));
    }

    static void run(const Multiply &m) {
        const int tiles = (m.rows + kRows - 1) / kRows, groups = m.weights->inputs / kGroup;
        for (int panel = 0; panel < m.panels; panel++) {
            Ahead ahead = ahead_of(*m.weights, m.first_panel + panel, tiles, groups);
            by_rows<kRows>(m.rows, [&](int r, auto count) {
                for (int vector = 0; vector < kPerPanel; vector += kVectors)
                    tile<decltype(count)::value>(m, r, panel, vector, ahead);
            });
        }
    }
};

}  // namespace
}  // namespace lmprog
