// Token masks: a walk of the vocabulary's tries against the automaton of lmprog_automaton.h.
//
// A slice's trie is not walked where the automaton takes every string of the slice's class: that is decided on the
// product of the automaton with the class's own little automaton, character by character, and the slice's ready mask
// is then taken whole. Knows bytes and token ids; the meaning of a constraint is the net's.
#include "lmprog_masks.h"

#include <new>

#include "lmprog_automaton.h"

#define LMPROG_EXPORT extern "C" __attribute__((visibility("default")))

using lmprog::Automaton;

struct lmprog_automaton {
    Automaton inner;
    std::vector<const uint32_t*> rows;                  // by depth of the walk
    std::vector<std::pair<uint8_t, uint32_t>> pairs;    // the slice check's queue: class state, automaton state
    std::vector<uint32_t> marks;                        // by automaton state: class states met, in this check
    std::vector<uint32_t> marked;
};

namespace {

struct Range {
    uint8_t low, high, to;
};

// The characters of a class as an automaton over their bytes; state 0 is between characters.
const std::vector<std::vector<Range>> kLower = {{{'a', 'z', 0}}};
const std::vector<std::vector<Range>> kLetters = {{{'A', 'Z', 0}, {'a', 'z', 0}}};
const std::vector<std::vector<Range>> kWord = {{{'0', '9', 0}, {'A', 'Z', 0}, {'_', '_', 0}, {'a', 'z', 0}}};
const std::vector<std::vector<Range>> kWords = {
    {{' ', ' ', 0}, {'0', '9', 0}, {'A', 'Z', 0}, {'_', '_', 0}, {'a', 'z', 0}}};
// UTF-8 beyond ASCII, after the ASCII ranges of a class; states 1 to 7 are inside a character.
std::vector<std::vector<Range>> with_unicode(std::vector<Range> first) {
    const std::vector<Range> leads = {{0xC2, 0xDF, 1}, {0xE0, 0xE0, 2}, {0xE1, 0xEC, 3}, {0xED, 0xED, 4},
                                      {0xEE, 0xEF, 3}, {0xF0, 0xF0, 5}, {0xF1, 0xF3, 6}, {0xF4, 0xF4, 7}};
    first.insert(first.end(), leads.begin(), leads.end());
    return {first,           {{0x80, 0xBF, 0}}, {{0xA0, 0xBF, 1}}, {{0x80, 0xBF, 1}},
            {{0x80, 0x9F, 1}}, {{0x90, 0xBF, 3}}, {{0x80, 0xBF, 3}}, {{0x80, 0x8F, 3}}};
}
const std::vector<std::vector<Range>> kText = with_unicode(kWords[0]);
const std::vector<std::vector<Range>> kPlain = with_unicode({{0x20, 0x21, 0}, {0x23, 0x5B, 0}, {0x5D, 0x7F, 0}});

// The same kinds, in the same order, as SLICE_KINDS of vocabulary.py: each contained in the next.
struct SliceKind {
    const std::vector<std::vector<Range>>* one_char;
    int longest;
};
const SliceKind kKinds[LMPROG_NUM_SLICES] = {
    {&kLower, 10}, {&kLetters, 10}, {&kWord, 10}, {&kWords, 10}, {&kText, 10}, {&kPlain, 10}, {&kPlain, 30}, {&kPlain, 1 << 30}};
constexpr size_t kMaxPairs = 1024;

struct Mask {
    uint32_t* bits;
    int32_t* ids;
    int64_t max_ids;
    int64_t most;
    int64_t count, worst;
};

// Whether every string of the slice is allowed from `state`, with the highest cost that one leads to.
class SliceCheck {
  public:
    SliceCheck(lmprog_automaton& owner, int64_t most) : a_(owner), most_(most) {}

    bool takes_all(const SliceKind& kind, uint32_t state, int64_t& worst) {
        a_.pairs.clear();
        add(0, state);
        size_t level = 0;
        bool all = true;
        for (int length = 0; all && length < kind.longest && level < a_.pairs.size(); length++) {
            const size_t end = a_.pairs.size();
            all = one_more_char(*kind.one_char, level, end, worst);
            level = boundary_;
        }
        for (uint32_t s : a_.marked) a_.marks[s] = 0;
        a_.marked.clear();
        return all;
    }

