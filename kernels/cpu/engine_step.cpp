#include "engine_step.h"

namespace lmprog {
namespace {

// 2 * half numbers: the first of each two, then the second ones.
void part_pairs(float *x, long half) {
    float seconds[256];
    for (long i = 0; i < half; i++) {
        seconds[i] = x[2 * i + 1];
        x[i] = x[2 * i];
    }
    std::copy(seconds, seconds + half, x + half);
}

}  // namespace

Engine::Engine(const lmprog_model &model, const StepKernels *kernels, const Kernels *attention, int threads)
    : model_(model),
      layers_(model.layers, model.layers + model.num_layers),
      ropes_(model.ropes, model.ropes + model.num_ropes),
      kernels_(kernels),
      activation_{model.activation, model.activation_slope, model.activation_limit},
      workers_(threads),
      attention_(attention, threads),
      scratch_(threads),
      sampling_(threads),
      state_floats_(lmprog_engine_state_bytes(&model.recurrent) / 4),
      q_norm_(std::max(1, model.recurrent.key_dim), 1.0f / static_cast<float>(std::max(1, model.recurrent.key_dim))),
      k_norm_(q_norm_.size(), sqrtf(q_norm_[0])),
      cosines_(ropes_.size()),
      sines_(ropes_.size()) {
    for (const lmprog_layer &layer : layers_) {
        layouts_.push_back(layout_of(layer.shape));
        if (layer.qkv != nullptr && !layer.reads) last_kept_ = &layer;
        if (layer.join != nullptr) predictor_ = &layer;
        const lmprog_mixture &mixture = model.mixture;
        const long met = mixture.used + mixture.shared;
        const long inner = layer.inner + (layer.router == nullptr ? 0 : met * mixture.inner);
        weights_ += model.hidden * ((layer.qkv == nullptr ? 0 : projected(layer) + mixed(layer)) + 3 * inner);
    }
}

int Engine::projected(const lmprog_layer &layer) const {
    const lmprog_recurrent &r = model_.recurrent;
    const Layout &l = layout(layer);
    if (layer.states == nullptr)
        return ((1 + model_.gated_attention) * l.kv_heads * l.group + (layer.reads ? 0 : 2 * l.kv_heads)) * l.head_dim;
    return r.kind == LMPROG_SHORT_CONV ? 3 * r.channels : r.channels + r.heads * r.value_dim;
}

int Engine::mixed(const lmprog_layer &layer) const {
    const lmprog_recurrent &r = model_.recurrent;
    const Layout &l = layout(layer);
    if (layer.states == nullptr) return l.kv_heads * l.group * l.head_dim;
    return r.kind == LMPROG_SHORT_CONV ? r.channels : r.heads * r.value_dim;
}

int Engine::step(const lmprog_step &step, float *logits, int64_t stride) {
    if (!valid(step)) return 1;
    count_ = step.num_tokens;
    alone_ = workers_.count() == 1 || weights_ * count_ < kWorthStep;
    plans_.clear();
    take_memory(count_);
    adapted_.take(step.adapters, count_);
    copy_slots_of(step);
    embed(step);
    if (model_.per_layer > 0) embed_per_layer(step);
    turn(step);
    if (model_.recurrent.kind != 0) stretches_.take(step, model_.recurrent.num_slots);
    for (const lmprog_layer &layer : layers_) {
        if (&layer == predictor_) break;
        if (layer.states != nullptr)
            recur(layer, step);
        else if (layer.qkv != nullptr)
            attend(layer, step);
        if (&layer == last_kept_ && step.num_logits == 0) return 0;  // nobody asks for what comes after
        if (&layer == &layers_.back()) keep_wanted(step);
        if (count_ == 0) return 0;
        if (layer.qkv != nullptr) finish_mixer(layer);
        if (layer.gate_up != nullptr) feed_forward(layer);
        finish_layer(layer);
    }
    if (predictor_ != nullptr) {
        take_given();
        keep_wanted(step);
    }
    if (count_ > 0) head(model_.norm, logits, stride);
    if (predictor_ != nullptr) keep_for_prediction(step);
    return 0;
}

// What goes out of attention, or of a recurrent layer.
void Engine::finish_mixer(const lmprog_layer &layer) {
    const int inputs = mixed(layer);
    by_row(count_, model_.hidden, [&](int first, int last, int) {
        for (int r = first; r < last; r++) {
            std::fill(attended_.row(r) + inputs, attended_.row(r) + up32(inputs), 0.0f);
            prepare(heads_in_, attended_, r, static_cast<int>(up32(inputs)));
        }
    });
    product({layer.out, layer.out_bias, model_.hidden, inputs, model_.weight_type}, whole(), heads_in_.inputs, out_.data,
            out_.width);
    adapt(layer, LMPROG_ADAPTED_OUT, attended_, {out_.data, out_.width, false});
    if (layer.gate_up != nullptr) return;  // the feed-forward adds it
    by_row(count_, 2L * model_.hidden, [&](int first, int last, int) {
        for (int r = first; r < last; r++) add_row(r, layer.attention_post_norm);
    });
}

bool Engine::valid(const lmprog_step &step) const {
    for (int i = 0; i < step.num_tokens; i++)
        if (step.tokens[i] < 0 || step.tokens[i] >= model_.vocab || step.positions[i] < 0) return false;
    for (int i = 0; i < step.num_logits; i++)
        if (step.logit_tokens[i] <= (i == 0 ? -1 : step.logit_tokens[i - 1]) || step.logit_tokens[i] >= step.num_tokens)
            return false;
    for (int i = 0; step.adapters != nullptr && i < step.num_tokens; i++)
        if (step.adapters[i] < 0 || step.adapters[i] > num_adapters_) return false;
    for (const lmprog_layer &layer : layers_)
        if (layer.apart && (step.apart == nullptr || (step.num_copies > 0 && step.copies_apart == nullptr))) return false;
    return model_.recurrent.kind == 0 || step.state_sources == nullptr || valid_states(step);
}

bool Engine::valid_states(const lmprog_step &step) const {
    const int slots = model_.recurrent.num_slots, rows = step.rows.num_rows;
    for (int r = 0; r < rows; r++)
        for (const int slot : {step.state_sources[r], step.state_targets[r]})
            if (slot < -1 || slot >= slots) return false;
    for (int i = 0; i < step.num_snapshots; i++) {
        const int row = step.snapshots[3 * i], after = step.snapshots[3 * i + 1], slot = step.snapshots[3 * i + 2];
        if (row < 0 || row >= rows || slot < 0 || slot >= slots || after < 1) return false;
        if (after > step.rows.row_starts[row + 1] - step.rows.row_starts[row]) return false;
    }
    return true;
}

void Engine::take_memory(int count) {
    int most_projected = 0, most_mixed = 0, most_inner = 0;
    for (const lmprog_layer &layer : layers_) {
        most_projected = std::max(most_projected, projected(layer));
        most_mixed = std::max(most_mixed, mixed(layer));
        most_inner = std::max(most_inner, layer.inner);
    }
    x_.take(count, model_.hidden);
    normed_.take(count, model_.hidden);
    out_.take(count, model_.hidden);
    qkv_.take(count, most_projected);
    attended_.take(count, most_mixed);
    if (model_.recurrent.heads > 0) gates_.take(count, 2L * model_.recurrent.heads);
    inner_.take(count, most_inner);
    open(hidden_in_, normed_, count, static_cast<int>(normed_.width));
    open(heads_in_, attended_, count, static_cast<int>(attended_.width));
    open(inner_in_, inner_, count, static_cast<int>(inner_.width));
    if (model_.per_layer > 0) {
        per_layer_.take(count, static_cast<long>(model_.num_layers) * model_.per_layer);
        opened_.take(count, model_.per_layer);
        open(opened_in_, opened_, count, static_cast<int>(opened_.width));
    }
    if (predictor_ != nullptr) {
        given_.take(count, model_.hidden);
        joined_.take(count, 2L * model_.hidden);
        open(joined_in_, joined_, count, static_cast<int>(joined_.width));
    }
    if (model_.mixture.experts > 0) {
        beside_.take(count, model_.hidden);
        const int sorted = count * (model_.mixture.used + model_.mixture.shared);
        scores_.take(count, model_.mixture.experts + 1);
        expert_inner_.take(sorted, model_.mixture.inner);
        expert_out_.take(sorted, model_.hidden);
        open(expert_inner_in_, expert_inner_, sorted, static_cast<int>(expert_inner_.width));
    }
}

void Engine::copy_slots_of(const lmprog_step &step) {
    if (step.num_copies == 0) return;
    workers_.share(model_.num_layers, false, [&](int index, int) {
        const lmprog_layer &layer = layers_[index];
        if (layer.keys != nullptr && !layer.reads)
            lmprog_attention_copy(&layer.shape, layer.keys, layer.values, layer.apart ? step.copies_apart : step.copies,
                                  step.num_copies);
    });
}

void Engine::embed(const lmprog_step &step) {
    const Panels head = panels_of(model_.head, model_.weight_type, model_.vocab, model_.hidden);
    by_row(count_, 32L * model_.hidden, [&](int first, int last, int) {
        for (int r = first; r < last; r++) {
            float *x = x_.row(r);
            if (model_.embedding == nullptr)
                unpack_row(head, step.tokens[r], model_.hidden, x);
            else
                read_row(model_.embedding, model_.embedding_type, model_.hidden, step.tokens[r], model_.hidden, x);
            if (model_.embedding_scale != 1.0f)
                for (int i = 0; i < model_.hidden; i++) x[i] *= model_.embedding_scale;
            std::fill(x + model_.hidden, x + x_.width, 0.0f);
        }
    });
}

// Each layer's own input of each token.
void Engine::embed_per_layer(const lmprog_step &step) {
    const int size = model_.per_layer, all = model_.num_layers * size;
    by_row(count_, model_.hidden, [&](int first, int last, int) {
        for (int r = first; r < last; r++) {
            norm_row(x_.row(r), nullptr, normed_.row(r));
            prepare(hidden_in_, normed_, r, static_cast<int>(normed_.width));
        }
    });
    product({model_.per_layer_projection, nullptr, all, model_.hidden, model_.weight_type}, whole(), hidden_in_.inputs,
            per_layer_.data, per_layer_.width);
    const float eps = model_.norm_eps * static_cast<float>(model_.hidden);  // as if divided by the root of hidden
    const float root = sqrtf(static_cast<float>(size)), half = sqrtf(0.5f);
    for (Scratch &scratch : scratch_) scratch.floats(all);
    by_row(count_, 4L * all, [&](int first, int last, int worker) {
        float *own = scratch_[worker].floats(0);
        for (int r = first; r < last; r++) {
            read_row(model_.per_layer_embedding, model_.per_layer_type, all, step.tokens[r], all, own);
            for (int at = 0; at < all; at += size) {
                float *x = per_layer_.row(r) + at;
                kernels_->norm(x, model_.per_layer_norm, eps, size, x);
                for (int i = 0; i < size; i++) x[i] = (x[i] + root * own[at + i]) * half;
            }
        }
    });
}

// Cosines and sines of the step's positions, once for all layers.
void Engine::turn(const lmprog_step &step) {
    long total = 0;
    for (const lmprog_rope &rope : ropes_) total += static_cast<long>(count_) * rope.rotary_dim;
    float *at = turns_.floats(total);
    for (size_t i = 0; i < ropes_.size(); i++) {
        const lmprog_rope &rope = ropes_[i];
        const long half = rope.rotary_dim / 2;
        cosines_[i] = at;
        sines_[i] = at + count_ * half;
        at += 2 * count_ * half;
        by_row(count_, 64 * half, [&](int first, int last, int) {
            for (long r = first; r < last; r++)
                for (long d = 0; d < half; d++) {
                    const float angle = static_cast<float>(step.positions[r]) * rope.frequencies[d];
                    cosines_[i][r * half + d] = rope.amplitude * cosf(angle);
                    sines_[i][r * half + d] = rope.amplitude * sinf(angle);
                }
        });
    }
}

// The layer's first product of all rows, normalized before.
void Engine::project(const lmprog_layer &layer) {
    by_row(count_, 4L * model_.hidden, [&](int first, int last, int) {
        for (int r = first; r < last; r++) {
            norm_row(x_.row(r), layer.attention_norm, normed_.row(r));
            carry_on(r, layer.carried);
            prepare(hidden_in_, normed_, r, static_cast<int>(normed_.width));
        }
    });
    product({layer.qkv, layer.qkv_bias, projected(layer), model_.hidden, model_.weight_type}, whole(),
            hidden_in_.inputs, qkv_.data, qkv_.width);
    adapt(layer, LMPROG_ADAPTED_QKV, normed_, {qkv_.data, qkv_.width, false});
}

void Engine::attend(const lmprog_layer &layer, const lmprog_step &step, bool only_keeps) {
    project(layer);
    by_row(count_, 4L * projected(layer), [&](int first, int last, int) {
        for (int r = first; r < last; r++) finish_row(layer, step, r);
    });
    write_and_attend(layer, step, only_keeps);
}

// Norms and rotation of one row's queries and keys; the norm of its values.
void Engine::finish_row(const lmprog_layer &layer, const lmprog_step &step, long row) {
    const Layout &l = layout(layer);
    const int heads = l.kv_heads * l.group, kv_heads = layer.reads ? 0 : l.kv_heads, dim = l.head_dim;
    float *q = qkv_.row(row), *k = q + static_cast<long>(heads) * dim;
    for (int h = 0; layer.v_norm != nullptr && h < kv_heads; h++) {
        float *v = k + (static_cast<long>(kv_heads) + h) * dim;
        kernels_->norm(v, layer.v_norm, model_.norm_eps, dim, v);
    }
    if (model_.norms_rotated == 0) norm_heads(layer, q, k);
    const long half = layer.rope < 0 ? 0 : ropes_[layer.rope].rotary_dim / 2;
    for (int h = 0; layer.rope >= 0 && h < heads + kv_heads; h++) {
        float *x = q + static_cast<long>(h) * dim;
        // Neighbours come apart: scores are the same where queries and keys have the same order.
        if (model_.rotates_pairs != 0) part_pairs(x, half);
        const float *sines = sines_[layer.rope] + row * half;
        kernels_->rotate(x, cosines_[layer.rope] + row * half, sines, static_cast<int>(half));
    }
    if (model_.norms_rotated != 0) norm_heads(layer, q, k);
    if (model_.growth == 0.0f) return;
    const float times = 1.0f + model_.growth * logf(1.0f + static_cast<float>(step.positions[row] / model_.grows_every));
    for (long i = 0; i < static_cast<long>(heads) * dim; i++) q[i] *= times;
}

void Engine::norm_heads(const lmprog_layer &layer, float *q, float *k) const {
    if (layer.q_norm == nullptr) return;
    const Layout &l = layout(layer);
    const int heads = l.kv_heads * l.group, kv_heads = layer.reads ? 0 : l.kv_heads, dim = l.head_dim;
    if (model_.qk_norm_wide) {
        kernels_->norm(q, layer.q_norm, model_.norm_eps, static_cast<long>(heads) * dim, q);
        kernels_->norm(k, layer.k_norm, model_.norm_eps, static_cast<long>(kv_heads) * dim, k);
        return;
    }
    for (int h = 0; h < heads + kv_heads; h++) {
        float *x = q + static_cast<long>(h) * dim;
        kernels_->norm(x, h < heads ? layer.q_norm : layer.k_norm, model_.norm_eps, dim, x);
    }
}

void Engine::write_and_attend(const lmprog_layer &layer, const lmprog_step &step, bool only_keeps) {
    const Layout &l = layout(layer);
    const lmprog_attention_batch &rows = layer.apart ? *step.apart : step.rows;
    const long heads = static_cast<long>(l.kv_heads) * l.group, dim = l.head_dim;
    const lmprog_attention_array q = {qkv_.data, qkv_.width, LMPROG_F32};
    const lmprog_attention_array k = {qkv_.data + heads * dim, qkv_.width, LMPROG_F32};
    const lmprog_attention_array v = {qkv_.data + (heads + l.kv_heads) * dim, qkv_.width, LMPROG_F32};
    const lmprog_attention_array out = {attended_.data, attended_.width, LMPROG_F32};
    if (!layer.reads) write_layer(workers_, l, rows, layer.keys, layer.values, k, v, alone_);
    if (only_keeps || (step.num_logits == 0 && &layer == last_kept_)) return;
    const bool alone = alone_ || attention_products(l, layer.attention, rows) < kWorthWaking;
    const Plan &plan = plan_of(layer, rows, alone);
    attention_.attend(workers_, plan, l, layer.attention, rows, layer.keys, layer.values, q, out, alone);
    if (model_.gated_attention != 0) gate_attended(layer);
}

void Engine::gate_attended(const lmprog_layer &layer) {
    const long heads = mixed(layer), gates = projected(layer) - heads;
    by_row(count_, 8 * heads, [&](int first, int last, int) {
        for (int r = first; r < last; r++)
            kernels_->activate({kSigmoid, 0, 0}, qkv_.row(r) + gates, attended_.row(r), attended_.row(r), heads);
    });
}

const Plan &Engine::plan_of(const lmprog_layer &layer, const lmprog_attention_batch &batch, bool alone) {
    const Layout &l = layout(layer);
    const int window = layer.attention.window;
    for (const SharedPlan &one : plans_)
        if (one.window == window && one.kv_heads == l.kv_heads && one.group == l.group) return *one.plan;
    auto made = std::make_unique<Plan>(l, layer.attention, batch, alone ? 1 : workers_.count());
    plans_.push_back({window, l.kv_heads, l.group, std::move(made)});
    return *plans_.back().plan;
}

// After the last layer's attention each token is alone: only those whose logits are wanted go on.
void Engine::keep_wanted(const lmprog_step &step) {
    for (int i = 0; i < step.num_logits; i++) {  // each moves up, never over one that is still to move
        const int from = step.logit_tokens[i];
        if (from == i) continue;
        memcpy(x_.row(i), x_.row(from), static_cast<size_t>(x_.width) * 4);
        memcpy(attended_.row(i), attended_.row(from), static_cast<size_t>(attended_.width) * 4);
        if (model_.per_layer > 0)
            memcpy(per_layer_.row(i), per_layer_.row(from), static_cast<size_t>(per_layer_.width) * 4);
    }
    count_ = step.num_logits;
    adapted_.keep(step.logit_tokens, count_);
}

void Engine::feed_forward(const lmprog_layer &layer) {
    by_row(count_, 6L * model_.hidden, [&](int first, int last, int) {
        for (int r = first; r < last; r++) {
            if (layer.qkv != nullptr) add_row(r, layer.attention_post_norm);
            norm_row(x_.row(r), layer.mlp_norm, normed_.row(r));
            carry_on(r, layer.mlp_carried);
            prepare(hidden_in_, normed_, r, static_cast<int>(normed_.width));
        }
    });
    if (layer.router == nullptr)
        dense(layer, layer.gate_up, layer.down);
    else if (layer.dense_gate_up == nullptr)
        mixture(layer);
    else
        both(layer);
    by_row(count_, 2L * model_.hidden, [&](int first, int last, int) {
        for (int r = first; r < last; r++) add_row(r, layer.mlp_post_norm);
    });
}

// Adds what comes of the layer's own input of each token, and scales the sum.
void Engine::finish_layer(const lmprog_layer &layer) {
    const long size = model_.per_layer, at = (&layer - layers_.data()) * size;
    if (layer.per_layer_gate != nullptr) {
        by_row(count_, model_.hidden, [&](int first, int last, int) {
            for (int r = first; r < last; r++) {
                norm_row(x_.row(r), nullptr, normed_.row(r));
                prepare(hidden_in_, normed_, r, static_cast<int>(normed_.width));
            }
        });
        product({layer.per_layer_gate, nullptr, model_.per_layer, model_.hidden, model_.weight_type}, whole(),
                hidden_in_.inputs, opened_.data, opened_.width);
        by_row(count_, 8 * size, [&](int first, int last, int) {
            for (int r = first; r < last; r++) {
                kernels_->activate(activation_, opened_.row(r), per_layer_.row(r) + at, opened_.row(r), size);
                prepare(opened_in_, opened_, r, static_cast<int>(opened_.width));
            }
        });
        product({layer.per_layer_out, nullptr, model_.hidden, model_.per_layer, model_.weight_type}, whole(),
                opened_in_.inputs, out_.data, out_.width);
        by_row(count_, 2L * model_.hidden, [&](int first, int last, int) {
            for (int r = first; r < last; r++) add_row(r, layer.per_layer_post_norm);
        });
    }
    if (layer.scale == nullptr) return;
    by_row(count_, model_.hidden, [&](int first, int last, int) {
        for (int r = first; r < last; r++)
            for (long i = 0; i < x_.width; i++) x_.row(r)[i] *= *layer.scale;
    });
}

void Engine::dense(const lmprog_layer &layer, const void *gate_up, const void *down) {
    const int inner = layer.inner;
    const bool gated = activation_.kind != LMPROG_RELU2;
    gate_product({gate_up, layer.gate_bias, layer.up_bias, inner}, whole(), hidden_in_.inputs, inner_,
                 gated ? adapted_gates(layer) : nullptr);
    if (!gated) adapt(layer, LMPROG_ADAPTED_GATE_UP, normed_, {inner_.data, inner_.width, false});
    by_row(count_, inner, [&](int first, int last, int) {
        for (int r = first; r < last; r++) {
            square(inner_.row(r), up32(inner));
            prepare(inner_in_, inner_, r, static_cast<int>(up32(inner)));
        }
    });
    product({down, layer.down_bias, model_.hidden, inner, model_.weight_type}, whole(), inner_in_.inputs, out_.data,
            out_.width);
    adapt(layer, LMPROG_ADAPTED_DOWN, inner_, {out_.data, out_.width, false});
}

// Of a model without gates, what opens a feed-forward.
void Engine::square(float *x, long count) const {
    if (activation_.kind == LMPROG_RELU2) kernels_->activate(activation_, x, x, x, count);
}

void Engine::head(const float *norm, float *logits, int64_t stride) {
    by_row(count_, 4L * model_.hidden, [&](int first, int last, int) {
        for (int r = first; r < last; r++) {
            norm_row(x_.row(r), norm, normed_.row(r));
            prepare(hidden_in_, normed_, r, static_cast<int>(normed_.width));
        }
    });
    product({model_.head, nullptr, model_.vocab, model_.hidden, model_.weight_type}, whole(), hidden_in_.inputs, logits,
            stride);
    if (model_.logit_scale == 1.0f && model_.logit_softcap == 0.0f) return;
    by_row(count_, 4L * model_.vocab, [&](int first, int last, int) {
        for (int r = first; r < last; r++)
            kernels_->bound(logits + r * stride, model_.logit_scale, model_.logit_softcap, up32(model_.vocab));
    });
}

void Engine::norm_row(const float *x, const float *weight, float *out) const {
    if (weight == nullptr)
        memcpy(out, x, static_cast<size_t>(model_.hidden) * 4);
    else
        kernels_->norm(x, weight, model_.norm_eps, model_.hidden, out);
    std::fill(out + model_.hidden, out + up32(model_.hidden), 0.0f);
}

// What a norm gave takes the place of what went in.
void Engine::carry_on(long row, float times) {
    if (times == 0.0f) return;
    std::fill(x_.row(row), x_.row(row) + x_.width, 0.0f);
    kernels_->add(x_.row(row), normed_.row(row), times, x_.width);
}

// Adds what a product gave to the row's running sum, after a norm of its own where the model has one.
void Engine::add_row(long row, const float *post_norm) {
    float *y = out_.row(row);
    if (post_norm != nullptr) kernels_->norm(y, post_norm, model_.norm_eps, model_.hidden, y);
    kernels_->add(x_.row(row), y, model_.residual_scale, x_.width);
}

void Engine::open(Prepared &prepared, const Rows &rows, int count, int inputs) {
    const long bytes = kernels_->input_bytes(model_.weight_type, inputs);
    prepared.scales = prepared.scale_memory.floats(count);
    if (bytes == 0)
        prepared.inputs = {reinterpret_cast<const char *>(rows.data), rows.width * 4, prepared.scales};
    else
        prepared.inputs = {reinterpret_cast<const char *>(prepared.memory.floats((bytes * count + 3) / 4)), bytes,
                           prepared.scales};
}

void Engine::prepare(Prepared &prepared, const Rows &rows, long row, int inputs) const {
    char *to = const_cast<char *>(prepared.inputs.data) + row * prepared.inputs.stride;
    if (to == reinterpret_cast<const char *>(rows.row(row))) return;
    kernels_->prepare(model_.weight_type, rows.row(row), inputs, to, prepared.scales + row);
}

void Engine::sample(const lmprog_sampling &call) {
    const Sampling sampling(call, *kernels_);
    const bool alone = static_cast<long>(call.num_picks + call.num_readings) * call.vocab < kWorthWakingToSample;
    workers_.share(call.num_picks, alone, [&](int index, int worker) {
        call.tokens[index] = sampling.pick(index, sampling_[worker]);
    });
    workers_.share(call.num_readings, alone, [&](int index, int worker) {
        const lmprog_reading &reading = call.readings[index];
        const int32_t token = reading.token < 0 ? call.tokens[-1 - reading.token] : reading.token;
        sampling.read(reading, token, index, sampling_[worker]);
    });
}

}  // namespace lmprog
