// Attention over a tree of pages in 16 bits: one pass over every run of keys for all queries below
// it.
//
// An item is a run of at most a few hundred positions and as many queries as fit a tile; a block
// takes items of one kv head in turn. Two tiles share their arithmetic to the last bit, so that
// what a query gets does not depend on how many others read the same run: 16 rows (warps split the
// columns of a score tile, then the columns of the output) and 64 rows (a warp has 16 rows to
// itself). A row is a query token and one of the heads of the kv head's group. Keys and values come
// through a ring of asynchronous copies, XOR-swizzled by 16 bytes; softmax is online, in base 2;
// results leave as partials (already divided) with the base-2 logarithm of their weight, or
// directly where there is one alone.
//
// Keys and values are kept as T or as e4m3 floats, which lie in shared memory as bytes and become
// numbers of type T in registers. A matrix load moves bytes by twos and gives a thread four of a
// row, or two of two rows; which of them are neighbours on the matrix units is free, as long as
// queries, or the columns of the output, have the same order: bytes 0 and 2, then 1 and 3, which
// need the fewest instructions.
#pragma once
#include "args.cuh"

// 16-byte pieces from one row of `pieces` to the next in shared memory. A power of two is swizzled;
// other rows lie an odd number of pieces apart, so that the same piece of eight rows lies in
// different banks by itself.
template <int pieces>
struct Pitch {
    static constexpr bool is_swizzled = (pieces & (pieces - 1)) == 0;
    static constexpr int value = is_swizzled ? pieces : pieces | 1;
};

template <class K, int dim>
struct TreeTile {
    static_assert(dim % 16 == 0 && dim >= 64 && dim <= 256 && (dim < 128 || dim % 64 == 0),
                  "heads of 64 to 112 by steps of 16, and of 128 to 256 by steps of 64");
    static constexpr bool is_bytes = sizeof(K) == 1;
    static constexpr int columns = dim > 128 ? 32 : 64;  // keys of a tile
    static constexpr int groups = columns / 16;          // keys are multiplied 16 at a time
    static constexpr int stages = is_bytes || dim == 64 ? 4 : dim <= 128 ? 3 : 2;
    static constexpr int per_piece = 16 / sizeof(K);  // numbers in 16 bytes
    static constexpr int pieces = dim / per_piece;    // of a key
    static constexpr int steps = is_bytes ? 2 : 1;    // 16 numbers of a key: in one matrix load
    static constexpr int blocks = dim / 16;  // of 16 numbers of a query, or columns of the output
    static constexpr int loads = (blocks + steps - 1) / steps * steps;  // blocks that are loaded
    static constexpr u32 tile_bytes = columns * Pitch<pieces>::value * 16;
    static constexpr u32 ring_bytes = stages * 2 * tile_bytes;
    static constexpr bool keeps_queries =
        dim > (is_bytes ? 64 : 128);  // the 64-row tile has queries in shared memory, not registers
    static constexpr u32 queries_bytes = keeps_queries ? 64 * Pitch<dim / 8>::value * 16 : 0;
    static constexpr int small_threads = groups * 32, large_threads = 128;
    static constexpr u32 small_bytes =
        ring_bytes + 16 * columns * 2 + 2 * groups * 16 * 4;  // + weights, maxima, sums
    static constexpr u32 large_bytes = ring_bytes + queries_bytes;
};

// Byte offset of 16-byte piece `piece` of row `row`, rows of `pieces` pieces. The same piece of
// eight rows lies in different banks, also where two rows are as long as all banks.
template <int pieces>
LM_DEV u32 swizzled(int row, int piece) {
    if constexpr (!Pitch<pieces>::is_swizzled) return (u32)(row * Pitch<pieces>::value + piece) * 16;
    return (u32)(row * pieces + (piece ^ (pieces < 8 ? row >> 1 & 3 : row & 7))) * 16;
}

// Which positions a row may see: (after, upto]; none for rows beyond the item's queries.
struct Sight {
    int after, upto;
};

