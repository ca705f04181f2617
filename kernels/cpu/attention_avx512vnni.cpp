// The AVX-512 path of processors that multiply bytes by fours (VNNI): int8 memory only is another than of "avx512".
#include "attention_task.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && defined(__AVX512VNNI__)
#include "attention_kernel.h"
#include "digits.h"
#include "vector_avx512vnni.h"

namespace lmprog {
namespace {

void attend(const Task &task, float *scratch) {
    if (task.layout->kv_type == LMPROG_INT8)
        Attention<Digits<Avx512Vnni>>::attend(task, scratch);
    else
        kernels_avx512()->attend(task, scratch);
}
constexpr Kernels kKernels = {"avx512vnni", attend, merge_records<Avx512>};
}  // namespace
const Kernels *kernels_avx512vnni() { return &kKernels; }
}  // namespace lmprog
#else
namespace lmprog {
const Kernels *kernels_avx512vnni() { return nullptr; }
}  // namespace lmprog
#endif
