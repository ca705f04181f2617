// Token masks: the vocabulary's buckets against the automaton of lmprog_automaton.h.
//
// A bucket's tokens consist of characters of the same groups (lmprog_groups.h). From a state, all strings of such
// characters are followed at once, character by character: up to some length all of them are allowed, or beyond it none
// is, or some group is never allowed; then the bucket is taken by its ready mask, or left. Only where that does not
// decide, its trie is walked. Inside JSON strings most tokens are allowed together (lmprog_strings.h). Knows bytes and token ids; the meaning of a constraint is the net's.
#include "lmprog_masks.h"

#include <new>

#include "lmprog_doubts.h"
#include "lmprog_groups.h"
#include "lmprog_prefixes.h"
#include "lmprog_strings.h"
#include "lmprog_turns.h"

#define LMPROG_EXPORT extern "C" __attribute__((visibility("default")))

using lmprog::Automaton;
using lmprog::Groups;
using lmprog::InString;
using lmprog::InStrings;
using lmprog::Steps;

struct lmprog_automaton {
    lmprog_automaton(const lmprog_net& net, const lmprog_vocabulary& of) : inner(net), groups(inner, of), strings(inner, of), prefixes(inner), vocabulary(of) {}
    Automaton inner;
    Groups groups;
    InStrings strings;
    lmprog::Prefixes prefixes;
    const lmprog_vocabulary& vocabulary;
    mutable lmprog::Turns turns;
    bool is_apart = false;              // the mask that is being made
    std::vector<const uint32_t*> rows;  // by depth of the walk

    // Between two steps of a mask.
    void let_others() {
        if (is_apart && turns.others_wait()) inner.pause([this] { turns.let_others(); });
    }
    std::vector<uint32_t> here, next;   // of an exploration: the states after so many characters
};

