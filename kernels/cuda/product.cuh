// Products with weights of 8 or 4 bits: out = x * weights, sums in float.
//
// A weight is a small number times the scale of its group of inputs: integers of 8 bits, integers
// of 4 bits (kept plus 8), or e4m3 floats. Weights are read once, by 16 bytes a thread, and become
// numbers of the activations' type in registers, which is exact; the scale is applied to sums of
// 32 inputs. So that no data need be exchanged between threads, a product takes its inputs in the
// order in which a thread holds them, which is the same on both sides.
//
// A row of weights is made of chunks of 64 bytes; the last one is filled up. Bytes: in order.
// 4 bits: chunk of 128 inputs = 4 quarters of 4 words; word `g` of quarter `q` has inputs
// g * 32 + q * 8 .. + 8, two neighbours 16 bits apart.
#pragma once
#include "args.cuh"

enum WeightKind { kInt8 = 0, kInt4 = 1, kFp8 = 2 };
constexpr int kProductThreads = 256, kProductWarps = kProductThreads / 32;
constexpr int kUnpackThreads = 256;

template <int kind>
struct WeightChunk {
    static constexpr int bytes = 64, inputs = kind == kInt4 ? 128 : 64;
    static constexpr int runs = inputs / 32;  // of 32 inputs, 8 of each thread of four
    // Where a thread's 8 inputs of a run begin in the chunk.
    LM_DEV static int place(int run, int quarter) {
        return kind == kInt4 ? run * 32 + quarter * 8 : quarter * 16 + run * 8;
    }
};

// One weight without its scale. # `bits`: of 4 or 8 bits
template <int kind>
LM_DEV float weight_of(u32 bits) {
    if constexpr (kind == kInt8) return bits_float(0x4b000000u | (bits ^ 128)) - 8388736.0f;
    if constexpr (kind == kInt4) return bits_float(0x4b000000u | bits) - 8388616.0f;
    return from_e4m3(bits);
}

// Two neighbouring weights of a thread's 8 as numbers of type T. # `words`: 2 of bytes, 1 of 4 bits
template <class T, int kind>
LM_DEV u32 two_weights(const u32 *words, int pair) {
    if constexpr (kind == kInt4) {  // 128 + n or 1024 + n, where a step of the last bit is 1
        constexpr bool is_long = sizeof(T) == 2 && HalfOf<T>::has_long_fraction;
        constexpr u32 base = is_long ? 0x64006400u : 0x43004300u,
                      less = is_long ? 0xe408e408u : 0xc308c308u;
        return add_pairs<T>((words[0] >> (pair * 4) & 0x000f000fu) | base, less);
    } else {
        const u32 both = words[pair / 2] >> (pair % 2 * 16);
        return pack<T>(weight_of<kind>(both & 255), weight_of<kind>(both >> 8 & 255));
    }
}

// A thread's 8 weights of a run as floats.
template <int kind>
LM_DEV void eight_weights(const u32 *words, float *to) {
    for (int e = 0; e < 8; e++) {
        if constexpr (kind == kInt4)
            to[e] = weight_of<kind>(words[0] >> (e / 2 * 4 + e % 2 * 16) & 15);
        else
            to[e] = weight_of<kind>(words[e / 4] >> (e % 4 * 8) & 255);
    }
}

// The words of a run among a thread's four. Chosen, not indexed: an array that is indexed by what is
// not known when compiling does not stay in registers.
template <int kind>
LM_DEV void words_of(u32 *to, const Quad &quad, int run) {
    if constexpr (kind == kInt4) {
        const u32 low = run & 1 ? quad.word[1] : quad.word[0];
        const u32 high = run & 1 ? quad.word[3] : quad.word[2];
        to[0] = run & 2 ? high : low;
    } else {
        to[0] = run ? quad.word[2] : quad.word[0];
        to[1] = run ? quad.word[3] : quad.word[1];
    }
}

template <int kind, class Args>
LM_DEV float scale_of(const Args &args, int output, int chunk, int run) {
    const int input = chunk * WeightChunk<kind>::inputs + (kind == kInt4 ? run * 32 : 0);
    return global_load(args.scales + (u64)output * args.groups + input / args.group);
}

template <class Args>
LM_DEV const u8 *weight_row(const Args &args, int output) {
    return args.weights + (u64)output * args.row_bytes;
}

// --- 16-bit activations, on matrix units: weights are the left side, 16 outputs a tile; 8 tokens
// are a tile of the right side
template <int outputs, int tokens>
struct ProductTile {
    static constexpr int output_tiles = outputs / 16, token_tiles = tokens / 8;
    static constexpr bool is_ahead = outputs < 64;  // the next chunk is loaded during this one
    static constexpr u32 pitch = 20;  // floats between tokens: all lanes store to different banks
    static constexpr u32 bytes = kProductWarps * tokens * pitch * 4;
};
typedef ProductTile<32, 16> FewTokens;
typedef ProductTile<64, 32> ManyTokens;