template <class Args>
LM_DEV int token_of(const Args &args, const Item &item, int row, int group) {
    const int query = row / group;
    return query < item.num_queries ? global_load(args.queries + item.query_base + query) : -1;
}

template <class Args>
LM_DEV Sight sight_of(const Args &args, int token) {
    if (token < 0) return {0, -1};
    const int position = global_load(args.positions + token);
    return {args.window > 0 ? position - args.window : -1, position};
}

template <class T, class K, int dim, int threads>
LM_DEV void load_tile(const TreeArgs<T, K> &args, const Item &item, int head, int tile, u32 keys) {
    typedef TreeTile<K, dim> Tile;
    constexpr int pieces = Tile::pieces;
    const int page_size = 1 << args.page_shift;
    const u64 half = (u64)args.kv_heads * page_size * dim;  // from keys to values of a page
#pragma unroll(dim > 128 ? 1 : 4)
    for (int i = thread_id(); i < Tile::columns * pieces; i += threads) {
        const int row = i / pieces, piece = i % pieces,
                  position = item.begin + tile * Tile::columns + row;
        const bool is_there = position < item.end;
        const int at = is_there ? position : item.begin;
        const u64 page = (u64)global_load(args.pages + item.page_base + (at >> args.page_shift));
        const K *from = args.kv + page * 2 * half +
                        ((u64)head * page_size + (at & (page_size - 1))) * dim +
                        piece * Tile::per_piece;
        copy_async(keys + swizzled<pieces>(row, piece), from, is_there);
        copy_async(keys + Tile::tile_bytes + swizzled<pieces>(row, piece), from + half, is_there);
    }
}

// Scores of 16 rows and the 16 keys from `column` on, by 16 numbers from `step` on, or by 32 where
// they are bytes. # s[2][4]: two 8-column fragments
template <class T, class K, int dim>
LM_DEV void score_group(float s[2][4], const u32 (*q)[4], u32 keys, int column, int step,
                        NoNumbers &none) {
    typedef TreeTile<K, dim> Tile;
    const int lane = lane_id();
    u32 b[4];
    int piece = step * 2 / Tile::steps + ((lane >> 3) & 1);
    if constexpr (Tile::loads > Tile::blocks)  // beyond the last piece: it again, times zeros
        piece = piece < Tile::pieces ? piece : Tile::pieces - 1;
    load_matrices(
        b, keys + swizzled<Tile::pieces>(column + (lane & 7) + ((lane >> 4) << 3), piece));
    if constexpr (Tile::is_bytes) {
        for (int i = 0; i < 4; i++) {  // keys 8 * (i / 2) .. + 8, piece i % 2
            const u32 pair[2] = {e4m3_pair<T>(b[i] & 0x00ff00ffu),
                                 e4m3_pair<T>(b[i] >> 8 & 0x00ff00ffu)};
            none.look(b[i]);
            multiply_add<T>(s[i >> 1], q[i & 1], pair);
        }
    } else {
        multiply_add<T>(s[0], q[0], b);
        multiply_add<T>(s[1], q[0], b + 2);
    }
}

// What turns a product of query and key into a score in base 2.
struct Scaling {
    float factor, cap, of_cap;  // of_cap: of the exponent in the cap's tangent

    template <class Args>
    LM_DEV static Scaling of(const Args &args) {
        constexpr float log2_e = 1.4426950408889634f;
        const float cap = args.softcap;
        return {args.scale * log2_e, cap * log2_e,
                cap > 0.0f ? divide(args.scale, cap) * (2.0f * log2_e) : 0.0f};
    }
};

