// Regular expressions over characters as numbered terms, and their partial derivatives.
//
// Equal expressions are one term, so sets of them compare quickly. Characters are divided into classes that no
// expression tells apart. A term may look at the text around it: what must follow is a further term that the rest has to
// match (`both`) or must not (`none`), and for what must come before, a root tracks how far that is matched here. Knows
// expressions; knows no automata.
#ifndef LMPROG_DERIVATIVES_H
#define LMPROG_DERIVATIVES_H
#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
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

struct TooMany {};

class Terms {
  public:
    enum Kind : int32_t { kChars, kSequence, kAny, kRepetition, kAhead, kBehind, kTracked, kBoth, kNone };

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
            } else if (kind == kAhead) {
                stack.back() = add({kAhead, stack.back(), *at++});
            } else if (kind == kBehind) {
                stack.push_back(add({kBehind, at[0], at[1]}));
                at += 2;
            } else {
                const auto count = static_cast<size_t>(*at++ + (kind == kTracked));
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
    // Whether it looks at what is around it.
    bool looks(int32_t term) const { return looks_[static_cast<size_t>(term)]; }
    // Whether it takes every text.
    bool takes_all(int32_t term) const {
        const Numbers& node = nodes_[static_cast<size_t>(term)];
        if (node[0] == kNone) return nodes_[static_cast<size_t>(node[1])] == Numbers{kAny};
        if (node[0] != kRepetition || node[2] != 0 || node[3] >= 0) return false;
        const Numbers& item = nodes_[static_cast<size_t>(node[1])];
        return item[0] == kChars && is_all(sets_[static_cast<size_t>(item[1])]);
    }

    // What may follow after a character of a class, without repetitions.
    const Numbers& after(int32_t term, size_t chars) {
        const uint64_t key = (static_cast<uint64_t>(term) << 32) | chars;
        const auto found = after_.find(key);
        if (found != after_.end()) return found->second;
        Numbers out = looks(term) ? all_tracked(term, chars) : derived(term, chars);
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

    int64_t num_looked = 0;  // terms that were followed because of what looks around

  private:
    static constexpr size_t kMostWays = 4096, kDeepest = 400;
    static constexpr int64_t kMostLooked = 100'000;  // for one character

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
        bool looks = node[0] >= kAhead;
        for_each_item(node, [&](int32_t item) { looks = looks || looks_[static_cast<size_t>(item)]; });
        looks_.push_back(looks);
        nullable_.push_back(looks ? ends(node, truth_of(node)) : nullable);
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

    template <class Body> static void for_each_item(const Numbers& node, Body body) {
        if (node[0] == kChars || node[0] == kBehind) return;
        const size_t count = node[0] == kRepetition || node[0] == kAhead ? 2 : node.size();
        for (size_t i = 1; i < count; i++) body(node[i]);
    }

    // Which of the texts that a root tracks end here, one bit each.
    uint32_t truth_of(const Numbers& node) const {
        uint32_t truth = 0;
        for (size_t i = 2; node[0] == kTracked && i < node.size(); i++) truth |= static_cast<uint32_t>(is_nullable(node[i])) << (i - 2);
        return truth;
    }

    bool ends(int32_t term, uint32_t truth) const {
        return looks(term) ? ends(nodes_[static_cast<size_t>(term)], truth) : is_nullable(term);
    }

    // Whether nothing more need follow.
    bool ends(const Numbers& node, uint32_t truth) const {
        switch (node[0]) {
            case kTracked: return ends(node[1], truth);
            case kRepetition: return node[2] == 0 || ends(node[1], truth);
            case kAhead: return ends(node[1], truth) == (node[2] != 0);
            case kBehind: return (truth >> node[1] & 1) == static_cast<uint32_t>(node[2]);
            case kNone: return !ends(node[1], truth);
            case kAny: return std::any_of(node.begin() + 1, node.end(), [&](int32_t one) { return ends(one, truth); });
            default: return std::all_of(node.begin() + 1, node.end(), [&](int32_t one) { return ends(one, truth); });
        }
    }

    // One of the terms, each once.
    int32_t any_of(Numbers terms) {
        std::sort(terms.begin(), terms.end());
        terms.erase(std::unique(terms.begin(), terms.end()), terms.end());
        if (terms.size() == 1) return terms[0];
        terms.insert(terms.begin(), kAny);
        return add(std::move(terms));
    }

    Numbers alternatives(int32_t term) const {
        const Numbers& node = nodes_[static_cast<size_t>(term)];
        return node[0] == kAny ? Numbers(node.begin() + 1, node.end()) : Numbers{term};
    }

    // All of the terms at once; -1 where nothing can be.
    int32_t both(const Numbers& terms) {
        Numbers kept, none, pending = terms;
        int32_t all = -1;
        for (size_t i = 0; i < pending.size(); i++) {
            const int32_t term = pending[i];
            const Numbers& node = nodes_[static_cast<size_t>(term)];
            if (takes_all(term)) {
                all = term;
            } else if (node[0] == kBoth) {
                const Numbers items(node.begin() + 1, node.end());
                pending.insert(pending.end(), items.begin(), items.end());
            } else if (node[0] == kNone) {
                const Numbers ways = alternatives(node[1]);
                none.insert(none.end(), ways.begin(), ways.end());
            } else {
                kept.push_back(term);
            }
        }
        for (const int32_t one : none)
            if (takes_all(one)) return -1;
        if (!none.empty()) kept.push_back(add({kNone, any_of(none)}));
        std::sort(kept.begin(), kept.end());
        kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
        if (kept.empty()) return all;
        if (kept.size() == 1) return kept[0];
        kept.insert(kept.begin(), kBoth);
        return add(std::move(kept));
    }

    Numbers all_tracked(int32_t term, size_t chars) {
        if (!open_.empty()) return tracked(term, chars);
        looked_before_ = num_looked;
        try {
            return tracked(term, chars);
        } catch (...) {
            open_.clear();
            is_cut_ = false;
            throw;
        }
    }

    // After a character, of a root.
    Numbers tracked(int32_t term, size_t chars) {
        const Numbers node = nodes_[static_cast<size_t>(term)];
        if (node[0] != kTracked) return looked(term, chars, 0);
        Numbers before;
        for (size_t i = 2; i < node.size(); i++) before.push_back(any_of(after(node[i], chars)));
        Numbers out;
        for (const int32_t way : looked(node[1], chars, truth_of(node))) {
            Numbers made{kTracked, way};
            made.insert(made.end(), before.begin(), before.end());
            out.push_back(looks(way) ? add(std::move(made)) : way);
        }
        return out;
    }

    // After a character, where what a root tracks is true here or not. A repetition may come back to itself without a
    // character: that adds nothing to it, but what was found on the way is not all.
    Numbers looked(int32_t term, size_t chars, uint32_t truth) {
        if (!looks(term)) return after(term, chars);
        const Numbers key{term, static_cast<int32_t>(chars), static_cast<int32_t>(truth)};
        const auto found = looked_.find(key);
        if (found != looked_.end()) return found->second;
        if (!open_.insert(term).second) {
            is_cut_ = true;
            return {};
        }
        if (++num_looked - looked_before_ > kMostLooked || open_.size() > kDeepest) throw TooMany();
        const bool was_cut = is_cut_;
        is_cut_ = false;
        Numbers out = followed(nodes_[static_cast<size_t>(term)], chars, truth);
        std::sort(out.begin(), out.end());
        out.erase(std::unique(out.begin(), out.end()), out.end());
        if (out.size() > kMostWays) throw TooMany();
        open_.erase(term);
        if (open_.empty()) is_cut_ = false;
        if (!is_cut_) looked_.emplace(key, out);
        is_cut_ = is_cut_ || was_cut;
        return out;
    }

    Numbers followed(Numbers node, size_t chars, uint32_t truth) {
        Numbers out;
        const auto follow = [&](int32_t term) {
            const Numbers ways = looked(term, chars, truth);
            out.insert(out.end(), ways.begin(), ways.end());
        };
        if (node[0] == kAny) {
            for (size_t i = 1; i < node.size(); i++) follow(node[i]);
        } else if (node[0] == kNone) {
            Numbers none;
            for (const int32_t one : alternatives(node[1])) {
                const Numbers ways = looked(one, chars, truth);
                none.insert(none.end(), ways.begin(), ways.end());
            }
            if (std::none_of(none.begin(), none.end(), [&](int32_t one) { return takes_all(one); }))
                out.push_back(add({kNone, any_of(std::move(none))}));
        } else if (node[0] == kBoth) {
            out = product(node, chars, truth);
        } else if (node[0] == kSequence) {
            const int32_t head = node[1], tail = sequence(Numbers(node.begin() + 2, node.end()));
            if (looks(head)) return begun(nodes_[static_cast<size_t>(head)], tail, chars, truth);
            for (const int32_t way : after(head, chars)) out.push_back(sequence({way, tail}));
            if (is_nullable(head)) follow(tail);
        } else {
            out = begun(node, add({kSequence}), chars, truth);
        }
        return out;
    }

    // After a character, of a term that looks around and what follows it.
    Numbers begun(const Numbers node, int32_t tail, size_t chars, uint32_t truth) {
        Numbers out;
        const auto follow = [&](int32_t term) {
            const Numbers ways = looked(term, chars, truth);
            out.insert(out.end(), ways.begin(), ways.end());
        };
        if (node[0] == kAny) {
            for (size_t i = 1; i < node.size(); i++) follow(sequence({node[i], tail}));
        } else if (node[0] == kRepetition) {
            if (node[2] == 0) follow(tail);
            if (node[3] == 0) return out;
            const int32_t low = std::max(node[2] - 1, 0), high = node[3] < 0 ? -1 : node[3] - 1;
            const int32_t rest = high == 0 ? tail : sequence({add({kRepetition, node[1], low, high}), tail});
            follow(sequence({node[1], rest}));
        } else if (node[0] == kAhead) {
            const int32_t term = both({tail, node[2] ? node[1] : add({kNone, any_of(alternatives(node[1]))})});
            if (term >= 0) follow(term);
        } else if ((truth >> node[1] & 1) == static_cast<uint32_t>(node[2])) {
            follow(tail);
        }
        return out;
    }

    Numbers product(const Numbers& node, size_t chars, uint32_t truth) {
        std::vector<Numbers> found{{}};
        for (size_t i = 1; i < node.size(); i++) {
            const Numbers ways = looked(node[i], chars, truth);
            if (found.size() * ways.size() > kMostWays) throw TooMany();
            std::vector<Numbers> next;
            for (const Numbers& so_far : found)
                for (const int32_t way : ways) {
                    next.push_back(so_far);
                    next.back().push_back(way);
                }
            found.swap(next);
            num_looked += static_cast<int64_t>(found.size());
        }
        Numbers out;
        for (const Numbers& one : found)
            if (const int32_t term = both(one); term >= 0) out.push_back(term);
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
    std::vector<bool> nullable_, looks_;
    ByNumbers<Numbers> looked_;         // by term, class and what is true
    std::unordered_set<int32_t> open_;  // terms that are being followed
    bool is_cut_ = false;               // whether one of them was met again
    int64_t looked_before_ = 0;         // when the character was begun
    std::unordered_map<uint64_t, Numbers> after_;
};

}  // namespace lmprog
#endif
