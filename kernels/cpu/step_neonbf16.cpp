// Products and rows with NEON, its products of bytes and its pairs of bf16.
#include "product_task.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include "step_kernels.h"
#include "vector_neonbf16.h"

namespace lmprog {
namespace {
constexpr StepKernels kKernels = Step<Neon, NeonPairsBf16, SignedDotInt8<NeonDot>>::table("neonbf16");
}  // namespace
const StepKernels *step_neonbf16() { return &kKernels; }
}  // namespace lmprog
#else
namespace lmprog {
const StepKernels *step_neonbf16() { return nullptr; }
}  // namespace lmprog
#endif