// Scales, caps and masks the scores of all groups that a warp has, in base 2. `position`: of their
// first key. A cap or a mask is one branch for all of them, not one for each score.
template <int groups>
LM_DEV void finish_scores(float (*s)[2][4], const Sight sight[2], int position, int end,
                          bool is_masked, const Scaling &by) {
    if (by.cap > 0.0f) {
#pragma unroll
        for (int i = 0; i < groups * 8; i++) {
            float &x = s[i / 8][i / 4 % 2][i % 4];
            x = by.cap * (1.0f - divide_fast(2.0f, 1.0f + exp2_fast(x * by.of_cap)));
        }
    } else {
#pragma unroll
        for (int i = 0; i < groups * 8; i++) s[i / 8][i / 4 % 2][i % 4] *= by.factor;
    }
    if (!is_masked) return;
#pragma unroll
    for (int i = 0; i < groups * 8; i++) {
        const int at = position + i / 4 * 8 + (lane_id() & 3) * 2 + (i & 1);
        const Sight &seen = sight[i / 2 % 2];
        if (at >= end || at > seen.upto || at <= seen.after)
            s[i / 8][i / 4 % 2][i % 4] = minus_infinity();
    }
}

LM_DEV float row_maximum(float x) {
    x = larger(x, swap_lanes(x, 1));
    return larger(x, swap_lanes(x, 2));
}

// A new maximum of one row: what earlier sums are multiplied with; `base` is what exponents are
// relative to.
LM_DEV float rescale(float &maximum, float found, float &base) {
    const float now = larger(maximum, found);
    base = now == minus_infinity() ? 0.0f : now;
    const float factor = exp2_fast(maximum - base);
    maximum = now;
    return factor;
}

// Scores of a group become weights, packed as the left side of the next product; their sums join
// `sum`.
template <class T>
LM_DEV void weigh_group(float s[2][4], const float base[2], float sum[2], u32 a[4]) {
    for (int j = 0; j < 2; j++)
        for (int e = 0; e < 4; e++) {
            s[j][e] = exp2_fast(s[j][e] - base[e >> 1]);
            sum[e >> 1] += s[j][e];
        }
    a[0] = pack<T>(s[0][0], s[0][1]), a[1] = pack<T>(s[0][2], s[0][3]);
    a[2] = pack<T>(s[1][0], s[1][1]), a[3] = pack<T>(s[1][2], s[1][3]);
}

// o[., 16 columns from 16 * `block`] += weights of 16 keys from `row` on times their values. Of
// bytes, o[0] has the even columns and o[1] the odd ones.
template <class T, class K, int dim>
LM_DEV void add_values(float o[2][4], const u32 a[4], u32 values, int row, int block,
                       NoNumbers &none) {
    typedef TreeTile<K, dim> Tile;
    const int lane = lane_id();
    u32 b[4];
    if constexpr (Tile::is_bytes) {
        load_two_transposed(b + 2, values + swizzled<Tile::pieces>(row + (lane & 15), block));
        for (int i = 0; i < 2; i++) {  // keys 8 * i .. + 8
            b[i] = e4m3_pair<T>(b[2 + i] & 0x00ff00ffu);
            none.look(b[2 + i]);
            b[2 + i] = e4m3_pair<T>(b[2 + i] >> 8 & 0x00ff00ffu);
        }
    } else {
        load_matrices_transposed(
            b, values + swizzled<Tile::pieces>(row + (lane & 15), block * 2 + (lane >> 4)));
    }
    multiply_add<T>(o[0], a, b);
    multiply_add<T>(o[1], a, b + 2);
}

// Four neighbouring numbers of a query in the order in which bytes become pairs.
LM_DEV void pair_up(u32 low, u32 high, u32 *first, u32 *second) {
    *first = (low & 0xffff) | high << 16;
    *second = low >> 16 | (high & 0xffff0000u);
}

