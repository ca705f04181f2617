// Regular expressions over characters as numbered terms, and their partial derivatives.
//
// Equal expressions are one term, so sets of them compare quickly. Characters are divided into classes that no
// expression tells apart. Knows expressions; knows no automata.
#ifndef LMPROG_DERIVATIVES_H
#define LMPROG_DERIVATIVES_H
#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "lmprog_interned.h"

namespace lmprog {

using Numbers = std::vector<int32_t>;

struct NumbersHash {
    size_t operator()(const Numbers& of) const {
        uint64_t hash = 11;
        for (const int32_t one : of) hash = mix(hash, static_cast<uint32_t>(one));
        return hash;
    }
};
template <class Value> using ByNumbers = std::unordered_map<Numbers, Value, NumbersHash>;

struct CharRange {
    int32_t low, high;
};
using CharRanges = std::vector<CharRange>;

constexpr int32_t kLastCharacter = 0x10FFFF, kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

class Terms {
  public:
    enum Kind : int32_t { kChars, kSequence, kAny, kRepetition };

    // The terms of a program (lmprog_texts.h), those of its expressions in order.
    Numbers read(const int32_t* program, int64_t length) {
        Numbers stack;
        for (const int32_t *at = program, *end = program + length; at < end;) {
            const int32_t kind = *at++;
            if (kind == kChars) {
                const int32_t size = 2 * *at++;
                stack.push_back(add({kChars, set_of(at, at + size)}));
                at += size;
            } else if (kind == kRepetition) {
                stack.back() = add({kRepetition, stack.back(), at[0], at[1]});
                at += 2;
            } else {
                const auto count = static_cast<size_t>(*at++);
                Numbers node{kind};
                node.insert(node.end(), stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
                stack.resize(stack.size() - count);
                stack.push_back(add(std::move(node)));
            }
        }
        divide();
        return stack;
    }

    size_t num_classes() const { return classes_.size(); }
    const CharRanges& characters(size_t one) const { return classes_[one]; }
    // The class of a character; num_classes() for half of a surrogate pair, which is of none.
    size_t class_of(uint32_t character) const {
        const auto behind = std::upper_bound(cuts_.begin(), cuts_.end(), static_cast<int64_t>(character));
        return behind == cuts_.begin() ? num_classes() : class_behind_[static_cast<size_t>(behind - cuts_.begin()) - 1];
    }
    bool is_nullable(int32_t term) const { return nullable_[static_cast<size_t>(term)]; }
    // Whether it takes every text.
    bool takes_all(int32_t term) const {
        const Numbers& node = nodes_[static_cast<size_t>(term)];
        if (node[0] != kRepetition || node[2] != 0 || node[3] >= 0) return false;
        const Numbers& item = nodes_[static_cast<size_t>(node[1])];
        return item[0] == kChars && is_all(sets_[static_cast<size_t>(item[1])]);
    }

    // What may follow after a character of a class, without repetitions.
    const Numbers& after(int32_t term, size_t chars) {
        const uint64_t key = (static_cast<uint64_t>(term) << 32) | chars;
        const auto found = after_.find(key);
        if (found != after_.end()) return found->second;
        Numbers out = derived(term, chars);
        std::sort(out.begin(), out.end());
        out.erase(std::unique(out.begin(), out.end()), out.end());
        return after_.emplace(key, std::move(out)).first->second;
    }

    // A term as a program.
    void write(int32_t term, Numbers& out) const {
        const Numbers& node = nodes_[static_cast<size_t>(term)];
        if (node[0] == kChars) {
            const CharRanges& set = sets_[static_cast<size_t>(node[1])];
            out.push_back(kChars);
            out.push_back(static_cast<int32_t>(set.size()));
            for (const CharRange& range : set) out.insert(out.end(), {range.low, range.high});
        } else if (node[0] == kRepetition) {
            write(node[1], out);
            out.insert(out.end(), {kRepetition, node[2], node[3]});
        } else {
            for (size_t i = 1; i < node.size(); i++) write(node[i], out);
            out.insert(out.end(), {node[0], static_cast<int32_t>(node.size() - 1)});
        }
    }

  private:
    static bool is_all(const CharRanges& set) {
        return set.size() == 2 && set[0].low == 0 && set[0].high == kFirstSurrogate - 1 && set[1].low == kLastSurrogate + 1 &&
               set[1].high == kLastCharacter;
    }

    int32_t set_of(const int32_t* begin, const int32_t* end) {
        const auto [found, is_new] = set_index_.try_emplace(Numbers(begin, end), static_cast<int32_t>(sets_.size()));
        if (is_new) {
            sets_.emplace_back();
            for (const int32_t* at = begin; at < end; at += 2) sets_.back().push_back({at[0], at[1]});
        }
        return found->second;
    }

    int32_t add(Numbers node) {
        const auto found = index_.find(node);
        if (found != index_.end()) return found->second;
        bool nullable = node[0] == kSequence;
        if (node.size() == 4 && node[0] == kRepetition) nullable = node[2] == 0 || is_nullable(node[1]);
        for (size_t i = 1; i < node.size() && (node[0] == kSequence || node[0] == kAny); i++)
            nullable = node[0] == kSequence ? nullable && is_nullable(node[i]) : nullable || is_nullable(node[i]);
        const auto made = static_cast<int32_t>(nodes_.size());
        nullable_.push_back(nullable);
        nodes_.push_back(node);
        index_.emplace(std::move(node), made);
        return made;
    }

    // A sequence, without sequences in it.
    int32_t sequence(const Numbers& items) {
        Numbers flat{kSequence};
        for (const int32_t item : items) {
            const Numbers& node = nodes_[static_cast<size_t>(item)];
            if (node[0] == kSequence)
                flat.insert(flat.end(), node.begin() + 1, node.end());
            else
                flat.push_back(item);
        }
        return flat.size() == 2 ? flat[1] : add(std::move(flat));
    }

    Numbers derived(int32_t term, size_t chars) {
        const Numbers node = nodes_[static_cast<size_t>(term)];  // by value: more are made
        Numbers out;
        if (node[0] == kChars) {
            if (contains_[static_cast<size_t>(node[1])][chars]) out.push_back(add({kSequence}));
        } else if (node[0] == kAny) {
            for (size_t i = 1; i < node.size(); i++) {
                const Numbers& ways = after(node[i], chars);
                out.insert(out.end(), ways.begin(), ways.end());
            }
        } else if (node[0] == kRepetition) {
            if (node[3] == 0) return out;
            const int32_t low = is_nullable(node[1]) ? 0 : std::max(node[2] - 1, 0), high = node[3] < 0 ? -1 : node[3] - 1;
            const int32_t rest = high == 0 ? add({kSequence}) : add({kRepetition, node[1], low, high});
            const Numbers ways = after(node[1], chars);
            for (const int32_t way : ways) out.push_back(sequence({way, rest}));
        } else {
            for (size_t i = 1; i < node.size(); i++) {
                const Numbers ways = after(node[i], chars);
                for (const int32_t way : ways) {
                    Numbers items{way};
                    items.insert(items.end(), node.begin() + static_cast<std::ptrdiff_t>(i) + 1, node.end());
                    out.push_back(sequence(items));
                }
                if (!is_nullable(node[i])) break;
            }
        }
        return out;
    }

    // Characters that are members of the same sets are of one class.
    void divide() {
        std::vector<int32_t> cuts{0, kFirstSurrogate, kLastSurrogate + 1, kLastCharacter + 1};
        for (const CharRanges& set : sets_)
            for (const CharRange& range : set) cuts.insert(cuts.end(), {range.low, range.high + 1});
        std::sort(cuts.begin(), cuts.end());
        cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
        std::vector<size_t> at(sets_.size(), 0);
        ByNumbers<size_t> known;
        std::vector<Numbers> members;
        for (size_t i = 0; i + 1 < cuts.size(); i++) {
            const int32_t low = cuts[i], high = cuts[i + 1] - 1;
            cuts_.push_back(low);
            class_behind_.push_back(classes_.size());
            if (low == kFirstSurrogate) {
                class_behind_.back() = SIZE_MAX;
                continue;
            }
            Numbers in;
            for (size_t s = 0; s < sets_.size(); s++) {
                while (at[s] < sets_[s].size() && sets_[s][at[s]].high < low) at[s]++;
                if (at[s] < sets_[s].size() && sets_[s][at[s]].low <= low) in.push_back(static_cast<int32_t>(s));
            }
            const auto [found, is_new] = known.try_emplace(in, classes_.size());
            if (is_new) {
                classes_.emplace_back();
                members.push_back(in);
            }
            class_behind_.back() = found->second;
            CharRanges& ranges = classes_[found->second];
            if (!ranges.empty() && ranges.back().high + 1 == low)
                ranges.back().high = high;
            else
                ranges.push_back({low, high});
        }
        for (size_t& one : class_behind_) one = std::min(one, classes_.size());
        contains_.assign(sets_.size(), std::vector<bool>(classes_.size(), false));
        for (size_t c = 0; c < members.size(); c++)
            for (const int32_t s : members[c]) contains_[static_cast<size_t>(s)][c] = true;
    }

    std::vector<CharRanges> sets_, classes_;
    std::vector<int64_t> cuts_;         // where another class may begin
    std::vector<size_t> class_behind_;  // each of them
    ByNumbers<int32_t> set_index_, index_;
    std::vector<std::vector<bool>> contains_;  // by set and class
    std::vector<Numbers> nodes_;               // kind, then a set; items; or item, low and high
    std::vector<bool> nullable_;
    std::unordered_map<uint64_t, Numbers> after_;
};

}  // namespace lmprog
#endif
