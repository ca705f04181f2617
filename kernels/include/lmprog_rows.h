// What the automaton's rows are made with: their memory, the moves of states that have few, and the cutting of byte
// ranges where edges overlap.
#ifndef LMPROG_ROWS_H
#define LMPROG_ROWS_H
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace lmprog {

// Rows of 256 states, allocated many at a time; they all die together.
class Blocks {
  public:
    uint32_t* row() {
        if (used_ == kRows) {
            blocks_.emplace_back(new uint32_t[kRows * 256]);
            used_ = 0;
        }
        uint32_t* row = blocks_.back().get() + 256 * used_++;
        std::memset(row, 0, 1024);
        return row;
    }
    int64_t num_bytes() const { return static_cast<int64_t>(blocks_.size()) * kRows * 1024; }
    void clear() {
        blocks_.clear();
        used_ = kRows;
    }

  private:
    static constexpr int kRows = 64;  // per allocation
    std::vector<std::unique_ptr<uint32_t[]>> blocks_;
    int used_ = kRows;
};

// The bytes first..last lead to the state `to`.
struct Move {
    uint8_t first, last;
    uint32_t to;
};

// A row for states with few moves, one after the other: a kilobyte for all of them.
class ScratchRow {
  public:
    const uint32_t* with(const Move* moves, size_t count) {
        for (size_t i = 0; i < count_; i++) std::fill(row_ + set_[i].first, row_ + set_[i].last + 1, 0);
        for (size_t i = 0; i < count; i++) {
            std::fill(row_ + moves[i].first, row_ + moves[i].last + 1, moves[i].to);
            set_[i] = moves[i];
        }
        count_ = count;
        return row_;
    }
    static constexpr size_t kMost = 16;

  private:
    uint32_t row_[256] = {};
    Move set_[kMost];
    size_t count_ = 0;
};

// The bytes low..high lead to the leaf state `to`, with `frame` behind it.
struct Edge {
    int32_t low, high, to;
    uint32_t frame;
};

// Cuts the byte range where the set of edges changes. Keeps its memory between calls, which must not be nested.
class Sweep {
  public:
    // target(edges, count) finds the state of a set of edges; body(first, after last, state) hears of each piece.
    template <class Target, class Body> void operator()(std::vector<Edge>& edges, Target target, Body body) {
        if (edges.empty()) return;
        if (edges.size() == 1) return body(edges[0].low, edges[0].high + 1, target(&edges[0], size_t{1}));
        bool cut[257] = {false};
        for (const Edge& e : edges) cut[e.low] = cut[e.high + 1] = true;
        std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.low < b.low; });
        active_.clear();
        before_.clear();
        size_t next = 0;
        uint32_t known = 0;
        for (int byte = edges[0].low; byte < 256;) {
            if (!cut[byte]) {
                byte++;
                continue;
            }
            active_.erase(std::remove_if(active_.begin(), active_.end(), [&](const Edge& e) { return e.high < byte; }),
                          active_.end());
            while (next < edges.size() && edges[next].low == byte) active_.push_back(edges[next++]);
            int end = byte + 1;
            while (end < 256 && !cut[end]) end++;
            if (!active_.empty()) {
                if (!same_targets(active_, before_)) {
                    known = target(active_.data(), active_.size());
                    before_ = active_;
                }
                body(byte, end, known);
            }
            byte = end;
        }
    }

  private:
    static bool same_targets(const std::vector<Edge>& a, const std::vector<Edge>& b) {
        return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](const Edge& x, const Edge& y) {
                   return x.to == y.to && x.frame == y.frame;
               });
    }
    std::vector<Edge> active_, before_;
};

}  // namespace lmprog
#endif