// Queries of the warp's 16 rows as left sides, straight from global memory.
template <class T, class K, int dim>
LM_DEV void load_queries(u32 (*q)[4], const TreeArgs<T, K> &args, const int token[2],
                         const int at_head[2]) {
    for (int x = 0; x < 2; x++) {
        const T *row =
            args.q + ((u64)(token[x] < 0 ? 0 : token[x]) * args.heads + at_head[x]) * dim;
#pragma unroll
        for (int k = 0; k < dim / 16; k++)
            if constexpr (sizeof(K) == 1) {
                const u32 *from =
                    reinterpret_cast<const u32 *>(row + k * 16 + (lane_id() & 3) * 4);
                const u32 low = token[x] < 0 ? 0 : global_load(from),
                          high = token[x] < 0 ? 0 : global_load(from + 1);
                pair_up(low, high, &q[k][x], &q[k][2 + x]);
            } else {
                for (int half = 0; half < 2; half++) {
                    const u32 *from = reinterpret_cast<const u32 *>(row + k * 16 + half * 8 +
                                                                    (lane_id() & 3) * 2);
                    q[k][half * 2 + x] = token[x] < 0 ? 0 : global_load(from);
                }
            }
    }
}

// Queries of the 64-row tile to shared memory; they are there after a `copy_wait` and a barrier.
template <class T, class K, int dim>
LM_DEV void keep_queries(const TreeArgs<T, K> &args, const Item &item, int head, int group) {
    typedef TreeTile<K, dim> Tile;
    constexpr int pieces = dim / 8, together = Tile::is_bytes ? 2 : 1;
    for (int i = thread_id(); i < 64 * pieces / together; i += Tile::large_threads) {
        const int row = i / (pieces / together), piece = i % (pieces / together) * together,
                  token = token_of(args, item, row, group);
        const T *from =
            args.q +
            ((u64)(token < 0 ? 0 : token) * args.heads + head * group + row % group) * dim +
            piece * 8;
        const u32 to = Tile::ring_bytes + swizzled<pieces>(row, piece);
        if constexpr (Tile::is_bytes) {
            Quad in[2] = {}, out[2];
            for (int half = 0; half < 2; half++) {
                if (token >= 0) in[half] = global_load(reinterpret_cast<const Quad *>(from) + half);
                for (int j = 0; j < 2; j++)
                    pair_up(in[half].word[2 * j], in[half].word[2 * j + 1],
                            &out[0].word[half * 2 + j], &out[1].word[half * 2 + j]);
            }
            shared_store(to, out[0]);
            shared_store(Tile::ring_bytes + swizzled<pieces>(row, piece + 1), out[1]);
        } else {
            copy_async(to, from, token >= 0);
        }
    }
}

// Where the results of a query token go: its only partial is the result.
template <class T, int dim>
struct Target {
    T *out = nullptr;
    float *partial = nullptr, *sum = nullptr;

    template <class Args>
    LM_DEV static Target of(const Args &args, const Item &item, int token, int head,
                            const Sight &sight) {
        Target target;
        if (token < 0 || sight.upto < item.first || sight.after >= item.end - 1)
            return target;  // sees nothing of it
        const int start = global_load(args.part_starts + token),
                  end = global_load(args.part_starts + token + 1);
        if (end - start == 1) {
            target.out = args.out + ((u64)token * args.heads + head) * dim;
        } else {
            const u64 at =
                (u64)(start + item.ordinal - global_load(args.first_parts + token)) * args.heads +
                head;
            target.partial = args.partials + at * dim;
            target.sum = args.sums + at;
        }
        return target;
    }
    LM_DEV void write(int column, float x, float y) const {
        if (out) global_store(reinterpret_cast<u32 *>(out + column), pack<T>(x, y));
        if (partial) global_store(reinterpret_cast<Pair *>(partial + column), Pair{x, y});
    }
    // This thread's columns of a block of 16, of row x.
    template <class K>
    LM_DEV void write_block(const TreeArgs<T, K> &args, int block, const float o[2][4], int x,
                            float total) const {
        const int own = lane_id() & 3;
        float r[2][2];
        for (int j = 0; j < 2; j++)
            for (int e = 0; e < 2; e++) r[j][e] = divide(o[j][2 * x + e], total);
        if constexpr (sizeof(K) == 1) {
            for (int e = 0; e < 2; e++)
                write(block * 16 + own * 4 + e * 2, r[0][e] * args.value_scale,
                      r[1][e] * args.value_scale);
        } else {
            for (int j = 0; j < 2; j++) write(block * 16 + j * 8 + own * 2, r[j][0], r[j][1]);
        }
    }
};

