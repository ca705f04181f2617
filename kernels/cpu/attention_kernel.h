// The attention of one task, for any vector type and any of the ways to multiply (ways.h).
//
// Lanes are positions when scores are computed and columns when values are summed. Whatever the number of queries in
// a task, each lane of each query sees the same operations in the same order: that is the header's guarantee.
#pragma once
#include "attention_merge.h"
#include "tiles.h"
#include "ways.h"

namespace lmprog {
namespace {

// A run of words that are multiplied with neighboring weights: `words` steps from `base`, weights from `at` on. Meanwhile
// as many are fetched from `ahead`.
struct Run {
    const uint32_t *base, *ahead;
    int words, at;
};

struct Space {  // the worker's scratch, cut up
    float *queries, *scores, *weights, *state, *sum, *state_max, *state_total, *max, *total;
    uint32_t *edges, *key_blocks, *value_blocks;
};

inline Space cut(const Layout &l, float *at) {
    Space s;
    auto take = [&at](long n) {
        float *start = at;
        at += n;
        return start;
    };
    s.queries = take(kTile * up16(4L * l.key_words));
    s.scores = take(kTile * kChunk);
    s.weights = take(kTile * kChunk);
    s.state = take(static_cast<long>(kTile) * l.columns);
    s.sum = take(static_cast<long>(kTile) * l.columns);
    s.state_max = take(kTile);
    s.state_total = take(kTile);
    s.max = take(kTile);
    s.total = take(kTile);
    s.edges = reinterpret_cast<uint32_t *>(take(2L * l.columns));
    s.key_blocks = reinterpret_cast<uint32_t *>(take(static_cast<long>(kBlocksPerChunk) * l.key_block));
    s.value_blocks = reinterpret_cast<uint32_t *>(take(static_cast<long>(kBlocksPerChunk) * l.value_block));
    return s;
}

// Where the blocks of one chunk lie that hold positions begin .. end.
struct Chunk {
    int start, begin, end;           // positions
    int first_block, end_block;      // of the chunk
    const uint32_t *keys[kBlocksPerChunk], *values[kBlocksPerChunk];
    const uint32_t *next_keys[kBlocksPerChunk];  // what is read after this chunk; its own keys where that is not known
};

template <class Way>
struct Attention {
    using V = typename Way::V;
    using X = typename Way::X;
    using F = typename V::f;
    static constexpr int W = V::width;
    static constexpr int kVectors = kBlock / W;  // vectors of one block
    static constexpr int kRows = Way::max_rows;
    // Of X, from one query's weights to the next.
    static constexpr long kWeightStride = Way::in_digits ? kChunk * 4L : kChunk;

    // Scores of R queries against N neighboring vectors of positions, for as many vectors as there are. A block of one head
    // is too short for the processor to foresee the next one, so what is read later is asked for here: from `ahead` on, unless
    // that is NULL.
    template <int R, int N>
    static void score(const X *x, long ldx, const uint32_t *const *vectors, const uint32_t *const *ahead, int words,
                      float *out) {
        typename Way::Sum sum[R][N];
        LMPROG_UNROLL for (int r = 0; r < R; r++) LMPROG_UNROLL for (int n = 0; n < N; n++) sum[r][n] = Way::zero();
        for (int d = 0; d < words; d++) {
            typename Way::Key word[N];
            LMPROG_UNROLL for (int n = 0; n < N; n++)
                word[n] = Way::key(V::loadw(vectors[n] + static_cast<long>(d) * kBlock));
            if (ahead != nullptr)
                LMPROG_UNROLL for (int n = 0; n < N; n += kVectors)
                    __builtin_prefetch(ahead[n / kVectors] + static_cast<long>(d) * kBlock);
            LMPROG_UNROLL for (int r = 0; r < R; r++)
                LMPROG_UNROLL for (int n = 0; n < N; n++)
                    sum[r][n] = Way::mac(sum[r][n], word[n], x + r * ldx + d * Way::x_per_word);
        }
        LMPROG_UNROLL for (int r = 0; r < R; r++)
            LMPROG_UNROLL for (int n = 0; n < N; n++)
                V::store(out + static_cast<long>(r) * kChunk + n * W,
                         Way::number(sum[r][n], x + r * ldx + words * Way::x_per_word));
    }

