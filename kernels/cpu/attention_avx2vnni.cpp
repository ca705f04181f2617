// The AVX2 path of processors that multiply bytes by fours (AVX-VNNI): int8 memory only is another than of "avx2".
#include "attention_task.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__AVXVNNI__)
#include "attention_kernel.h"
#include "digits.h"
#include "vector_avx2vnni.h"

namespace lmprog {
namespace {

void attend(const Task &task, float *scratch) {
    if (task.layout->kv_type == LMPROG_INT8)
        Attention<Digits<Avx2Vnni>>::attend(task, scratch);
    else
        kernels_avx2()->attend(task, scratch);
}
constexpr Kernels kKernels = {"avx2vnni", attend, merge_records<Avx2>};
}  // namespace
const Kernels *kernels_avx2vnni() { return &kKernels; }
}  // namespace lmprog
#else
namespace lmprog {
const Kernels *kernels_avx2vnni() { return nullptr; }
}  // namespace lmprog
#endif