// --- 16 rows
template <class T, class K, int dim>
LM_DEV void attend_small(const TreeArgs<T, K> &args, const Item &item, int head) {
    typedef TreeTile<K, dim> Tile;
    constexpr int slice = (Tile::blocks + Tile::groups - 1) /
                          Tile::groups;  // blocks of 16 output columns that this warp sums
    constexpr bool is_even = slice * Tile::groups == Tile::blocks;
    const u32 weights = Tile::ring_bytes, maxima = weights + 16 * Tile::columns * 2,
              sums = maxima + Tile::groups * 64;
    const int lane = lane_id(), warp = warp_id(), group = args.heads / args.kv_heads;
    const int num_tiles = (item.end - item.begin + Tile::columns - 1) / Tile::columns;

    for (int stage = 0; stage < Tile::stages - 1; stage++) {
        if (stage < num_tiles)
            load_tile<T, K, dim, Tile::small_threads>(args, item, head, stage,
                                                   stage * 2 * Tile::tile_bytes);
        copy_commit();
    }
    int token[2], at_head[2];
    Sight sight[2];
    for (int x = 0; x < 2; x++) {
        const int row = (lane >> 2) + 8 * x;
        token[x] = token_of(args, item, row, group);
        at_head[x] = head * group + row % group;
        sight[x] = sight_of(args, token[x]);
    }
    u32 q[Tile::loads][4] = {};
    load_queries<T, K, dim>(q, args, token, at_head);
    float o[slice][2][4] = {}, maximum[2] = {minus_infinity(), minus_infinity()},
          sum[2] = {0.0f, 0.0f};
    NoNumbers none;
    const Scaling by = Scaling::of(args);

    for (int tile = 0; tile < num_tiles; tile++) {
        copy_wait<Tile::stages - 2>();
        block_sync();
        const int next = tile + Tile::stages - 1;
        if (next < num_tiles)
            load_tile<T, K, dim, Tile::small_threads>(args, item, head, next,
                                                   next % Tile::stages * 2 * Tile::tile_bytes);
        copy_commit();
        const u32 keys = tile % Tile::stages * 2 * Tile::tile_bytes,
                  values = keys + Tile::tile_bytes;
        const int position = item.begin + tile * Tile::columns;
        const bool is_masked = item.is_masked || position + Tile::columns > item.end;

        float s[2][4] = {};
#pragma unroll
        for (int k = 0; k < dim / 16; k += Tile::steps)
            score_group<T, K, dim>(s, q + k, keys, warp * 16, k, none);
        finish_scores<1>(&s, sight, position + warp * 16, item.end, is_masked, by);
        for (int x = 0; x < 2; x++) {
            const float found = row_maximum(
                larger(larger(s[0][2 * x], s[0][2 * x + 1]), larger(s[1][2 * x], s[1][2 * x + 1])));
            if ((lane & 3) == 0)
                shared_store(maxima + (warp * 16 + (lane >> 2) + 8 * x) * 4, found);
        }
        block_sync();
        float base[2];
        for (int x = 0; x < 2; x++) {
            float found = minus_infinity();
            for (int w = 0; w < Tile::groups; w++)
                found =
                    larger(found, shared_load<float>(maxima + (w * 16 + (lane >> 2) + 8 * x) * 4));
            const float factor = rescale(maximum[x], found, base[x]);
            sum[x] *= factor;
#pragma unroll
            for (int i = 0; i < slice; i++)
                for (int j = 0; j < 2; j++) o[i][j][2 * x] *= factor, o[i][j][2 * x + 1] *= factor;
        }
        u32 a[4];
        weigh_group<T>(s, base, sum, a);
        constexpr int pieces = Tile::columns / 8;
        for (int x = 0; x < 4; x++) {  // a[0], a[1]: rows r and r + 8 of the first 8 columns; a[2],
                                       // a[3]: of the next 8
            const int row = (lane >> 2) + 8 * (x & 1), piece = warp * 2 + (x >> 1);
            shared_store(weights + (u32)(row * pieces + (piece ^ (row & (pieces - 1)))) * 16 +
                             (lane & 3) * 4,
                         a[x]);
        }
        block_sync();
#pragma unroll
        for (int g = 0; g < Tile::groups; g++) {
            const int row = lane & 15;
            load_matrices(
                a, weights +
                       (u32)(row * pieces + ((g * 2 + (lane >> 4)) ^ (row & (pieces - 1)))) * 16);
#pragma unroll
            for (int i = 0; i < slice; i++)
                if (is_even || warp * slice + i < Tile::blocks)
                    add_values<T, K, dim>(o[i], a, values, g * 16, warp * slice + i, none);
        }
    }
    if constexpr (Tile::is_bytes) {
        const float poison = none.poison();  // reaches all rows, by the sums of this warp
        for (int x = 0; x < 2; x++) sum[x] += poison;
    }
    for (int x = 0; x < 2; x++) {
        sum[x] += swap_lanes(sum[x], 1);
        sum[x] += swap_lanes(sum[x], 2);
        if ((lane & 3) == 0) shared_store(sums + (warp * 16 + (lane >> 2) + 8 * x) * 4, sum[x]);
    }
    block_sync();
    for (int x = 0; x < 2; x++) {
        float total = 0.0f;
        for (int w = 0; w < Tile::groups; w++)
            total += shared_load<float>(sums + (w * 16 + (lane >> 2) + 8 * x) * 4);
        const Target<T, dim> target =
            Target<T, dim>::of(args, item, token[x], at_head[x], sight[x]);
#pragma unroll
        for (int i = 0; i < slice; i++)
            if (is_even || warp * slice + i < Tile::blocks)
                target.write_block(args, warp * slice + i, o[i], x, total);
        if (target.sum && warp == 0 && (lane & 3) == 0)
            global_store(target.sum, maximum[x] + log2_fast(total));
    }
}

