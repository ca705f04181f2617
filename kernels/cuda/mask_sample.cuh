// One token from one row of logits: bias, penalties, bans, bit mask, temperature, min-p, top-k,
// top-p, choice.
//
// Chooses as lmprog's sampler on the CPU does: tokens in vocabulary order, as wide as they are
// likely, widths integers (sums are exact in any order), and the token at which a given number of
// (0, 1) points; greedy takes the lowest of the most likely. top-k and top-p look for their least
// kept value digit by digit, by histograms, without sorting.
#pragma once
#include "args.cuh"

constexpr int kSampleThreads = 512, kSampleWarps = kSampleThreads / 32;
constexpr float kColdest = 1e-6f;

// Shared memory: histogram [256] u64 | warps' values [32] u64 | warps' tokens [32] u32 | found [4]
// u64
constexpr u32 kHistogram = 0, kWarpValues = 2048, kWarpTokens = kWarpValues + 256,
              kFound = kWarpTokens + 128;
constexpr u32 kSampleBytes = kFound + 32;

// Orders floats as unsigned numbers.
LM_DEV u32 ordered(float x) {
    const u32 bits = float_bits(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct Row {
    const float *logits;
    const u32 *mask;  // null: every token may be chosen
    int vocab;
    float best, temperature, least;
    u32 kept_key;  // what is kept has at least this `ordered` value; 0: everything
    double unit;   // 2 ** width_bits

    LM_DEV float value(int token) const {
        if (mask && !(global_load(mask + (token >> 5)) >> (token & 31) & 1))
            return minus_infinity();
        return global_load(logits + token);
    }
    LM_DEV float relative(int token) const { return divide(value(token) - best, temperature); }
    LM_DEV u64 width(float relative) const {
        if (relative < least || ordered(relative) < kept_key) return 0;
        return (u64)times((double)exp_exact(relative), unit);
    }
};

LM_DEV u64 block_sum(u64 x) {
    x = warp_sum(x);
    if (lane_id() == 0) shared_store(kWarpValues + warp_id() * 8, x);
    block_sync();
    u64 total = 0;
    for (int warp = 0; warp < kSampleWarps; warp++)
        total += shared_load<u64>(kWarpValues + warp * 8);
    block_sync();
    return total;
}

// Greatest value and the lowest token that has it; all threads get both.
LM_DEV void block_best(float &best, u32 &token) {
    for (int pass = 0; pass < 2; pass++) {
        for (int mask = 16; mask > 0; mask >>= 1) {
            const float other = swap_lanes(best, mask);
            const u32 its = swap_lanes(token, mask);
            if (other > best || (other == best && its < token)) best = other, token = its;
        }
        if (pass == 1) break;
        if (lane_id() == 0) {
            shared_store(kWarpValues + warp_id() * 8, best);
            shared_store(kWarpTokens + warp_id() * 4, token);
        }
        block_sync();
        best = minus_infinity(), token = 0xffffffffu;
        if (lane_id() < kSampleWarps) {
            best = shared_load<float>(kWarpValues + lane_id() * 8);
            token = shared_load<u32>(kWarpTokens + lane_id() * 4);
        }
        block_sync();
    }
}

// The smallest key with less than `wanted` of mass above it. `mass(relative)` is what a token
// weighs; those that weigh nothing do not count. A digit of 8 bits at a time.
template <class Mass>
LM_DEV u32 least_key(const Row &row, double wanted, Mass mass) {
    u32 prefix = 0;
    u64 above = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = thread_id(); i < 256; i += kSampleThreads)
            shared_store<u64>(kHistogram + i * 8, 0);
        block_sync();
        for (int token = thread_id(); token < row.vocab; token += kSampleThreads) {
            const float relative = row.relative(token);
            const u32 key = ordered(relative);
            if (shift < 24 && (key >> (shift + 8)) != (prefix >> (shift + 8))) continue;
            const u64 weight = mass(relative);
            if (weight) shared_add(kHistogram + (key >> shift & 255) * 8, weight);
        }
        block_sync();
        if (warp_id() == 0) {  // lane 0 has the 8 highest digits
            u64 own[8], sum = 0;
            for (int i = 0; i < 8; i++) {
                own[i] = shared_load<u64>(kHistogram + (255 - lane_id() * 8 - i) * 8);
                sum += own[i];
            }
            u64 before = above + warp_running_sum(sum) - sum, base = 0;
            u32 digit = 256;
            for (int i = 0; i < 8; i++) {
                if (own[i] && (double)before < wanted)
                    digit = 255 - lane_id() * 8 - i, base = before;
                before += own[i];
            }
            for (int mask = 16; mask > 0; mask >>= 1) {  // the lowest digit that any lane found
                const u32 other = swap_lanes(digit, mask);
                const u64 its = swap_lanes(base, mask);
                if (other < digit) digit = other, base = its;
            }
            if (lane_id() == 0) {
                shared_store<u64>(kFound, digit);
                shared_store<u64>(kFound + 8, base);
            }
        }
        block_sync();
        prefix |= ((u32)shared_load<u64>(kFound) & 255) << shift;
        above = shared_load<u64>(kFound + 8);
        block_sync();
    }
    return prefix;
}

