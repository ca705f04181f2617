// Where an automaton goes with a character of a group (a lower-case letter, say), whichever one of the group it is.
//
// Most states consist of one position per class of characters, and what a leaf does with a group does not depend on
// what follows the leaf; so that is found once per leaf state, and for leaf states that stand together once for these; and
// a state that differs from another in counters alone costs nothing but its targets. No transition row is made. Knows groups as byte automata; knows no tokens.
#ifndef LMPROG_GROUPS_H
#define LMPROG_GROUPS_H
#include <array>
#include <deque>
#include <map>
#include <set>
#include <unordered_map>

#include "lmprog_automaton.h"

namespace lmprog {

constexpr int kGroups = LMPROG_NUM_GROUPS;

// How much of a group is taken: nothing, every character, some of them, or more work than it is worth to find out.
enum Reach : uint8_t { kNone, kAll, kSome, kUnknown };

// Targets are a run of a pool: states, or leaf states.
struct Step {
    Reach kind = kNone;
    uint32_t begin = 0, count = 0;
};
using Steps = std::array<Step, kGroups>;

// Pairs of numbers met so far.
class Pairs {
  public:
    void clear() {
        if (count_) std::fill(slots_.begin(), slots_.end(), kFree);
        count_ = 0;
    }
    bool first_time(uint32_t left, uint32_t right) {
        if (2 * ++count_ > slots_.size()) grow();
        return place((uint64_t{left} << 32) | right);
    }

  private:
    static constexpr uint64_t kFree = ~uint64_t{0};
    bool place(uint64_t key) {
        for (size_t at = mix(7, key) & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
            if (slots_[at] == key) return false;
            if (slots_[at] != kFree) continue;
            slots_[at] = key;
            return true;
        }
    }
    void grow() {
        std::vector<uint64_t> old(slots_.size() * 4, kFree);
        old.swap(slots_);
        for (const uint64_t key : old)
            if (key != kFree) place(key);
    }
    std::vector<uint64_t> slots_ = std::vector<uint64_t>(256, kFree);
    size_t count_ = 0;  // with repetitions
};

class Groups {
  public:
    Groups(Automaton& automaton, const lmprog_vocabulary& vocabulary) : a_(automaton), v_(vocabulary) {
        for (int g = 0; g < kGroups; g++)
            for (int32_t c = v_.edge_start[v_.group_start[g]]; c < v_.edge_start[v_.group_start[g] + 1]; c++)
                for (int32_t byte = v_.edges[3 * c]; byte <= v_.edges[3 * c + 1]; byte++) begins_[byte] |= 1u << g;
    }

    // The groups of which no character begins with any of these bytes.
    uint8_t without(const uint8_t* bytes, int count) const {
        uint8_t met = 0;
        for (int i = 0; i < count; i++) met |= begins_[bytes[i]];
        return static_cast<uint8_t>(~met);
    }

    const Steps& steps(uint32_t state) {
        if (of_state_.size() <= state) of_state_.resize(state + 256, nullptr);
        if (!of_state_[state]) {
            made_.push_back(found(state));
            of_state_[state] = &made_.back();
        }
        return *of_state_[state];
    }

    // After the automaton has collected its states: what is known of leaves stays.
    void forget_states() {
        of_state_.clear();
        made_.clear();
        targets_.clear();
    }

    const uint32_t* targets(const Step& step) const { return targets_.data() + step.begin; }
    int64_t num_bytes() const {
        return static_cast<int64_t>(of_state_.capacity() * 8 + made_.size() * sizeof(Steps) + targets_.capacity() * 4 +
                                    of_leaf_.size() * (sizeof(Steps) + 32) + ends_.capacity() * 4 +
                                    joints_.size() * 400);
    }

  private:
    static constexpr size_t kMaxPairs = 4096, kMaxTargets = 64, kManyLeaves = 16;

    struct At {
        int32_t leaf;
        uint32_t frame;
    };

    Steps found(uint32_t state) {
        std::vector<At> at;
        uint64_t bytes[4] = {0, 0, 0, 0};  // those that the state takes
        a_.each_position(state, [&](const Position& p) {
            at.push_back({p.leaf_state, p.frame});
            add_bytes(p.leaf_state, bytes);
        });
        Steps out;
        std::vector<uint32_t> to;
        for (int g = 0; g < kGroups; g++) {
            if (!meets(v_.group_start[g], bytes)) continue;
            to.clear();
            Reach kind;
            if (at.size() > kManyLeaves)
                kind = product(state, g, to);
            else
                by_leaves(at, g, kind, to);
            out[g] = kept(kind, to, targets_);
        }
        return out;
    }

