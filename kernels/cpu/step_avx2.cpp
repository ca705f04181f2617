// Products and rows with AVX2 and FMA.
#include "product_task.h"

#if defined(__AVX2__) && defined(__FMA__)
#include "step_kernels.h"
#include "vector_avx2.h"

namespace lmprog {
namespace {
constexpr StepKernels kKernels = Step<Avx2, WidenedBf16<Avx2>, WidenedInt8<Avx2>>::table("avx2");
}  // namespace
const StepKernels *step_avx2() { return &kKernels; }
}  // namespace lmprog
#else
namespace lmprog {
const StepKernels *step_avx2() { return nullptr; }
}  // namespace lmprog
#endif
