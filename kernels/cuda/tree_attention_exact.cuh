// Attention over a tree of pages in float: the same items and partials as the 16-bit kernel,
// without matrix units.
//
// What a query gets does not depend on the others of its tile to the last bit. One tile: 16 rows, 8
// threads a row.
#pragma once
#include "tree_attention.cuh"

template <int dim>
struct ExactTile {
    static_assert(dim % 16 == 0 && dim <= 256, "heads of 16 to 256 by steps of 16");
    static constexpr int columns = 32, threads = 128;
    static constexpr u32 row_bytes =
        (dim + 4) * 4;  // padded: neighbouring rows lie in different banks
    static constexpr u32 keys = 16 * row_bytes, values = keys + columns * row_bytes;
    static constexpr u32 weights = values + columns * row_bytes,
                         bytes = weights + 16 * (columns + 1) * 4;
};

// 16 bytes of a key or value as floats to shared memory.
LM_DEV void load_exact_piece(u32 to, const float *from, bool is_there) {
    copy_async(to, from, is_there);
}
LM_DEV void load_exact_piece(u32 to, const e4m3 *from, bool is_there) {
    Quad bytes = {};
    if (is_there) bytes = global_load(reinterpret_cast<const Quad *>(from));
    for (int i = 0; i < 4; i++) {
        Quad floats;
        for (int e = 0; e < 4; e++)
            floats.word[e] = float_bits(to_float(e4m3{(u8)(bytes.word[i] >> 8 * e)}));
        shared_store(to + i * 16, floats);
    }
}

template <class K, int dim>
LM_DEV void load_exact_tile(const TreeArgs<float, K> &args, const Item &item, int head, int tile) {
    typedef ExactTile<dim> Tile;
    constexpr int own = 16 / sizeof(K), pieces = dim / own;
    const int page_size = 1 << args.page_shift;
    const u64 half = (u64)args.kv_heads * page_size * dim;
    for (int i = thread_id(); i < Tile::columns * pieces; i += Tile::threads) {
        const int row = i / pieces, piece = i % pieces,
                  position = item.begin + tile * Tile::columns + row;
        const bool is_there = position < item.end;
        const int at = is_there ? position : item.begin;
        const u64 page = (u64)global_load(args.pages + item.page_base + (at >> args.page_shift));
        const K *from = args.kv + page * 2 * half +
                        ((u64)head * page_size + (at & (page_size - 1))) * dim + piece * own;
        const u32 to = row * Tile::row_bytes + piece * own * 4;
        load_exact_piece(Tile::keys + to, from, is_there);
        load_exact_piece(Tile::values + to, from + half, is_there);
    }
    copy_commit();
}

template <class K, int dim>
LM_DEV void attend_exact(const TreeArgs<float, K> &args, const Item &item, int head) {
    typedef ExactTile<dim> Tile;
    constexpr int own = dim / 8;  // output columns of a thread, in runs of `run`
    constexpr int run = own % 4 ? 2 : 4;
    const int row = thread_id() / 8, part = thread_id() % 8, group = args.heads / args.kv_heads;
    const int token = token_of(args, item, row, group), at_head = head * group + row % group;
    const Sight sight = sight_of(args, token);
    for (int i = part; i < dim / 4; i += 8) {
        const Quad *from =
            reinterpret_cast<const Quad *>(
                args.q + ((u64)(token < 0 ? 0 : token) * args.heads + at_head) * dim) +
            i;
        shared_store(row * Tile::row_bytes + i * 16, token < 0 ? Quad{} : global_load(from));
    }
    float o[own] = {}, maximum = minus_infinity(), sum = 0.0f;
    const int num_tiles = (item.end - item.begin + Tile::columns - 1) / Tile::columns;
    for (int tile = 0; tile < num_tiles; tile++) {
        block_sync();  // the last tile is read
        load_exact_tile<K, dim>(args, item, head, tile);
        copy_wait<0>();
        block_sync();
        float s[4], found = minus_infinity(), base;
        for (int j = 0; j < 4; j++) {
            const int column = part + 8 * j, at = item.begin + tile * Tile::columns + column;
            s[j] = 0.0f;
#pragma unroll 4
            for (int d = 0; d < dim / 4; d++) {
                const Quad a = shared_load<Quad>(row * Tile::row_bytes + d * 16);
                const Quad b = shared_load<Quad>(Tile::keys + column * Tile::row_bytes + d * 16);
                for (int e = 0; e < 4; e++) s[j] += bits_float(a.word[e]) * bits_float(b.word[e]);
            }
            s[j] *= args.scale;
            if (args.softcap > 0.0f)
                s[j] = args.softcap *
                       (1.0f - divide(2.0f, 1.0f + exp_exact(2.0f * divide(s[j], args.softcap))));
            s[j] *= 1.4426950408889634f;
            if (at >= item.end || at > sight.upto || at <= sight.after) s[j] = minus_infinity();
            found = larger(found, s[j]);
        }
        for (int mask = 1; mask < 8; mask <<= 1) found = larger(found, swap_lanes(found, mask));
        const float factor = rescale(maximum, found, base);
        sum *= factor;
        for (int j = 0; j < 4; j++) {
            s[j] = exp2_fast(s[j] - base);
            sum += s[j];
            shared_store(Tile::weights + (row * (Tile::columns + 1) + part + 8 * j) * 4, s[j]);
        }
        warp_sync();  // the 8 threads of a row are in one warp
        for (int i = 0; i < own; i++) o[i] *= factor;
#pragma unroll 4
        for (int column = 0; column < Tile::columns; column++) {
            const float weight =
                shared_load<float>(Tile::weights + (row * (Tile::columns + 1) + column) * 4);
            for (int i = 0; i < own; i++)
                o[i] += weight * shared_load<float>(Tile::values + column * Tile::row_bytes +
                                                    ((part + i / run * 8) * run + i % run) * 4);
        }
    }
    for (int mask = 1; mask < 8; mask <<= 1) sum += swap_lanes(sum, mask);
    const Target<float, dim> target = Target<float, dim>::of(args, item, token, at_head, sight);
    float *to = target.out ? target.out : target.partial;
    if (to)
        for (int i = 0; i < own; i++) {
            float result = divide(o[i], sum);
            if constexpr (sizeof(K) == 1) result *= args.value_scale;
            global_store(to + (part + i / run * 8) * run + i % run, result);
        }
    if (target.sum && part == 0) global_store(target.sum, maximum + log2_fast(sum));
}

template <class K, int dim>
LM_DEV void tree_attention_exact(const TreeArgs<float, K> &args) {
    const int total = global_load(args.counts + args.count_at) * args.kv_heads;
    for (int work = block_id(); work < total; work += num_blocks()) {
        const Item item = global_load(args.items + work / args.kv_heads);
        attend_exact<K, dim>(args, item, work % args.kv_heads);
        block_sync();
    }
}
