// Partials of one query become its result: weighted by their sums (base 2), in the order of their
// positions. A sink takes its share of the weights and gives nothing.
#pragma once
#include "args.cuh"

constexpr int kMergeThreads = 128;

template <class T, int dim>
LM_DEV void tree_merge(const MergeArgs<T> &args) {
    constexpr int own = (dim + 31) / 32;
    const int total = global_load(args.counts + kTokens) * args.heads, lane = lane_id();
    const int stride = num_blocks() * (kMergeThreads / 32);
    for (int work = block_id() * (kMergeThreads / 32) + warp_id(); work < total; work += stride) {
        const int token = work / args.heads, head = work % args.heads;
        const int start = global_load(args.part_starts + token),
                  all = global_load(args.part_starts + token + 1);
        if (all - start < 2) continue;  // written directly
        const float sink = args.sinks ? global_load(args.sinks + head) : minus_infinity();
        const int end = args.sinks ? all - 1 : all;
        float maximum = sink;
        for (int part = start; part < end; part++)
            maximum = larger(maximum, global_load(args.sums + (u64)part * args.heads + head));
        float o[own] = {}, sum = args.sinks ? exp2_fast(sink - maximum) : 0.0f;
        for (int part = start; part < end; part++) {
            const u64 at = (u64)part * args.heads + head;
            const float weight = exp2_fast(global_load(args.sums + at) - maximum);
            sum += weight;
            for (int i = 0; i < own; i++)
                if (lane + 32 * i < dim)
                    o[i] += weight * global_load(args.partials + at * dim + lane + 32 * i);
        }
        for (int i = 0; i < own; i++)
            if (lane + 32 * i < dim)
                global_store(args.out + ((u64)token * args.heads + head) * dim + lane + 32 * i,
                             from_float<T>(divide(o[i], sum)));
    }
}
