// Products and rows with NEON and its products of bytes.
#include "product_task.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#include "step_kernels.h"
#include "vector_neondot.h"

namespace lmprog {
namespace {
constexpr StepKernels kKernels = Step<NeonDot, WidenedBf16<NeonDot>, SignedDotInt8<NeonDot>>::table("neondot");
}  // namespace
const StepKernels *step_neondot() { return &kKernels; }
}  // namespace lmprog
#else
namespace lmprog {
const StepKernels *step_neondot() { return nullptr; }
}  // namespace lmprog
#endif
