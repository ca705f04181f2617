// What the automaton is made of: its interned parts, a hash index from contents to their numbers, and a set of
// places met while following empty moves.
#ifndef LMPROG_INTERNED_H
#define LMPROG_INTERNED_H
#include <algorithm>
#include <cstdint>
#include <unordered_set>
#include <utility>
#include <vector>

namespace lmprog {

inline uint64_t mix(uint64_t h, uint64_t v) {
    h = (h ^ v) * 0x9E3779B97F4A7C15ull;
    return h ^ (h >> 29);
}

// Open addressing from a hash to an index; equality is the caller's.
class Index {
  public:
    Index() : slots_(64, 0) {}
    template <class Same> int64_t find(uint64_t hash, Same same) const {
        for (size_t at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
            if (!slots_[at]) return -1;
            if (same(slots_[at] - 1)) return slots_[at] - 1;
        }
    }
    void add(uint64_t hash, uint32_t value) {
        hashes_.push_back({hash, value});
        if (hashes_.size() * 2 > slots_.size()) {
            slots_.assign(slots_.size() * 4, 0);
            for (auto& [h, v] : hashes_) place(h, v);
        } else {
            place(hash, value);
        }
    }

  private:
    void place(uint64_t hash, uint32_t value) {
        size_t at = hash & (slots_.size() - 1);
        while (slots_[at]) at = (at + 1) & (slots_.size() - 1);
        slots_[at] = value + 1;
    }
    std::vector<uint32_t> slots_;
    std::vector<std::pair<uint64_t, uint32_t>> hashes_;
};

// Of a net's nodes.
enum Kind : uint8_t { kLeaf, kSeq, kAlt, kRepeat, kOnce, kTable = 6 };
constexpr int kNoLimit = -1;  // of the rounds of a repetition

struct Frame {
    int32_t node, first, second;
    uint32_t rest;
    int64_t cost;
    uint32_t num_counts;  // repetitions in the chain
};

struct Position {
    int32_t leaf_state;
    uint32_t frame;
};

struct Closure {
    std::vector<uint32_t> positions;
    bool final = false;
};

struct State {
    size_t begin;  // into the pool of position ids
    uint32_t length;
    bool final;
};

// Nodes met with a frame behind them, each in two ways; most closures meet a handful only.
class Met {
  public:
    void clear() {
        few_.clear();
        many_.clear();
    }
    bool first_time(int32_t node, uint32_t frame, uint32_t way) {
        const uint64_t key = (uint64_t{frame} << 32) | (static_cast<uint32_t>(node) << 1) | way;
        if (few_.size() < kFew) {
            if (std::find(few_.begin(), few_.end(), key) != few_.end()) return false;
            few_.push_back(key);
            if (few_.size() == kFew) many_.insert(few_.begin(), few_.end());
            return true;
        }
        return many_.insert(key).second;
    }

  private:
    static constexpr size_t kFew = 16;
    std::vector<uint64_t> few_;
    std::unordered_set<uint64_t> many_;
};

}  // namespace lmprog
#endif
