// What happens to a token between two products: residual and norm, and the gate of the feed-forward
// layer.
#pragma once
#include "args.cuh"

constexpr int kNormThreads = 256, kSiluThreads = 256;

// A 16-byte word as numbers and back.
template <class T>
union Word {
    static constexpr int size = 16 / sizeof(T);
    Quad quad;
    T number[size];
};
template <class T>
LM_DEV Word<T> load_word(const T *from) {
    Word<T> word;
    word.quad = global_load(reinterpret_cast<const Quad *>(from));
    return word;
}
template <class T>
LM_DEV void store_word(T *to, const Word<T> &word) {
    global_store(reinterpret_cast<Quad *>(to), word.quad);
}

// x += added; out = factor * weight * x / sqrt(sum of x * x + eps). A block per token, its sum in
// float.
template <class T>
LM_DEV void norm_add(const NormArgs<T> &args) {
    constexpr int size = Word<T>::size;
    const int tokens = global_load(args.counts + args.count_at);
    for (int token = block_id(); token < tokens; token += num_blocks()) {
        const u64 row = (u64)token * args.hidden;
        float squares = 0.0f;
        for (int at = thread_id() * size; at < args.hidden; at += kNormThreads * size) {
            Word<T> x = load_word(args.x + row + at);
            if (args.added) {
                const Word<T> added = load_word(args.added + row + at);
                for (int e = 0; e < size; e++)
                    x.number[e] = from_float<T>(to_float(x.number[e]) + to_float(added.number[e]));
                store_word(args.x + row + at, x);
            }
            for (int e = 0; e < size; e++) squares += to_float(x.number[e]) * to_float(x.number[e]);
        }
        squares = warp_sum(squares);
        if (lane_id() == 0) shared_store(warp_id() * 4, squares);
        block_sync();
        float total = args.eps;
        for (int warp = 0; warp < kNormThreads / 32; warp++) total += shared_load<float>(warp * 4);
        const float factor = divide(args.factor, sqrt_exact(total));
        for (int at = thread_id() * size; at < args.hidden; at += kNormThreads * size) {
            Word<T> x = load_word(args.x + row + at), weight = x;
            if (args.weight) weight = load_word(args.weight + at);
            for (int e = 0; e < size; e++) {
                const float y = to_float(x.number[e]) * factor;
                x.number[e] = from_float<T>(args.weight ? y * to_float(weight.number[e]) : y);
            }
            store_word(args.out + row + at, x);
        }
        block_sync();  // the sums are read before the next token's are written
    }
}

// out = gate / (1 + exp(-gate)) * up, or gelu's approximation by a tangent in its place, which is
// gate / (1 + exp(-2 u)) with u = sqrt(2 / pi) (gate + 0.044715 gate^3)
template <class T>
LM_DEV void silu_mul(const SiluArgs<T> &args) {
    constexpr int size = Word<T>::size;
    const int words = args.inner / size;
    const u64 total = (u64)global_load(args.counts + args.count_at) * words;
    for (u64 work = (u64)block_id() * kSiluThreads + thread_id(); work < total;
         work += (u64)num_blocks() * kSiluThreads) {
        const u64 token = work / words, at = work % words * size;
        Word<T> gate = load_word(args.gate_up + token * 2 * args.inner + at);
        const Word<T> up = load_word(args.gate_up + (token * 2 + 1) * args.inner + at);
        for (int e = 0; e < size; e++) {
            const float x = to_float(gate.number[e]);
            const float by =
                args.is_gelu ? 1.5957691216057308f * x * (1.0f + 0.044715f * x * x) : x;
            gate.number[e] =
                from_float<T>(divide_fast(x, 1.0f + exp_exact(-by)) * to_float(up.number[e]));
        }
        store_word(args.out + token * args.inner + at, gate);
    }
}
