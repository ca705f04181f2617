// Products of a step: cut into pieces for the threads, biases and gates where their numbers are still near.
#include "engine_step.h"

namespace lmprog {

template <class Piece>
void Engine::by_panel(const Groups &groups, int panels, int inputs, Piece &&piece) {
    long rows = 0;
    parts_.clear();
    for (const Group &group : groups) {
        rows += group.rows;
        // About four pieces a thread, whole panels, and rows that fit the cache beside a panel.
        int at_once = alone_ ? panels : std::max(1, panels / (workers_.count() * 4));
        at_once = std::min(at_once, group.rows <= 3 ? 16 : 4);
        for (int panel = 0; panel < panels; panel += at_once)
            for (int row = 0; row < group.rows; row += kMostRows)
                parts_.push_back({group.first_row + row, std::min<int>(kMostRows, group.rows - row), panel,
                                  std::min(at_once, panels - panel), group.first_panel + panel});
    }
    workers_.share(static_cast<int>(parts_.size()), little(rows * panels * kPanel * inputs),
                   [&](int index, int worker) { piece(parts_[index], worker); });
}

void Engine::product(const Weights &weights, const Groups &groups, const Inputs &x, float *out, long stride) {
    const Panels panels = panels_of(weights.data, weights.type, weights.outputs, weights.inputs);
    by_panel(groups, panels.count, panels.inputs, [&](const Part &part, int) {
        float *to = out + part.row * stride + static_cast<long>(part.panel) * kPanel;
        kernels_->multiply({&panels, &x, part.row, part.rows, part.weights, part.panels, to, stride});
        if (weights.bias != nullptr)
            for (int r = 0; r < part.rows; r++)
                kernels_->add(to + r * stride, weights.bias + static_cast<long>(part.weights) * kPanel, 1.0f,
                              static_cast<long>(part.panels) * kPanel);
    });
}

// Panels of gate and up alternate, so that each pair becomes 32 numbers of `to` at once. Without gates `to` has the ups.
void Engine::gate_product(const Gates &gates, const Groups &groups, const Inputs &x, const Rows &to,
                          const Rows *added) {
    if (activation_.kind == LMPROG_RELU2) {
        product({gates.data, gates.up_bias, gates.inner, model_.hidden, model_.weight_type}, groups, x, to.data, to.width);
        return;
    }
    const long inner = up32(gates.inner);
    const Panels panels = panels_of(gates.data, model_.weight_type, 2 * inner, model_.hidden);
    for (Scratch &scratch : scratch_) scratch.floats(static_cast<long>(kMostRows) * 2 * 16 * kPanel);
    by_panel(groups, panels.count / 2, 2 * panels.inputs, [&](const Part &part, int worker) {
        float *pairs = scratch_[worker].floats(0);
        const long stride = 2L * part.panels * kPanel;
        kernels_->multiply({&panels, &x, part.row, part.rows, 2 * part.weights, 2 * part.panels, pairs, stride});
        for (int r = 0; r < part.rows; r++) {
            const int place = added == nullptr ? -1 : adapted_.place(part.row + r);
            for (int i = 0; i < part.panels; i++) {
                float *gate = pairs + r * stride + 2L * i * kPanel, *up = gate + kPanel;
                const long at = static_cast<long>(part.weights + i) * kPanel;
                if (gates.gate_bias != nullptr) kernels_->add(gate, gates.gate_bias + at, 1.0f, kPanel);
                if (gates.up_bias != nullptr) kernels_->add(up, gates.up_bias + at, 1.0f, kPanel);
                if (place >= 0) {
                    kernels_->add(gate, added->row(place) + at, 1.0f, kPanel);
                    kernels_->add(up, added->row(place) + inner + at, 1.0f, kPanel);
                }
                float *result = to.row(part.row + r) + static_cast<long>(part.panel + i) * kPanel;
                kernels_->activate(activation_, gate, up, result, kPanel);
            }
        }
    });
}

}  // namespace lmprog
