// The NEON path of processors that multiply bytes by fours (dotprod): int8 memory only is another than of "neon".
#include "attention_task.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#include "attention_kernel.h"
#include "digits.h"
#include "vector_neondot.h"

namespace lmprog {
namespace {

void attend(const Task &task, float *scratch) {
    if (task.layout->kv_type == LMPROG_INT8)
        Attention<Digits<NeonDot>>::attend(task, scratch);
    else
        kernels_neon()->attend(task, scratch);
}
constexpr Kernels kKernels = {"neondot", attend, merge_records<Neon>};
}  // namespace
const Kernels *kernels_neondot() { return &kKernels; }
}  // namespace lmprog
#else
namespace lmprog {
const Kernels *kernels_neondot() { return nullptr; }
}  // namespace lmprog
#endif
