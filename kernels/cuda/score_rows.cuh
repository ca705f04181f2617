// Log-probabilities of given tokens: one pass over a row of logits, no log-softmax in memory.
#pragma once
#include "args.cuh"

constexpr int kScoreThreads = 256, kScoreWarps = kScoreThreads / 32;
constexpr u32 kScoreBytes = kScoreWarps * 8;

// Two online sums become one.
LM_DEV void join(float &maximum, float &sum, float other, float its) {
    const float now = larger(maximum, other);
    if (now == minus_infinity()) return;
    sum = sum * exp_exact(maximum - now) + its * exp_exact(other - now);
    maximum = now;
}

LM_DEV void score_targets(const ScoreArgs &args) {
    const int scores = global_load(args.counts + kScores);
    for (int score = block_id(); score < scores; score += num_blocks()) {
        const float *logits = args.logits + (u64)global_load(args.row_of + score) * args.vocab;
        float maximum = minus_infinity(), sum = 0.0f;
        u32 is_broken = 0;
        for (int token = thread_id(); token < args.vocab; token += kScoreThreads) {
            const float x = global_load(logits + token);
            is_broken |= is_finite(x) ? 0u : 1u;
            join(maximum, sum, x, 1.0f);
        }
        for (int mask = 16; mask > 0; mask >>= 1) {
            join(maximum, sum, swap_lanes(maximum, mask), swap_lanes(sum, mask));
            is_broken |= swap_lanes(is_broken, mask);
        }
        if (lane_id() == 0)
            shared_store(warp_id() * 8, Pair{is_broken ? bits_float(0x7fffffffu) : maximum, sum});
        block_sync();
        maximum = minus_infinity(), sum = 0.0f, is_broken = 0;
        for (int warp = 0; warp < kScoreWarps; warp++) {
            const Pair part = shared_load<Pair>(warp * 8);
            is_broken |= part.x != part.x ? 1u : 0u;
            if (!is_broken) join(maximum, sum, part.x, part.y);
        }
        const float total = is_broken ? bits_float(0x7fffffffu) : maximum + log_exact(sum);
        const int end = global_load(args.target_starts + score + 1);
        for (int at = global_load(args.target_starts + score) + thread_id(); at < end;
             at += kScoreThreads) {
            const int target = global_load(args.targets + at);
            global_store(args.found + at, target < 0 ? bits_float(0x7fffffffu)
                                                     : global_load(logits + target) - total);
        }
        block_sync();
    }
}
