// One token from one row of logits: bias, penalties, bans, bit mask, temperature, min-p, top-k,
// top-p, choice.
//
// Chooses as lmprog's sampler on the CPU does: tokens in vocabulary order, as wide as they are
// likely, widths integers (sums are exact in any order), and the token at which a given number of
// (0, 1) points; greedy takes the lowest of the most likely. top-k and top-p look for their least
// kept value by histograms, without sorting: first in steps of equal size, over which logits are
// spread, then digit by digit. A bin is two words of 32 bits, since hardware adds no 64 bits in
// shared memory but tries again until nobody came between.
#pragma once
#include "args.cuh"

constexpr int kSampleThreads = 512, kSampleWarps = kSampleThreads / 32;
constexpr float kColdest = 1e-6f;

// Shared memory: histograms [4][2][256] u32 | warps' values [32] u64 | warps' tokens [32] u32 |
// found [4] u64
constexpr int kHistograms = 4;  // a warp adds to one of them
constexpr u32 kHistogramBytes = 2048, kWarpValues = kHistograms * kHistogramBytes, kWarpTokens = kWarpValues + 256,
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
    float best, temperature, inverse, least;  // inverse: of the temperature
    u32 kept_key;  // what is kept has at least this `ordered` value; 0: everything
    double unit;   // 2 ** width_bits

    LM_DEV float allowed(int token, float logit) const {
        const bool is_allowed =
            !mask || (global_load(mask + (token >> 5)) >> (token & 31) & 1);
        return is_allowed ? logit : minus_infinity();
    }
    // Divided by the temperature, to the last bit, by its inverse and what that leaves: a division
    // has a call for numbers that do not come here.
    LM_DEV float relative(int token, float logit) const {
        const float x = allowed(token, logit) - best, about = x * inverse;
        return is_finite(about) ? fused(fused(-about, temperature, x), inverse, about) : about;
    }
    LM_DEV float relative(int token) const { return relative(token, global_load(logits + token)); }
    // Calls `visit(token, logit)` for all tokens of this thread, with loads in flight together.
    template <int together = 4, class Visit>
    LM_DEV void each(Visit visit) const {
        int token = thread_id();
        for (; token + (together - 1) * kSampleThreads < vocab;
             token += together * kSampleThreads) {
            float x[together];
#pragma unroll
            for (int i = 0; i < together; i++)
                x[i] = global_load(logits + token + i * kSampleThreads);
#pragma unroll
            for (int i = 0; i < together; i++) visit(token + i * kSampleThreads, x[i]);
        }
        for (; token < vocab; token += kSampleThreads) visit(token, global_load(logits + token));
    }
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

// Keys of one bin, both ends included.
struct Keys {
    u32 low, high;
};

// What is at least 255 / 8 below the best is in bin 0, all else in steps of 1 / 8.
constexpr float kStepsOfOne = 8.0f;
LM_DEV u32 coarse_bin(float relative) {
    const float steps = relative * -kStepsOfOne;
    return steps < 255.0f ? 255 - (u32)steps : 0;
}
LM_DEV Keys coarse_keys(u32 bin) {
    const float least = ((float)bin - 256.0f) / kStepsOfOne;  // below all of the bin
    return {bin ? ordered(least) + 1 : 0,
            bin < 255 ? ordered(least + 1.0f / kStepsOfOne) : ordered(0.0f)};
}

LM_DEV void add_to_bin(u32 bin, u64 weight) {
    const u32 at = (u32)(warp_id() % kHistograms) * kHistogramBytes + bin * 4;
    const u32 low = (u32)weight, before = shared_add(at, low);
    const u32 high = (u32)(weight >> 32) + (before + low < low ? 1 : 0);
    if (high) shared_add(at + kHistogramBytes / 2, high);
}
LM_DEV u64 bin_sum(u32 bin) {
    u64 sum = 0;
    for (int i = 0; i < kHistograms; i++)
        sum += shared_load<u32>(i * kHistogramBytes + bin * 4) +
               ((u64)shared_load<u32>(i * kHistogramBytes + kHistogramBytes / 2 + bin * 4) << 32);
    return sum;
}

