// Recurrent layers: short convolutions, gated delta nets, Mamba 2. Channels and heads are shared out among the threads; each
// is computed over all rows in their order, so a row finds what rows before it leave.
#include "engine_step.h"

namespace lmprog {
namespace {

constexpr int kChannels = 256;  // of a piece: 16 tokens of them stay in the cache

// Numbers of a slot that the matrices follow.
long conv_floats(const lmprog_recurrent &r) { return up32(static_cast<long>(r.taps - 1) * r.channels); }

long head_floats(const lmprog_recurrent &r) { return up32(r.value_dim) * r.key_dim; }

// `count` numbers of the slot `from`, or zeros where it is NULL.
void carry(const float *from, float *to, long count) {
    if (from == nullptr)
        std::fill(to, to + count, 0.0f);
    else if (from != to)
        memcpy(to, from, static_cast<size_t>(count) * 4);
}

// Where q, k, v and z of a row begin.
struct Columns {
    long q, k, v, z;
};

Columns columns_of(const lmprog_recurrent &r) {
    const long keys = static_cast<long>(r.groups) * r.key_dim, values = static_cast<long>(r.heads) * r.value_dim;
    if (r.kind != LMPROG_MAMBA2) return {0, keys, 2 * keys, r.channels};
    return {values + keys, values, 0, r.channels};
}

}  // namespace

void Engine::recur(const lmprog_layer &layer, const lmprog_step &step) {
    const lmprog_recurrent &r = model_.recurrent;
    project(layer);
    convolve(layer);
    if (r.kind == LMPROG_SHORT_CONV) return;
    const int scores = r.kind == LMPROG_DELTA_NET ? 2 * r.heads : r.heads;
    if (r.kind != LMPROG_LINEAR) {
        product({layer.gates, nullptr, scores, model_.hidden, LMPROG_F32}, whole(), normed_.inputs(), gates_.data,
                gates_.width);
        adapt(layer, LMPROG_ADAPTED_GATES, normed_, {gates_.data, gates_.width, false});
    }
    by_row(count_, 4L * r.channels, [&](int first, int last, int) {
        for (int row = first; row < last; row++) prepare_head_row(layer, row);
    });
    workers_.share(r.heads, little(3L * count_ * r.heads * head_floats(r)),
                   [&](int head, int) { recur_head(layer, head); });
    if (r.kind == LMPROG_DELTA_NET || (step.num_logits == 0 && &layer == last_kept_)) return;
    by_row(count_, 8L * mixed(layer), [&](int first, int last, int) {
        for (int row = first; row < last; row++) finish_whole_row(layer, row);
    });
}

void Engine::convolve(const lmprog_layer &layer) {
    const lmprog_recurrent &r = model_.recurrent;
    const int pieces = (r.channels + kChannels - 1) / kChannels;
    workers_.share(pieces, little(8L * count_ * r.channels), [&](int piece, int) {
        const long at = static_cast<long>(piece) * kChannels;
        const int channels = std::min<int>(kChannels, r.channels - static_cast<int>(at));
        const float *bias = layer.conv_bias == nullptr ? nullptr : layer.conv_bias + at;
        for (const Stretch &one : stretches_) {
            float *before = state(layer, one.at) + at;
            for (long tap = 0; tap < r.taps - 1; tap++)
                carry(one.from < 0 ? nullptr : state(layer, one.from) + at + tap * r.channels, before + tap * r.channels,
                      channels);
            if (one.begin == one.end) continue;
            float *x = qkv_.row(one.begin) + at;
            Convolution task = {x,      nullptr,           nullptr, x, qkv_.width, qkv_.width, before, layer.conv + at, bias,
                                r.channels, r.taps, one.end - one.begin, channels, true};
            if (r.kind == LMPROG_SHORT_CONV) {
                task.opening = x;
                task.closing = x + r.channels;
                task.x = x + 2L * r.channels;
                task.out = attended_.row(one.begin) + at;
                task.out_stride = attended_.width;
                task.activated = false;
            }
            kernels_->convolve(task);
        }
    });
}

// What a row's heads multiply their matrices with.
void Engine::prepare_head_row(const lmprog_layer &layer, long row) {
    const lmprog_recurrent &r = model_.recurrent;
    const Columns at = columns_of(r);
    if (r.kind == LMPROG_DELTA_NET) {
        const float eps = 1e-6f / static_cast<float>(r.key_dim);
        for (long group = 0; group < r.groups; group++) {
            float *q = qkv_.row(row) + at.q + group * r.key_dim, *k = qkv_.row(row) + at.k + group * r.key_dim;
            kernels_->norm(q, q_norm_.data(), eps, r.key_dim, q);
            kernels_->norm(k, k_norm_.data(), eps, r.key_dim, k);
        }
    }
    float *rates = gates_.row(row), *decays = rates + r.heads;
    for (int head = 0; head < r.heads; head++) {
        if (r.kind == LMPROG_LINEAR) {
            rates[head] = 1;
            decays[head] = expf(-expf(layer.decay_log[head]));
            continue;
        }
        const bool is_net = r.kind == LMPROG_DELTA_NET;
        const float score = (is_net ? decays : rates)[head] + layer.decay_bias[head];
        float step = score > 20.0f ? score : log1pf(expf(score));
        if (!is_net) step = std::max(step, r.least_step);
        rates[head] = is_net ? r.rate_scale / (1.0f + expf(-rates[head])) : step;
        decays[head] = expf(-expf(layer.decay_log[head]) * step);
    }
}

void Engine::recur_head(const lmprog_layer &layer, int head) {
    const lmprog_recurrent &r = model_.recurrent;
    const Columns at = columns_of(r);
    const long keys = static_cast<long>(head) / (r.heads / r.groups) * r.key_dim;
    const long values = static_cast<long>(head) * r.value_dim, place = conv_floats(r) + head * head_floats(r);
    for (const Stretch &one : stretches_) {
        float *matrix = state(layer, one.at) + place;
        carry(one.from < 0 ? nullptr : state(layer, one.from) + place, matrix, head_floats(r));
        if (one.begin == one.end) continue;
        const float *x = qkv_.row(one.begin);
        kernels_->recur({matrix, x + at.q + keys, x + at.k + keys, x + at.v + values, qkv_.width,
                         attended_.row(one.begin) + values, attended_.width, gates_.row(one.begin) + head,
                         gates_.row(one.begin) + r.heads + head, gates_.width, r.key_dim, r.value_dim,
                         one.end - one.begin, r.kind == LMPROG_DELTA_NET});
        for (int row = one.begin; row < one.end; row++) finish_head(layer, head, row);
    }
}

// The delta net's norm and gate; what Mamba skips.
void Engine::finish_head(const lmprog_layer &layer, int head, long row) {
    const lmprog_recurrent &r = model_.recurrent;
    const Columns at = columns_of(r);
    const long values = static_cast<long>(head) * r.value_dim;
    float *out = attended_.row(row) + values;
    const float *x = qkv_.row(row) + values;
    if (r.kind == LMPROG_DELTA_NET) {
        kernels_->norm(out, layer.state_norm, r.norm_eps, r.value_dim, out);
        kernels_->activate({LMPROG_SILU, 0, 0}, x + at.z, out, out, r.value_dim);
    } else if (r.kind == LMPROG_MAMBA2) {
        kernels_->add(out, x + at.v, layer.skip[head], r.value_dim);
    }
}

// Norms over several heads, and what opens or closes them.
void Engine::finish_whole_row(const lmprog_layer &layer, long row) {
    const lmprog_recurrent &r = model_.recurrent;
    const long size = mixed(layer), each = size / r.groups;
    float *out = attended_.row(row);
    const float *z = qkv_.row(row) + columns_of(r).z;
    if (r.kind == LMPROG_LINEAR) {
        kernels_->norm(out, layer.state_norm, r.norm_eps, size, out);
        kernels_->activate({kSigmoid, 0, 0}, z, out, out, size);
        return;
    }
    kernels_->activate({LMPROG_SILU, 0, 0}, z, out, out, size);
    for (long at = 0; at < size; at += each)
        kernels_->norm(out + at, layer.state_norm + at, r.norm_eps, each, out + at);
}

}  // namespace lmprog

extern "C" int64_t lmprog_engine_state_bytes(const lmprog_recurrent *recurrent) {
    if (recurrent->kind == 0) return 0;
    const long heads = recurrent->kind == LMPROG_SHORT_CONV ? 0 : recurrent->heads;
    return (lmprog::conv_floats(*recurrent) + heads * lmprog::head_floats(*recurrent)) * 4;
}