  private:
    // Expands pairs [begin, end), all between characters, by one whole character.
    bool one_more_char(const std::vector<std::vector<Range>>& one_char, size_t begin, size_t end, int64_t& worst) {
        after_.clear();
        size_t stop = end;
        for (size_t i = begin; i < stop; i++) {
            const auto [inside, state] = a_.pairs[i];
            const uint32_t* row = a_.inner.row(state);
            uint32_t last = 0;
            for (const Range& range : one_char[inside]) {
                for (int byte = range.low; byte <= range.high; byte++) {
                    const uint32_t next = row[byte];
                    if (next == last && byte != range.low) continue;
                    if (!next || a_.pairs.size() + after_.size() >= kMaxPairs) return false;
                    last = next;
                    if (range.to != 0) {
                        if (add(range.to, next)) stop++;
                    } else {
                        if (a_.inner.cost(next) > most_) return false;
                        worst = std::max(worst, a_.inner.cost(next));
                        after_.push_back(next);
                    }
                }
            }
        }
        boundary_ = a_.pairs.size();
        for (uint32_t state : after_) add(0, state);
        return true;
    }

    bool add(uint8_t inside, uint32_t state) {
        if (a_.marks.size() <= state) a_.marks.resize(state + 256, 0);
        if (a_.marks[state] >> inside & 1) return false;
        if (!a_.marks[state]) a_.marked.push_back(state);
        a_.marks[state] |= 1u << inside;
        a_.pairs.push_back({inside, state});
        return true;
    }

    lmprog_automaton& a_;
    int64_t most_;
    size_t boundary_ = 0;
    std::vector<uint32_t> after_;
};

// The subtree of a node of depth 1; the row of the state above it is in rows[0]. What the loop changes is kept in
// locals: the compiler must assume that a write to the bits may change anything that it can reach otherwise.
void walk_below(lmprog_automaton& a, const lmprog_trie& trie, int64_t root, Mask& out) {
    const lmprog_trie_node* at = trie.nodes + root;
    const lmprog_trie_node* const end = at + at->sub;
    const int32_t* const order = trie.order;
    const uint32_t** const rows = a.rows.data();
    uint32_t* const bits = out.bits;
    const int64_t most = out.most;
    int64_t count = out.count, worst = out.worst;
    while (at < end) {
        const lmprog_trie_node node = *at;
        const uint32_t next = rows[node.depth - 1u][node.byte];
        if (!next) {
            at += node.sub;
            continue;
        }
        if (node.own) {
            const int64_t cost = a.inner.cost(next);
            if (cost <= most) {
                worst = std::max(worst, cost);
                for (const int32_t *token = order + node.first, *last = token + node.own; token < last; token++) {
                    bits[*token >> 5] |= 1u << (*token & 31);
                    if (count < out.max_ids) out.ids[count] = *token;
                    count++;
                }
            }
        }
        if (node.sub > 1) rows[node.depth] = a.inner.row(next);
        at++;
    }
    out.count = count;
    out.worst = worst;
}

void walk(lmprog_automaton& a, const lmprog_trie& trie, uint32_t state, Mask& out) {
    const uint32_t* row = a.rows[0] = a.inner.row(state);
    for (int byte = 0; byte < 256; byte++)
        if (row[byte] && trie.roots[byte] >= 0) walk_below(a, trie, trie.roots[byte], out);
}

void take(const lmprog_trie& slice, int32_t num_words, Mask& out) {
    for (int32_t word = 0; word < num_words; word++) out.bits[word] |= slice.bits[word];
    for (int64_t k = 0; k < slice.num_tokens && out.count + k < out.max_ids; k++) out.ids[out.count + k] = slice.order[k];
    out.count += slice.num_tokens;
}

// Runs a function that may outgrow the limits.
template <class Body> int64_t guarded(Body body) {
    try {
        return body();
    } catch (const lmprog::Grown&) {
        return LMPROG_MASKS_LIMIT;
    } catch (const std::bad_alloc&) {
        return LMPROG_MASKS_LIMIT;
    }
}

}  // namespace