// The smallest key with less than `wanted` of mass above it. `mass(relative)` is what a token
// weighs; those that weigh nothing do not count.
template <class Mass>
LM_DEV u32 least_key(const Row &row, double wanted, Mass mass) {
    Keys keys = {0, ordered(0.0f)};
    u64 above = 0;
    int shift = 32;  // of the bins of this round; 32: they are coarse
    for (;;) {
        for (int i = thread_id(); i < kHistograms * 512; i += kSampleThreads)
            shared_store<u32>(i * 4, 0);
        block_sync();
        row.each([&](int token, float logit) {
            const float relative = row.relative(token, logit);
            const u32 key = ordered(relative);
            if (key < keys.low || key > keys.high) return;
            const u64 weight = mass(relative);
            if (weight)
                add_to_bin(shift == 32 ? coarse_bin(relative) : (key - keys.low) >> shift, weight);
        });
        block_sync();
        if (warp_id() == 0) {  // lane 0 has the 8 highest bins
            u64 own[8], sum = 0;
            for (int i = 0; i < 8; i++) {
                own[i] = bin_sum(255 - lane_id() * 8 - i);
                sum += own[i];
            }
            u64 before = above + warp_running_sum(sum) - sum, base = 0;
            u32 bin = 256;
            for (int i = 0; i < 8; i++) {
                if (own[i] && (double)before < wanted) bin = 255 - lane_id() * 8 - i, base = before;
                before += own[i];
            }
            for (int mask = 16; mask > 0; mask >>= 1) {  // the lowest bin that any lane found
                const u32 other = swap_lanes(bin, mask);
                const u64 its = swap_lanes(base, mask);
                if (other < bin) bin = other, base = its;
            }
            if (lane_id() == 0) {
                shared_store<u64>(kFound, bin);
                shared_store<u64>(kFound + 8, base);
            }
        }
        block_sync();
        const u32 bin = (u32)shared_load<u64>(kFound) & 255;
        above = shared_load<u64>(kFound + 8);
        block_sync();
        if (shift == 32) {
            keys = coarse_keys(bin);
        } else {
            keys.low += bin << shift;
            const u32 last = keys.low + ((1u << shift) - 1);
            if (last < keys.high) keys.high = last;
        }
        if (keys.low == keys.high) return keys.low;
        for (shift = 0; (keys.high - keys.low) >> shift > 255;) shift++;
    }
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

// Finds the row's best token; whether any logit is not finite.
LM_DEV bool find_best(Row &row, u32 &best_token) {
    u64 broken = 0;
    float best = minus_infinity();
    best_token = 0;
    row.each<16>([&](int token, float logit) {
        broken += is_finite(logit) ? 0 : 1;
        const float value = row.allowed(token, logit);
        if (value > best) best = value, best_token = (u32)token;
    });
    row.best = best;
    block_best(row.best, best_token);
    return block_sum(broken) != 0;
}

LM_DEV u64 total_width(const Row &row) {
    u64 own = 0;
    row.each([&](int token, float logit) { own += row.width(row.relative(token, logit)); });
    return block_sum(own);
}

// `best_token`: where `row.best` is.
LM_DEV int choose(const SampleArgs &args, int pick, Row &row, u32 best_token) {
    if (!is_finite(row.best)) return -1;  // nothing may be chosen
    row.temperature = global_load(args.temperature + pick);
    if (row.temperature <= 0.0f) return (int)best_token;

    row.temperature = larger(row.temperature, kColdest);
    row.inverse = divide(1.0f, row.temperature);
    row.least = global_load(args.least + pick);
    row.kept_key = 0;
    row.unit = (double)(1ull << args.width_bits);
    const int top_k = global_load(args.top_k + pick);
    const double top_p = global_load(args.top_p + pick);
    if (top_k > 0 && top_k < args.vocab)
        row.kept_key = least_key(row, (double)top_k, [](float) -> u64 { return 1; });
    u64 total = total_width(row);
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
        total = total_width(row);
    }
    const u64 point = (u64)times(global_load(args.point + pick), (double)total);
    return token_at(row, point < total ? point : total - 1);
}

LM_DEV void sample_picks(const SampleArgs &args) {
    const int picks = global_load(args.counts + kPicks);
    for (int pick = block_id(); pick < picks; pick += num_blocks()) {
        float *logits = args.logits + (u64)global_load(args.row_of + pick) * args.vocab;
        const int mask = global_load(args.mask_of + pick);
        Row row;
        row.logits = logits, row.vocab = args.vocab;
        row.mask = mask < 0 ? nullptr : args.masks + (u64)mask * args.mask_words;
        u32 best_token;
        int token = -1;
        if (!find_best(row, best_token)) {
            const bool is_edited = global_load(args.cell_starts + pick) <
                                   global_load(args.cell_starts + pick + 1);
            if (is_edited) {
                edit_row(args, pick, logits);
                block_sync();
                find_best(row, best_token);
            }
            token = choose(args, pick, row, best_token);
            block_sync();
            restore_row(args, pick, logits);
        }
        if (thread_id() == 0) global_store(args.chosen + pick, token);
        block_sync();
    }
}
