// What stays inside a JSON string, whichever string it is: most of a vocabulary.
//
// A position of the automaton is *free* where every content of a JSON string goes on, and *inside* where a string does (see
// `string_state` of a net).
// The tokens that stay inside are then allowed whatever else the state may read; they are found once per vocabulary.
// What is left to walk are the other tokens: those that close the string, and those that no string has. Knows bytes and
// token ids; knows a net's frames, not its meaning.
#ifndef LMPROG_STRINGS_H
#define LMPROG_STRINGS_H
#include <string>
#include <vector>

#include "lmprog_automaton.h"

namespace lmprog {

// A trie of some tokens, laid out like those of buckets.
struct TokenTrie {
    std::vector<lmprog_trie_node> nodes;
    std::vector<int32_t> order;

    void build(std::vector<std::pair<std::string, int32_t>>& tokens) {
        std::sort(tokens.begin(), tokens.end());
        std::vector<size_t> open;  // the nodes of the last text
        const std::string* before = nullptr;
        for (const auto& [text, id] : tokens) {
            size_t shared = 0;
            while (before && shared < before->size() && shared < text.size() && (*before)[shared] == text[shared]) shared++;
            close(open, shared);
            for (size_t i = shared; i < text.size(); i++) {
                open.push_back(nodes.size());
                nodes.push_back({0, static_cast<uint32_t>(order.size()), static_cast<uint8_t>(text[i]),
                                 static_cast<uint16_t>(i + 1), 0});
            }
            nodes[open.back()].own++;
            order.push_back(id);
            before = &text;
        }
        close(open, 0);
    }

    // The end of a subtree's run of `order`.
    uint32_t end_of(size_t node) const {
        const size_t behind = node + nodes[node].sub;
        return behind < nodes.size() ? nodes[behind].first : static_cast<uint32_t>(order.size());
    }

  private:
    void close(std::vector<size_t>& open, size_t depth) {
        for (; open.size() > depth; open.pop_back())
            nodes[open.back()].sub = static_cast<uint32_t>(nodes.size() - open.back());
    }
};

}  // namespace lmprog

// A vocabulary's tokens against one way of writing the contents of strings: `any`, whose first state and whose final
// ones are where a character begins.
struct lmprog_string_tokens {
    lmprog_string_tokens(const lmprog_vocabulary& vocabulary, const lmprog_leaf_automaton& any)
        : bits(kFew + 1, std::vector<uint32_t>(static_cast<size_t>(vocabulary.num_words), 0)), count(kFew + 1, 0), any_(any) {
        std::vector<std::pair<std::string, int32_t>> outside_texts, closing_texts;
        for (int32_t i = 0; i < vocabulary.num_buckets; i++) sort_bucket(vocabulary.buckets[i], outside_texts, closing_texts);
        for (int32_t few = 1; few <= kFew; few++) {
            count[few] += count[few - 1];
            for (size_t w = 0; w < bits[few].size(); w++) bits[few][w] |= bits[few - 1][w];
        }
        outside.build(outside_texts);
        closing.build(closing_texts);
        count_characters();
    }

    static constexpr int32_t kFew = 32;
    std::vector<std::vector<uint32_t>> bits;  // the tokens that stay inside and have at most so many characters
    std::vector<int64_t> count;               // how many these are
    std::vector<std::pair<int32_t, int32_t>> long_ones;  // characters and ids of those that have more than kFew
    int32_t longest = 0;                      // characters of any token until the string is closed
    int64_t dearest = 1;  // what the string needs behind one of these, at most: the rest of a character, or any character
    lmprog::TokenTrie outside;                // all other tokens
    std::vector<int32_t> characters;          // by node of `outside`: begun so far, if that is inside
    lmprog::TokenTrie closing;                // those that close the string, from their quote on
    std::vector<int32_t> closing_characters;  // by place in its `order`: before the quote

  private:
    struct Walked {
        int32_t state = 0, characters = 0, quote = -1;  // state -1: outside, perhaps since a quote at this place
    };

