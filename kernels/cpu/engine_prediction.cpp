// The layer that predicts the token after the next one (multi-token prediction). A step has it keep the keys and values of all
// tokens; what may follow is computed when drafts are asked for.
#include "engine_step.h"

namespace lmprog {

// What all layers before it gave, of each token of the step.
void Engine::take_given() {
    by_row(count_, 4L * model_.hidden, [&](int first, int last, int) {
        for (int r = first; r < last; r++) norm_row(x_.row(r), model_.norm, given_.row(r));
    });
}

// Keys and values of the step's tokens, and what the next token of each row goes on from.
void Engine::keep_for_prediction(const lmprog_step &step) {
    const long size = model_.hidden;
    const size_t bytes = static_cast<size_t>(size) * 4;
    count_ = step.num_tokens;
    adapted_.take(nullptr, count_);
    for (const Stretch &one : stretches_) {
        for (int t = one.begin; t < one.end; t++) {
            float *before = joined_.row(t) + size;
            if (t > one.begin)
                memcpy(before, given_.row(t - 1), bytes);
            else if (one.from >= 0)
                memcpy(before, given(one.from), bytes);
            else
                std::fill(before, before + size, 0.0f);
        }
        if (one.end > one.begin)
            memcpy(given(one.at), given_.row(one.end - 1), bytes);
        else if (one.from >= 0 && one.from != one.at)
            memcpy(given(one.at), given(one.from), bytes);
    }
    join(step);
    attend(*predictor_, step, true);
}

// The predictor's inputs: embeddings, and what was given before, which is in its place.
void Engine::join(const lmprog_step &step) {
    const long size = model_.hidden;
    embed(step);
    by_row(count_, 8 * size, [&](int first, int last, int) {
        for (int r = first; r < last; r++) {
            float *x = joined_.row(r);
            kernels_->norm(x_.row(r), predictor_->join_embedding_norm, model_.norm_eps, size, x);
            kernels_->norm(x + size, predictor_->join_given_norm, model_.norm_eps, size, x + size);
            std::fill(x + 2 * size, x + joined_.width, 0.0f);
            prepare(joined_in_, joined_, r, static_cast<int>(joined_.width));
        }
    });
    product({predictor_->join, nullptr, model_.hidden, 2 * model_.hidden, model_.weight_type}, whole(), joined_in_.inputs,
            x_.data, x_.width);
}

int Engine::predict(const lmprog_step &step, float *given_before, float *logits, int64_t stride) {
    if (predictor_ == nullptr || !valid(step) || step.num_tokens != step.rows.num_rows) return 1;
    const long size = model_.hidden;
    count_ = step.num_tokens;
    alone_ = workers_.count() == 1 || weights_ * count_ < kWorthStep;
    plans_.clear();
    take_memory(count_);
    adapted_.take(nullptr, count_);
    turn(step);
    for (int r = 0; r < count_; r++) {
        const int slot = step.state_sources == nullptr ? -1 : step.state_sources[r];
        memcpy(joined_.row(r) + size, slot < 0 ? given_before + r * size : given(slot), static_cast<size_t>(size) * 4);
    }
    join(step);
    attend(*predictor_, step);
    finish_mixer(*predictor_);
    feed_forward(*predictor_);
    head(predictor_->join_end_norm, logits, stride);
    for (int r = 0; r < count_; r++)
        memcpy(given_before + r * size, normed_.row(r), static_cast<size_t>(size) * 4);
    return 0;
}

}  // namespace lmprog
