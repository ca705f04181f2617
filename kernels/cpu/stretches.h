// The tokens of a step in stretches whose states are computed in one slot. Plain numbers; knows no layer.
#pragma once
#include <algorithm>
#include <vector>

#include "lmprog_engine.h"

namespace lmprog {

// Tokens begin .. end go on from the state in slot `from` (-1: from nothing), and leave theirs in slot `at`. Without tokens
// it is a copy.
struct Stretch {
    int begin, end, from, at;
};

// In an order in which each may be computed after those before it.
class Stretches {
  public:
    // `spare` is the slot of rows that keep nothing.
    void take(const lmprog_step &step, int spare) {
        all_.clear();
        left_.clear();
        for (int i = 0; i < step.num_snapshots; i++)
            left_.push_back({step.snapshots[3 * i], step.snapshots[3 * i + 1], step.snapshots[3 * i + 2]});
        std::sort(left_.begin(), left_.end(), [](const Left &a, const Left &b) {
            return a.row != b.row ? a.row < b.row : a.after < b.after;
        });
        size_t next = 0;
        for (int row = 0; row < step.rows.num_rows; row++) {
            const int first = step.rows.row_starts[row], end = step.rows.row_starts[row + 1];
            int begin = first, from = step.state_sources == nullptr ? -1 : step.state_sources[row];
            int target = step.state_targets == nullptr ? -1 : step.state_targets[row];
            if (target < 0) target = spare;
            for (; next < left_.size() && left_[next].row == row && first + left_[next].after < end; next++) {
                const Left &left = left_[next];
                all_.push_back({begin, first + left.after, from, left.slot});
                begin = first + left.after;
                from = left.slot;
            }
            all_.push_back({begin, end, from, target});
            for (; next < left_.size() && left_[next].row == row; next++) all_.push_back({end, end, target, left_[next].slot});
        }
    }

    std::vector<Stretch>::const_iterator begin() const { return all_.begin(); }
    std::vector<Stretch>::const_iterator end() const { return all_.end(); }

  private:
    struct Left {
        int row, after, slot;
    };
    std::vector<Stretch> all_;
    std::vector<Left> left_;
};

}  // namespace lmprog
