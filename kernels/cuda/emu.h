// The device layer on a CPU, for tests: one fibre per CUDA thread, every access checked, a schedule
// meant to hurt.
//
// A launch runs its blocks one after the other in an order drawn from a seed; in a block each warp
// runs alone until it must wait, warps and lanes in random order. What is found: accesses outside
// of an allocation or misaligned; barriers and warp operations that not all threads reach;
// asynchronous copies that are read before their wait (their target is poisoned meanwhile); shared
// memory that was never written (it starts as NaN); data races, whatever the schedule: between the
// warps of a block within one barrier interval, and between the blocks of a launch. A kernel that
// does one of these is stopped, and `emu::failure` says why.
//
// Not modelled: timing, caches, memory order beyond barriers, and races between lanes of one warp.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef unsigned long long u64;
typedef int32_t i32;

#define LM_DEV inline
#define LM_KERNEL(name, Args, threads, blocks)     \
    typedef Args name##_arguments;                 \
    static constexpr int name##_threads = threads; \
    static void name##_kernel(const name##_arguments &args)

namespace emu {

// --- fibres
constexpr size_t kStack = 32 * 1024;

#if defined(__x86_64__)
struct Context {
    void *stack_pointer = nullptr;
};
extern "C" void lm_emu_switch(void **save, void *load);
asm(R"(
.text
.p2align 4
lm_emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
inline void prepare(Context &context, u8 *stack, void (*entry)()) {
    void **top =
        reinterpret_cast<void **>((reinterpret_cast<uintptr_t>(stack) + kStack) & ~uintptr_t(15));
    *--top = nullptr;
    *--top = reinterpret_cast<void *>(entry);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    context.stack_pointer = top;
}
inline void change(Context &from, Context &to) {
    lm_emu_switch(&from.stack_pointer, to.stack_pointer);
}
#else
struct Context {
    ucontext_t state;
};
inline void prepare(Context &context, u8 *stack, void (*entry)()) {
    getcontext(&context.state);
    context.state.uc_stack.ss_sp = stack;
    context.state.uc_stack.ss_size = kStack;
    context.state.uc_link = nullptr;
    makecontext(&context.state, entry, 0);
}
inline void change(Context &from, Context &to) { swapcontext(&from.state, &to.state); }
#endif

// --- state
struct Copy {
    u32 to;
    const void *from;
    bool is_there;
};
struct Fibre {
    Context context;
    int thread = 0;
    bool is_done = false;
    std::vector<Copy> open;                 // asynchronous copies not committed yet
    std::vector<std::vector<Copy>> groups;  // committed, oldest first
};
struct Warp {
    u64 generation = 0;
    int arrived = 0, kind = 0;
    alignas(16) u8 in[32][48];
    alignas(16) u8 out[2][32][16];  // by parity: a lane is at most one operation ahead
};
constexpr u16 kSeveral = 0xffff;
struct Shade {  // who touched two bytes of shared memory, and the stamp of the barrier interval
    u32 written = 0, read = 0, added = 0;
    u16 writer = 0, reader = 0;
};
struct Region {
    uintptr_t begin, end;
    std::vector<u64> writers;  // per two bytes, who wrote them last: block's serial << 32 |
                               // interval << 8 | warp; empty before the first write
    u32 last_serial = 0;       // of the block that wrote last
};
struct Block {
    std::vector<Fibre> fibres;
    std::vector<Warp> warps;
    std::vector<u8> shared;
    std::vector<Shade> shades;
    u8 *base = nullptr;
    size_t shared_bytes = 0;
    int id = 0, grid = 1, threads = 0, alive = 0, arrived = 0;
    u64 interval = 1;  // barriers passed, plus one
    u32 stamp = 0;     // of this interval: no other, of any block of any launch, has the same
    bool progress = false;
};
inline Block block;
inline Fibre *current = nullptr;
inline Context scheduler;
inline std::vector<Region> regions;
inline size_t last_region = 0;
inline u32 first_serial = 1, serial = 0;  // of this launch's blocks, of the running one
inline std::string failure;
inline void (*body)(const void *) = nullptr;
inline const void *arguments = nullptr;
inline u64 num_loads = 0;  // bytes read from global memory by the launch
inline u64 random_state = 1;

inline u32 draw() {  // xorshift64*
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (u32)((random_state * 0x2545F4914F6CDD1DULL) >> 32);
}
inline void yield() { change(current->context, scheduler); }

// Records what is wrong and stops the kernel: the fibre never goes on.
inline void fail(const char *format, ...) {
    if (failure.empty()) {
        char text[400];
        va_list list;
        va_start(list, format);
        vsnprintf(text, sizeof text, format, list);
        va_end(list);
        char where[80];
        snprintf(where, sizeof where, " (block %d, thread %d)", block.id,
                 current ? current->thread : -1);
        failure = std::string(text) + where;
    }
    for (;;) yield();
}
inline void entry() {
    body(arguments);
    current->is_done = true;
    block.alive--;
    block.progress = true;
    for (;;) yield();
}

// --- checks
inline int my_warp() { return current->thread >> 5; }

inline void check_shared(u32 at, size_t bytes, size_t alignment) {
    if (at + bytes > block.shared_bytes || at % alignment)
        fail("shared memory: %zu bytes at %u of %zu, alignment %zu", bytes, at, block.shared_bytes,
             alignment);
}
inline void shared_is_read(u32 at, size_t bytes) {
    const u32 now = block.stamp;
    const u16 me = (u16)my_warp();
    for (u32 i = at / 2; i < (at + bytes + 1) / 2; i++) {
        Shade &shade = block.shades[i];
        if (shade.written == now && shade.writer != me)
            fail("race: warp %d reads shared byte %u that warp %d writes before the next barrier",
                 me, i * 2, shade.writer);
        if (shade.added == now && shade.writer != me)
            fail("race: warp %d reads shared byte %u while others add to it", me, i * 2);
        shade.reader = shade.read == now && shade.reader != me ? kSeveral : me;
        shade.read = now;
    }
}
inline void shared_is_written(u32 at, size_t bytes, bool is_atomic = false) {
    const u32 now = block.stamp;
    const u16 me = (u16)my_warp();
    for (u32 i = at / 2; i < (at + bytes + 1) / 2; i++) {
        Shade &shade = block.shades[i];
        if (shade.written == now && shade.writer != me)
            fail("race: warps %d and %d write shared byte %u between the same barriers", me,
                 shade.writer, i * 2);
        if (shade.read == now && shade.reader != me)
            fail("race: warp %d writes shared byte %u that another reads between the same barriers",
                 me, i * 2);
        if (!is_atomic && shade.added == now && shade.writer != me)
            fail("race: warp %d writes shared byte %u while others add", me, i * 2);
        if (is_atomic) {
            shade.writer = shade.added == now && shade.writer != me ? kSeveral : me;
            shade.added = now;
        } else {
            shade.written = now;
            shade.writer = me;
        }
    }
}
inline Region &region_of(const void *pointer, size_t bytes, size_t alignment) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(pointer);
    if (at % alignment) fail("global memory: %zu bytes at %p, which is misaligned", bytes, pointer);
    if (last_region < regions.size() && at >= regions[last_region].begin &&
        at + bytes <= regions[last_region].end)
        return regions[last_region];
    for (size_t i = 0; i < regions.size(); i++)
        if (at >= regions[i].begin && at + bytes <= regions[i].end) {
            last_region = i;
            return regions[i];
        }
    fail("global memory: %zu bytes at %p belong to no allocation", bytes, pointer);
    return regions[0];
}
inline void check_writer(u64 writer, const char *doing) {
    const u32 its = (u32)(writer >> 32), now = (u32)block.interval & 0xffffff;
    if (its < first_serial) return;  // an earlier launch
    if (its != serial)
        fail("race: a block %s global memory that block %u of the same launch writes", doing,
             its - first_serial);
    if ((u32)(writer >> 8 & 0xffffff) == now && (int)(writer & 255) != my_warp())
        fail("race: warp %d %s global memory that warp %d writes before the next barrier",
             my_warp(), doing, (int)(writer & 255));
}
inline void global_is_read(const void *from, size_t bytes, size_t alignment) {
    const Region &region = region_of(from, bytes, alignment);
    num_loads += bytes;
    if (region.last_serial < first_serial) return;  // not written by this launch
    const size_t at = (reinterpret_cast<uintptr_t>(from) - region.begin) / 2;
    for (size_t i = at; i < at + (bytes + 1) / 2; i++) check_writer(region.writers[i], "reads");
}
inline void global_is_written(const void *to, size_t bytes, size_t alignment) {
    Region &region = region_of(to, bytes, alignment);
    if (region.writers.empty()) region.writers.resize((region.end - region.begin) / 2 + 1);
    region.last_serial = serial;
    const size_t at = (reinterpret_cast<uintptr_t>(to) - region.begin) / 2;
    const u64 me = (u64)serial << 32 | (block.interval & 0xffffff) << 8 | (u64)my_warp();
    for (size_t i = at; i < at + (bytes + 1) / 2; i++) {
        check_writer(region.writers[i], "writes");
        region.writers[i] = me;
    }
}

// --- threads together
inline void barrier() {
    const u64 before = block.interval;
    if (++block.arrived == block.threads) {
        block.arrived = 0;
        block.interval++, block.stamp++;
        block.progress = true;
    } else {
        while (block.interval == before) yield();
    }
}
// Every lane of the warp gives an `In`; the last one to come computes all answers with `all`.
template <class Out, class In, class All>
inline Out together(int kind, const In &in, All all) {
    static_assert(sizeof(In) <= 48 && sizeof(Out) <= 16, "slots are too small");
    Warp &warp = block.warps[my_warp()];
    const int lane = current->thread & 31, parity = (int)(warp.generation & 1);
    if (warp.arrived == 0) warp.kind = kind;
    if (warp.kind != kind) fail("the lanes of warp %d meet in different operations", my_warp());
    memcpy(warp.in[lane], &in, sizeof in);
    if (++warp.arrived == 32) {
        all(reinterpret_cast<const u8(*)[48]>(warp.in),
            reinterpret_cast<u8(*)[16]>(warp.out[parity]));
        warp.arrived = 0;
        warp.generation++;
        block.progress = true;
    } else {
        const u64 before = warp.generation;
        while (warp.generation == before) yield();
    }
    Out out;
    memcpy(&out, warp.out[parity][lane], sizeof out);
    return out;
}
template <class T>
inline T get(const u8 *slot) {
    T value;
    memcpy(&value, slot, sizeof value);
    return value;
}
template <class T>
inline T exchange(T x, int other) {  // `other`: the lane whose value is wanted, -1 for none
    struct Asked {
        T value;
        int other;
    };
    return together<T>(1, Asked{x, other}, [](const u8(*in)[48], u8(*out)[16]) {
        for (int lane = 0; lane < 32; lane++) {
            const Asked asked = get<Asked>(in[lane]);
            const T found = asked.other < 0 ? T(0) : get<Asked>(in[asked.other & 31]).value;
            memcpy(out[lane], &found, sizeof found);
        }
    });
}
inline void land(size_t keep) {  // the copies of all groups but the last `keep` arrive
    auto &groups = current->groups;
    while (groups.size() > keep) {
        for (const Copy &copy : groups.front()) {
            shared_is_written(copy.to, 16);
            if (copy.is_there) {
                global_is_read(copy.from, 16, 16);
                memcpy(block.base + copy.to, copy.from, 16);
            } else {
                memset(block.base + copy.to, 0, 16);
            }
        }
        groups.erase(groups.begin());
    }
}

// --- running
inline void run_block(int id, int grid, int threads, size_t shared_bytes) {
    static std::vector<u8> stacks;
    if (stacks.size() < kStack * threads) stacks.resize(kStack * threads);
    block.fibres.resize(threads);
    block.warps.assign(threads / 32, Warp());
    block.shared.assign(shared_bytes + 128, 0xFF);
    if (block.shades.size() < shared_bytes / 2 + 1) block.shades.resize(shared_bytes / 2 + 1);
    if (++block.stamp > 1u << 31) {  // long before it wraps
        std::fill(block.shades.begin(), block.shades.end(), Shade());
        block.stamp = 1;
    }
    block.base = reinterpret_cast<u8 *>((reinterpret_cast<uintptr_t>(block.shared.data()) + 127) &
                                        ~uintptr_t(127));
    block.shared_bytes = shared_bytes;
    block.id = id, block.grid = grid, block.threads = block.alive = threads, block.arrived = 0,
    block.interval = 1;
    serial = first_serial + (u32)id;
    for (int i = 0; i < threads; i++) {
        Fibre &fibre = block.fibres[i];
        fibre.thread = i, fibre.is_done = false;
        fibre.open.clear(), fibre.groups.clear();
        prepare(fibre.context, stacks.data() + kStack * i, entry);
    }
    std::vector<int> order(threads / 32);
    for (size_t i = 0; i < order.size(); i++) order[i] = (int)i;
    while (block.alive && failure.empty()) {
        bool any = false;
        for (size_t i = order.size() - 1; i > 0; i--) std::swap(order[i], order[draw() % (i + 1)]);
        for (int warp : order) do {
                block.progress = false;
                const u32 first = draw();
                for (u32 k = 0; k < 32 && failure.empty(); k++) {
                    Fibre &fibre = block.fibres[warp * 32 + ((k + first) & 31)];
                    if (fibre.is_done) continue;
                    current = &fibre;
                    change(scheduler, fibre.context);
                    current = nullptr;
                }
                any = any || block.progress;
            } while (block.progress && failure.empty());
        if (!any && block.alive && failure.empty()) {
            char text[120];
            snprintf(text, sizeof text,
                     "deadlock: block %d waits at a barrier or warp operation that not all of its "
                     "threads reach",
                     id);
            failure = text;
        }
    }
}
// Runs all blocks; false where `failure` says what went wrong. `seed` 0: in order, 1: backwards,
// else shuffled.
inline bool launch(void (*kernel)(const void *), const void *args, int grid, int threads,
                   size_t shared_bytes, u64 seed) {
    failure.clear();
    num_loads = 0;
    random_state = seed * 0x9E3779B97F4A7C15ULL + 0x1234567;
    body = kernel, arguments = args;
    std::vector<int> order(grid);
    for (int i = 0; i < grid; i++) order[i] = seed == 1 ? grid - 1 - i : i;
    if (seed > 1)
        for (int i = grid - 1; i > 0; i--) std::swap(order[i], order[draw() % (i + 1)]);
    for (int id : order) {
        run_block(id, grid, threads, shared_bytes);
        if (!failure.empty()) break;
    }
    first_serial += (u32)grid;
    return failure.empty();
}
}  // namespace emu