namespace {

constexpr size_t kMaxHere = 64;
constexpr int kFewBytes = 12;
constexpr int kMaxSteps = 4096;

struct Mask {
    uint32_t* bits;
    int32_t* ids;
    int64_t max_ids;
    int64_t most;
    int64_t count, worst;
    int64_t steps_left;  // for explorations, so that they never take longer than a walk
};

// The bits of a mask while it is made. Most masks allow few tokens: their bits are cleared one by one, and never leave.
struct Scratch {
    std::vector<uint32_t> bits;
    bool is_clear = false;
    void clear(size_t num_words) {
        if (!is_clear || bits.size() != num_words) bits.assign(num_words, 0);
        is_clear = false;
    }
    void copy(const std::vector<uint32_t>& from) {
        bits.assign(from.begin(), from.end());
        is_clear = false;
    }
    void forget(const int32_t* ids, int64_t count) {
        for (int64_t i = 0; i < count; i++) bits[static_cast<size_t>(ids[i] >> 5)] = 0;
        is_clear = true;
    }
};
thread_local Scratch scratch;

thread_local std::string found_doubts;  // as `lmprog_automaton_doubts` found them

// Rows for states that have few moves: by depth of the walk, and of the two places where tokens begin.
thread_local std::vector<lmprog::ScratchRow> scratch_rows;
thread_local lmprog::ScratchRow scratch_roots[2];

void make_rows(lmprog_automaton& a) {
    const auto deepest = static_cast<size_t>(a.vocabulary.deepest) + 1;
    if (a.rows.size() < deepest) a.rows.resize(deepest);
    if (scratch_rows.size() < deepest) scratch_rows.resize(deepest);
}

enum Verdict { kLeave, kTake, kWalk };

// What of a bucket is allowed behind `state`: nothing, the tokens of at most `whole` characters, or that is not clear.
Verdict explore(lmprog_automaton& a, const lmprog_bucket& bucket, uint32_t state, Mask& out, int32_t& whole) {
    uint8_t none = bucket.groups;  // groups that were never allowed so far: each token has one character of each
    bool all = true;
    int64_t worst = 0;
    whole = 0;
    a.here.assign(1, state);
    for (int length = 0; length < bucket.longest; length++) {
        bool nothing = true;
        const bool all_before = all;
        a.next.clear();
        for (const uint32_t from : a.here) {
            const Steps& steps = a.groups.steps(from);
            a.let_others();
            for (int g = 0; g < lmprog::kGroups; g++) {
                if (!(bucket.groups >> g & 1)) continue;
                const lmprog::Step& step = steps[g];
                if (step.kind == lmprog::kUnknown || --out.steps_left < 0) return kWalk;
                all = all && step.kind == lmprog::kAll;
                if (step.kind == lmprog::kNone) continue;
                nothing = false;
                none &= static_cast<uint8_t>(~(1u << g));
                const uint32_t* to = a.groups.targets(step);
                a.next.insert(a.next.end(), to, to + step.count);
            }
        }
        if (nothing) {  // no longer token is allowed
            if (!all_before) return none ? kLeave : kWalk;
            out.worst = std::max(out.worst, worst);
            return whole ? kTake : kLeave;
        }
        std::sort(a.next.begin(), a.next.end());
        a.next.erase(std::unique(a.next.begin(), a.next.end()), a.next.end());
        for (const uint32_t to : a.next) {
            all = all && a.inner.cost(to) <= out.most;
            if (all) worst = std::max(worst, a.inner.cost(to));
        }
        if (!all && !none) return kWalk;
        if (all) whole = length + 1;
        if (a.next == a.here) {
            if (all) whole = bucket.longest;
            break;
        }
        if (a.next.size() > kMaxHere) return kWalk;
        a.here.swap(a.next);
    }
    if (none) return kLeave;
    if (!all) return kWalk;
    out.worst = std::max(out.worst, worst);
    return kTake;
}

// The subtree of a node of depth 1; the row of the state above it is in rows[0]. What the loop changes is kept in
// locals: the compiler must assume that a write to the bits may change anything that it can reach otherwise.
void walk_below(lmprog_automaton& a, const lmprog_bucket& bucket, int64_t root, Mask& out) {
    const lmprog_trie_node* at = bucket.nodes + root;
    const lmprog_trie_node* const end = at + at->sub;
    const int32_t* const order = bucket.order;
    const uint32_t** const rows = a.rows.data();
    uint32_t* const bits = out.bits;
    const int64_t most = out.most;
    int64_t count = out.count, worst = out.worst, visited = 0;
    while (at < end) {
        const lmprog_trie_node node = *at;
        visited++;
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
        if (node.sub > 1) {
            rows[node.depth] = a.inner.row(next, scratch_rows[node.depth]);
            a.let_others();
        }
        at++;
    }
    out.count = count;
    out.worst = worst;
    a.inner.take_work(visited);
}

// Where the tokens of a bucket begin: a state, and the bytes that it takes.
struct Root {
    uint32_t state = 0;
    const uint32_t* row = nullptr;
    uint8_t none = 0;  // groups of which no character is taken
    bool few = false;  // so few bytes, of ASCII, that a walk is the quickest way
    int num_bytes = 0;
    uint8_t bytes[256];