// The first token at which the widths, added in vocabulary order, exceed `point`. The range shrinks
// to the share of one warp until one warp can look at every token of it.
LM_DEV int token_at(const Row &row, u64 point) {
    int begin = 0, end = row.vocab;
    while (end - begin > 32) {
        const int share = (end - begin + kSampleWarps - 1) / kSampleWarps;
        const int first = begin + warp_id() * share,
                  last = first + share < end ? first + share : end;
        u64 sum = 0;
        for (int token = first + lane_id(); token < last; token += 32)
            sum += row.width(row.relative(token));
        sum = warp_sum(sum);
        if (lane_id() == 0) shared_store(kWarpValues + warp_id() * 8, sum);
        block_sync();
        int warp = 0;
        for (; warp < kSampleWarps - 1; warp++) {
            const u64 own = shared_load<u64>(kWarpValues + warp * 8);
            if (own > point) break;
            point -= own;
        }
        block_sync();
        begin += warp * share;
        end = begin + share < end ? begin + share : end;
    }
    const int token = begin + lane_id();
    const u64 sum = warp_running_sum(token < end ? row.width(row.relative(token)) : 0);
    u32 found = token < end && sum > point ? (u32)token : 0xffffffffu;
    for (int mask = 16; mask > 0; mask >>= 1) {
        const u32 other = swap_lanes(found, mask);
        if (other < found) found = other;
    }
    return (int)found;
}

LM_DEV void edit_row(const SampleArgs &args, int pick, float *logits) {
    const int end = global_load(args.cell_starts + pick + 1);
    for (int cell = global_load(args.cell_starts + pick) + thread_id(); cell < end;
         cell += kSampleThreads) {
        float *at = logits + global_load(args.cell_tokens + cell);
        const Pair change = global_load(args.cell_changes + cell);
        const float repeat = global_load(args.cell_repeat + cell), kept = global_load(at),
                    old = kept + change.x;
        global_store(args.cell_kept + cell, kept);
        global_store(at, (old > 0.0f ? divide(old, repeat) : old * repeat) - change.y);
    }
}

LM_DEV void restore_row(const SampleArgs &args, int pick,
                        float *logits) {  // each thread what it edited
    const int end = global_load(args.cell_starts + pick + 1);
    for (int cell = global_load(args.cell_starts + pick) + thread_id(); cell < end;
         cell += kSampleThreads)
        global_store(logits + global_load(args.cell_tokens + cell),
                     global_load(args.cell_kept + cell));
}

LM_DEV bool is_broken(const float *logits, int vocab) {
    u64 broken = 0;
    for (int token = thread_id(); token < vocab; token += kSampleThreads)
        broken += is_finite(global_load(logits + token)) ? 0 : 1;
    return block_sum(broken) != 0;
}

LM_DEV int choose(const SampleArgs &args, int pick, const float *logits) {
    const int mask = global_load(args.mask_of + pick);
    Row row;
    row.logits = logits, row.vocab = args.vocab;
    row.mask = mask < 0 ? nullptr : args.masks + (u64)mask * args.mask_words;
    row.best = minus_infinity();
    u32 best_token = 0;
    for (int token = thread_id(); token < args.vocab; token += kSampleThreads) {
        const float value = row.value(token);
        if (value > row.best) row.best = value, best_token = (u32)token;
    }
    block_best(row.best, best_token);
    if (!is_finite(row.best)) return -1;  // nothing may be chosen
    row.temperature = global_load(args.temperature + pick);
    if (row.temperature <= 0.0f) return (int)best_token;

    row.temperature = larger(row.temperature, kColdest);
    row.least = global_load(args.least + pick);
    row.kept_key = 0;
    row.unit = (double)(1ull << args.width_bits);
    const int top_k = global_load(args.top_k + pick);
    const double top_p = global_load(args.top_p + pick);
    if (top_k > 0 && top_k < args.vocab)
        row.kept_key = least_key(row, (double)top_k, [](float) -> u64 { return 1; });
    u64 own = 0;
    for (int token = thread_id(); token < args.vocab; token += kSampleThreads)
        own += row.width(row.relative(token));
    u64 total = block_sum(own);
    if (top_p < 1.0) {
        const u32 key = least_key(row, times(top_p, (double)total),
                                  [&](float relative) { return row.width(relative); });
        // Tokens that are as wide as the last one kept are kept too, though their logits may
        // differ.
        const u64 narrowest = row.width(bits_float(key & 0x80000000u ? key & 0x7fffffffu : ~key));
        u32 lowest = key;
        for (u32 step = 0x800000u; step; step >>= 1)
            if (lowest >= step && lowest - step >= row.kept_key) {
                const u32 lower = lowest - step;
                if (row.width(bits_float(lower & 0x80000000u ? lower & 0x7fffffffu : ~lower)) >=
                    narrowest)
                    lowest = lower;
            }
        row.kept_key = lowest;
        own = 0;
        for (int token = thread_id(); token < args.vocab; token += kSampleThreads)
            own += row.width(row.relative(token));
        total = block_sum(own);
    }
    const u64 point = (u64)times(global_load(args.point + pick), (double)total);
    return token_at(row, point < total ? point : total - 1);
}

LM_DEV void sample_picks(const SampleArgs &args) {
    const int picks = global_load(args.counts + kPicks);
    for (int pick = block_id(); pick < picks; pick += num_blocks()) {
        float *logits = args.logits + (u64)global_load(args.row_of + pick) * args.vocab;
        int token = -1;
        if (!is_broken(logits, args.vocab)) {
            edit_row(args, pick, logits);
            block_sync();
            token = choose(args, pick, logits);
            block_sync();
            restore_row(args, pick, logits);
        }
        if (thread_id() == 0) global_store(args.chosen + pick, token);
        block_sync();
    }
}
