// What the engine asks of the kernels of one instruction set. Plain data and pointers only, for the same reason as in
// attention_task.h: nothing here may emit code.
#pragma once
#include <stdint.h>

#include "lmprog_engine.h"

namespace lmprog {

enum : int {
    kPanel = 32,         // outputs of a panel
    kGroup = 32,         // inputs of int4 that share a scale
    kMostRows = 96,      // rows of one piece of a product
    kGroupBytes = kPanel * kGroup / 2 + kPanel * 4,  // int4: nibbles of a group, then its scales
};

static constexpr long up32(long n) { return (n + 31) / 32 * 32; }

// Packed weights; see lmprog_engine.h.
struct Panels {
    const char *data;
    int type, inputs, count;  // inputs filled up; panels
    long stride;              // bytes of a panel
};

static constexpr long panel_bytes(int type, long inputs) {
    return type == LMPROG_F32    ? kPanel * inputs * 4
           : type == LMPROG_BF16 ? kPanel * inputs * 2
           : type == LMPROG_INT8 ? kPanel * inputs + 2 * kPanel * 4  // then scales, and 128 * sums of weights
                                 : inputs / kGroup * kGroupBytes;
}

static constexpr Panels panels_of(const void *data, int type, long outputs, long inputs) {
    return Panels{static_cast<const char *>(data), type, static_cast<int>(up32(inputs)),
                  static_cast<int>(up32(outputs) / kPanel), panel_bytes(type, up32(inputs))};
}

// Rows of inputs in the form that a path multiplies them in.
struct Inputs {
    const char *data;
    long stride;          // bytes
    const float *scales;  // int8, int4: one a row
};

// Rows first_row .. of `x` times panels first_panel .. : out[row][panel * 32 + lane], rows `stride` apart; the first
// row and panel go to `out` itself.
struct Multiply {
    const Panels *weights;
    const Inputs *x;
    int first_row, rows, first_panel, panels;
    float *out;
    long stride;
};

enum : int { kSigmoid = -1 };  // beside the activations of lmprog_engine.h: up * sigmoid(gate)

struct Activation {
    int kind;
    float slope, limit;  // of the clamped one
};

// A causal convolution of `channels` (a multiple of 16) over tokens that follow one another: see lmprog_recurrent.
struct Convolution {
    const float *x;                     // [tokens], `stride` apart
    const float *opening, *closing;     // what x and the result are multiplied with, `stride` apart; NULL: nothing
    float *out;                         // [tokens], `out_stride` apart; may be x
    long stride, out_stride;
    float *before;                      // [taps - 1] tokens `width` apart, the oldest first; become the last ones
    const float *weights, *bias;        // [taps], `width` apart; bias NULL: none
    long width;
    int taps, tokens, channels;
    bool activated;                     // by silu
};

// A head's matrix over tokens that follow one another: see lmprog_recurrent.
struct Recurrence {
    float *state;           // [values filled up to panels][keys][32]
    const float *q, *k, *v; // [tokens], `stride` apart
    long stride;
    float *out;             // [tokens], `out_stride` apart
    long out_stride;
    const float *rates, *decays;  // [tokens], `gate_stride` apart
    long gate_stride;
    int keys, values, tokens;     // values: a multiple of 16
    bool corrects;                // the delta net does
};

struct StepKernels {
    const char *name;
    void (*multiply)(const Multiply &task);
    // Bytes of a row in the form that products of `type` want; 0: f32 as it is, nothing to prepare.
    long (*input_bytes)(int type, long inputs);
    // `x` [inputs, a multiple of 32] in that form, with its scale.
    void (*prepare)(int type, const float *x, long inputs, char *to, float *scale);
    // The other vectors have multiples of 16 numbers where nothing else is said.
    void (*add)(float *x, const float *y, float scale, long count);                       // x += y * scale
    // x / sqrt(mean of squares + eps) * weight: the mean over `size`, the numbers beyond are zeros; any size.
    void (*norm)(const float *x, const float *weight, float eps, long size, float *out);
    // Pairs (x[i], x[i + half]) turned by their angles.
    void (*rotate)(float *x, const float *cosines, const float *sines, int half);
    // See lmprog_engine.h.
    void (*activate)(const Activation &how, const float *gate, const float *up, float *out, long count);
    void (*bound)(float *x, float scale, float cap, long count);  // x * scale, then cap * tanh(x / cap) if cap > 0
    void (*convolve)(const Convolution &task);
    void (*recur)(const Recurrence &task);
    // Passes over a row of logits, any count.
    // The greatest number and where it first is; false where one is infinite or none.
    bool (*best)(const float *x, long count, float *best, long *at);
    // relative = (x - best) / temperature, which may be x itself; widths = exp(relative) * scale.
    void (*widths)(const float *x, float best, float temperature, float scale, float *relative, float *widths,
                   long count);
    int64_t (*whole_sum)(const float *x, long count);              // of whole parts, all at least 0
    float (*exp_sum)(const float *x, float best, long count);      // of exp(x - best)
};

// NULL where the unit was compiled without its instruction set.
const StepKernels *step_generic();
const StepKernels *step_avx2();
const StepKernels *step_avx2vnni();
const StepKernels *step_avx512();
const StepKernels *step_avx512vnni();
const StepKernels *step_avx512bf16();
const StepKernels *step_neon();
const StepKernels *step_neondot();
const StepKernels *step_neonbf16();

}  // namespace lmprog