LMPROG_EXPORT lmprog_automaton* lmprog_automaton_new(const lmprog_net* net) {
    lmprog_automaton* made = nullptr;
    guarded([&] {
        made = new lmprog_automaton{Automaton(*net), {}, {}, {}, {}};
        return int64_t{0};
    });
    return made;
}

LMPROG_EXPORT void lmprog_automaton_free(lmprog_automaton* automaton) { delete automaton; }

LMPROG_EXPORT int64_t lmprog_automaton_start(lmprog_automaton* automaton) { return automaton->inner.start(); }

LMPROG_EXPORT int64_t lmprog_automaton_run(lmprog_automaton* automaton, uint32_t state, const uint8_t* bytes,
                                           int64_t length) {
    return guarded([&] {
        automaton->inner.bound_rows();
        for (int64_t i = 0; i < length && state; i++) state = automaton->inner.row(state)[bytes[i]];
        return int64_t{state};
    });
}

LMPROG_EXPORT int64_t lmprog_automaton_row(lmprog_automaton* automaton, uint32_t state, uint32_t* next256) {
    return guarded([&] {
        automaton->inner.bound_rows();
        std::memcpy(next256, automaton->inner.row(state), 1024);
        return int64_t{0};
    });
}

LMPROG_EXPORT int64_t lmprog_automaton_forced(lmprog_automaton* automaton, uint32_t state, uint8_t* bytes,
                                              int64_t max_length) {
    return guarded([&] {
        Automaton& inner = automaton->inner;
        inner.bound_rows();
        int64_t length = 0;
        for (; length < max_length && !inner.is_final(state); length++) {
            const uint32_t* row = inner.row(state);
            const uint32_t* moves = std::find_if(row, row + 256, [](uint32_t next) { return next != 0; });
            if (moves == row + 256) break;  // the dead state
            if (std::any_of(moves + 1, row + 256, [](uint32_t next) { return next != 0; })) break;
            bytes[length] = static_cast<uint8_t>(moves - row);
            state = *moves;
        }
        return length;
    });
}

LMPROG_EXPORT int64_t lmprog_automaton_cost(const lmprog_automaton* automaton, uint32_t state) {
    return automaton->inner.cost(state);
}

LMPROG_EXPORT int32_t lmprog_automaton_final(const lmprog_automaton* automaton, uint32_t state) {
    return automaton->inner.is_final(state);
}

LMPROG_EXPORT int64_t lmprog_automaton_states(const lmprog_automaton* automaton) {
    return automaton->inner.num_states();
}

LMPROG_EXPORT int64_t lmprog_automaton_bytes(const lmprog_automaton* automaton) {
    return automaton->inner.num_bytes() + static_cast<int64_t>(automaton->marks.capacity() * 4);
}

LMPROG_EXPORT int64_t lmprog_mask(lmprog_automaton* automaton, const lmprog_vocabulary* vocabulary, uint32_t state,
                                  int64_t most, uint32_t* bits, int32_t* ids, int64_t max_ids,
                                  lmprog_mask_result* result) {
    return guarded([&] {
        lmprog_automaton& a = *automaton;
        a.inner.bound_rows();
        if (a.rows.size() <= static_cast<size_t>(vocabulary->deepest)) a.rows.resize(vocabulary->deepest + 1);
        Mask out{bits, ids, max_ids, most, 0, 0};
        int taken = LMPROG_NUM_SLICES;  // slices below this are taken whole: each is contained in the next one
        SliceCheck check(a, most);
        for (; taken > 0; taken--) {
            int64_t worst = 0;
            if (check.takes_all(kKinds[taken - 1], state, worst)) {
                out.worst = worst;
                break;
            }
        }
        for (int i = 0; i < LMPROG_NUM_SLICES + 1; i++) {
            if (i < taken)
                take(vocabulary->tries[i], vocabulary->num_words, out);
            else
                walk(a, vocabulary->tries[i], state, out);
        }
        for (int32_t i = 0; i < vocabulary->num_eos && a.inner.is_final(state); i++) {
            const int32_t token = vocabulary->eos_ids[i];
            bits[token >> 5] |= 1u << (token & 31);
            if (out.count < max_ids) ids[out.count] = token;
            out.count++;
        }
        *result = {out.count, out.worst};
        return int64_t{0};
    });
}
