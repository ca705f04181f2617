// Products and rows with AVX2 and its products of bytes (AVX-VNNI).
#include "product_task.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__AVXVNNI__)
#include "step_kernels.h"
#include "vector_avx2vnni.h"

namespace lmprog {
namespace {
constexpr StepKernels kKernels = Step<Avx2Vnni, WidenedBf16<Avx2Vnni>, DotInt8<Avx2Vnni>>::table("avx2vnni");
}  // namespace
const StepKernels *step_avx2vnni() { return &kKernels; }
}  // namespace lmprog
#else
namespace lmprog {
const StepKernels *step_avx2vnni() { return nullptr; }
}  // namespace lmprog
#endif
