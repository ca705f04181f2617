// What adapters add to the products of a step: for the rows of each adapter two thin products in f32.
#include "engine_step.h"

namespace lmprog {
namespace {

// Panels of f32 whose inputs are not filled up.
Panels thin_panels(const float *data, int outputs, int inputs) {
    return {reinterpret_cast<const char *>(data), LMPROG_F32, inputs, static_cast<int>(up32(outputs) / kPanel),
            static_cast<long>(inputs) * kPanel * 4};
}

}  // namespace

void Engine::take_adapters(const lmprog_low_rank *low_ranks, int count) {
    low_ranks_ = low_ranks;
    num_adapters_ = count;
}

// Rows of `x` times what their adapters have for the product; added to their own rows of `out`, or, `by_place`, to the
// row of their place there.
void Engine::adapt(const lmprog_layer &layer, int product, const Rows &x, const Added &to) {
    const long at = (&layer - layers_.data()) * LMPROG_ADAPTED + product, each = model_.num_layers * LMPROG_ADAPTED;
    const auto low_rank = [&](const AdapterGroup &group) -> const lmprog_low_rank & {
        return low_ranks_[(group.adapter - 1) * each + at];
    };
    int most = 0;
    for (const AdapterGroup &group : adapted_.groups()) most = std::max(most, low_rank(group).ranks);
    if (most == 0) return;
    gathered_.take(adapted_.count(), x.width);
    lowered_.take(adapted_.count(), most);
    by_row(adapted_.count(), x.width, [&](int first, int last, int) {
        for (int i = first; i < last; i++)
            memcpy(gathered_.row(i), x.row(adapted_.row(i)), static_cast<size_t>(x.width) * 4);
    });
    lower(low_rank);
    raise(low_rank, to);
}

// The gathered rows times `down`: as many numbers as the adapter has ranks.
template <class Of>
void Engine::lower(Of &&low_rank) {
    const Inputs inputs = gathered_.inputs();
    thin_parts_.clear();
    long work = 0;
    for (const AdapterGroup &group : adapted_.groups()) {
        const lmprog_low_rank &low = low_rank(group);
        cut(low, nullptr, group, static_cast<int>(up32(low.ranks) / kPanel), 1);
        work += static_cast<long>(group.rows) * low.ranks * low.inputs;
    }
    workers_.share(static_cast<int>(thin_parts_.size()), little(work), [&](int index, int) {
        const ThinPart &part = thin_parts_[index];
        const Panels panels = thin_panels(part.low->down, part.low->ranks, part.low->inputs);
        float *out = lowered_.row(part.place) + static_cast<long>(part.panel) * kPanel;
        kernels_->multiply({&panels, &inputs, part.place, part.rows, part.panel, part.panels, out, lowered_.width});
    });
}

// These times each `up`, added to the results.
template <class Of>
void Engine::raise(Of &&low_rank, const Added &to) {
    thin_parts_.clear();
    long work = 0;
    for (const AdapterGroup &group : adapted_.groups()) {
        const lmprog_low_rank &low = low_rank(group);
        for (int i = 0; i < low.num_raised; i++) {
            const lmprog_raised &raised = low.raised[i];
            cut(low, &raised, group, static_cast<int>(up32(raised.outputs) / kPanel), group.rows <= 3 ? 16 : 4);
            work += static_cast<long>(group.rows) * raised.outputs * raised.rank;
        }
    }
    for (Scratch &scratch : scratch_) scratch.floats(static_cast<long>(kMostRows) * 16 * kPanel);
    workers_.share(static_cast<int>(thin_parts_.size()), little(work), [&](int index, int worker) {
        const ThinPart &part = thin_parts_[index];
        const lmprog_raised &raised = *part.raised;
        const Panels panels = thin_panels(raised.up, raised.outputs, raised.rank);
        const Inputs inputs = {reinterpret_cast<const char *>(lowered_.data + raised.rank_first), lowered_.width * 4,
                               nullptr};
        const long first = static_cast<long>(part.panel) * kPanel, stride = static_cast<long>(part.panels) * kPanel;
        const long count = std::min(stride, raised.outputs - first), whole = count / 16 * 16;
        float *sums = scratch_[worker].floats(0);
        kernels_->multiply({&panels, &inputs, part.place, part.rows, part.panel, part.panels, sums, stride});
        for (int r = 0; r < part.rows; r++) {
            const long row = to.by_place ? part.place + r : adapted_.row(part.place + r);
            float *out = to.out + row * to.stride + raised.first + first, *sum = sums + r * stride;
            kernels_->add(out, sum, 1.0f, whole);
            for (long i = whole; i < count; i++) out[i] += sum[i];
        }
    });
}

// Rows of the group times `panels` panels become parts of `at_once` panels, or of all where one thread does everything.
void Engine::cut(const lmprog_low_rank &low, const lmprog_raised *raised, const AdapterGroup &group, int panels,
                 int at_once) {
    for (int panel = 0; panel < panels; panel += at_once)
        for (int row = 0; row < group.rows; row += kMostRows)
            thin_parts_.push_back({&low, raised, group.first + row, std::min<int>(kMostRows, group.rows - row), panel,
                                   std::min(at_once, panels - panel)});
}

// What adapters add to gates and ups, which must be known before they become one.
const Engine::Rows *Engine::adapted_gates(const lmprog_layer &layer) {
    if (adapted_.empty()) return nullptr;
    gates_added_.take(adapted_.count(), 2 * up32(layer.inner));
    std::fill(gates_added_.data, gates_added_.data + adapted_.count() * gates_added_.width, 0.0f);
    adapt(layer, LMPROG_ADAPTED_GATE_UP, normed_, {gates_added_.data, gates_added_.width, true});
    return &gates_added_;
}

}  // namespace lmprog