    template <int R, int N>
    static LMPROG_INLINE void score_blocks(const X *x, long ldx, const Chunk &c, int words, float *out, int block,
                                           bool fetch) {
        if constexpr (N >= kVectors) {
            constexpr int blocks = N / kVectors;
            for (; block + blocks <= c.end_block; block += blocks) {
                const uint32_t *vectors[N];
                LMPROG_UNROLL for (int n = 0; n < N; n++) vectors[n] = c.keys[block + n / kVectors] + n % kVectors * W;
                score<R, N>(x, ldx, vectors, fetch ? c.values + block : nullptr, words, out + block * kBlock);
            }
            if constexpr (blocks > 1) score_blocks<R, N / 2>(x, ldx, c, words, out, block, fetch);
        }
    }

    // The weighted sum of N vectors of columns for R queries.
    template <int R, int N>
    static void sum(const X *x, long ldx, const Run *runs, int count, long columns, int at, float *out, bool fetch) {
        typename Way::Sum total[R][N];
        LMPROG_UNROLL for (int r = 0; r < R; r++) LMPROG_UNROLL for (int n = 0; n < N; n++) total[r][n] = Way::zero();
        for (int i = 0; i < count; i++) {
            const uint32_t *base = runs[i].base + at;
            const uint32_t *ahead = runs[i].ahead + at;
            const X *weight = x + runs[i].at * Way::x_per_token;
            for (int t = 0; t < runs[i].words; t++, base += columns, ahead += columns, weight += Way::x_per_word) {
                typename Way::Value word[N];
                LMPROG_UNROLL for (int n = 0; n < N; n++) word[n] = Way::value(V::loadw(base + n * W));
                if (fetch) LMPROG_UNROLL for (int n = 0; n < N; n += kVectors) __builtin_prefetch(ahead + n * W);
                LMPROG_UNROLL for (int r = 0; r < R; r++)
                    LMPROG_UNROLL for (int n = 0; n < N; n++)
                        total[r][n] = Way::mac(total[r][n], word[n], weight + r * ldx);
            }
        }
        LMPROG_UNROLL for (int r = 0; r < R; r++)
            LMPROG_UNROLL for (int n = 0; n < N; n++)
                V::store(out + r * columns + at + n * W,
                         Way::number(total[r][n], x + r * ldx + kChunk * Way::x_per_token));
    }

    template <int R, int N>
    static LMPROG_INLINE void sum_columns(const X *x, long ldx, const Run *runs, int count, long columns, int at,
                                          float *out, bool fetch) {
        for (; at + N * W <= columns; at += N * W) sum<R, N>(x, ldx, runs, count, columns, at, out, fetch);
        if constexpr (N > 1) sum_columns<R, N / 2>(x, ldx, runs, count, columns, at, out, fetch);
    }

