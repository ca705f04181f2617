// The AVX-512 path of processors that multiply pairs of bf16, and bytes by fours: queries and weights are rounded to bf16
// too, or to digits.
#include "attention_task.h"

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && \
    defined(__AVX512VNNI__)
#include "attention_kernel.h"
#include "digits.h"
#include "vector_avx512bf16.h"
#include "vector_avx512vnni.h"

namespace lmprog {
namespace {

void attend(const Task &task, float *scratch) {
    if (task.layout->kv_type == LMPROG_F32)
        Attention<F32<Avx512>>::attend(task, scratch);
    else if (task.layout->kv_type == LMPROG_INT8)
        Attention<Digits<Avx512Vnni>>::attend(task, scratch);
    else
        Attention<PairsBf16>::attend(task, scratch);
}
constexpr Kernels kKernels = {"avx512bf16", attend, merge_records<Avx512>};
}  // namespace
const Kernels *kernels_avx512bf16() { return &kKernels; }
}  // namespace lmprog
#else
namespace lmprog {
const Kernels *kernels_avx512bf16() { return nullptr; }
}  // namespace lmprog
#endif