template <class T, int kind, class Tile>
LM_DEV void load_weights(Quad w[][2], const ProductArgs<T> &args, int first, int chunk) {
    const int row = lane_id() >> 2, quarter = lane_id() & 3;
#pragma unroll
    for (int m = 0; m < Tile::output_tiles; m++)
        for (int half = 0; half < 2; half++) {
            const int output = first + m * 16 + half * 8 + row;
            const u8 *from = weight_row(args, output < args.outputs ? output : args.outputs - 1);
            w[m][half] =
                global_load(reinterpret_cast<const Quad *>(from + chunk * 64 + quarter * 16));
        }
}

template <class T, int kind, class Tile>
LM_DEV void add_chunk(float sums[][Tile::token_tiles][4], const Quad w[][2],
                      const ProductArgs<T> &args, int first, int token, int tokens, int chunk) {
    typedef WeightChunk<kind> Chunk;
    constexpr int words = kind == kInt4 ? 1 : 2;
    const int row = lane_id() >> 2, quarter = lane_id() & 3;
#pragma unroll 1  // or the inputs of all runs are loaded at once, into more registers than there are
    for (int run = 0; run < Chunk::runs; run++) {
        const int input = chunk * Chunk::inputs + Chunk::place(run, quarter);
        Quad x[Tile::token_tiles];
#pragma unroll
        for (int j = 0; j < Tile::token_tiles; j++) {
            const int at = token + j * 8 + row;
            x[j] = Quad{};
            if (at < tokens && input < args.inputs)
                x[j] = global_load(
                    reinterpret_cast<const Quad *>(args.x + (u64)at * args.inputs + input));
        }
#pragma unroll
        for (int m = 0; m < Tile::output_tiles; m++) {
            float scale[2];
            for (int half = 0; half < 2; half++) {
                const int output = first + m * 16 + half * 8 + row;
                scale[half] = scale_of<kind>(
                    args, output < args.outputs ? output : args.outputs - 1, chunk, run);
            }
            u32 a[2][4], stored[2][words];
            for (int half = 0; half < 2; half++) words_of<kind>(stored[half], w[m][half], run);
            for (int step = 0; step < 2; step++)
                for (int i = 0; i < 4; i++)
                    a[step][i] = two_weights<T, kind>(stored[i & 1], step * 2 + (i >> 1));
#pragma unroll
            for (int j = 0; j < Tile::token_tiles; j++) {
                float found[4] = {};
                for (int step = 0; step < 2; step++)
                    multiply_add<T>(found, a[step], x[j].word + step * 2);
                for (int i = 0; i < 4; i++) sums[m][j][i] += scale[i >> 1] * found[i];
            }
        }
    }
}

// The warps' sums become one result. Barriers on both sides.
template <class T, class Tile>
LM_DEV void join_warps(const float sums[][4], const ProductArgs<T> &args, int first, int token,
                       int tokens) {
    constexpr int width = Tile::token_tiles * 8;
    const int lane = lane_id();
    for (int j = 0; j < Tile::token_tiles; j++)
        for (int i = 0; i < 4; i++) {
            const int column = j * 8 + (lane & 3) * 2 + (i & 1), row = (lane >> 2) + (i >> 1) * 8;
            shared_store(((warp_id() * width + column) * Tile::pitch + row) * 4, sums[j][i]);
        }
    block_sync();
    for (int i = thread_id(); i < width * 16; i += kProductThreads) {
        const int column = i / 16, output = first + i % 16;
        if (token + column >= tokens || output >= args.outputs) continue;
        float total = 0.0f;
        for (int warp = 0; warp < kProductWarps; warp++)
            total += shared_load<float>(((warp * width + column) * Tile::pitch + i % 16) * 4);
        if (args.bias) total += to_float(global_load(args.bias + output));
        global_store(args.out + (u64)(token + column) * args.outputs + output,
                     from_float<T>(total));
    }
    block_sync();
}

// Blocks take tiles of outputs and tokens in turn; the warps of a block share out the chunks. What
// a token gets does not depend on its company, nor on the tile, to the last bit.
template <class T, int kind, class Tile>
LM_DEV void product(const ProductArgs<T> &args) {
    constexpr int wide = Tile::output_tiles * 16, high = Tile::token_tiles * 8;
    const int tokens = global_load(args.counts + args.count_at), chunks = args.row_bytes / 64;
    const int across = (tokens + high - 1) / high;
    const int total = (args.outputs + wide - 1) / wide * across;
    for (int work = block_id(); work < total; work += num_blocks()) {
        const int first = work / across * wide, token = work % across * high;
        float sums[Tile::output_tiles][Tile::token_tiles][4] = {};
        Quad now[Tile::output_tiles][2], next[Tile::output_tiles][2];
        if (Tile::is_ahead && warp_id() < chunks)
            load_weights<T, kind, Tile>(next, args, first, warp_id());
        for (int chunk = warp_id(); chunk < chunks; chunk += kProductWarps) {
            if constexpr (Tile::is_ahead) {
#pragma unroll
                for (int m = 0; m < Tile::output_tiles; m++)
                    now[m][0] = next[m][0], now[m][1] = next[m][1];
                if (chunk + kProductWarps < chunks)
                    load_weights<T, kind, Tile>(next, args, first, chunk + kProductWarps);
            } else {
                load_weights<T, kind, Tile>(now, args, first, chunk);
            }
            add_chunk<T, kind, Tile>(sums, now, args, first, token, tokens, chunk);
        }
#pragma unroll
        for (int m = 0; m < Tile::output_tiles; m++)
            join_warps<T, Tile>(sums[m], args, first + m * 16, token, tokens);
    }
}

