// One step of a decoder: the order of products, norms and attention, and who of the pool does what.
#pragma once
#include <math.h>
#include <string.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "adapters.h"
#include "attention_run.h"
#include "packing.h"
#include "product_task.h"
#include "routes.h"
#include "sampling.h"
#include "stretches.h"

namespace lmprog {

// Packed weights of a product, or of one a group; `outputs` are those of one.
struct Weights {
    const void *data;
    const float *bias;  // NULL: none
    int outputs, inputs, type;
};

// Panels of gate and up in turn, with what they become.
struct Gates {
    const void *data;
    const float *gate_bias, *up_bias;  // NULL: none
    int inner;
};

// A model with all that a step needs; one step at a time.
class Engine {
  public:
    Engine(const lmprog_model &model, const StepKernels *kernels, const Kernels *attention, int threads);

    const StepKernels *kernels() const { return kernels_; }
    int step(const lmprog_step &step, float *logits, int64_t stride);
    int predict(const lmprog_step &step, float *given, float *logits, int64_t stride);
    void sample(const lmprog_sampling &call);
    void take_adapters(const lmprog_low_rank *low_ranks, int count);

  private:
    // f32 rows, each filled up with zeros to `width` numbers.
    struct Rows {
        Scratch memory;
        float *data = nullptr;
        long width = 0;

        void take(long count, long columns) {
            width = up32(columns);
            data = memory.floats(count * width);
        }
        float *row(long index) const { return data + index * width; }
        Inputs inputs() const { return {reinterpret_cast<const char *>(data), width * 4, nullptr}; }
    };

    // Rows as a product wants them: `rows` themselves, or prepared in `memory`.
    struct Prepared {
        Scratch memory, scale_memory;
        Inputs inputs;
        float *scales = nullptr;
    };

    // Where adapters add: to the rows of the step, or, `by_place`, to those of their places in `adapted_`.
    struct Added {
        float *out;
        long stride;
        bool by_place;
    };

    // A piece of a thin product: sorted rows times panels of `raised`, or of the adapter's `down` where that is NULL.
    struct ThinPart {
        const lmprog_low_rank *low;
        const lmprog_raised *raised;
        int place, rows, panel, panels;
    };

    bool valid(const lmprog_step &step) const;
    bool valid_states(const lmprog_step &step) const;
    // Numbers that a layer's first product gives, and that its second takes.
    int projected(const lmprog_layer &layer) const;
    int mixed(const lmprog_layer &layer) const;
    const Layout &layout(const lmprog_layer &layer) const { return layouts_[&layer - layers_.data()]; }
    float *state(const lmprog_layer &layer, int slot) const { return layer.states + slot * state_floats_; }
    void take_memory(int count);
    void embed(const lmprog_step &step);
    void embed_per_layer(const lmprog_step &step);
    void turn(const lmprog_step &step);
    void copy_slots_of(const lmprog_step &step);
    void attend(const lmprog_layer &layer, const lmprog_step &step, bool only_keeps = false);
    float *given(int slot) const { return predictor_->given + slot * up32(model_.hidden); }
    void take_given();
    void keep_for_prediction(const lmprog_step &step);
    void join(const lmprog_step &step);
    void project(const lmprog_layer &layer);
    void gate_attended(const lmprog_layer &layer);
    void recur(const lmprog_layer &layer, const lmprog_step &step);
    void convolve(const lmprog_layer &layer);
    void prepare_head_row(const lmprog_layer &layer, long row);
    void recur_head(const lmprog_layer &layer, int head);
    void finish_head(const lmprog_layer &layer, int head, long row);
    void finish_whole_row(const lmprog_layer &layer, long row);
    void write_and_attend(const lmprog_layer &layer, const lmprog_step &step, bool only_keeps);
    void finish_row(const lmprog_layer &layer, const lmprog_step &step, long row);
    void norm_heads(const lmprog_layer &layer, float *q, float *k) const;
    void carry_on(long row, float times);
    void keep_wanted(const lmprog_step &step);
    void feed_forward(const lmprog_layer &layer);
    void finish_mixer(const lmprog_layer &layer);
    void square(float *x, long count) const;
    void dense(const lmprog_layer &layer, const void *gate_up, const void *down);
    void mixture(const lmprog_layer &layer);
    void both(const lmprog_layer &layer);
    void finish_layer(const lmprog_layer &layer);
    void route(const lmprog_layer &layer);
    void experts(const lmprog_layer &layer);
    void gather();
    void head(const float *norm, float *logits, int64_t stride);
    const Plan &plan_of(const lmprog_layer &layer, const lmprog_attention_batch &batch, bool alone);

