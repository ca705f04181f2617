// Splits the query/key/value product: queries and keys are normalized where the model says so and
// turned by their position; queries go to their array, keys and values to their slots, also to the
// second slots of mirrored writes.
//
// One warp per head of a write. A pair is two neighbouring numbers (the loader orders weights so).
// Where pages have e4m3 floats, keys and values are multiplied and rounded when they are written;
// what is too large becomes the largest there is.
#pragma once
#include "args.cuh"

constexpr int kRopeThreads = 128;

template <class T>
LM_DEV void store_pair(T *to, Pair x) {
    global_store(to, from_float<T>(x.x));
    global_store(to + 1, from_float<T>(x.y));
}
LM_DEV void store_pair(e4m3 *to, Pair x) {
    global_store(reinterpret_cast<u16 *>(to), pack_e4m3(x.x, x.y));
}

template <class T, class K, int dim>
LM_DEV void rope_append(const RopeArgs<T, K> &args) {
    constexpr int pairs = dim / 2, own = (pairs + 31) / 32;
    const int lane = lane_id(), tokens = global_load(args.counts + kTokens),
              writes = global_load(args.counts + kWrites);
    const int all = args.heads + 2 * args.kv_heads, stride = num_blocks() * (kRopeThreads / 32);
    const int page_size = 1 << args.page_shift;
    for (int work = block_id() * (kRopeThreads / 32) + warp_id(); work < writes * all;
         work += stride) {
        const int write = work / all, head = work % all;
        if (head < args.heads && write >= tokens)
            continue;  // a mirrored write has no query of its own
        const int token = global_load(args.write_tokens + write);
        const T *from = args.qkv + ((u64)token * all + head) * dim;
        const bool is_value = head >= args.heads + args.kv_heads;
        Pair x[own];
        float squares = 0.0f;
        for (int i = 0; i < own; i++) {
            const int pair = lane + 32 * i;
            x[i] = {0.0f, 0.0f};
            if (pair < pairs)
                x[i] = {to_float(global_load(from + pair * 2)),
                        to_float(global_load(from + pair * 2 + 1))};
            squares += x[i].x * x[i].x + x[i].y * x[i].y;
        }
        if (args.norm && !is_value) {
            const float factor = divide(1.0f, sqrt_exact(warp_sum(squares) / dim + args.eps));
            const T *weight = args.norm + (u64)head * dim;
            for (int i = 0; i < own; i++)
                if (lane + 32 * i < pairs) {
                    x[i].x *= factor * to_float(global_load(weight + (lane + 32 * i) * 2));
                    x[i].y *= factor * to_float(global_load(weight + (lane + 32 * i) * 2 + 1));
                }
        }
        const bool is_query = head < args.heads;
        T *query = args.q + ((u64)token * args.heads + head) * dim;
        K *kept = args.kv;
        float factor = 1.0f;
        if (!is_query) {
            const int slot = global_load(args.write_slots + write),
                      kv_head = (head - args.heads) % args.kv_heads;
            const u64 side = (u64)(slot >> args.page_shift) * 2 + (is_value ? 1 : 0);
            kept += ((side * args.kv_heads + kv_head) * page_size + (slot & (page_size - 1))) * dim;
            if constexpr (sizeof(K) == 1) factor = is_value ? args.value_factor : args.key_factor;
        }
        const int position = global_load(args.positions + token);
        for (int i = 0; i < own; i++) {
            const int pair = lane + 32 * i;
            if (pair >= pairs) continue;
            Pair y = x[i];
            if (!is_value) {
                const Pair turn = global_load(args.rotations + (u64)position * pairs + pair);
                y = {x[i].x * turn.x - x[i].y * turn.y, x[i].x * turn.y + x[i].y * turn.x};
            }
            if (is_query)
                store_pair(query + pair * 2, y);
            else if constexpr (sizeof(K) == 1)
                store_pair(kept + pair * 2, {y.x * factor, y.y * factor});
            else
                store_pair(kept + pair * 2, y);
        }
    }
}