    // What the leaves say, by themselves or together.
    void by_leaves(const std::vector<At>& at, int g, Reach& kind, std::vector<uint32_t>& to) {
        edges_.clear();
        takers_.clear();
        bool simple = true;
        for (const At& one : at) {
            const Step& step = leaf(one.leaf)[g];
            if (step.kind == kNone) continue;
            takers_.push_back(one);
            kind = step.kind;
            simple = simple && step.kind == kAll && step.count == 1;
            for (uint32_t i = 0; i < step.count; i++)
                edges_.push_back({0, 0, static_cast<int32_t>(ends_[step.begin + i]), one.frame});
        }
        if (takers_.empty()) {
            kind = kNone;
        } else if (takers_.size() == 1) {  // each end of the leaf leads to a state of its own
            for (const auto& edge : edges_) to.push_back(a_.target(&edge, 1));
        } else if (simple) {
            to.push_back(a_.target(edges_.data(), edges_.size()));
        } else {
            const Joint& all = joint(g);
            kind = all.kind;
            for (const Ends& ends : all.ends) {
                edges_.clear();
                for (const auto& [taker, end] : ends) edges_.push_back({0, 0, end, takers_[taker].frame});
                to.push_back(a_.target(edges_.data(), edges_.size()));
            }
        }
        if (kind == kUnknown) to.clear();
    }

    // Where each of several leaves is after the same character: their places among the takers, and leaf states.
    using Ends = std::vector<std::pair<uint32_t, int32_t>>;
    struct Joint {
        Reach kind = kNone;
        std::vector<Ends> ends;
    };

    // What takers_ do with a group, one byte after the other.
    const Joint& joint(int group) {
        std::vector<int32_t> key{group};
        for (const At& one : takers_) key.push_back(one.leaf);
        const auto [found, is_new] = joints_.try_emplace(key);
        Joint& out = found->second;
        if (!is_new) return out;
        std::set<std::pair<Ends, int32_t>> met;
        std::vector<std::pair<Ends, int32_t>> pairs(1);
        for (size_t i = 0; i < takers_.size(); i++) pairs[0].first.push_back({static_cast<uint32_t>(i), takers_[i].leaf});
        pairs[0].second = v_.group_start[group];
        bool all = true;
        for (size_t i = 0; i < pairs.size(); i++) {
            const auto [from, inside] = pairs[i];
            for (int32_t c = v_.edge_start[inside]; c < v_.edge_start[inside + 1]; c++) {
                const int32_t after = v_.edges[3 * c + 2];
                all = each_piece(from, v_.edges[3 * c], v_.edges[3 * c + 1], [&](const Ends& ends) {
                    if (after < 0) {
                        if (std::find(out.ends.begin(), out.ends.end(), ends) == out.ends.end()) out.ends.push_back(ends);
                    } else if (met.insert({ends, after}).second) {
                        pairs.push_back({ends, after});
                    }
                }) && all;
            }
            if (pairs.size() > kMaxPairs || out.ends.size() > kMaxTargets) {
                out = {kUnknown, {}};
                return out;
            }
        }
        out.kind = out.ends.empty() ? kNone : all ? kAll : kSome;
        return out;
    }

    // The leaf states after the bytes low..high, cut where they change; whether every byte leads somewhere.
    template <class Body> bool each_piece(const Ends& from, int32_t low, int32_t high, Body body) const {
        const lmprog_net& net = a_.net();
        std::vector<int32_t> cuts{low, high + 1};
        for (const auto& [taker, state] : from)
            for (int32_t e = net.edge_start[state]; e < net.edge_start[state + 1]; e++)
                for (const int32_t cut : {net.edges[3 * e], net.edges[3 * e + 1] + 1})
                    if (low < cut && cut <= high) cuts.push_back(cut);
        std::sort(cuts.begin(), cuts.end());
        bool all = true;
        for (size_t i = 0; i + 1 < cuts.size(); i++) {
            if (cuts[i] == cuts[i + 1]) continue;
            Ends ends;
            for (const auto& [taker, state] : from)
                for (int32_t e = net.edge_start[state]; e < net.edge_start[state + 1]; e++)
                    if (net.edges[3 * e] <= cuts[i] && cuts[i] <= net.edges[3 * e + 1]) ends.push_back({taker, net.edges[3 * e + 2]});
            if (ends.empty())
                all = false;
            else
                body(ends);
        }
        return all;
    }

    static Step kept(Reach kind, std::vector<uint32_t>& to, std::vector<uint32_t>& pool) {
        std::sort(to.begin(), to.end());
        to.erase(std::unique(to.begin(), to.end()), to.end());
        const auto begin = static_cast<uint32_t>(pool.size());
        pool.insert(pool.end(), to.begin(), to.end());
        return {kind, begin, static_cast<uint32_t>(to.size())};
    }

