// The AVX2 path: bf16 memory is widened to f32.
#include "attention_task.h"

#if defined(__AVX2__) && defined(__FMA__)
#include "attention_kernel.h"
#include "vector_avx2.h"

namespace lmprog {
namespace {

void attend(const Task &task, float *scratch) {
    if (task.layout->kv_type == LMPROG_F32)
        Attention<F32<Avx2>>::attend(task, scratch);
    else if (task.layout->kv_type == LMPROG_INT8)
        Attention<WidenedBytes<Avx2>>::attend(task, scratch);
    else
        Attention<WidenedBf16<Avx2>>::attend(task, scratch);
}
constexpr Kernels kKernels = {"avx2", attend, merge_records<Avx2>};
}  // namespace
const Kernels *kernels_avx2() { return &kKernels; }
}  // namespace lmprog
#else
namespace lmprog {
const Kernels *kernels_avx2() { return nullptr; }
}  // namespace lmprog
#endif