// --- ids
LM_DEV int thread_id() { return emu::current->thread; }
LM_DEV int block_id() { return emu::block.id; }
LM_DEV int num_blocks() { return emu::block.grid; }

// --- numbers
struct bf16 {
    u16 bits;
};
struct f16 {
    u16 bits;
};
LM_DEV u32 float_bits(float x) { return emu::get<u32>(reinterpret_cast<u8 *>(&x)); }
LM_DEV float bits_float(u32 x) { return emu::get<float>(reinterpret_cast<u8 *>(&x)); }
LM_DEV float to_float(float x) { return x; }
LM_DEV float to_float(bf16 x) { return bits_float((u32)x.bits << 16); }
LM_DEV float to_float(f16 x) {
    const u32 sign = (u32)(x.bits & 0x8000) << 16, exponent = (x.bits >> 10) & 31,
              fraction = x.bits & 1023;
    if (exponent == 31) return bits_float(sign | 0x7f800000u | fraction << 13);
    if (exponent) return bits_float(sign | (exponent + 112) << 23 | fraction << 13);
    const float small = std::ldexp((float)fraction, -24);
    return sign ? -small : small;
}
template <class T>
LM_DEV T from_float(float x);
template <>
inline float from_float<float>(float x) {
    return x;
}
template <>
inline bf16 from_float<bf16>(float x) {
    const u32 bits = float_bits(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return {0x7fff};
    return {(u16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
template <>
inline f16 from_float<f16>(float x) {  // round to nearest, ties to even
    const u32 bits = float_bits(x), sign = (bits >> 16) & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000) return {0x7fff};
    if (size >= 0x477ff000) return {(u16)(sign | 0x7c00)};  // rounds to 65536 or more
    if (size < 0x38800000)
        return {(u16)(sign | (u32)std::nearbyint(std::ldexp(bits_float(size), 24)))};
    const u32 rounded = size + 0xfff + ((size >> 13) & 1);
    return {(u16)(sign | ((rounded >> 13) - (112 << 10)))};
}
template <class T>
LM_DEV u32 pack(float low, float high) {
    return (u32)from_float<T>(low).bits | (u32)from_float<T>(high).bits << 16;
}
template <class T>
LM_DEV u32 multiply_pairs(u32 a, u32 b) {
    float products[2];
    for (int i = 0; i < 2; i++)
        products[i] = to_float(T{(u16)(a >> 16 * i)}) * to_float(T{(u16)(b >> 16 * i)});
    return pack<T>(products[0], products[1]);
}
template <class T>
LM_DEV u32 add_pairs(u32 a, u32 b) {
    float sums[2];
    for (int i = 0; i < 2; i++)
        sums[i] = to_float(T{(u16)(a >> 16 * i)}) + to_float(T{(u16)(b >> 16 * i)});
    return pack<T>(sums[0], sums[1]);
}
LM_DEV float exp2_fast(float x) { return std::exp2(x); }
LM_DEV float log2_fast(float x) { return std::log2(x); }
LM_DEV float exp_exact(float x) { return std::exp(x); }
LM_DEV float log_exact(float x) { return std::log(x); }
LM_DEV float sqrt_exact(float x) { return std::sqrt(x); }
LM_DEV float divide(float x, float y) { return x / y; }
LM_DEV float divide_fast(float x, float y) { return x / y; }
LM_DEV float fused(float x, float y, float z) { return std::fma(x, y, z); }
LM_DEV double times(double x, double y) { return x * y; }

// --- memory
template <class T>
LM_DEV T shared_load(u32 at) {
    emu::check_shared(at, sizeof(T), alignof(T));
    emu::shared_is_read(at, sizeof(T));
    return emu::get<T>(emu::block.base + at);
}
template <class T>
LM_DEV void shared_store(u32 at, T value) {
    emu::check_shared(at, sizeof(T), alignof(T));
    emu::shared_is_written(at, sizeof(T));
    memcpy(emu::block.base + at, &value, sizeof value);
}
LM_DEV u32 shared_add(u32 at, u32 value) {
    emu::check_shared(at, 4, 4);
    emu::shared_is_written(at, 4, true);
    const u32 before = emu::get<u32>(emu::block.base + at);
    value += before;
    memcpy(emu::block.base + at, &value, sizeof value);
    return before;
}
template <class T>
LM_DEV T global_load(const T *from) {
    emu::global_is_read(from, sizeof(T), alignof(T));
    return emu::get<T>(reinterpret_cast<const u8 *>(from));
}
template <class T>
LM_DEV void global_store(T *to, T value) {
    emu::global_is_written(to, sizeof(T), alignof(T));
    memcpy(to, &value, sizeof value);
}
LM_DEV void copy_async(u32 to, const void *from, bool is_there) {
    emu::check_shared(to, 16, 16);
    if (is_there) emu::region_of(from, 16, 16);
    emu::shared_is_written(to, 16);
    memset(emu::block.base + to, 0xFF, 16);  // until it lands: NaN
    emu::current->open.push_back({to, from, is_there});
}
LM_DEV void copy_commit() {
    emu::current->groups.push_back(std::move(emu::current->open));
    emu::current->open.clear();
}
template <int pending>
LM_DEV void copy_wait() {
    emu::land(pending);
}

// --- threads together
LM_DEV void block_sync() { emu::barrier(); }
LM_DEV void warp_sync() {
    emu::together<int>(2, 0, [](const u8(*)[48], u8(*)[16]) {});
}
LM_DEV float swap_lanes(float x, int mask) { return emu::exchange(x, (thread_id() & 31) ^ mask); }
LM_DEV u32 swap_lanes(u32 x, int mask) { return emu::exchange(x, (thread_id() & 31) ^ mask); }
LM_DEV u64 swap_lanes(u64 x, int mask) { return emu::exchange(x, (thread_id() & 31) ^ mask); }
LM_DEV u64 lane_below(u64 x, int distance) {
    return emu::exchange(x, (thread_id() & 31) - distance);
}

// --- matrices
namespace emu {
struct Words {
    u32 word[4];
};
template <bool transposed, int count = 4>
inline void load_matrices(u32 *r, u32 at) {
    Words row = {};
    if ((current->thread & 31) < 8 * count) {  // the addresses of other lanes are not looked at
        check_shared(at, 16, 16);
        shared_is_read(at, 16);
        row = get<Words>(block.base + at);
    }
    const Words found = together<Words>(
        count == 2 ? 6 : transposed ? 4 : 3, row, [](const u8(*in)[48], u8(*out)[16]) {
            for (int lane = 0; lane < 32; lane++)
                for (int matrix = 0; matrix < count; matrix++)
                    for (int e = 0; e < 2; e++) {
                        const int row = transposed ? (lane & 3) * 2 + e : lane >> 2;
                        const int column = transposed ? lane >> 2 : (lane & 3) * 2 + e;
                        memcpy(out[lane] + matrix * 4 + e * 2, in[matrix * 8 + row] + column * 2,
                               2);
                    }
        });
    memcpy(r, found.word, 4 * count);
}
template <class T>
inline void matrix_product(const u8 (*in)[48], u8 (*out)[16]) {
    float a[16][16], b[16][8], c[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const T *pa = reinterpret_cast<const T *>(in[lane]), *pb = pa + 8;
        const int row = lane >> 2, column = (lane & 3) * 2;
        for (int i = 0; i < 8; i++)
            a[row + ((i >> 1) & 1) * 8][column + (i >> 2) * 8 + (i & 1)] = to_float(pa[i]);
        for (int i = 0; i < 4; i++) b[column + (i >> 1) * 8 + (i & 1)][row] = to_float(pb[i]);
        for (int i = 0; i < 4; i++)
            c[row + (i >> 1) * 8][column + (i & 1)] = get<float>(in[lane] + 24 + i * 4);
    }
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 8; j++) c[i][j] += a[i][k] * b[k][j];
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            memcpy(out[lane] + i * 4, &c[(lane >> 2) + (i >> 1) * 8][(lane & 3) * 2 + (i & 1)], 4);
}
}  // namespace emu
LM_DEV void load_matrices(u32 *r, u32 at) { emu::load_matrices<false>(r, at); }
LM_DEV void load_matrices_transposed(u32 *r, u32 at) { emu::load_matrices<true>(r, at); }
LM_DEV void load_two_transposed(u32 *r, u32 at) { emu::load_matrices<true, 2>(r, at); }
template <class T>
LM_DEV void multiply_add(float *c, const u32 *a, const u32 *b) {
    struct Given {
        u32 a[4], b[2];
        float c[4];
    } given;
    memcpy(given.a, a, 16), memcpy(given.b, b, 8), memcpy(given.c, c, 16);
    const emu::Words sums = emu::together<emu::Words>(5, given, emu::matrix_product<T>);
    memcpy(c, sums.word, 16);
}
