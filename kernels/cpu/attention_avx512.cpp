// The AVX-512 path: bf16 memory is widened to f32.
#include "attention_task.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "attention_kernel.h"
#include "vector_avx512.h"

namespace lmprog {
namespace {
void attend(const Task &task, float *scratch) {
    if (task.layout->kv_type == LMPROG_F32)
        Attention<F32<Avx512>>::attend(task, scratch);
    else if (task.layout->kv_type == LMPROG_INT8)
        Attention<WidenedBytes<Avx512>>::attend(task, scratch);
    else
        Attention<WidenedBf16<Avx512>>::attend(task, scratch);
}
constexpr Kernels kKernels = {"avx512", attend, merge_records<Avx512>};
}  // namespace
const Kernels *kernels_avx512() { return &kKernels; }
}  // namespace lmprog
#else
namespace lmprog {
const Kernels *kernels_avx512() { return nullptr; }
}  // namespace lmprog
#endif