    int32_t after(int32_t state, int byte) const {
        for (int32_t e = any_.edge_start[state]; e < any_.edge_start[state + 1]; e++)
            if (any_.edges[3 * e] <= byte && byte <= any_.edges[3 * e + 1]) {
                const int32_t to = any_.edges[3 * e + 2];
                return any_.final[to] ? 0 : to;
            }
        return -1;
    }

    Walked walked(const Walked& from, int byte, int32_t place) const {
        if (from.state < 0) return from;
        if (from.state == 0 && byte == '"') return {-1, from.characters, place};
        return {after(from.state, byte), from.characters + (from.state == 0), -1};
    }

    void count_characters() {
        std::vector<Walked> at(1);
        std::vector<std::pair<int32_t, int32_t>> before;  // the token, its characters before the quote
        for (const lmprog_trie_node& node : outside.nodes) {
            at.resize(node.depth);
            at.push_back(walked(at.back(), node.byte, node.depth - 1));
            characters.push_back(at.back().characters);
            for (uint32_t k = 0; k < node.own; k++) before.emplace_back(outside.order[node.first + k], at.back().characters);
        }
        std::sort(before.begin(), before.end());
        for (const int32_t token : closing.order)
            closing_characters.push_back(std::lower_bound(before.begin(), before.end(), std::make_pair(token, 0))->second);
    }

    void sort_bucket(const lmprog_bucket& bucket, std::vector<std::pair<std::string, int32_t>>& outside_texts,
                     std::vector<std::pair<std::string, int32_t>>& closing_texts) {
        const size_t lead = bucket.lead;
        std::string text(lead, ' ');
        std::vector<Walked> at(1);
        if (lead) at[0] = walked(at[0], ' ', 0);
        for (int64_t n = 0; n < bucket.num_nodes; n++) {
            const lmprog_trie_node& node = bucket.nodes[n];
            text.resize(lead + node.depth - 1);
            at.resize(node.depth);
            at.push_back(walked(at.back(), node.byte, static_cast<int32_t>(text.size())));
            text.push_back(static_cast<char>(node.byte));
            const Walked& here = at.back();
            for (uint32_t k = 0; k < node.own; k++) {
                const int32_t token = bucket.order[node.first + k];
                longest = std::max(longest, here.characters);
                if (here.state >= 0) {
                    const auto length = static_cast<size_t>(here.characters);
                    if (here.characters <= kFew) {
                        bits[length][static_cast<size_t>(token >> 5)] |= 1u << (token & 31);
                        count[length]++;
                    } else {
                        long_ones.emplace_back(here.characters, token);
                    }
                    dearest = std::max(dearest, any_.cost[here.state]);
                    continue;
                }
                outside_texts.emplace_back(text, token);
                if (here.quote >= 0) closing_texts.emplace_back(text.substr(static_cast<size_t>(here.quote)), token);
            }
        }
    }

    const lmprog_leaf_automaton& any_;  // used while it is made
};

namespace lmprog {

// What of a state is inside a string.
struct InString {
    enum Kind : uint8_t { kUnknown, kNo, kPartly, kWholly };
    Kind kind = kUnknown;  // partly: one position is; wholly: the state is `like` but for the counter
    uint8_t way = 0;       // of writing: 0 where printable ASCII is never escaped, 1 with every escape
    uint32_t like = 0;     // the state with only that position, whatever its counter, and what may follow the string
    int32_t characters = 0;  // that may follow, or kNoLimit
    int64_t cost = 0;        // of what follows the position's character
    bool is_all = false;     // whatever follows stays inside a string, or closes it ...
    bool has_any = false;    // ... or some of it does
    bool is_as(const InString& other) const { return is_all == other.is_all && has_any == other.has_any; }
    bool fits(int32_t more) const { return characters == kNoLimit || more <= characters; }
};

class InStrings {
    static constexpr int32_t kOutside = -1;

  public:
    InStrings(Automaton& automaton, const lmprog_vocabulary& vocabulary)
        : a_(automaton), longest_(vocabulary.strings[1]->longest) {}