    void open(Prepared &prepared, const Rows &rows, int count, int inputs);
    void prepare(Prepared &prepared, const Rows &rows, long row, int inputs) const;
    void norm_row(const float *x, const float *weight, float *out) const;
    void add_row(long row, const float *post_norm);
    void product(const Weights &weights, const Groups &groups, const Inputs &x, float *out, long stride);
    void gate_product(const Gates &gates, const Groups &groups, const Inputs &x, const Rows &to,
                      const Rows *added = nullptr);
    void adapt(const lmprog_layer &layer, int product, const Rows &x, const Added &to);
    const Rows *adapted_gates(const lmprog_layer &layer);
    template <class Of>
    void lower(Of &&low_rank);
    template <class Of>
    void raise(Of &&low_rank, const Added &to);
    void cut(const lmprog_low_rank &low, const lmprog_raised *raised, const AdapterGroup &group, int panels,
             int at_once);
    const Groups &whole() {  // all rows of the step meet the same product
        whole_[0] = {0, count_, 0};
        return whole_;
    }
    bool little(long work) const { return alone_ || work < kWorthSharing; }

    // Calls piece(first, last, worker) for blocks of rows.
    template <class Piece>
    void by_row(int count, long work_of_row, Piece &&piece) {
        const int block = 8, pieces = (count + block - 1) / block;
        workers_.share(pieces, little(work_of_row * count), [&](int index, int worker) {
            piece(index * block, std::min(count, (index + 1) * block), worker);
        });
    }

    // Calls piece(part, worker) for all rows of each group times its `panels` panels.
    template <class Piece>
    void by_panel(const Groups &groups, int panels, int inputs, Piece &&piece);

    static constexpr long kWorthSharing = 1000000;  // products of numbers: some tens of microseconds
    static constexpr long kWorthWakingToSample = 200000;  // logits: some tens of microseconds
    static constexpr long kWorthStep = 12000000;  // the same of a whole step

    const lmprog_model model_;
    const std::vector<lmprog_layer> layers_;
    const std::vector<lmprog_rope> ropes_;
    const StepKernels *kernels_;
    std::vector<Layout> layouts_;              // of each layer
    const lmprog_layer *last_kept_ = nullptr;  // what layers behind it compute, no later token sees
    const lmprog_layer *predictor_ = nullptr;  // the last layer, where it is for drafts only
    const Activation activation_;
    Workers workers_;
    AttentionRun attention_;
    std::vector<Scratch> scratch_;  // one each worker
    std::vector<SamplingSpace> sampling_;
    long weights_ = 0;              // that a token meets
    bool alone_ = false;            // this step is too little to wake anybody for
    int count_ = 0;                 // rows that are computed: tokens, then those whose logits are wanted

    Rows x_, normed_, qkv_, attended_, out_, inner_;
    Prepared hidden_in_, heads_in_, inner_in_;
    Rows given_, joined_;  // of a predictor: what all layers before it gave; an embedding, and what was given before
    Prepared joined_in_;
    Rows per_layer_, opened_;  // each layer's inputs; what comes of one's gate
    Prepared opened_in_;
    Groups whole_ = Groups(1);
    std::vector<Part> parts_;  // of the product at hand

    // Of recurrent layers.
    const long state_floats_;
    Stretches stretches_;
    Rows gates_;  // rates, then decays
    std::vector<float> q_norm_, k_norm_;

    // Of layers with a mixture: rows sorted by expert, one for each token and expert it goes through.
    Routes routes_;
    Rows scores_, expert_inner_, expert_out_, beside_;
    Prepared expert_in_, expert_inner_in_;

    // Of steps with adapters.
    const lmprog_low_rank *low_ranks_ = nullptr;
    int num_adapters_ = 0;
    AdaptedRows adapted_;
    Rows gathered_, lowered_, gates_added_;
    std::vector<ThinPart> thin_parts_;
    Scratch turns_;
    std::vector<float *> cosines_, sines_;  // of each rope: [tokens][rotary_dim / 2]

    struct SharedPlan {
        int window, kv_heads, group;
        std::unique_ptr<Plan> plan;
    };
    std::vector<SharedPlan> plans_;  // of this step
};

}  // namespace lmprog
