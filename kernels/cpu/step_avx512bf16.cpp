// Products and rows with all that AVX-512 has for small types: pairs of bf16, bytes by fours.
#include "product_task.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && \
    defined(__AVX512VNNI__) && defined(__AVX512BF16__)
#include "step_kernels.h"
#include "vector_avx512bf16.h"
#include "vector_avx512vnni.h"

namespace lmprog {
namespace {
constexpr StepKernels kKernels = Step<Avx512, PairsBf16, DotInt8<Avx512Vnni>>::table("avx512bf16");
}  // namespace
const StepKernels *step_avx512bf16() { return &kKernels; }
}  // namespace lmprog
#else
namespace lmprog {
const StepKernels *step_avx512bf16() { return nullptr; }
}  // namespace lmprog
#endif