    const Steps& leaf(int32_t state) {
        auto found = of_leaf_.find(state);
        if (found != of_leaf_.end()) return found->second;
        Steps out;
        uint64_t bytes[4] = {0, 0, 0, 0};
        add_bytes(state, bytes);
        std::vector<uint32_t> ends;
        for (int g = 0; g < kGroups; g++) {
            if (!meets(v_.group_start[g], bytes)) continue;
            ends.clear();
            const Reach kind = leaf_product(state, v_.group_start[g], ends);
            out[g] = kept(kind, ends, ends_);
        }
        return of_leaf_.emplace(state, out).first->second;
    }

    void add_bytes(int32_t leaf_state, uint64_t* bytes) const {
        const lmprog_net& net = a_.net();
        for (int32_t e = net.edge_start[leaf_state]; e < net.edge_start[leaf_state + 1]; e++)
            for (int32_t byte = net.edges[3 * e]; byte <= net.edges[3 * e + 1]; byte++)
                bytes[byte >> 6] |= uint64_t{1} << (byte & 63);
    }

    bool meets(int32_t group, const uint64_t* bytes) const {
        for (int32_t c = v_.edge_start[group]; c < v_.edge_start[group + 1]; c++)
            for (int32_t byte = v_.edges[3 * c]; byte <= v_.edges[3 * c + 1]; byte++)
                if (bytes[byte >> 6] >> (byte & 63) & 1) return true;
        return false;
    }

    // A leaf's own bytes against the group's: where it is after one character.
    Reach leaf_product(int32_t state, int32_t group, std::vector<uint32_t>& ends) {
        const lmprog_net& net = a_.net();
        auto& pairs = leaf_pairs_;
        pairs.assign(1, {state, group});
        met_.clear();
        bool all = true;
        for (size_t i = 0; i < pairs.size(); i++) {
            const auto [from, inside] = pairs[i];
            for (int32_t c = v_.edge_start[inside]; c < v_.edge_start[inside + 1]; c++) {
                const int32_t low = v_.edges[3 * c], high = v_.edges[3 * c + 1], after = v_.edges[3 * c + 2];
                int32_t covered = 0;
                for (int32_t e = net.edge_start[from]; e < net.edge_start[from + 1]; e++) {
                    const int32_t first = std::max(low, net.edges[3 * e]), last = std::min(high, net.edges[3 * e + 1]);
                    if (first > last) continue;
                    covered += last - first + 1;
                    const int32_t to = net.edges[3 * e + 2];
                    if (after < 0) {
                        if (std::find(ends.begin(), ends.end(), to) == ends.end()) ends.push_back(to);
                    } else if (met_.first_time(to, static_cast<uint32_t>(after))) {
                        pairs.push_back({to, after});
                    }
                }
                all = all && covered == high - low + 1;
            }
            if (pairs.size() > kMaxPairs || ends.size() > kMaxTargets) return kUnknown;
        }
        return ends.empty() ? kNone : all ? kAll : kSome;
    }

    // The automaton's own bytes against the group's, for states of many leaves.
    Reach product(uint32_t state, int group, std::vector<uint32_t>& to) {
        std::vector<std::pair<uint32_t, int32_t>> pairs{{state, v_.group_start[group]}};
        met_.clear();
        bool all = true;
        for (size_t i = 0; i < pairs.size(); i++) {
            const auto [from, inside] = pairs[i];
            for (int32_t c = v_.edge_start[inside]; c < v_.edge_start[inside + 1]; c++) {
                const int32_t low = v_.edges[3 * c], high = v_.edges[3 * c + 1], after = v_.edges[3 * c + 2];
                int32_t covered = 0;
                a_.each_move(from, low, high, [&](int first, int end, uint32_t next) {
                    covered += end - first;
                    if (after < 0) {
                        if (std::find(to.begin(), to.end(), next) == to.end()) to.push_back(next);
                    } else if (met_.first_time(next, static_cast<uint32_t>(after))) {
                        pairs.push_back({next, after});
                    }
                });
                all = all && covered == high - low + 1;
            }
            if (pairs.size() > kMaxPairs || to.size() > kMaxTargets) return kUnknown;
        }
        return to.empty() ? kNone : all ? kAll : kSome;
    }

    Automaton& a_;
    const lmprog_vocabulary& v_;
    uint8_t begins_[256] = {};  // by byte: the groups that have a character with it as its first
    std::vector<const Steps*> of_state_;
    std::deque<Steps> made_;
    std::vector<uint32_t> targets_, ends_;
    std::unordered_map<int32_t, Steps> of_leaf_;
    std::vector<std::pair<int32_t, int32_t>> leaf_pairs_;
    std::map<std::vector<int32_t>, Joint> joints_;  // by group and leaf states
    std::vector<At> takers_;
    std::vector<Edge> edges_;
    Pairs met_;
};

}  // namespace lmprog
#endif
