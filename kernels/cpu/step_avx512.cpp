// Products and rows with AVX-512: bf16 is widened to f32, bytes to 16 bits.
#include "product_task.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "step_kernels.h"
#include "vector_avx512.h"

namespace lmprog {
namespace {
constexpr StepKernels kKernels = Step<Avx512, WidenedBf16<Avx512>, WidenedInt8<Avx512>>::table("avx512");
}  // namespace
const StepKernels *step_avx512() { return &kKernels; }
}  // namespace lmprog
#else
namespace lmprog {
const StepKernels *step_avx512() { return nullptr; }
}  // namespace lmprog
#endif
