// The C interface of kernels/include/lmprog_engine.h: choice of the instruction set, and packing.
#include "lmprog_engine.h"

#include "engine_step.h"
#include "processor.h"

using namespace lmprog;

struct lmprog_engine {
    Engine engine;
};

namespace {

constexpr const char *kPaths[] = {"avx512bf16", "avx512vnni", "avx512", "avx2vnni", "avx2",
                                  "neonbf16",   "neondot",    "neon",   "generic"};

// The kernels of a path, NULL where this processor or this build lacks it.
const StepKernels *step_kernels(const char *path) {
    if (!runs_here(path)) return nullptr;
    if (!strcmp(path, "avx512bf16")) return step_avx512bf16();
    if (!strcmp(path, "avx512vnni")) return step_avx512vnni();
    if (!strcmp(path, "avx512")) return step_avx512();
    if (!strcmp(path, "avx2vnni")) return step_avx2vnni();
    if (!strcmp(path, "avx2")) return step_avx2();
    if (!strcmp(path, "neonbf16")) return step_neonbf16();
    if (!strcmp(path, "neondot")) return step_neondot();
    if (!strcmp(path, "neon")) return step_neon();
    return step_generic();
}

const StepKernels *chosen(const char *path) {
    for (const char *name : kPaths)
        if (path == nullptr || !strcmp(path, name)) {
            const StepKernels *found = step_kernels(name);
            if (found != nullptr && attention_kernels(name) != nullptr) return found;
        }
    return nullptr;
}

}  // namespace

extern "C" {

int64_t lmprog_engine_packed_bytes(const lmprog_product *product) {
    return up32(product->outputs) / kPanel * panel_bytes(product->type, up32(product->inputs));
}

void lmprog_engine_pack(const lmprog_product *product, void *packed, const lmprog_rows *rows, int32_t first_row,
                        int32_t end_row) {
    pack_rows(*product, packed, *rows, first_row, end_row);
}

void lmprog_engine_unpack(const lmprog_product *product, const void *packed, int32_t output, float *to) {
    unpack_row(panels_of(packed, product->type, product->outputs, product->inputs), output, product->inputs, to);
}

lmprog_engine *lmprog_engine_open(const lmprog_model *model, int32_t threads, const char *path) {
    const StepKernels *kernels = chosen(path);
    if (kernels == nullptr || threads < 1) return nullptr;
    return new lmprog_engine{{*model, kernels, attention_kernels(kernels->name), threads}};
}

const char *lmprog_engine_path(const lmprog_engine *handle) { return handle->engine.kernels()->name; }

const char *lmprog_engine_best_path(void) { return chosen(nullptr)->name; }

void lmprog_engine_close(lmprog_engine *handle) { delete handle; }

void lmprog_engine_adapters(lmprog_engine *handle, const lmprog_low_rank *low_ranks, int32_t count) {
    handle->engine.take_adapters(low_ranks, count);
}

int32_t lmprog_engine_step(lmprog_engine *handle, const lmprog_step *step, float *logits, int64_t stride) {
    return handle->engine.step(*step, logits, stride);
}

int32_t lmprog_engine_predict(lmprog_engine *handle, const lmprog_step *step, float *given, float *logits, int64_t stride) {
    return handle->engine.predict(*step, given, logits, stride);
}

void lmprog_engine_sample(lmprog_engine *handle, const lmprog_sampling *sampling) { handle->engine.sample(*sampling); }

int32_t lmprog_engine_multiply(const char *path, const lmprog_product *product, const void *packed, const float *x,
                               int32_t rows, float *out, int64_t stride) {
    const StepKernels *kernels = step_kernels(path);
    if (kernels == nullptr) return 1;
    const Panels panels = panels_of(packed, product->type, product->outputs, product->inputs);
    const long bytes = kernels->input_bytes(product->type, panels.inputs);
    Scratch memory, scale_memory;
    float *scales = scale_memory.floats(rows);
    Inputs inputs = {reinterpret_cast<const char *>(x), panels.inputs * 4L, scales};
    if (bytes > 0) {
        char *prepared = reinterpret_cast<char *>(memory.floats((bytes * rows + 3) / 4));
        for (int r = 0; r < rows; r++)
            kernels->prepare(product->type, x + static_cast<long>(r) * panels.inputs, panels.inputs,
                             prepared + r * bytes, scales + r);
        inputs = {prepared, bytes, scales};
    }
    kernels->multiply({&panels, &inputs, 0, rows, 0, panels.count, out, stride});
    return 0;
}

}  // extern "C"
