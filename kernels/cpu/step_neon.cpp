// Products and rows with NEON.
#include "product_task.h"

#if defined(__aarch64__)
#include "step_kernels.h"
#include "vector_neon.h"

namespace lmprog {
namespace {
constexpr StepKernels kKernels = Step<Neon, WidenedBf16<Neon>, WidenedInt8<Neon>>::table("neon");
}  // namespace
const StepKernels *step_neon() { return &kKernels; }
}  // namespace lmprog
#else
namespace lmprog {
const StepKernels *step_neon() { return nullptr; }
}  // namespace lmprog
#endif
