// Explores the automaton of a set of texts. lmprog/constraints/text_set.py explains it.
//
// A state is a vertex of the trie of excluded words and, for each expression that must match, a set of terms one of which
// has to match the rest; the last set is of the expressions that must not. Knows characters; knows no bytes.
#include "lmprog_texts.h"

#include <memory>
#include <new>

#include "lmprog_derivatives.h"

#define LMPROG_EXPORT extern "C" __attribute__((visibility("default")))

using lmprog::CharRange;
using lmprog::CharRanges;
using lmprog::Numbers;
using lmprog::TooMany;

namespace {

constexpr int32_t kOff = -1;  // no word begins like this

struct Edge {
    int32_t to, label;
};

struct Rest {
    int32_t state, vertex;
    Numbers program;
};

// Sets of terms by number, and what follows them.
class TermSets {
  public:
    TermSets(lmprog::Terms& terms, int64_t max_steps) : steps_left(max_steps), terms_(terms) {}
    int32_t of(Numbers terms) {
        const auto found = index_.find(terms);
        if (found != index_.end()) return found->second;
        const auto made = static_cast<int32_t>(sets_.size());
        sets_.push_back(terms);
        after_.emplace_back(terms_.num_classes(), -1);
        index_.emplace(std::move(terms), made);
        return made;
    }
    const Numbers& terms(int32_t set) const { return sets_[static_cast<size_t>(set)]; }
    int32_t after(int32_t set, size_t chars) {
        int32_t found = after_[static_cast<size_t>(set)][chars];
        if (found >= 0) return found;
        merged_.clear();
        const Numbers from = terms(set);
        steps_left -= static_cast<int64_t>(from.size());
        const int64_t looked = terms_.num_looked;
        for (const int32_t term : from) {
            const Numbers& ways = terms_.after(term, chars);
            merged_.insert(merged_.end(), ways.begin(), ways.end());
        }
        steps_left -= terms_.num_looked - looked;
        work += 500 * (terms_.num_looked - looked);
        if (steps_left < 0) throw TooMany();
        std::sort(merged_.begin(), merged_.end());
        merged_.erase(std::unique(merged_.begin(), merged_.end()), merged_.end());
        work += 100 + 50 * static_cast<int64_t>(from.size() + merged_.size());
        found = of(merged_);
        return after_[static_cast<size_t>(set)][chars] = found;
    }
    bool any_nullable(int32_t set) const {
        return std::any_of(terms(set).begin(), terms(set).end(), [&](int32_t term) { return terms_.is_nullable(term); });
    }
    bool takes_all(int32_t set) const {
        return std::any_of(terms(set).begin(), terms(set).end(), [&](int32_t term) { return terms_.takes_all(term); });
    }
    size_t size() const { return sets_.size(); }
    int64_t work = 0, steps_left;

  private:
    lmprog::Terms& terms_;
    std::vector<Numbers> sets_;
    std::vector<std::vector<int32_t>> after_;  // by set and class; -1: not known
    lmprog::ByNumbers<int32_t> index_;
    Numbers merged_;
};

void add_range(CharRanges& out, int32_t low, int32_t high) {
    if (!out.empty() && out.back().high + 1 == low)
        out.back().high = high;
    else
        out.push_back({low, high});
}

CharRanges joined(CharRanges ranges) {
    std::sort(ranges.begin(), ranges.end(), [](const CharRange& a, const CharRange& b) { return a.low < b.low; });
    CharRanges out;
    for (const CharRange& range : ranges) add_range(out, range.low, range.high);
    return out;
}

}  // namespace

struct lmprog_texts {
    explicit lmprog_texts(const lmprog_texts_input& given)
        : input(given), roots(terms.read(given.program, given.length)), sets(terms, given.max_steps) {
        Numbers state{input.num_vertices ? 0 : kOff};
        for (int32_t i = 0; i < input.num_within; i++) state.push_back(sets.of({roots[static_cast<size_t>(i)]}));
        Numbers outside(roots.begin() + input.num_within, roots.end());
        std::sort(outside.begin(), outside.end());
        outside.erase(std::unique(outside.begin(), outside.end()), outside.end());
        state.push_back(sets.of(outside));
        place(state);
    }

    bool step(int64_t most) {
        sets.work = 0;
        while (next < states.size() && sets.work < most) explore(static_cast<int32_t>(next++));
        if (next < states.size()) return false;
        trim();
        return true;
    }