// --- 64 rows
template <class T, class K, int dim>
LM_DEV void attend_large(const TreeArgs<T, K> &args, const Item &item, int head) {
    typedef TreeTile<K, dim> Tile;
    constexpr int pieces = dim / 8;
    const int lane = lane_id(), warp = warp_id(), group = args.heads / args.kv_heads;
    const int num_tiles = (item.end - item.begin + Tile::columns - 1) / Tile::columns;

    if constexpr (Tile::keeps_queries) keep_queries<T, K, dim>(args, item, head, group);
    for (int stage = 0; stage < Tile::stages - 1; stage++) {
        if (stage < num_tiles)
            load_tile<T, K, dim, Tile::large_threads>(args, item, head, stage,
                                                   stage * 2 * Tile::tile_bytes);
        copy_commit();
    }
    int token[2], at_head[2];
    Sight sight[2];
    for (int x = 0; x < 2; x++) {
        const int row = warp * 16 + (lane >> 2) + 8 * x;
        token[x] = token_of(args, item, row, group);
        at_head[x] = head * group + row % group;
        sight[x] = sight_of(args, token[x]);
    }
    u32 q[Tile::keeps_queries ? Tile::steps : Tile::loads][4] = {};
    if constexpr (!Tile::keeps_queries) load_queries<T, K, dim>(q, args, token, at_head);
    float o[dim / 16][2][4] = {}, maximum[2] = {minus_infinity(), minus_infinity()},
                  sum[Tile::groups][2] = {};
    NoNumbers none;
    const Scaling by = Scaling::of(args);

    for (int tile = 0; tile < num_tiles; tile++) {
        copy_wait<Tile::stages - 2>();
        block_sync();
        const int next = tile + Tile::stages - 1;
        if (next < num_tiles)
            load_tile<T, K, dim, Tile::large_threads>(args, item, head, next,
                                                   next % Tile::stages * 2 * Tile::tile_bytes);
        copy_commit();
        const u32 keys = tile % Tile::stages * 2 * Tile::tile_bytes,
                  values = keys + Tile::tile_bytes;
        const int position = item.begin + tile * Tile::columns;
        const bool is_masked = item.is_masked || position + Tile::columns > item.end;

        float s[Tile::groups][2][4] = {};
#pragma unroll(Tile::keeps_queries ? 2 : dim / 16)
        for (int k = 0; k < dim / 16; k += Tile::steps) {
            if constexpr (Tile::keeps_queries)
                for (int j = 0; j < Tile::steps; j++) {
                    if (Tile::loads == Tile::blocks || k + j < Tile::blocks)
                        load_matrices(
                            q[j], Tile::ring_bytes + swizzled<pieces>(warp * 16 + (lane & 15),
                                                                      (k + j) * 2 + (lane >> 4)));
                    else
                        for (int i = 0; i < 4; i++) q[j][i] = 0;
                }
#pragma unroll
            for (int g = 0; g < Tile::groups; g++)
                score_group<T, K, dim>(s[g], q + (Tile::keeps_queries ? 0 : k), keys, g * 16, k,
                                       none);
        }
        finish_scores<Tile::groups>(s, sight, position, item.end, is_masked, by);
        float found[2] = {minus_infinity(), minus_infinity()}, base[2];
#pragma unroll
        for (int g = 0; g < Tile::groups; g++) {
            for (int x = 0; x < 2; x++)
                for (int j = 0; j < 2; j++)
                    found[x] = larger(found[x], larger(s[g][j][2 * x], s[g][j][2 * x + 1]));
        }
        for (int x = 0; x < 2; x++) {
            const float factor = rescale(maximum[x], row_maximum(found[x]), base[x]);
#pragma unroll
            for (int g = 0; g < Tile::groups; g++) sum[g][x] *= factor;
#pragma unroll
            for (int i = 0; i < dim / 16; i++)
                for (int j = 0; j < 2; j++) o[i][j][2 * x] *= factor, o[i][j][2 * x + 1] *= factor;
        }
#pragma unroll
        for (int g = 0; g < Tile::groups; g++) {
            u32 a[4];
            weigh_group<T>(s[g], base, sum[g], a);
#pragma unroll
            for (int i = 0; i < dim / 16; i++)
                add_values<T, K, dim>(o[i], a, values, g * 16, i, none);
        }
    }
    if constexpr (Tile::is_bytes) {
        const float poison = none.poison();
        for (int x = 0; x < 2; x++) sum[0][x] += poison;
    }
#pragma unroll
    for (int x = 0; x < 2; x++) {
        float total = 0.0f;
#pragma unroll
        for (int g = 0; g < Tile::groups;
             g++) {  // in the order in which the small tile adds its warps' sums
            float part = sum[g][x];
            part += swap_lanes(part, 1);
            part += swap_lanes(part, 2);
            total += part;
        }
        const Target<T, dim> target =
            Target<T, dim>::of(args, item, token[x], at_head[x], sight[x]);
#pragma unroll
        for (int i = 0; i < dim / 16; i++) target.write_block(args, i, o[i], x, total);
        if (target.sum && (lane & 3) == 0) global_store(target.sum, maximum[x] + log2_fast(total));
    }
}

// Blocks take (item, kv head) pairs in turn; the heads of an item are neighbours.
template <class T, class K, int dim, bool is_large>
LM_DEV void tree_attention(const TreeArgs<T, K> &args) {
    const int total = global_load(args.counts + args.count_at) * args.kv_heads;
    for (int work = block_id(); work < total; work += num_blocks()) {
        const Item item = global_load(args.items + work / args.kv_heads);
        if constexpr (is_large)
            attend_large<T, K, dim>(args, item, work % args.kv_heads);
        else
            attend_small<T, K, dim>(args, item, work % args.kv_heads);
        copy_wait<0>();
        block_sync();  // the ring and the scratch memory are free for the next item
    }
}
