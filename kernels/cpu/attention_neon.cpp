// The NEON path: bf16 memory is widened to f32.
#include "attention_task.h"

#if defined(__aarch64__)
#include "attention_kernel.h"
#include "vector_neon.h"

namespace lmprog {
namespace {

void attend(const Task &task, float *scratch) {
    if (task.layout->kv_type == LMPROG_F32)
        Attention<F32<Neon>>::attend(task, scratch);
    else if (task.layout->kv_type == LMPROG_INT8)
        Attention<WidenedBytes<Neon>>::attend(task, scratch);
    else
        Attention<WidenedBf16<Neon>>::attend(task, scratch);
}
constexpr Kernels kKernels = {"neon", attend, merge_records<Neon>};
}  // namespace
const Kernels *kernels_neon() { return &kKernels; }
}  // namespace lmprog
#else
namespace lmprog {
const Kernels *kernels_neon() { return nullptr; }
}  // namespace lmprog
#endif
