// The kernels of one compilation (LM_PRODUCTS says which) as a host library: each launch runs on the
// emulator of the device layer. For tests.
#define LM_EMULATED 1
#if LM_PRODUCTS
#include "products.cu"
#else
#include "module.cu"
#endif

namespace {
struct Entry {
    const char *name;
    void (*run)(const void *);
    int argument_bytes, threads;
    unsigned shared_bytes;
};

template <class Args, void (*kernel)(const Args &)>
void run(const void *args) {
    kernel(*static_cast<const Args *>(args));
}
#define LM_ENTRY(name, shared)                                                                   \
    {#name, run<name##_arguments, name##_kernel>, (int)sizeof(name##_arguments), name##_threads, \
     shared}

#if LM_EXACT
#define LM_PRODUCT_ENTRIES(kind) LM_ENTRY(product_##kind##_few, 0), LM_ENTRY(unpack_##kind, 0)
#else
#define LM_PRODUCT_ENTRIES(kind)                          \
    LM_ENTRY(product_##kind##_few, FewTokens::bytes),     \
        LM_ENTRY(product_##kind##_many, ManyTokens::bytes), LM_ENTRY(unpack_##kind, 0)
#endif

const Entry entries[] = {
#if LM_PRODUCTS
    LM_PRODUCT_ENTRIES(int8), LM_PRODUCT_ENTRIES(int4), LM_PRODUCT_ENTRIES(fp8),
#else
#if LM_EXACT
    LM_ENTRY(tree_attention_small, Exact::bytes),
#else
    LM_ENTRY(tree_attention_small, Tile::small_bytes),
    LM_ENTRY(tree_attention_large, Tile::large_bytes),
#endif
    LM_ENTRY(tree_merge, 0),
    LM_ENTRY(rope_append, 0),
    LM_ENTRY(norm_add, kNormThreads / 32 * 4),
    LM_ENTRY(silu_mul, 0),
    LM_ENTRY(mask_sample, kSampleBytes),
    LM_ENTRY(score_rows, kScoreBytes),
    LM_ENTRY(kv_copy, 0),
#endif
};
}  // namespace

#define LM_API extern "C" __attribute__((visibility("default")))

// What kernel number `index` is, and what it wants; 0 where there is none of that number.
LM_API int lmprog_emulator_kernel(int index, const char **name, int *argument_bytes, int *threads,
                                  unsigned *shared_bytes) {
    if (index < 0 || index >= (int)(sizeof entries / sizeof *entries)) return 0;
    const Entry &entry = entries[index];
    *name = entry.name, *argument_bytes = entry.argument_bytes, *threads = entry.threads,
    *shared_bytes = entry.shared_bytes;
    return 1;
}
// Memory that kernels may touch from now on, until it is forgotten.
LM_API void lmprog_emulator_allow(const void *begin, size_t bytes) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(begin);
    emu::regions.push_back({at, at + bytes, {}});
}
LM_API void lmprog_emulator_forget(const void *begin) {
    auto &all = emu::regions;
    all.erase(std::remove_if(all.begin(), all.end(),
                             [&](const emu::Region &one) {
                                 return one.begin == reinterpret_cast<uintptr_t>(begin);
                             }),
              all.end());
    emu::last_region = 0;
}
// Runs a kernel to its end; null, or what it did wrong (valid until the next launch).
LM_API const char *lmprog_emulator_launch(int index, const void *args, int grid, int threads,
                                          unsigned shared_bytes, u64 seed) {
    return emu::launch(entries[index].run, args, grid, threads, shared_bytes, seed)
               ? nullptr
               : emu::failure.c_str();
}
// Bytes of global memory that the last launch read.
LM_API u64 lmprog_emulator_loads() { return emu::num_loads; }
