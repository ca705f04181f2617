// Of positions that are met together, those that allow something that no other allows.
//
// Positions at one leaf state differ in their frames: counters of repetitions, and what follows behind. One that allows
// nothing further is left out, so that a state with counters stays small. Knows frames and counters, not bytes.
#ifndef LMPROG_LARGEST_POSITIONS_H
#define LMPROG_LARGEST_POSITIONS_H
#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "lmprog_interned.h"
#include "lmprog_costs.h"
#include "lmprog_masks.h"

namespace lmprog {

constexpr int64_t kMaxWork = 20'000'000;  // steps of one call, about a tenth of a second: an ambiguous grammar has no end

// One call needed more than its limits allow.
struct Grown : std::length_error {
    Grown() : std::length_error("one call of the automaton grew beyond its limits") {}
};

// The steps of one call.
struct Work {
    int64_t taken = 0, most = kMaxWork;
    void take(int64_t steps = 1) {
        if ((taken += steps) > most) throw Grown();
    }
};

class LargestPositions {
  public:
    // What ids are numbers of; between two calls of `keep` it may grow and move.
    void of(const lmprog_net& net, const std::vector<Frame>& frames, const std::vector<Position>& positions, Work& work) {
        net_ = &net;
        frames_ = &frames;
        positions_ = &positions;
        work_ = &work;
    }

    // Counters of one repetition that several positions have, which are the same in all else: they are one interval.
    struct Joined {
        uint32_t frame;                // one with the repetition
        int32_t first, second;         // the interval
        std::vector<uint32_t> above;   // frames in front of it
    };

    // Makes one of positions that differ in one counter alone, where what that allows is one interval: what fewest..most
    // more rounds allow is what each number of rounds between them allows. made(leaf state, joined) is the position.
    template <class Made> void join(std::vector<uint32_t>& ids, Made made) {
        size_t num_counted = 0;
        for (const uint32_t id : ids) num_counted += frame_of(id).num_counts > 0;
        if (num_counted < 2) return;
        sort(ids);
        ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
        for (uint32_t depth = 0; depth < kJoinedDepths; depth++) {
            collect_intervals(ids, depth);
            if (intervals_.size() < 2) return;
            if (join_intervals(ids, made)) sort(ids);
        }
    }

    // Drops the positions whose counters allow nothing that another's do not allow too; sorts by leaf state and id.
    void keep(std::vector<uint32_t>& ids) {
        sort(ids);
        ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
        size_t out = 0;
        for (size_t begin = 0; begin < ids.size();) {
            const int32_t leaf_state = (*positions_)[ids[begin]].leaf_state;
            size_t end = begin;
            while (end < ids.size() && (*positions_)[ids[end]].leaf_state == leaf_state) end++;
            out = end - begin > kFew ? keep_of_many(ids, begin, end, out) : keep_of_few(ids, begin, end, out);
            begin = end;
        }
        ids.resize(out);
    }

    void sort(std::vector<uint32_t>& ids) const {
        std::sort(ids.begin(), ids.end(), [&](uint32_t a, uint32_t b) {
            const int32_t x = (*positions_)[a].leaf_state, y = (*positions_)[b].leaf_state;
            return x != y ? x < y : a < b;
        });
    }

  private:
    // A position's counter behind `depth` others, and what it has beside it.
    struct Interval {
        uint64_t beside;
        int64_t first, most;
        size_t at;  // among the ids
        uint32_t frame;
    };

    void collect_intervals(const std::vector<uint32_t>& ids, uint32_t depth) {
        intervals_.clear();
        for (size_t at = 0; at < ids.size(); at++) {
            if (frame_of(ids[at]).num_counts <= depth) continue;
            const Position& p = (*positions_)[ids[at]];
            uint64_t beside = mix(6, static_cast<uint32_t>(p.leaf_state));
            uint32_t frame = p.frame;
            for (uint32_t left = depth;; frame = (*frames_)[frame].rest) {
                const Frame& f = (*frames_)[frame];
                work_->take();
                beside = mix(beside, static_cast<uint32_t>(f.node));
                if (net_->kind[f.node] == kRepeat && left-- == 0) break;
                beside = mix(mix(beside, static_cast<uint32_t>(f.first)), static_cast<uint32_t>(f.second));
            }
            const Frame& f = (*frames_)[frame];
            intervals_.push_back({mix(beside, f.rest), f.first, most_rounds(f), at, frame});
        }
        std::sort(intervals_.begin(), intervals_.end(), [](const Interval& a, const Interval& b) {
            if (a.beside != b.beside) return a.beside < b.beside;
            return a.first != b.first ? a.first < b.first : a.most > b.most;
        });
    }