// --- float activations, without matrix units: a warp has one output of up to 8 tokens
constexpr int kExactTokens = 8;

template <int kind>
LM_DEV void product_exact(const ProductArgs<float> &args) {
    typedef WeightChunk<kind> Chunk;
    constexpr int words = kind == kInt4 ? 1 : 2, pieces = Chunk::runs * 4;
    const int tokens = global_load(args.counts + args.count_at), chunks = args.row_bytes / 64;
    const int across = (tokens + kExactTokens - 1) / kExactTokens;
    for (int work = block_id() * kProductWarps + warp_id(); work < args.outputs * across;
         work += num_blocks() * kProductWarps) {
        const int output = work / across, token = work % across * kExactTokens;
        float sums[kExactTokens] = {};
        for (int piece = lane_id(); piece < chunks * pieces; piece += 32) {
            const int chunk = piece / pieces, quarter = piece % pieces / Chunk::runs,
                      run = piece % Chunk::runs;
            const int input = chunk * Chunk::inputs + Chunk::place(run, quarter);
            if (input >= args.inputs) continue;
            const u32 *from = reinterpret_cast<const u32 *>(weight_row(args, output) + chunk * 64 +
                                                            quarter * 16 + run * words * 4);
            u32 stored[words];
            for (int i = 0; i < words; i++) stored[i] = global_load(from + i);
            float weights[8];
            eight_weights<kind>(stored, weights);
            const float scale = scale_of<kind>(args, output, chunk, run);
            for (int j = 0; j < kExactTokens; j++) {
                if (token + j >= tokens) break;
                const float *x = args.x + (u64)(token + j) * args.inputs + input;
                float found = 0.0f;
                for (int half = 0; half < 2; half++) {
                    const Quad four = global_load(reinterpret_cast<const Quad *>(x) + half);
                    for (int e = 0; e < 4; e++)
                        found += bits_float(four.word[e]) * weights[half * 4 + e];
                }
                sums[j] += scale * found;
            }
        }
        for (int j = 0; j < kExactTokens; j++) {
            float total = warp_sum(sums[j]);
            if (lane_id() != 0 || token + j >= tokens) continue;
            if (args.bias) total += global_load(args.bias + output);
            global_store(args.out + (u64)(token + j) * args.outputs + output, total);
        }
    }
}

// --- weights as numbers of type T, for products of many tokens: outputs first .. first + outputs
template <class T, int kind>
LM_DEV void unpack_weights(const UnpackArgs<T> &args) {
    typedef WeightChunk<kind> Chunk;
    constexpr int words = kind == kInt4 ? 1 : 2;
    const int pieces = args.inputs / 8;
    const u64 total = (u64)args.outputs * pieces;
    for (u64 work = (u64)block_id() * kUnpackThreads + thread_id(); work < total;
         work += (u64)num_blocks() * kUnpackThreads) {
        const int row = (int)(work / pieces), input = (int)(work % pieces) * 8;
        const int chunk = input / Chunk::inputs, within = input % Chunk::inputs;
        const int run = kind == kInt4 ? within / 32 : within % 16 / 8;
        const int quarter = kind == kInt4 ? within % 32 / 8 : within / 16;
        const u32 *from =
            reinterpret_cast<const u32 *>(weight_row(args, args.first + row) + chunk * 64 +
                                          quarter * 16 + run * words * 4);
        u32 stored[words];
        for (int i = 0; i < words; i++) stored[i] = global_load(from + i);
        float weights[8];
        eight_weights<kind>(stored, weights);
        const float scale = scale_of<kind>(args, args.first + row, chunk, run);
        T *to = args.out + (u64)row * args.inputs + input;
        if constexpr (sizeof(T) == 2) {
            Quad made;
            for (int i = 0; i < 4; i++)
                made.word[i] = pack<T>(scale * weights[2 * i], scale * weights[2 * i + 1]);
            global_store(reinterpret_cast<Quad *>(to), made);
        } else {
            for (int i = 0; i < 8; i++) global_store(to + i, scale * weights[i]);
        }
    }
}