    // Runs of values at positions c.begin .. c.end. Where only one half of a word is meant, it is copied and the other
    // half cleared, since what lies there may be a slot nobody wrote, and 0 * NaN is NaN. Bytes are never NaN.
    static int runs_of(const Layout &l, const Chunk &c, uint32_t *edges, Run *runs) {
        constexpr int per = Way::tokens_per_word;
        int count = 0, edge = 0;
        for (int block = c.first_block; block < c.end_block; block++) {
            int start = c.start + block * kBlock, first = c.begin > start ? c.begin - start : 0;
            int last = c.end - start < kBlock ? c.end - start : kBlock;
            auto half = [&](int slot, uint32_t mask) {
                uint32_t *to = edges + static_cast<long>(edge++) * l.columns;
                const uint32_t *from = c.values[block] + static_cast<long>(slot / per) * l.columns;
                for (int i = 0; i < l.columns; i++) to[i] = from[i] & mask;
                runs[count++] = {to, c.next_keys[block], 1, block * kBlock + slot / per * per};
            };
            if (per == 4) {  // weights are 0 beyond
                first = first / per * per;
                last = (last + per - 1) / per * per;
            }
            if (per == 2 && first % 2) {
                half(first, 0xffff0000u);
                first++;
            }
            int whole = last / per * per;
            if (whole > first) {
                const uint32_t *from = c.values[block] + static_cast<long>(first / per) * l.columns;
                runs[count++] = {from, c.next_keys[block], (whole - first) / per, block * kBlock + first};
            }
            if (per == 2 && last % 2 && last > first) half(last - 1, 0x0000ffffu);
        }
        return count;
    }

    // Scores of one query become weights of the chunk's positions first .. last, in place of everything else 0.
    static void soften(const Task &task, const Chunk &c, int first, int last, float *scores, X *weights, float *max,
                       float *total) {
        const lmprog_attention_layer &layer = *task.layer;
        const Layout &l = *task.layout;
        const F scale = V::set1(layer.scale), hidden = V::set1(-__builtin_inff());
        const int from = c.first_block * kBlock, to = c.end_block * kBlock;
        F top = hidden;
        for (int i = from; i < to; i += W) {
            F s = V::mul(V::load(scores + i), scale);
            if constexpr (Way::scaled) s = V::mul(s, scales(c.keys, i, l.key_block));
            if (layer.softcap > 0)
                s = V::mul(V::set1(layer.softcap), tanh_of<V>(V::div(s, V::set1(layer.softcap))));
            if (i < first || i + W > last) s = V::keep(s, i, first, last, hidden);
            V::store(scores + i, s);
            top = V::max(s, top);
        }
        *max = V::max_of(top);
        const F shift = V::set1(*max);
        F sum = V::zero(), most = V::zero(), broken = V::zero();
        for (int i = from; i < to; i += W) {
            F weight = exp_of<V>(V::sub(V::load(scores + i), shift));
            if constexpr (!Way::scaled) {
                sum = V::add(sum, Way::put_all(weights + i, weight));
                continue;
            }
            sum = V::add(sum, weight);  // a value's scale is part of its weight; a slot nobody wrote may have any
            const bool whole = i >= first && i + W <= last;
            const F by = scales(c.values, i, l.value_block);
            weight = V::mul(weight, whole ? by : V::keep(by, i, first, last, V::zero()));
            if constexpr (Way::in_digits) {
                V::store(scores + i, weight);
                most = V::max(weight, most);
                broken = V::fma(weight, V::zero(), broken);
            } else {
                Way::put_all(weights + i, weight);
            }
        }
        *total = V::sum_of(sum);
        if constexpr (Way::in_digits)
            Way::put_weights(weights, scores, from, to - from, V::max_of(most), V::sum_of(broken));
    }

    // The scales of the chunk's positions from `at` on, which are the last words of a block.
    static LMPROG_INLINE F scales(const uint32_t *const *blocks, int at, int size) {
        return V::as_f(V::loadw(blocks[at / kBlock] + size - kBlock + at % kBlock));
    }