    // Whether two positions differ in the counters of these frames alone, which are as deep in their chains.
    bool alike(uint32_t a, uint32_t b, const Interval& x, const Interval& y) const {
        if ((*positions_)[a].leaf_state != (*positions_)[b].leaf_state) return false;
        uint32_t left = (*positions_)[a].frame, right = (*positions_)[b].frame;
        for (; left != x.frame && right != y.frame; left = (*frames_)[left].rest, right = (*frames_)[right].rest) {
            const Frame &f = (*frames_)[left], &g = (*frames_)[right];
            if (f.node != g.node || f.first != g.first || f.second != g.second) return false;
        }
        const Frame &f = (*frames_)[x.frame], &g = (*frames_)[y.frame];
        return left == x.frame && right == y.frame && f.node == g.node && f.rest == g.rest;
    }

    template <class Made> bool join_intervals(std::vector<uint32_t>& ids, Made made) {
        bool any = false;
        for (size_t i = 0; i < intervals_.size();) {
            const Interval one = intervals_[i];
            int64_t most = one.most;
            const size_t begin = i++;
            while (i < intervals_.size() && intervals_[i].beside == one.beside && intervals_[i].first <= most + 1 &&
                   alike(ids[one.at], ids[intervals_[i].at], one, intervals_[i]))
                most = std::max(most, intervals_[i++].most);
            if (i == begin + 1) continue;
            any = true;
            if (most != one.most) {
                const int32_t leaf_state = (*positions_)[ids[one.at]].leaf_state;
                joined_ = {one.frame, static_cast<int32_t>(one.first), most >= kUnreachable ? kNoLimit : static_cast<int32_t>(most), {}};
                for (uint32_t f = (*positions_)[ids[one.at]].frame; f != one.frame; f = (*frames_)[f].rest) joined_.above.push_back(f);
                ids[one.at] = made(leaf_state, joined_);
            }
            for (size_t k = begin + 1; k < i; k++) ids[intervals_[k].at] = kCovered;
        }
        if (any) ids.erase(std::remove(ids.begin(), ids.end(), kCovered), ids.end());
        return any;
    }

    static constexpr uint32_t kJoinedDepths = 4;
    static constexpr size_t kFew = 8;
    static constexpr uint32_t kCovered = ~uint32_t{0};

    // The positions begin..end, which are at one leaf state, each with each; those that are kept are moved to `to`.
    size_t keep_of_few(std::vector<uint32_t>& ids, size_t begin, size_t end, size_t to) {
        size_t out = to;
        for (size_t i = begin; i < end; i++) {
            const uint32_t one = ids[i];
            bool covered = false;
            for (size_t k = to; k < out && !covered; k++) covered = covers((*positions_)[ids[k]].frame, (*positions_)[one].frame);
            if (covered) continue;
            size_t kept = to;
            for (size_t k = to; k < out; k++)
                if (!covers((*positions_)[one].frame, (*positions_)[ids[k]].frame)) ids[kept++] = ids[k];
            out = kept;
            ids[out++] = one;
        }
        return out;
    }

    // Positions that differ in the counters of one frame alone, or not even there: a run.
    struct Run {
        size_t begin, end;
    };

