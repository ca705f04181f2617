// A mixture of experts in place of a layer's feed-forward: who goes where, each expert's products, and their sum.
#include "engine_step.h"

namespace lmprog {

// The ordinary feed-forward, and beside it the experts.
void Engine::both(const lmprog_layer &layer) {
    dense(layer, layer.dense_gate_up, layer.dense_down);
    by_row(count_, 8L * model_.hidden, [&](int first, int last, int) {
        for (int r = first; r < last; r++) {
            kernels_->norm(out_.row(r), layer.dense_post_norm, model_.norm_eps, model_.hidden, out_.row(r));
            memcpy(beside_.row(r), out_.row(r), static_cast<size_t>(out_.width) * 4);
            norm_row(x_.row(r), layer.router_norm, normed_.row(r));
        }
    });
    route(layer);
    by_row(count_, 4L * model_.hidden, [&](int first, int last, int) {
        for (int r = first; r < last; r++) {
            norm_row(x_.row(r), layer.experts_norm, normed_.row(r));
            prepare(hidden_in_, normed_, r, static_cast<int>(normed_.width));
        }
    });
    experts(layer);
    by_row(count_, 4L * model_.hidden, [&](int first, int last, int) {
        for (int r = first; r < last; r++) {
            kernels_->norm(out_.row(r), layer.experts_post_norm, model_.norm_eps, model_.hidden, out_.row(r));
            kernels_->add(out_.row(r), beside_.row(r), 1.0f, out_.width);
        }
    });
}

void Engine::mixture(const lmprog_layer &layer) {
    route(layer);
    experts(layer);
}

// The products of the experts that rows are sent to, and their sum.
void Engine::experts(const lmprog_layer &layer) {
    const lmprog_mixture &mixture = model_.mixture;
    const int inner_panels = static_cast<int>(up32(mixture.inner) / kPanel);
    const int hidden_panels = static_cast<int>(up32(model_.hidden) / kPanel);
    gather();
    gate_product({layer.gate_up, layer.gate_bias, layer.up_bias, mixture.inner}, routes_.groups(inner_panels),
                 expert_in_.inputs, expert_inner_);
    by_row(count_ * routes_.used(), mixture.inner, [&](int first, int last, int) {
        for (int r = first; r < last; r++) {
            square(expert_inner_.row(r), expert_inner_.width);
            prepare(expert_inner_in_, expert_inner_, r, static_cast<int>(expert_inner_.width));
        }
    });
    product({layer.down, layer.down_bias, model_.hidden, mixture.inner, model_.weight_type},
            routes_.groups(hidden_panels), expert_inner_in_.inputs, expert_out_.data, expert_out_.width);
    by_row(count_, 2L * routes_.used() * model_.hidden, [&](int first, int last, int) {
        for (int r = first; r < last; r++) {
            std::fill(out_.row(r), out_.row(r) + out_.width, 0.0f);
            for (int i = 0; i < routes_.used(); i++)
                kernels_->add(out_.row(r), expert_out_.row(routes_.row(r, i)), routes_.share(r, i), out_.width);
        }
    });
}

// The router's products are in f32 for every type of weights: a rounding may send a token elsewhere.
void Engine::route(const lmprog_layer &layer) {
    const lmprog_mixture &mixture = model_.mixture;
    const int outputs = mixture.experts + (mixture.shared_gated ? 1 : 0);
    product({layer.router, layer.router_bias, outputs, model_.hidden, LMPROG_F32}, whole(), normed_.inputs(),
            scores_.data, scores_.width);
    routes_.take(count_, mixture);
    by_row(count_, 8L * mixture.experts * mixture.used, [&](int first, int last, int) {
        for (int r = first; r < last; r++)
            routes_.choose(r, scores_.row(r), mixture, layer.choice_bias, layer.expert_scales);
    });
    routes_.sort(count_, mixture.experts + mixture.shared, 1);
}

// The tokens' rows, as products want them, one after the other for each expert.
void Engine::gather() {
    const long bytes = hidden_in_.inputs.stride;
    const int sorted = count_ * routes_.used();
    char *to = reinterpret_cast<char *>(expert_in_.memory.floats((bytes * sorted + 3) / 4));
    expert_in_.scales = expert_in_.scale_memory.floats(sorted);
    expert_in_.inputs = {to, bytes, expert_in_.scales};
    by_row(sorted, bytes / 4, [&](int first, int last, int) {
        for (int r = first; r < last; r++) {
            const int token = routes_.token(r);
            memcpy(to + r * bytes, hidden_in_.inputs.data + token * bytes, static_cast<size_t>(bytes));
            expert_in_.scales[r] = hidden_in_.scales[token];
        }
    });
}

}  // namespace lmprog
