// All kernels of one model: LM_TYPE (bf16, f16, float), LM_KV (how keys and values are kept: as
// LM_TYPE or e4m3) and LM_DIM (head size) say which. One compilation, one cubin.
#ifdef LM_EMULATED
#include "dev.cuh"
#endif
#include "elementwise.cuh"
#include "kv_copy.cuh"
#include "mask_sample.cuh"
#include "rope_append.cuh"
#include "score_rows.cuh"
#include "tree_attention_exact.cuh"
#include "tree_merge.cuh"

typedef TreeArgs<LM_TYPE, LM_KV> OwnTreeArgs;
typedef RopeArgs<LM_TYPE, LM_KV> OwnRopeArgs;
#if LM_EXACT
typedef ExactTile<LM_DIM> Exact;
LM_KERNEL(tree_attention_small, OwnTreeArgs, Exact::threads, 2) {
    tree_attention_exact<LM_KV, LM_DIM>(args);
}
#else
typedef TreeTile<LM_KV, LM_DIM> Tile;
LM_KERNEL(tree_attention_small, OwnTreeArgs, Tile::small_threads, 2) {
    tree_attention<LM_TYPE, LM_KV, LM_DIM, false>(args);
}
LM_KERNEL(tree_attention_large, OwnTreeArgs, Tile::large_threads, 1) {
    tree_attention<LM_TYPE, LM_KV, LM_DIM, true>(args);
}
#endif
LM_KERNEL(tree_merge, MergeArgs<LM_TYPE>, kMergeThreads, 4) { tree_merge<LM_TYPE, LM_DIM>(args); }
LM_KERNEL(rope_append, OwnRopeArgs, kRopeThreads, 4) {
    rope_append<LM_TYPE, LM_KV, LM_DIM>(args);
}
LM_KERNEL(norm_add, NormArgs<LM_TYPE>, kNormThreads, 4) { norm_add<LM_TYPE>(args); }
LM_KERNEL(silu_mul, SiluArgs<LM_TYPE>, kSiluThreads, 4) { silu_mul<LM_TYPE>(args); }
LM_KERNEL(mask_sample, SampleArgs, kSampleThreads, 1) { sample_picks(args); }
LM_KERNEL(score_rows, ScoreArgs, kScoreThreads, 4) { score_targets(args); }
LM_KERNEL(kv_copy, CopyArgs, kCopyThreads, 4) { copy_slots(args); }