    void set(lmprog_automaton& a, uint32_t at, lmprog::ScratchRow& scratch_row) {
        state = at;
        row = a.inner.row(at, scratch_row);
        for (int byte = 0; byte < 256; byte++)
            if (row[byte]) bytes[num_bytes++] = static_cast<uint8_t>(byte);
        few = num_bytes <= kFewBytes && (!num_bytes || bytes[num_bytes - 1] < 128);
        none = few ? a.groups.without(bytes, num_bytes) : 0;
        if (few) return;
        const Steps& steps = a.groups.steps(at);
        for (int g = 0; g < lmprog::kGroups; g++) none |= static_cast<uint8_t>((steps[g].kind == lmprog::kNone) << g);
    }
};

void walk(lmprog_automaton& a, const lmprog_bucket& bucket, const Root& root, Mask& out) {
    a.rows[0] = root.row;
    for (int i = 0; i < root.num_bytes; i++)
        if (bucket.roots[root.bytes[i]] >= 0) walk_below(a, bucket, bucket.roots[root.bytes[i]], out);
}

// All tokens of at most `whole` characters.
void take(const lmprog_bucket& bucket, int32_t whole, int32_t num_words, Mask& out) {
    const int64_t inside = bucket.length_start[whole];
    const int32_t* const ids = bucket.by_length;
    int64_t one_by_one = inside;  // those that are set; or, from there on, those that are cleared
    if (bucket.bits && bucket.num_tokens - inside < inside) {
        for (int32_t word = 0; word < num_words; word++) out.bits[word] |= bucket.bits[word];
        for (int64_t k = inside; k < bucket.num_tokens; k++) out.bits[ids[k] >> 5] &= ~(1u << (ids[k] & 31));
        one_by_one = 0;
    }
    for (int64_t k = 0; k < one_by_one; k++) out.bits[ids[k] >> 5] |= 1u << (ids[k] & 31);
    for (int64_t k = 0; k < inside && out.count + k < out.max_ids; k++) out.ids[out.count + k] = ids[k];
    out.count += inside;
}

void fill(lmprog_automaton& a, uint32_t state, Mask& out) {
    const lmprog_vocabulary& vocabulary = a.vocabulary;
    make_rows(a);
    Root roots[2];
    roots[0].set(a, state, scratch_roots[0]);
    if (roots[0].row[' ']) roots[1].set(a, roots[0].row[' '], scratch_roots[1]);
    for (int32_t i = 0; i < vocabulary.num_buckets; i++) {
        const lmprog_bucket& bucket = vocabulary.buckets[i];
        const Root& root = roots[bucket.lead];
        if (!root.state || (bucket.groups && !(bucket.groups & ~root.none))) continue;
        int32_t whole = 0;
        const Verdict verdict = bucket.groups && !root.few ? explore(a, bucket, root.state, out, whole) : kWalk;
        if (verdict == kTake) take(bucket, whole, vocabulary.num_words, out);
        if (verdict == kWalk) walk(a, bucket, root, out);
    }
}

// Where tokens that leave the string are looked for.
struct Leaving {
    lmprog_automaton& a;
    const lmprog::TokenTrie& trie;
    Mask& out;
};

bool has(const Mask& out, int32_t token) { return out.bits[token >> 5] >> (token & 31) & 1; }

void put(Mask& out, int32_t token, bool allowed) {
    if (has(out, token) == allowed) return;
    out.bits[token >> 5] ^= 1u << (token & 31);
    out.count += allowed ? 1 : -1;
}

// Walks a trie from `state`: body(next, node) says whether to go on below the node.
template <class Body> void each_node(const Leaving& in, uint32_t state, Body body) {
    lmprog_automaton& a = in.a;
    make_rows(a);
    a.rows[0] = a.inner.row(state, scratch_rows[0]);
    for (size_t n = 0; n < in.trie.nodes.size();) {
        const lmprog_trie_node& node = in.trie.nodes[n];
        const uint32_t next = a.rows[node.depth - 1u][node.byte];
        if (!body(next, n)) {
            n += node.sub;
            continue;
        }
        if (node.sub > 1) {
            a.rows[node.depth] = a.inner.row(next, scratch_rows[node.depth]);
            a.let_others();
        }
        n++;
    }
}

// The token at a place of the trie, whose last byte leads to `next`.
void put_at(const Leaving& in, uint32_t place, uint32_t next) {
    const int64_t cost = in.a.inner.cost(next);
    if (cost <= in.out.most) in.out.worst = std::max(in.out.worst, cost);
    put(in.out, in.trie.order[place], cost <= in.out.most);
}

// Whether so many characters later the counter is what it would be by this position alone.
bool is_left(const InString& before, const InString& after, int32_t characters) {
    if (before.characters == lmprog::kNoLimit) return after.characters == lmprog::kNoLimit;
    return after.characters == before.characters - characters;
}

int64_t num_inside(const lmprog_string_tokens& tokens, const InString& in) {
    int64_t count = tokens.count[in.fits(tokens.kFew) ? tokens.kFew : in.characters];
    for (const auto& [characters, token] : tokens.long_ones) count += in.fits(characters);
    return count;
}

// The tokens that stay inside; returns how many.
int64_t put_inside(const lmprog_string_tokens& tokens, const InString& in, Mask& out) {
    scratch.copy(tokens.bits[in.fits(tokens.kFew) ? tokens.kFew : in.characters]);
    out.bits = scratch.bits.data();
    for (const auto& [characters, token] : tokens.long_ones)
        if (in.fits(characters)) out.bits[token >> 5] |= 1u << (token & 31);
    return num_inside(tokens, in);
}

// The mask of a state that is inside a string: what stays inside, what closes the string from anywhere in it, and then
// the places from which that is not so.
void fill_in_string(lmprog_automaton& a, uint32_t state, const InString& in, Mask& out) {
    const lmprog_string_tokens& tokens = *a.vocabulary.strings[in.way];
    out.count = put_inside(tokens, in, out);
    out.worst = in.cost + tokens.dearest;
    const Leaving closing{a, tokens.closing, out}, outside{a, tokens.outside, out};
    each_node(closing, in.like, [&](uint32_t next, size_t n) {
        const lmprog_trie_node& node = closing.trie.nodes[n];
        if (!next) return false;
        for (uint32_t k = node.first; k < node.first + node.own; k++)
            if (in.fits(tokens.closing_characters[k])) put_at(closing, k, next);
        return true;
    });
    if (in.kind == InString::kWholly) return;
    each_node(outside, state, [&](uint32_t next, size_t n) {
        const lmprog_trie_node& node = outside.trie.nodes[n];
        if (!next) {
            for (uint32_t k = node.first; k < outside.trie.end_of(n); k++) put(out, outside.trie.order[k], false);
            return false;
        }
        const InString& there = a.strings.of(next);
        if (there.kind == InString::kWholly && there.like == in.like && is_left(in, there, tokens.characters[n])) return false;
        for (uint32_t k = node.first; k < node.first + node.own; k++) put_at(outside, k, next);
        return true;
    });
}

void add_eos(lmprog_automaton& a, uint32_t state, Mask& out) {
    for (int32_t i = 0; i < a.vocabulary.num_eos && a.inner.is_final(state); i++) {
        const int32_t token = a.vocabulary.eos_ids[i];
        out.bits[token >> 5] |= 1u << (token & 31);
        if (out.count < out.max_ids) out.ids[out.count] = token;
        out.count++;
    }
}

// What a symbol is spelled like is written in other tokens, single bytes at least, inside a string and behind which one is
// inside a string; where something else may stand, too, only that has symbols.
void drop_symbols(lmprog_automaton& a, uint32_t state, const InString& in, Mask& out) {
    const lmprog_vocabulary& vocabulary = a.vocabulary;
    const int64_t before = out.count;
    const uint32_t from = in.has_any && !in.is_all && vocabulary.num_symbols ? a.strings.outside_of(state) : state;
    for (int64_t i = 0; i < vocabulary.num_symbols; i++) {
        if (!has(out, vocabulary.symbols[i])) continue;
        uint32_t next = from;
        for (int32_t at = vocabulary.symbol_begins[i]; !in.is_all && at < vocabulary.symbol_begins[i + 1]; at++)
            next = a.inner.after(next, vocabulary.symbol_texts[at]);
        if (in.is_all || !next || a.strings.of(next).is_all) put(out, vocabulary.symbols[i], false);
    }
    if (out.count == before) return;
    int64_t count = 0;
    for (int32_t token = 0; out.count <= out.max_ids && count < out.count; token++)
        if (has(out, token)) out.ids[count++] = token;
}

// Several sums at a time: each of them waits for its last product.
int64_t digest(const std::vector<uint32_t>& bits) {
    constexpr size_t kSums = 8;
    uint64_t sums[kSums] = {1, 2, 3, 4, 5, 6, 7, 8};
    size_t i = 0;
    for (; i + kSums <= bits.size(); i += kSums)
        for (size_t k = 0; k < kSums; k++) sums[k] = lmprog::mix(sums[k], bits[i + k]);
    for (; i < bits.size(); i++) sums[0] = lmprog::mix(sums[0], bits[i]);
    for (size_t k = 1; k < kSums; k++) sums[0] = lmprog::mix(sums[0], sums[k]);
    return static_cast<int64_t>(sums[0]);
}

// Runs a function that may outgrow the limits of one call.
template <class Body> int64_t guarded(Body body) {
    try {
        return body();
    } catch (const lmprog::Grown&) {
        return LMPROG_MASKS_LIMIT;
    } catch (const std::bad_alloc&) {
        return LMPROG_MASKS_LIMIT;
    }
}

// The same for a call that may make states.
template <class Body> int64_t growing(lmprog_automaton* automaton, Body body, int64_t most_work = lmprog::kMaxWork) {
    if (!automaton->inner.begin_call(most_work)) return LMPROG_MASKS_FULL;
    return guarded(body);
}

}  // namespace

