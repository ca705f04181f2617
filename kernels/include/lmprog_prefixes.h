// Of positions that are met together, those whose beginnings of texts no other has: what a mask needs of a state.
//
// Behind a repetition without end of one character class, `.*` say, every text of such characters goes on. A position that
// reads nothing else, as that of `.{300}` in `.*a.{300}`, adds nothing to which tokens are allowed, only to what ends. So
// states with counters that are never met twice have one mask. Knows frames and leaves; knows no tokens.
#ifndef LMPROG_PREFIXES_H
#define LMPROG_PREFIXES_H
#include <unordered_map>
#include <utility>
#include <vector>

#include "lmprog_automaton.h"

namespace lmprog {

class Prefixes {
  public:
    explicit Prefixes(Automaton& automaton) : a_(automaton), net_(automaton.net()) {}

    // The state of the same beginnings with the fewest positions that are found. Makes states.
    uint32_t of(uint32_t state) {
        all_.clear();
        bool has_loop = false;
        a_.each_position(state, [&](const Position& at) {
            all_.push_back(at);
            has_loop = has_loop || is_loop(at);
        });
        if (!has_loop || all_.size() < 2) return state;
        std::vector<Position> kept;
        for (const Position& loop : all_)
            if (is_loop(loop) && !is_within(loop, kept)) kept.push_back(loop);
        for (const Position& at : all_)
            if (!is_loop(at) && !is_within(at, kept)) kept.push_back(at);
        return kept.size() == all_.size() ? state : a_.state_of(kept, a_.is_final(state));
    }

  private:
    // A repetition without end of one class of characters, at the beginning of a character or in one.
    bool is_loop(const Position& at) {
        const Frame& frame = a_.frame_of(at.frame);
        if (frame.node < 0 || net_.kind[frame.node] != kRepeat || frame.second != kNoLimit) return false;
        return net_.kind[net_.args[3 * frame.node]] == kLeaf;
    }

    // Only where nothing is taken for granted: a call may end here.
    void spend() { a_.take_work(1 + std::exchange(spent_, 0)); }

    int32_t start_of_loop(const Position& loop) const { return net_.args[3 * net_.args[3 * a_.frame_of(loop.frame).node]]; }

    // Whether all that `at` reads goes on from one of these, as far as they are loops.
    bool is_within(const Position& at, const std::vector<Position>& kept) {
        for (const Position& loop : kept) {
            spend();
            if (!is_loop(loop)) return false;  // the loops come first
            const int32_t start = start_of_loop(loop);
            if (!goes_on(at.leaf_state, loop.leaf_state, start)) continue;
            bool within = true;
            for (uint32_t f = at.frame; within && f; f = a_.frame_of(f).rest) within = consists_of(a_.frame_of(f).node, start);
            if (within) return true;
        }
        return false;
    }

    // Whether every text of the node consists of characters of the loop that begins there.
    bool consists_of(int32_t node, int32_t start) {
        const uint64_t key = (uint64_t{static_cast<uint32_t>(node)} << 32) | static_cast<uint32_t>(start);
        const auto found = nodes_.find(key);
        if (found != nodes_.end()) return found->second;
        if (nodes_.size() >= kMostNodes) return false;
        nodes_[key] = true;  // in a circle, unless something else speaks against it
        const int32_t* args = net_.args + 3 * node;
        bool out = true;
        if (net_.kind[node] == kLeaf) {
            out = goes_on(args[0], start, start);
        } else if (net_.kind[node] == kRepeat) {
            out = depth_ < kDeepest && below([&] { return consists_of(args[0], start); });
        } else if (net_.kind[node] == kSeq || net_.kind[node] == kAlt) {
            for (int32_t i = 0; out && i < args[1]; i++)
                out = depth_ < kDeepest && below([&] { return consists_of(net_.items[args[0] + i], start); });
        } else {
            out = false;
        }
        if (!out && !depth_) nodes_.clear();  // what was taken for granted meanwhile need not be so
        return nodes_[key] = out;
    }

    template <class Body> bool below(Body body) {
        depth_++;
        const bool out = body();
        depth_--;
        return out;
    }

    // Whether all that a leaf reads from `at` on is read by the loop, which is at `in` and begins again at `start`; the
    // leaf ends only where a character of the loop does.
    bool goes_on(int32_t at, int32_t in, int32_t start) {
        const auto key = std::make_pair(uint64_t{static_cast<uint32_t>(at)} << 32 | static_cast<uint32_t>(in), start);
        const auto found = leaves_.find(key);
        if (found != leaves_.end()) return found->second;
        std::vector<std::pair<int32_t, int32_t>> pairs{{at, in}};
        bool out = true;
        for (size_t i = 0; out && i < pairs.size(); i++) {
            spent_ += static_cast<int64_t>(pairs.size());
            const auto [here, there] = pairs[i];
            for (int32_t e = net_.edge_start[here]; out && e < net_.edge_start[here + 1]; e++)
                out = moves(net_.edges + 3 * e, there, start, pairs);
            out = out && pairs.size() <= kMostPairs;
        }
        return leaves_[key] = out;
    }

    bool moves(const int32_t* edge, int32_t there, int32_t start, std::vector<std::pair<int32_t, int32_t>>& pairs) const {
        int32_t from = edge[0];  // edges are sorted by bytes
        for (int32_t e = net_.edge_start[there]; e < net_.edge_start[there + 1] && from <= edge[1]; e++) {
            const int32_t* other = net_.edges + 3 * e;
            if (other[1] < from) continue;
            if (other[0] > from) return false;
            from = other[1] + 1;
            const bool ends = net_.final_state[other[2]];
            if (ends && net_.edge_start[other[2]] != net_.edge_start[other[2] + 1]) return false;
            if (net_.final_state[edge[2]] && !ends) return false;
            const std::pair<int32_t, int32_t> next{edge[2], ends ? start : other[2]};
            if (std::find(pairs.begin(), pairs.end(), next) == pairs.end()) pairs.push_back(next);
        }
        return from > edge[1];
    }

    static constexpr size_t kMostPairs = 256, kMostNodes = 4096;
    static constexpr int kDeepest = 32;
    struct Hash {
        size_t operator()(const std::pair<uint64_t, int32_t>& of) const { return mix(of.first, static_cast<uint32_t>(of.second)); }
    };
    Automaton& a_;
    const lmprog_net& net_;
    int depth_ = 0;
    int64_t spent_ = 0;  // steps that were not counted yet
    std::vector<Position> all_;
    std::unordered_map<uint64_t, bool> nodes_;
    std::unordered_map<std::pair<uint64_t, int32_t>, bool, Hash> leaves_;
};

}  // namespace lmprog
#endif