    // The same by runs: within one, sorted by the fewest rounds, only those are kept that may have more rounds than all
    // before them; one run covers of another only where what follows behind their counters is covered too.
    size_t keep_of_many(std::vector<uint32_t>& ids, size_t begin, size_t end, size_t to) {
        const auto at = ids.begin();
        std::sort(at + static_cast<std::ptrdiff_t>(begin), at + static_cast<std::ptrdiff_t>(end), [&](uint32_t a, uint32_t b) {
            const Frame &x = frame_of(a), &y = frame_of(b);
            if (x.node != y.node) return x.node < y.node;
            if (x.rest != y.rest) return x.rest < y.rest;
            if (x.first != y.first) return x.first < y.first;
            return most_rounds(x) > most_rounds(y);
        });
        runs_.clear();
        size_t out = to;
        for (size_t i = begin; i < end; i++) {
            const Frame& here = frame_of(ids[i]);
            const bool counts = here.node >= 0 && net_->kind[here.node] == kRepeat;
            const bool goes_on = counts && !runs_.empty() && same_run(ids[out - 1], ids[i]);
            work_->take();
            if (goes_on && most_rounds(frame_of(ids[out - 1])) >= most_rounds(here)) continue;
            ids[out++] = ids[i];
            if (goes_on)
                runs_.back().end = out;
            else
                runs_.push_back({out - 1, out});
        }
        if (runs_.size() > 1) keep_of_runs(ids, out);
        out = to;
        for (const Run& run : runs_)
            for (size_t i = run.begin; i < run.end; i++)
                if (ids[i] != kCovered) ids[out++] = ids[i];
        std::sort(at + static_cast<std::ptrdiff_t>(to), at + static_cast<std::ptrdiff_t>(out));
        return out;
    }

    // Marks what other runs cover.
    void keep_of_runs(std::vector<uint32_t>& ids, size_t end) {
        heads_.assign(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(end));  // the marked ones are still compared
        for (size_t large = 0; large < runs_.size(); large++)
            for (size_t small = 0; small < runs_.size(); small++) {
                if (large == small) continue;
                const Frame& a = frame_of(heads_[runs_[large].begin]);
                const Frame& b = frame_of(heads_[runs_[small].begin]);
                if (a.node != b.node || a.node < 0) continue;
                const bool counts = net_->kind[a.node] == kRepeat;
                if (!counts && (a.first != b.first || a.second != b.second)) continue;
                if (!covers(a.rest, b.rest)) continue;
                if (!counts) {
                    ids[runs_[small].begin] = kCovered;
                    continue;
                }
                size_t from = runs_[large].begin;  // the last one with no more rounds to come than the small one needs
                for (size_t i = runs_[small].begin; i < runs_[small].end; i++) {
                    const Frame& one = frame_of(heads_[i]);
                    work_->take();
                    while (from + 1 < runs_[large].end && frame_of(heads_[from + 1]).first <= one.first) from++;
                    const Frame& other = frame_of(heads_[from]);
                    if (other.first <= one.first && most_rounds(other) >= most_rounds(one)) ids[i] = kCovered;
                }
            }
    }

    const Frame& frame_of(uint32_t id) const { return (*frames_)[(*positions_)[id].frame]; }

    static int64_t most_rounds(const Frame& frame) { return frame.second == kNoLimit ? kUnreachable : frame.second; }

    bool same_run(uint32_t a, uint32_t b) const {
        const Frame &x = frame_of(a), &y = frame_of(b);
        return x.node == y.node && x.rest == y.rest;
    }

    // Whether what the frame `left` goes on with is all that `right` goes on with, and more.
    bool covers(uint32_t left, uint32_t right) {
        while (left != right) {
            work_->take();
            if (left == 0 || right == 0) return false;
            const Frame &a = (*frames_)[left], &b = (*frames_)[right];
            if (a.node != b.node) return false;
            if (net_->kind[a.node] == kRepeat) {
                if (a.first > b.first) return false;
                if (a.second != kNoLimit && (b.second == kNoLimit || b.second > a.second)) return false;
            } else if (a.first != b.first || a.second != b.second) {  // a sequence has no second
                return false;
            }
            left = a.rest;
            right = b.rest;
        }
        return true;
    }

    const lmprog_net* net_ = nullptr;
    const std::vector<Frame>* frames_ = nullptr;
    const std::vector<Position>* positions_ = nullptr;
    Work* work_ = nullptr;
    std::vector<Interval> intervals_;
    Joined joined_{};
    std::vector<Run> runs_;
    std::vector<uint32_t> heads_;
};

}  // namespace lmprog
#endif
