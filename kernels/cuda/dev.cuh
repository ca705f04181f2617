// The device layer: every instruction that the kernels use beyond plain C++, under one name each.
//
// The same kernel source is compiled by nvcc or NVRTC (this file) and, with LM_EMULATED, by a host
// compiler (emu.h). Shared memory is addressed by byte offsets into the block's one dynamic array,
// global memory by pointers; both are only touched through the functions below, so that the
// emulator can check every access. No header is included here: NVRTC needs none.
#pragma once
#ifdef LM_EMULATED
#include "emu.h"
#else

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;

#define LM_DEV __device__ __forceinline__
// A kernel takes one struct by value; `threads` and `blocks` (resident per multiprocessor) bound
// its registers.
#define LM_KERNEL(name, Args, threads, blocks)                    \
    extern "C" __global__ void __launch_bounds__(threads, blocks) \
        name(const __grid_constant__ Args args)

extern __shared__ __align__(128) u8 lm_shared[];

// --- ids
LM_DEV int thread_id() { return (int)threadIdx.x; }
LM_DEV int block_id() { return (int)blockIdx.x; }
LM_DEV int num_blocks() { return (int)gridDim.x; }

// --- numbers
struct bf16 {
    u16 bits;
};
struct f16 {
    u16 bits;
};
LM_DEV float to_float(float x) { return x; }
LM_DEV float to_float(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
LM_DEV float to_float(f16 x) {
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits));
    return r;
}
template <class T>
LM_DEV T from_float(float x);
template <>
LM_DEV float from_float<float>(float x) {
    return x;
}
template <>
LM_DEV f16 from_float<f16>(float x) {
    f16 r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
    return r;
}
// Two numbers in one word, the first in its low half.
template <class T>
LM_DEV u32 pack(float low, float high);
template <>
LM_DEV u32 pack<bf16>(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
template <>
LM_DEV u32 pack<f16>(float low, float high) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
template <>
LM_DEV bf16 from_float<bf16>(float x) {
    bf16 r;
    r.bits = (u16)(pack<bf16>(x, 0.0f) & 0xffff);
    return r;
}
// Products of the two pairs of numbers in a word each.
template <class T>
LM_DEV u32 multiply_pairs(u32 a, u32 b);
template <>
LM_DEV u32 multiply_pairs<bf16>(u32 a, u32 b) {  // a * b - 0: no product alone before sm_90
    u32 r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u));
    return r;
}
template <>
LM_DEV u32 multiply_pairs<f16>(u32 a, u32 b) {
    u32 r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
// Sums of the two pairs of numbers in a word each.
template <class T>
LM_DEV u32 add_pairs(u32 a, u32 b);
template <>
LM_DEV u32 add_pairs<bf16>(u32 a, u32 b) {  // a * 1 + b: there is no sum alone before sm_90
    u32 r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(0x3f803f80u), "r"(b));
    return r;
}
template <>
LM_DEV u32 add_pairs<f16>(u32 a, u32 b) {
    u32 r;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
LM_DEV u32 float_bits(float x) { return __float_as_uint(x); }
LM_DEV float bits_float(u32 x) { return __uint_as_float(x); }
LM_DEV float exp2_fast(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
LM_DEV float log2_fast(float x) {
    float r;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
LM_DEV float exp_exact(float x) { return expf(x); }
LM_DEV float log_exact(float x) { return logf(x); }
LM_DEV float sqrt_exact(float x) { return __fsqrt_rn(x); }
LM_DEV float divide(float x, float y) { return __fdiv_rn(x, y); }
// Off by two units in the last place at most; without a call for what is hardly a number.
LM_DEV float divide_fast(float x, float y) { return __fdividef(x, y); }
LM_DEV float fused(float x, float y, float z) { return __fmaf_rn(x, y, z); }  // x * y + z
LM_DEV double times(double x, double y) { return __dmul_rn(x, y); }

// --- memory
template <class T>
LM_DEV T shared_load(u32 at) {
    return *reinterpret_cast<const T *>(lm_shared + at);
}
template <class T>
LM_DEV void shared_store(u32 at, T value) {
    *reinterpret_cast<T *>(lm_shared + at) = value;
}
// What was there before. Of 32 bits: of 64 it would be a loop of compare-and-swap.
LM_DEV u32 shared_add(u32 at, u32 value) {
    return atomicAdd(reinterpret_cast<u32 *>(lm_shared + at), value);
}
template <class T>
LM_DEV T global_load(const T *from) {
    return *from;
}
template <class T>
LM_DEV void global_store(T *to, T value) {
    *to = value;
}

LM_DEV u32 shared_address(u32 at) { return (u32)__cvta_generic_to_shared(lm_shared) + at; }

// 16 bytes from global to shared memory, there only after `copy_wait`; zeros where not `is_there`.
LM_DEV void copy_async(u32 to, const void *from, bool is_there) {
    const int bytes = is_there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes)
                 : "memory");
}
LM_DEV void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `pending` of this thread's committed groups are under way.
template <int pending>
LM_DEV void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// --- threads together
LM_DEV void block_sync() { __syncthreads(); }
LM_DEV void warp_sync() { __syncwarp(); }
LM_DEV float swap_lanes(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
LM_DEV u32 swap_lanes(u32 x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
LM_DEV u64 swap_lanes(u64 x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
// The value of the lane `distance` below; lanes without one get 0.
LM_DEV u64 lane_below(u64 x, int distance) {
    const u64 r = __shfl_up_sync(0xffffffffu, x, distance);
    return (thread_id() & 31) >= distance ? r : 0;
}

// --- matrices
// Four 8x8 matrices of 16-bit numbers; lane i gives the address of row i % 8 of matrix i / 8.
LM_DEV void load_matrices(u32 *r, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(at))
                 : "memory");
}
LM_DEV void load_matrices_transposed(u32 *r, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(at))
                 : "memory");
}
// Two of them; lanes 0 to 15 give the addresses.
LM_DEV void load_two_transposed(u32 *r, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(at))
                 : "memory");
}
// c [16, 8] += a [16, 16] * b [16, 8], sums in float.
#define LM_MMA(type)                                                                    \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                 \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
template <class T>
LM_DEV void multiply_add(float *c, const u32 *a, const u32 *b);
template <>
LM_DEV void multiply_add<bf16>(float *c, const u32 *a, const u32 *b) {
    LM_MMA("bf16");
}
template <>
LM_DEV void multiply_add<f16>(float *c, const u32 *a, const u32 *b) {
    LM_MMA("f16");
}
#endif