LMPROG_EXPORT lmprog_string_tokens* lmprog_string_tokens_new(const lmprog_vocabulary* vocabulary,
                                                             const lmprog_leaf_automaton* any) {
    try {
        return new lmprog_string_tokens(*vocabulary, *any);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

LMPROG_EXPORT void lmprog_string_tokens_free(lmprog_string_tokens* tokens) { delete tokens; }

LMPROG_EXPORT lmprog_automaton* lmprog_automaton_new(const lmprog_net* net, const lmprog_vocabulary* vocabulary) {
    lmprog_automaton* made = nullptr;
    guarded([&] {
        made = new lmprog_automaton(*net, *vocabulary);
        return int64_t{0};
    });
    return made;
}

LMPROG_EXPORT void lmprog_automaton_free(lmprog_automaton* automaton) { delete automaton; }

LMPROG_EXPORT int64_t lmprog_automaton_start(lmprog_automaton* automaton) { return automaton->inner.start(); }

LMPROG_EXPORT int64_t lmprog_automaton_run(lmprog_automaton* automaton, uint32_t state, const uint8_t* bytes,
                                           int64_t length) {
    const lmprog::Turns::Turn turn(automaton->turns);
    return growing(automaton, [&] {
        for (int64_t i = 0; i < length && state; i++) state = automaton->inner.after(state, bytes[i]);
        return int64_t{state};
    });
}

LMPROG_EXPORT int64_t lmprog_automaton_row(lmprog_automaton* automaton, uint32_t state, uint32_t* next256) {
    const lmprog::Turns::Turn turn(automaton->turns);
    return growing(automaton, [&] {
        std::memcpy(next256, automaton->inner.row(state, scratch_roots[0]), 1024);
        return int64_t{0};
    });
}

LMPROG_EXPORT int64_t lmprog_automaton_forced(lmprog_automaton* automaton, uint32_t state, uint8_t* bytes,
                                              int64_t max_length) {
    const lmprog::Turns::Turn turn(automaton->turns);
    return growing(automaton, [&] {
        int64_t length = 0;
        lmprog::Doubts::each_forced(automaton->inner, state, max_length, [&](uint8_t byte) { bytes[length++] = byte; });
        return length;
    });
}

LMPROG_EXPORT int64_t lmprog_automaton_doubts(lmprog_automaton* automaton, uint32_t state, const uint8_t* forced,
                                              int64_t length, const lmprog_token_texts* texts) {
    const lmprog::Turns::Turn turn(automaton->turns);
    return growing(automaton, [&] {
        found_doubts = lmprog::Doubts(automaton->inner, *texts).find(state, forced, length);
        return static_cast<int64_t>(found_doubts.size());
    });
}

LMPROG_EXPORT void lmprog_doubts_copy(uint8_t* bytes) { std::copy(found_doubts.begin(), found_doubts.end(), bytes); }

LMPROG_EXPORT int64_t lmprog_automaton_follow(lmprog_automaton* automaton, uint32_t* state, const uint8_t* bytes,
                                              const int64_t* ends, int64_t count, int64_t left) {
    const lmprog::Turns::Turn turn(automaton->turns);
    return growing(automaton, [&] {
        Automaton& inner = automaton->inner;
        int64_t taken = 0;
        for (int64_t at = 0; taken < count; taken++) {
            uint32_t next = *state;
            while (at < ends[taken] && next) next = inner.after(next, bytes[at++]);
            if (!next || inner.cost(next) >= left - taken) break;
            *state = next;
        }
        return taken;
    });
}

LMPROG_EXPORT int64_t lmprog_automaton_cost(const lmprog_automaton* automaton, uint32_t state) {
    const lmprog::Turns::Turn turn(automaton->turns);
    return automaton->inner.cost(state);
}

LMPROG_EXPORT int32_t lmprog_automaton_stands_at(const lmprog_automaton* automaton, uint32_t state, int32_t leaf_state) {
    const lmprog::Turns::Turn turn(automaton->turns);
    bool found = false;
    automaton->inner.each_position(state, [&](const lmprog::Position& at) { found = found || at.leaf_state == leaf_state; });
    return found;
}

LMPROG_EXPORT int32_t lmprog_automaton_final(const lmprog_automaton* automaton, uint32_t state) {
    const lmprog::Turns::Turn turn(automaton->turns);
    return automaton->inner.is_final(state);
}

LMPROG_EXPORT int64_t lmprog_automaton_collect(lmprog_automaton* automaton, const uint32_t* states, int64_t count,
                                               int64_t needed, uint32_t* moved) {
    const lmprog::Turns::Turn turn(automaton->turns);
    return guarded([&] {
        automaton->inner = Automaton::collected(automaton->inner, states, count, needed, moved);
        automaton->groups.forget_states();
        automaton->strings.forget_states();
        return int64_t{0};
    });
}

LMPROG_EXPORT int64_t lmprog_automaton_states(const lmprog_automaton* automaton) {
    const lmprog::Turns::Turn turn(automaton->turns);
    return automaton->inner.num_states();
}

LMPROG_EXPORT int64_t lmprog_automaton_positions(const lmprog_automaton* automaton, uint32_t state) {
    const lmprog::Turns::Turn turn(automaton->turns);
    return static_cast<int64_t>(automaton->inner.num_positions(state));
}

LMPROG_EXPORT int64_t lmprog_automaton_bytes(const lmprog_automaton* automaton) {
    const lmprog::Turns::Turn turn(automaton->turns);
    return automaton->inner.num_bytes() + automaton->groups.num_bytes() + automaton->strings.num_bytes();
}

LMPROG_EXPORT int64_t lmprog_mask(lmprog_automaton* automaton, uint32_t state, int64_t most, int32_t* ids,
                                  int64_t max_ids, int64_t most_work, int32_t is_apart,
                                  lmprog_mask_result* result) {
    const lmprog::Turns::Turn turn(automaton->turns);
    automaton->is_apart = is_apart;
    const int64_t done = growing(automaton, [&] {
        const InString in = automaton->strings.of(state);  // by value: more states are looked at
        const lmprog_string_tokens& tokens = *automaton->vocabulary.strings[in.way];
        const bool is_wide = in.kind != InString::kNo && num_inside(tokens, in) > max_ids && in.cost + tokens.dearest <= most;
        Mask out{nullptr, ids, max_ids, most, 0, 0, kMaxSteps};
        if (is_wide && in.kind == InString::kWholly && in.like != state && in.fits(tokens.longest) &&
            most >= lmprog::kUnreachable) {
            *result = {0, 0, in.like, 0, 0};
            return int64_t{0};
        }
        if (!is_wide && most >= lmprog::kUnreachable) {
            const uint32_t like = automaton->prefixes.of(state);
            const bool drops_others = automaton->vocabulary.num_symbols && !in.is_as(automaton->strings.of(like));
            if (like != state && !drops_others) {
                *result = {0, 0, like, 0, 0};
                return int64_t{0};
            }
        }
        if (is_wide) {
            fill_in_string(*automaton, state, in, out);
            drop_symbols(*automaton, state, in, out);
            add_eos(*automaton, state, out);
        } else {
            scratch.clear(static_cast<size_t>(automaton->vocabulary.num_words));
            out.bits = scratch.bits.data();
            fill(*automaton, state, out);
            drop_symbols(*automaton, state, in, out);
            add_eos(*automaton, state, out);
            if (out.count <= max_ids) {
                std::sort(ids, ids + out.count);
                scratch.forget(ids, out.count);
            }
        }
        *result = {out.count, out.worst, 0, out.count > max_ids ? digest(scratch.bits) : 0, 0};
        return int64_t{0};
    }, most_work ? most_work : lmprog::kMaxWork);
    result->work = automaton->inner.work();
    return done == LMPROG_MASKS_LIMIT && most_work ? LMPROG_MASKS_LATER : done;
}

LMPROG_EXPORT void lmprog_mask_bits(uint32_t* bits) {
    std::copy(scratch.bits.begin(), scratch.bits.end(), bits);
}

LMPROG_EXPORT int32_t lmprog_mask_is(const uint32_t* bits) {
    return std::equal(scratch.bits.begin(), scratch.bits.end(), bits);
}
