// Products and rows on every other machine.
#include "step_kernels.h"
#include "vector_generic.h"

namespace lmprog {
namespace {
constexpr StepKernels kKernels = Step<Generic, WidenedBf16<Generic>, WidenedInt8<Generic>>::table("generic");
}  // namespace
const StepKernels *step_generic() { return &kKernels; }
}  // namespace lmprog