// --- what both have in common
struct alignas(16) Quad {
    u32 word[4];
};
struct alignas(8) Pair {
    float x, y;
};

// Whether 16-bit numbers of a type have 10 bits of fraction, not 7.
template <class T>
struct HalfOf {
    static constexpr bool has_long_fraction = false;
};
template <>
struct HalfOf<f16> {
    static constexpr bool has_long_fraction = true;
};

// e4m3: a sign, 4 bits of exponent, 3 of fraction, up to 448. Its bits at the places that they have
// in a float are the number divided by 2^120, also where it is subnormal.
LM_DEV float from_e4m3(u32 bits) {
    return bits_float((bits & 127) << 20 | (bits & 128) << 24) * bits_float(0x7b800000u);
}
struct e4m3 {
    u8 bits;
};
// 127 is no number; neither is it above.
LM_DEV float to_float(e4m3 x) {
    return (x.bits & 127) == 127 ? bits_float(0x7fc00000u) : from_e4m3(x.bits);
}
// The nearest e4m3, of two the even one; 448 beyond that, and 127 for what is no number.
LM_DEV u32 e4m3_bits(float x) {
    const u32 size = float_bits(x) & 0x7fffffffu, sign = float_bits(x) >> 24 & 128;
    if (size > 0x7f800000u) return 127;
    if (size < 0x3c800000u)  // below 2^-6: a float from 2^14 on has steps of 2^-9
        return sign | (float_bits(bits_float(size) + 16384.0f) & 15);
    const u32 rounded = ((size + 0x7ffffu + (size >> 20 & 1)) >> 20) - (120 << 3);
    return sign | (rounded < 126 ? rounded : 126);
}
// Two neighbours, the first in the low byte.
LM_DEV u16 pack_e4m3(float low, float high) {
#if !defined(LM_EMULATED) && __CUDA_ARCH__ >= 890
    u16 r;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
    return r;
#else
    return (u16)(e4m3_bits(low) | e4m3_bits(high) << 8);
#endif
}
// The e4m3 numbers in bytes 0 and 2 of `x` as numbers of 16 bits, which is exact; bytes 1 and 3
// must be 0. Shifted to the places of T they are the number divided by a power of two, also where
// it is subnormal. What is no number comes out as 480: see `NoNumbers`.
template <class T>
LM_DEV u32 e4m3_pair(u32 x) {
    constexpr bool is_long = HalfOf<T>::has_long_fraction;
    constexpr u32 power = is_long ? 0x5c005c00u : 0x7b807b80u;  // 2^8, 2^120
    const u32 sizes = (x & 0x007f007fu) << (is_long ? 7 : 4);
    return multiply_pairs<T>(sizes | (x & 0x00800080u) << 8, power);
}
// Notes whether a word of e4m3 numbers had one that is none. Four at once, since checking each
// where it is converted would cost as much as converting.
struct NoNumbers {
    u32 found = 0;
    LM_DEV void look(u32 word) { found |= ((word & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u; }
    // To be added: not a number where any lane of the warp has found one, else 0.
    LM_DEV float poison() const {
        u32 any = found;
        for (int mask = 16; mask > 0; mask >>= 1) any |= swap_lanes(any, mask);
        return bits_float(any ? 0x7fc00000u : 0);
    }
};

LM_DEV float minus_infinity() { return bits_float(0xff800000u); }
LM_DEV int lane_id() { return thread_id() & 31; }
LM_DEV int warp_id() { return thread_id() >> 5; }
LM_DEV float larger(float a, float b) { return a > b ? a : b; }
LM_DEV bool is_finite(float x) { return (float_bits(x) & 0x7f800000u) != 0x7f800000u; }

LM_DEV float warp_sum(float x) {
    for (int mask = 16; mask > 0; mask >>= 1) x += swap_lanes(x, mask);
    return x;
}
LM_DEV u64 warp_sum(u64 x) {
    for (int mask = 16; mask > 0; mask >>= 1) x += swap_lanes(x, mask);
    return x;
}
// The sum of this lane's value and those of all lanes below it.
LM_DEV u64 warp_running_sum(u64 x) {
    for (int distance = 1; distance < 32; distance <<= 1) x += lane_below(x, distance);
    return x;
}