    int32_t place(const Numbers& state) {
        const auto [found, is_new] = index.try_emplace(state, static_cast<int32_t>(states.size()));
        if (is_new) {
            if (static_cast<int64_t>(states.size()) > input.max_states) throw TooMany();
            states.push_back(state);
            edges.emplace_back();
            final.push_back(0);
        }
        return found->second;
    }

    void explore(int32_t number) {
        const Numbers state = states[static_cast<size_t>(number)];
        sets.work += 300;
        if (!input.is_bounded && is_simple(number, state)) return;
        bool ends = state[0] == kOff || !input.is_word[state[0]];
        for (size_t i = 1; i < state.size(); i++) ends = ends && sets.any_nullable(state[i]) == (i + 1 < state.size());
        final[static_cast<size_t>(number)] = ends;
        std::vector<std::pair<int32_t, Numbers>> ways;  // a state and the pieces that lead to it: class, then character or -1
        for (size_t chars = 0; chars < terms.num_classes(); chars++) {
            Numbers after{0};
            for (size_t i = 1; i < state.size(); i++) after.push_back(sets.after(state[i], chars));
            if (!may_accept(after)) continue;
            bool has_rest = true;
            if (state[0] != kOff) {
                int64_t size = 0;
                for (const CharRange& range : terms.characters(chars)) size += range.high - range.low + 1;
                each_child(state[0], chars, [&](int32_t character, int32_t vertex) {
                    after[0] = vertex;
                    add(ways, place(after), static_cast<int32_t>(chars), character);
                    size--;
                });
                has_rest = size > 0;
            }
            after[0] = kOff;
            if (has_rest) add(ways, place(after), static_cast<int32_t>(chars), state[0] == kOff ? -1 : -2 - state[0]);
        }
        for (const auto& [to, pieces] : ways) edges[static_cast<size_t>(number)].push_back({to, label_of(pieces)});
        sets.work += 200 * static_cast<int64_t>(ways.size()) + 20 * static_cast<int64_t>(terms.num_classes());
    }

    static void add(std::vector<std::pair<int32_t, Numbers>>& ways, int32_t to, int32_t chars, int32_t piece) {
        for (auto& way : ways)
            if (way.first == to) {
                way.second.insert(way.second.end(), {chars, piece});
                return;
            }
        ways.push_back({to, {chars, piece}});
    }

    template <class Body> void each_child(int32_t vertex, size_t chars, Body body) const {
        for (int32_t c = input.child_start[vertex]; c < input.child_start[vertex + 1]; c++) {
            const int32_t character = input.children[2 * c];
            for (const CharRange& range : terms.characters(chars))
                if (range.low <= character && character <= range.high) body(character, input.children[2 * c + 1]);
        }
    }

    // Whether what may follow is simple: all texts but some words, or those of one expression.
    bool is_simple(int32_t number, const Numbers& state) {
        const bool none_outside = sets.terms(state.back()).empty();
        bool all = none_outside;
        for (size_t i = 1; i + 1 < state.size(); i++) all = all && sets.takes_all(state[i]);
        if (all) {
            rests.push_back({number, state[0], {}});
            return true;
        }
        if (state[0] != kOff || state.size() != 3 || !none_outside) return false;
        Rest rest{number, kOff, {}};
        const Numbers& ways = sets.terms(state[1]);
        if (std::any_of(ways.begin(), ways.end(), [&](int32_t term) { return terms.looks(term); })) return false;
        for (const int32_t term : ways) terms.write(term, rest.program);
        if (ways.size() != 1) rest.program.insert(rest.program.end(), {lmprog::Terms::kAny, static_cast<int32_t>(ways.size())});
        rests.push_back(std::move(rest));
        return true;
    }

    bool may_accept(const Numbers& after) const {
        for (size_t i = 1; i + 1 < after.size(); i++)
            if (sets.terms(after[i]).empty()) return false;
        return !sets.takes_all(after.back());
    }

