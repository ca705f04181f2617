// The path of every other machine: vectors of 4 f32.
#include "attention_kernel.h"
#include "vector_generic.h"

namespace lmprog {
namespace {

void attend(const Task &task, float *scratch) {
    if (task.layout->kv_type == LMPROG_F32)
        Attention<F32<Generic>>::attend(task, scratch);
    else if (task.layout->kv_type == LMPROG_INT8)
        Attention<WidenedBytes<Generic>>::attend(task, scratch);
    else
        Attention<WidenedBf16<Generic>>::attend(task, scratch);
}
constexpr Kernels kKernels = {"generic", attend, merge_records<Generic>};
}  // namespace
const Kernels *kernels_generic() { return &kKernels; }
}  // namespace lmprog
