// Which experts each token goes through, and the rows of a step sorted by them. Plain numbers; knows no product.
#pragma once
#include <math.h>

#include <algorithm>
#include <vector>

#include "lmprog_engine.h"

namespace lmprog {

// Rows first_row .. first_row + rows meet the panels from first_panel on: all rows of a step a whole product, or the
// sorted rows of one expert its part.
struct Group {
    int first_row, rows, first_panel;
};
using Groups = std::vector<Group>;

// A piece of a product: rows times panels. `panel` counts in the result, `weights` in the packed weights.
struct Part {
    int row, rows, panel, panels, weights;
};

// Of `count` tokens: the experts each goes through, ascending, with their shares; and a row for each of these pairs,
// sorted by expert, then by token. Shared experts are gone through like chosen ones.
class Routes {
  public:
    void take(int count, const lmprog_mixture &mixture) {
        used_ = mixture.used + mixture.shared;
        experts_.resize(static_cast<size_t>(count) * used_);
        shares_.resize(experts_.size());
        rows_.resize(experts_.size());
        tokens_.resize(experts_.size());
    }

    // Chooses the experts of `token` by its scores, which are one an expert, and one more where the shared ones have a
    // gate. They are lost. `bias` is added to what experts are chosen by, shares of those chosen are multiplied by `scales`;
    // each may be NULL.
    void choose(int token, float *scores, const lmprog_mixture &mixture, const float *bias, const float *scales) {
        int *experts = experts_.data() + static_cast<size_t>(token) * used_;
        float *shares = shares_.data() + static_cast<size_t>(token) * used_;
        float top = scores[0], total = 0;
        for (int e = 1; e < mixture.experts; e++) top = std::max(top, scores[e]);
        for (int e = 0; e < mixture.experts; e++) {
            scores[e] = mixture.sigmoid ? 1.0f / (1.0f + expf(-scores[e])) : expf(scores[e] - top);
            total += scores[e];
        }
        const auto worth = [&](int e) { return bias == nullptr ? scores[e] : scores[e] + bias[e]; };
        for (int i = 0; i < mixture.used; i++) {  // the first of equal ones; NaN is chosen like any other
            int best = -1;
            for (int e = 0; e < mixture.experts; e++)
                if (!std::count(experts, experts + i, e) && (best < 0 || worth(e) > worth(best))) best = e;
            experts[i] = best;
        }
        std::sort(experts, experts + mixture.used);
        if (mixture.sigmoid) total = 1;
        if (mixture.normalized) {
            total = mixture.share_floor;
            for (int i = 0; i < mixture.used; i++) total += scores[experts[i]];
        }
        for (int i = 0; i < mixture.used; i++) shares[i] = scores[experts[i]] / total * mixture.share_scale;
        for (int i = 0; scales != nullptr && i < mixture.used; i++) shares[i] *= scales[experts[i]];
        const float shared = mixture.shared_gated ? 1.0f / (1.0f + expf(-scores[mixture.experts])) : 1.0f;
        for (int i = 0; i < mixture.shared; i++) {
            experts[mixture.used + i] = mixture.experts + i;
            shares[mixture.used + i] = shared;
        }
    }

    // Gives every pair of token and expert its row, and the rows of each expert that has some `panels` panels.
    void sort(int count, int num_experts, int panels) {
        starts_.assign(static_cast<size_t>(num_experts) + 1, 0);
        const int pairs = count * used_;
        for (int i = 0; i < pairs; i++) starts_[experts_[i] + 1]++;
        groups_.clear();
        panels_ = panels;
        for (int e = 0; e < num_experts; e++) {
            if (starts_[e + 1] > 0) groups_.push_back({starts_[e], starts_[e + 1], e * panels});
            starts_[e + 1] += starts_[e];
        }
        for (int i = 0; i < pairs; i++) {
            rows_[i] = starts_[experts_[i]]++;
            tokens_[rows_[i]] = i / used_;
        }
    }

    // The same rows for a product whose experts have another number of panels.
    const Groups &groups(int panels) {
        for (Group &group : groups_) group.first_panel = group.first_panel / panels_ * panels;
        panels_ = panels;
        return groups_;
    }

    int used() const { return used_; }
    int token(int row) const { return tokens_[row]; }
    int row(int token, int i) const { return rows_[static_cast<size_t>(token) * used_ + i]; }
    float share(int token, int i) const { return shares_[static_cast<size_t>(token) * used_ + i]; }

  private:
    int used_ = 0, panels_ = 1;
    std::vector<int> experts_, rows_, tokens_, starts_;
    std::vector<float> shares_;
    Groups groups_;
};

}  // namespace lmprog
