// A hash index from contents to small integers: what the automaton's hash-consing rests on.
#ifndef LMPROG_INTERNED_H
#define LMPROG_INTERNED_H
#include <cstdint>
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

}  // namespace lmprog
#endif
