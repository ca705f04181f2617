// Products and rows with AVX-512 and its products of bytes (VNNI); bf16 is widened to f32.
#include "product_task.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && defined(__AVX512VNNI__)
#include "step_kernels.h"
#include "vector_avx512vnni.h"

namespace lmprog {
namespace {
constexpr StepKernels kKernels = Step<Avx512Vnni, WidenedBf16<Avx512Vnni>, DotInt8<Avx512Vnni>>::table("avx512vnni");
}  // namespace
const StepKernels *step_avx512vnni() { return &kKernels; }
}  // namespace lmprog
#else
namespace lmprog {
const StepKernels *step_avx512vnni() { return nullptr; }
}  // namespace lmprog
#endif