    // The class of these pieces: a class and a character of it, or -1 for all of them, or, for a vertex v, -2 - v for those
    // that no child of the vertex has.
    int32_t label_of(const Numbers& pieces) {
        const auto known = pieces_index.find(pieces);
        if (known != pieces_index.end()) return known->second;
        CharRanges all;
        for (size_t i = 0; i < pieces.size(); i += 2) {
            const auto chars = static_cast<size_t>(pieces[i]);
            const int32_t piece = pieces[i + 1];
            if (piece >= 0)
                all.push_back({piece, piece});
            else if (piece == -1)
                all.insert(all.end(), terms.characters(chars).begin(), terms.characters(chars).end());
            else
                add_without(chars, -2 - piece, all);
        }
        all = joined(std::move(all));
        Numbers content;
        for (const CharRange& range : all) content.insert(content.end(), {range.low, range.high});
        const auto [found, is_new] = label_index.try_emplace(content, static_cast<int32_t>(labels.size()));
        if (is_new) labels.push_back(std::move(all));
        pieces_index.emplace(pieces, found->second);
        return found->second;
    }

    void add_without(size_t chars, int32_t vertex, CharRanges& out) const {
        std::vector<int32_t> left_out;
        each_child(vertex, chars, [&](int32_t character, int32_t) { left_out.push_back(character); });
        std::sort(left_out.begin(), left_out.end());
        for (const CharRange& range : terms.characters(chars)) {
            int32_t low = range.low;
            for (const int32_t one : left_out) {
                if (one < low || one > range.high) continue;
                if (one > low) out.push_back({low, one - 1});
                low = one + 1;
            }
            if (low <= range.high) out.push_back({low, range.high});
        }
    }

    // Leaves out the states from which nothing can end.
    void trim() {
        std::vector<std::vector<int32_t>> sources(states.size());
        std::vector<int32_t> queue;
        std::vector<uint8_t> lives(final);
        for (const Rest& rest : rests) lives[static_cast<size_t>(rest.state)] = 1;
        for (size_t state = 0; state < states.size(); state++) {
            for (const Edge& edge : edges[state]) sources[static_cast<size_t>(edge.to)].push_back(static_cast<int32_t>(state));
            if (lives[state]) queue.push_back(static_cast<int32_t>(state));
        }
        for (size_t i = 0; i < queue.size(); i++)
            for (const int32_t source : sources[static_cast<size_t>(queue[i])])
                if (!lives[static_cast<size_t>(source)]) {
                    lives[static_cast<size_t>(source)] = 1;
                    queue.push_back(source);
                }
        numbers.assign(states.size(), -1);
        for (size_t state = 0; state < states.size() && lives[0]; state++)
            if (lives[state]) numbers[state] = num_live++;
        for (auto& of_state : edges)
            of_state.erase(std::remove_if(of_state.begin(), of_state.end(),
                                          [&](const Edge& edge) { return numbers[static_cast<size_t>(edge.to)] < 0; }),
                           of_state.end());
    }

    lmprog_texts_sizes sizes() const {
        lmprog_texts_sizes out{num_live, 0, static_cast<int64_t>(labels.size()), 0, 0, 0};
        for (size_t state = 0; state < states.size(); state++)
            if (numbers[state] >= 0) out.num_edges += static_cast<int64_t>(edges[state].size());
        for (const CharRanges& label : labels) out.num_ranges += static_cast<int64_t>(label.size());
        out.num_rests = num_live ? static_cast<int64_t>(rests.size()) : 0;
        for (const Rest& rest : rests) out.rests_length += static_cast<int64_t>(rest.program.size());
        return out;
    }

    void copy(const lmprog_texts_output& out) const {
        int32_t edge = 0, range = 0;
        int32_t *start = out.edge_start, *rest_at = out.rests, *program = out.programs;
        for (size_t state = 0; state < states.size(); state++) {
            if (numbers[state] < 0) continue;
            out.final[numbers[state]] = final[state];
            *start++ = edge;
            for (const Edge& one : edges[state]) {
                out.targets[edge] = numbers[static_cast<size_t>(one.to)];
                out.labels[edge++] = one.label;
            }
        }
        *start = edge;
        for (size_t i = 0; i < labels.size(); i++) {
            out.range_start[i] = range;
            for (const CharRange& one : labels[i]) {
                out.ranges[2 * range] = one.low;
                out.ranges[2 * range++ + 1] = one.high;
            }
        }
        out.range_start[labels.size()] = range;
        for (const Rest& rest : rests) {
            if (!num_live) break;
            *rest_at++ = numbers[static_cast<size_t>(rest.state)];
            *rest_at++ = rest.vertex;
            *rest_at++ = static_cast<int32_t>(rest.program.size());
            program = std::copy(rest.program.begin(), rest.program.end(), program);
        }
    }