    static long query_stride(const Layout &l) {
        if constexpr (Way::in_digits) return l.key_words * Way::x_per_word + 16L;  // and their tail
        return static_cast<long>(l.key_words) * Way::per_word;
    }
    template <class Number>
    static void put_query(X *to, const Layout &l, Number &&number) {
        if constexpr (Way::in_digits) {
            Way::put_query(to, l.head_dim, l.key_words, number);
        } else {
            for (int d = 0; d < l.head_dim; d++) Way::put(to + d, number(d));
            for (int d = l.head_dim; d < l.key_words * Way::per_word; d++) to[d] = 0;
        }
    }
    static void prepare(const Task &task, const Space &s);
    static void locate(const Task &task, const Space &s, Chunk &c, int end);
    static void compute(const Task &task, const Space &s, const Chunk &c);
    static void attend(const Task &task, float *scratch);
};

// Query numbers as the kernel wants them, padded with zeros to whole words.
template <class Way>
void Attention<Way>::prepare(const Task &task, const Space &s) {
    const Layout &l = *task.layout;
    const long ldq = query_stride(l);
    X *queries = reinterpret_cast<X *>(s.queries);
    for (int r = 0; r < task.count; r++) {
        X *to = queries + r * ldq;
        if (task.type == LMPROG_F32) {
            const float *from = static_cast<const float *>(task.queries[r]);
            put_query(to, l, [from](int d) { return from[d]; });
        } else {
            const uint16_t *from = static_cast<const uint16_t *>(task.queries[r]);
            put_query(to, l, [from](int d) { return from_bf16(from[d]); });
        }
    }
}

// Finds the chunk's blocks in the pages, or gathers their slots where a page is no whole number of blocks. The task reads
// positions up to `end`.
template <class Way>
void Attention<Way>::locate(const Task &task, const Space &s, Chunk &c, int end) {
    const Layout &l = *task.layout;
    const long key_stride = static_cast<long>(l.kv_heads) * l.key_block;
    const long value_stride = static_cast<long>(l.kv_heads) * l.value_block;
    c.first_block = (c.begin - c.start) / kBlock;
    c.end_block = (c.end - c.start + kBlock - 1) / kBlock;
    if (l.page_size % kBlock == 0) {
        const auto block_at = [&](int at) {
            return (static_cast<long>(task.pages[at / l.page_size]) * l.page_size + at % l.page_size) / kBlock;
        };
        for (int b = c.first_block; b < c.end_block; b++) {
            const long block = block_at(c.start + b * kBlock);
            c.keys[b] = task.keys + block * key_stride;
            c.values[b] = task.values + block * value_stride;
            const int next = c.start + kChunk + b * kBlock;
            c.next_keys[b] = next < end ? task.keys + block_at(next) * key_stride : c.keys[b];
        }
        return;
    }
    for (int b = c.first_block; b < c.end_block; b++) {
        c.keys[b] = c.next_keys[b] = s.key_blocks + static_cast<long>(b) * l.key_block;
        c.values[b] = s.value_blocks + static_cast<long>(b) * l.value_block;
    }
    constexpr int per = Way::tokens_per_word;
    for (int at = c.begin; at < c.end; at++) {
        const long slot = static_cast<long>(task.pages[at / l.page_size]) * l.page_size + at % l.page_size;
        const int lane = static_cast<int>(slot % kBlock), b = (at - c.start) / kBlock, to = (at - c.start) % kBlock;
        const uint32_t *keys = task.keys + slot / kBlock * key_stride + lane;
        uint32_t *key = s.key_blocks + static_cast<long>(b) * l.key_block + to;
        for (int d = 0; d < l.key_block / kBlock; d++) key[d * kBlock] = keys[d * kBlock];  // and the scale
        const uint32_t *values = task.values + slot / kBlock * value_stride + static_cast<long>(lane / per) * l.columns;
        uint32_t *value =
            s.value_blocks + static_cast<long>(b) * l.value_block + static_cast<long>(to / per) * l.columns;
        if (per == 1) {
            memcpy(value, values, static_cast<size_t>(l.columns) * 4);
        } else {
            constexpr int bits = 32 / per;
            constexpr uint32_t mask = 0xffffffffu >> (32 - bits);
            const int from_bit = lane % per * bits, to_bit = to % per * bits;
            for (int i = 0; i < l.columns; i++)
                value[i] = (value[i] & ~(mask << to_bit)) | (((values[i] >> from_bit) & mask) << to_bit);
        }
        if constexpr (Way::scaled) {
            const long last = l.value_block - kBlock;
            s.value_blocks[b * static_cast<long>(l.value_block) + last + to] =
                (task.values + slot / kBlock * value_stride)[last + lane];
        }
    }
}

// Maximum, total and sum of one chunk, for every query of the task.
template <class Way>
void Attention<Way>::compute(const Task &task, const Space &s, const Chunk &c) {
    const Layout &l = *task.layout;
    const long ldq = query_stride(l);
    const X *queries = reinterpret_cast<const X *>(s.queries);
    X *weights = reinterpret_cast<X *>(s.weights);
    by_rows<kRows>(task.count, [&](int r, auto rows) {
        constexpr int R = decltype(rows)::value;
        float *scores = s.scores + static_cast<long>(r) * kChunk;
        score_blocks<R, Way::vectors(R)>(queries + r * ldq, ldq, c, l.key_words, scores, c.first_block, r == 0);
    });
    for (int r = 0; r < task.count; r++) {
        const int first = (task.begin[r] > c.start ? task.begin[r] : c.start) - c.start;
        const int last = (task.end[r] < c.start + kChunk ? task.end[r] : c.start + kChunk) - c.start;
        float *scores = s.scores + static_cast<long>(r) * kChunk;
        s.total[r] = 0;  // tells that the query sees nothing here; its weights and sum are then of no account
        X *to = weights + r * kWeightStride;
        if (first < last) soften(task, c, first, last, scores, to, s.max + r, s.total + r);
    }
    Run runs[kBlocksPerChunk + 2];
    const int count = runs_of(l, c, s.edges, runs);
    by_rows<kRows>(task.count, [&](int r, auto rows) {
        constexpr int R = decltype(rows)::value;
        float *sum = s.sum + static_cast<long>(r) * l.columns;
        sum_columns<R, Way::vectors(R)>(weights + r * kWeightStride, kWeightStride, runs, count, l.columns, 0, sum,
                                        r == 0);
    });
}

template <class Way>
void Attention<Way>::attend(const Task &task, float *scratch) {
    const Layout &l = *task.layout;
    const Space s = cut(l, scratch);
    prepare(task, s);
    int begin = task.begin[0], end = task.end[0];
    for (int r = 0; r < task.count; r++) {
        clear(s.state + static_cast<long>(r) * l.columns, s.state_max + r, s.state_total + r, task.sink[r], l.columns);
        begin = task.begin[r] < begin ? task.begin[r] : begin;
        end = task.end[r] > end ? task.end[r] : end;
    }
    for (int index = task.first_chunk; index < task.end_chunk; index++) {
        Chunk c;
        c.start = index * kChunk;
        c.begin = begin > c.start ? begin : c.start;
        c.end = end < c.start + kChunk ? end : c.start + kChunk;
        locate(task, s, c, end < task.end_chunk * kChunk ? end : task.end_chunk * kChunk);
        compute(task, s, c);
        for (int r = 0; r < task.count; r++) {
            const float *sum = s.sum + static_cast<long>(r) * l.columns;
            if (task.partial[r] == nullptr) {
                merge_into<V>(s.state + static_cast<long>(r) * l.columns, s.state_max + r, s.state_total + r, sum,
                              s.max[r], s.total[r], l.columns);
                continue;
            }
            if (s.total[r] == 0) continue;  // this query sees nothing of the chunk and has no record for it
            float *record = task.partial[r] + static_cast<long>(index - task.first_chunk) * l.record;
            memcpy(record, sum, static_cast<size_t>(l.columns) * 4);
            record[l.columns] = s.max[r];
            record[l.columns + 1] = s.total[r];
        }
    }
    for (int r = 0; r < task.count; r++)
        if (task.partial[r] == nullptr)
            finish(s.state + static_cast<long>(r) * l.columns, s.state_total[r], l.v_head_dim, task.type, task.out[r]);
}

}  // namespace
}  // namespace lmprog
