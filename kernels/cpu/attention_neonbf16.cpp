// The NEON path of processors that multiply pairs of bf16, and bytes by fours: queries and weights are rounded to bf16
// too, or to digits.
#include "attention_task.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include "attention_kernel.h"
#include "digits.h"
#include "vector_neonbf16.h"

namespace lmprog {
namespace {

void attend(const Task &task, float *scratch) {
    if (task.layout->kv_type == LMPROG_F32)
        Attention<F32<Neon>>::attend(task, scratch);
    else if (task.layout->kv_type == LMPROG_INT8)
        Attention<Digits<NeonDot>>::attend(task, scratch);
    else
        Attention<NeonPairsBf16>::attend(task, scratch);
}
constexpr Kernels kKernels = {"neonbf16", attend, merge_records<Neon>};
}  // namespace
const Kernels *kernels_neonbf16() { return &kKernels; }
}  // namespace lmprog
#else
namespace lmprog {
const Kernels *kernels_neonbf16() { return nullptr; }
}  // namespace lmprog
#endif