    const lmprog_texts_input input;
    lmprog::Terms terms;
    const Numbers roots;
    TermSets sets;
    std::vector<Numbers> states;  // vertex, then sets of terms
    lmprog::ByNumbers<int32_t> index, pieces_index, label_index;
    std::vector<std::vector<Edge>> edges;
    std::vector<uint8_t> final;
    std::vector<Rest> rests;
    std::vector<CharRanges> labels;
    std::vector<int32_t> numbers;  // of those that are kept
    int32_t num_live = 0;
    size_t next = 0;
};

namespace {

// What a matcher found out so far.
struct Known {
    explicit Known(const Numbers& program) : root(terms.read(program.data(), static_cast<int64_t>(program.size())).front()), sets(terms, 0) {}

    lmprog::Terms terms;
    const int32_t root;
    TermSets sets;
};

constexpr size_t kMostSets = 20000;  // a matcher that knows more forgets all before the next text

}  // namespace

struct lmprog_matcher {
    lmprog_matcher(const int32_t* given, int64_t length) : program(given, given + length), known(new Known(program)) {}

    bool takes(const uint32_t* text, int64_t length, int64_t max_steps) {
        if (known->sets.size() > kMostSets) known.reset(new Known(program));
        TermSets& sets = known->sets;
        sets.steps_left = max_steps;
        int32_t at = sets.of({known->root});
        for (int64_t i = 0; i < length && !sets.terms(at).empty() && !sets.takes_all(at); i++) {
            const size_t chars = known->terms.class_of(text[i]);
            if (chars == known->terms.num_classes()) return false;
            at = sets.after(at, chars);
        }
        return sets.any_nullable(at);
    }

    const Numbers program;
    std::unique_ptr<Known> known;
};

LMPROG_EXPORT lmprog_texts* lmprog_texts_new(const lmprog_texts_input* input) {
    try {
        return new lmprog_texts(*input);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

LMPROG_EXPORT int64_t lmprog_texts_step(lmprog_texts* texts, int64_t work, lmprog_texts_sizes* sizes) {
    try {
        if (!texts->step(work)) return 1;
        *sizes = texts->sizes();
        return 0;
    } catch (const TooMany&) {
        return LMPROG_TEXTS_TOO_MANY;
    } catch (const std::bad_alloc&) {
        return LMPROG_TEXTS_MEMORY;
    }
}

LMPROG_EXPORT void lmprog_texts_copy(const lmprog_texts* texts, const lmprog_texts_output* output) { texts->copy(*output); }

LMPROG_EXPORT void lmprog_texts_free(lmprog_texts* texts) { delete texts; }

LMPROG_EXPORT lmprog_matcher* lmprog_matcher_new(const int32_t* program, int64_t length) {
    try {
        return new lmprog_matcher(program, length);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

LMPROG_EXPORT int64_t lmprog_matcher_takes(lmprog_matcher* matcher, const uint32_t* text, int64_t length, int64_t max_steps) {
    try {
        return matcher->takes(text, length, max_steps);
    } catch (const TooMany&) {
        return LMPROG_TEXTS_TOO_MANY;
    } catch (const std::bad_alloc&) {
        return LMPROG_TEXTS_MEMORY;
    }
}

LMPROG_EXPORT void lmprog_matcher_free(lmprog_matcher* matcher) { delete matcher; }

LMPROG_EXPORT int64_t lmprog_search_begin(const lmprog_search* search, const uint32_t* text, int64_t length, int32_t state,
                                          int32_t before) {
    const int32_t* last_cut = search->cuts + search->num_cuts;
    const auto class_of = [&](uint32_t character) {
        return search->class_behind[std::upper_bound(search->cuts, last_cut, static_cast<int32_t>(character)) - search->cuts - 1];
    };
    int64_t found = -1;
    int32_t here = length ? class_of(text[length - 1]) : 0;
    for (int64_t at = length; at-- > 0;) {
        state = search->moves[state + here];
        if (state == 0) break;
        const int32_t ahead = at ? class_of(text[at - 1]) : 0;
        const int32_t behind = at == 0 ? before : ahead == search->line_break;
        if (search->begins[state / search->width] >> behind & 1) found = at;
        here = ahead;
    }
    return found;
}