    // Makes states; references die with the next call.
    const InString& of(uint32_t state) {
        if (known_.size() <= state) known_.resize(state + 256);
        if (known_[state].kind == InString::kUnknown) {
            const InString made = found(state);
            known_[state] = made;
        }
        return known_[state];
    }
    // The state without its positions inside of strings.
    uint32_t outside_of(uint32_t state) {
        here_.clear();
        a_.each_position(state, [&](const Position& p) {
            if (a_.net().string_state[p.leaf_state] == kOutside) here_.push_back(p);
        });
        return a_.state_of(here_, false);
    }
    void forget_states() { known_.clear(); }
    int64_t num_bytes() const { return static_cast<int64_t>(known_.capacity() * sizeof(InString)); }

  private:
    InString found(uint32_t state) {
        InString out;
        out.kind = InString::kNo;
        Position at{-1, 0};
        bool is_all = true;
        a_.each_position(state, [&](const Position& p) {
            const bool is_inside = a_.net().string_state[p.leaf_state] != kOutside;
            if (at.leaf_state < 0 && is_inside && is_free(p)) at = p;
            is_all = is_all && (is_inside || is_quote(p));
            out.has_any = out.has_any || is_inside;
        });
        out.is_all = is_all && out.has_any;
        if (at.leaf_state < 0) return out;
        const int32_t begin = a_.net().string_state[at.leaf_state];
        const bool loops = a_.net().final_state[begin];
        const Frame frame = a_.frame_of(at.frame);
        const uint32_t like = loops ? a_.reading_on(begin, at.frame) : a_.repeating(frame.node, frame.rest);
        if (!only_quotes_follow(like)) return out;
        const bool whole = state == like || (!loops && frame.first == 0 && differ_in_counters_only(state, like, begin));
        const int32_t room = loops || frame.second == kNoLimit ? kNoLimit : frame.second + 1;
        // Where there is room for some tokens only, other positions may take the rest.
        if (!whole && room != kNoLimit && room < longest_ && a_.num_positions(state) > 1) return out;
        out.kind = whole ? InString::kWholly : InString::kPartly;
        out.way = static_cast<uint8_t>(!loops);
        out.like = like;
        out.characters = room;
        out.cost = frame.cost;
        return out;
    }

    // A position where nothing but a quote follows.
    bool is_quote(const Position& p) const {
        const lmprog_net& net = a_.net();
        const int32_t first = net.edge_start[p.leaf_state];
        return net.edge_start[p.leaf_state + 1] == first + 1 && net.edges[3 * first] == '"' &&
               net.edges[3 * first + 1] == '"';
    }

    // A position in a leaf of all contents, or at one of any characters in a row.
    bool is_free(const Position& p) const {
        const lmprog_net& net = a_.net();
        const int32_t begin = net.string_state[p.leaf_state];
        if (begin < 0) return false;
        if (net.final_state[begin]) return true;
        const Frame& frame = a_.frame_of(p.frame);
        if (p.frame == 0 || net.kind[frame.node] != kRepeat) return false;
        const int32_t item = net.args[3 * frame.node];
        return net.kind[item] == kLeaf && net.args[3 * item] == begin;
    }

    bool only_quotes_follow(uint32_t state) const {
        const lmprog_net& net = a_.net();
        size_t num_free = 0;
        bool only = !a_.is_final(state);
        a_.each_position(state, [&](const Position& p) {
            if (net.string_state[p.leaf_state] >= 0)
                num_free++;
            else
                only = only && is_quote(p);
        });
        return only && num_free == 1;
    }

    bool differ_in_counters_only(uint32_t state, uint32_t like, int32_t begin) {
        here_.clear();
        there_.clear();
        const auto others = [&](uint32_t of, std::vector<Position>& out) {
            a_.each_position(of, [&](const Position& p) {
                if (p.leaf_state != begin) out.push_back(p);
            });
        };
        others(state, here_);
        others(like, there_);
        return a_.num_positions(state) == here_.size() + 1 && a_.is_final(state) == a_.is_final(like) &&
               here_.size() == there_.size() &&
               std::equal(here_.begin(), here_.end(), there_.begin(), [](const Position& a, const Position& b) {
                   return a.leaf_state == b.leaf_state && a.frame == b.frame;
               });
    }

    Automaton& a_;
    int32_t longest_;  // characters of a token
    std::vector<InString> known_;
    std::vector<Position> here_, there_;
};

}  // namespace lmprog
#endif
