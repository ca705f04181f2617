// The rows of a step sorted by their adapters. Plain numbers; knows no product.
#pragma once
#include <algorithm>
#include <vector>

#include "lmprog_engine.h"

namespace lmprog {

// Places first .. first + rows of the sorted rows are those of one adapter.
struct AdapterGroup {
    int adapter, first, rows;
};

// Places count the rows that have an adapter, those of one adapter one after the other; rows are those of the step.
class AdaptedRows {
  public:
    // `adapters` has one for each of `count` rows, from 1 on; 0: none. NULL: there are none.
    void take(const int32_t *adapters, int count) {
        if (adapters == nullptr)
            of_rows_.clear();
        else
            of_rows_.assign(adapters, adapters + count);
        sort();
    }

    // Only these rows go on, in ascending order, as rows 0 .. count.
    void keep(const int32_t *rows, int count) {
        if (empty()) return;
        for (int i = 0; i < count; i++) of_rows_[i] = of_rows_[rows[i]];
        of_rows_.resize(count);
        sort();
    }

    bool empty() const { return rows_.empty(); }
    int count() const { return static_cast<int>(rows_.size()); }
    int row(int place) const { return rows_[place]; }
    // -1: the row has no adapter.
    int place(int row) const { return empty() ? -1 : places_[row]; }
    const std::vector<AdapterGroup> &groups() const { return groups_; }

  private:
    void sort() {
        rows_.clear();
        groups_.clear();
        places_.assign(of_rows_.size(), -1);
        for (size_t row = 0; row < of_rows_.size(); row++)
            if (of_rows_[row] > 0) rows_.push_back(static_cast<int>(row));
        std::stable_sort(rows_.begin(), rows_.end(), [&](int a, int b) { return of_rows_[a] < of_rows_[b]; });
        for (int place = 0; place < count(); place++) {
            const int adapter = of_rows_[rows_[place]];
            places_[rows_[place]] = place;
            if (groups_.empty() || groups_.back().adapter != adapter) groups_.push_back({adapter, place, 0});
            groups_.back().rows++;
        }
    }

    std::vector<int> of_rows_, rows_, places_;
    std::vector<AdapterGroup> groups_;
};

}  // namespace lmprog
