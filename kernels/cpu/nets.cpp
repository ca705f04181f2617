// Nets from a builder's parts: costs, trimming, flat arrays. lmprog/constraints/finish.py explains them.
//
// The parts' nodes and states are numbered one after the other, the net itself first. Knows bytes, not tokens' ids.
#include "lmprog_nets.h"

#include <new>
#include <unordered_map>

#include "lmprog_costs.h"
#include "lmprog_cover.h"
#include "lmprog_name_trie.h"
#include "lmprog_text_table.h"

#define LMPROG_EXPORT extern "C" __attribute__((visibility("default")))

using lmprog::kUnreachable;

struct lmprog_cover {
    lmprog::ShortTexts tokens;
};

namespace {

enum Kind : uint8_t { kLeaf, kSeq, kAlt, kRepeat, kOnce, kPart, kTable };
constexpr int32_t kHead = 5, kKeptHead = 4;  // numbers before the members of a kOnce: in a part, and in the arrays
enum LeafKind : uint8_t { kAutomaton, kText, kAllBut, kAnyCharacter, kInString, kJsonText };
constexpr int32_t kOutside = -1, kInside = -2;  // states in which not every content of a string goes on
constexpr size_t kFewEdges = 2048;  // most nets have fewer

struct Edge {
    int32_t low, high, to;
};

// Where a leaf's data lie in its part.
struct LeafCursor {
    int64_t leaf = 0, state = 0, edge = 0;
    const uint8_t* text = nullptr;
};

}  // namespace

struct lmprog_net_build {
    std::vector<const lmprog_net_part*> parts;
    const lmprog_leaf_automata& any_text;
    const lmprog_cover *cover, *in_strings;
    const uint8_t* spelled;  // NULL: every byte has a token of its own

    // Leaf states of all parts.
    std::vector<Edge> edges;
    std::vector<int32_t> num_edges;
    std::vector<uint8_t> final_state;
    std::vector<int64_t> state_cost;
    std::vector<int32_t> string_state;
    std::vector<std::vector<int32_t>> leaf_start;  // by part and leaf

    // Nodes of all parts.
    std::vector<int32_t> node_base;
    std::vector<std::vector<int32_t>> args_start;  // by part and node
    std::vector<int64_t> cost;
    std::vector<uint8_t> nullable;
    int64_t num_args = 0;
    std::unordered_map<int32_t, std::vector<int32_t>> tables;  // finished, by node

    // Where the work stands.
    size_t part = 0;
    LeafCursor at;
    std::vector<int64_t> others;  // costs of members that are not required
    std::vector<uint8_t> padded;  // a text and what may be read behind it
    std::vector<uint8_t> taken;   // bytes that lead on to a name
    lmprog_net_sizes size{};
    bool leaves_done = false, costs_done = false, changed = true;
    int32_t node = 0;
    int64_t passes = 0;

    lmprog_net_build(const lmprog_net_part* const* of, int32_t count, const lmprog_leaf_automata& any,
                     const lmprog_cover* tokens, const lmprog_cover* plain, const uint8_t* single)
        : parts(of, of + count), any_text(any), cover(tokens), in_strings(plain), spelled(single), leaf_start(parts.size()),
          args_start(parts.size()) {
        int64_t nodes = 0;
        for (size_t p = 0; p < parts.size(); p++) {
            node_base.push_back(static_cast<int32_t>(nodes));
            nodes += parts[p]->num_nodes;
            int32_t start = 0;
            for (int64_t n = 0; n < parts[p]->num_nodes; n++) {
                args_start[p].push_back(start);
                start += parts[p]->num_args[n];
            }
            num_args += start;
        }
        cost.assign(static_cast<size_t>(nodes), kUnreachable);
        nullable.assign(static_cast<size_t>(nodes), 0);
        at.text = parts[0]->texts;
        edges.reserve(kFewEdges);
    }

    int32_t num_states() const { return static_cast<int32_t>(num_edges.size()); }

    bool step(int64_t work) {
        while (!leaves_done && work > 0) work -= next_leaf();
        while (leaves_done && !costs_done && work > 0) work -= next_costs(work);
        return costs_done;
    }

    // ---- leaves ----

    int64_t next_leaf() {
        while (at.leaf == parts[part]->num_leaves) {
            if (++part == parts.size()) {
                leaves_done = true;
                part = first_part();
                return 1;
            }
            at = LeafCursor();
            at.text = parts[part]->texts;
        }
        const lmprog_net_part& in = *parts[part];
        const int32_t first = num_states(), size = in.leaf_size[at.leaf];
        const size_t edges_before = edges.size();
        leaf_start[part].push_back(first);
        int64_t work = 20;
        const auto kind = static_cast<LeafKind>(in.leaf_kind[at.leaf++]);
        const uint8_t* text = at.text;
        switch (kind) {
            case kText:
            case kJsonText:
                text_leaf(at.text, size);
                if (spelled) respell(first, edges_before);
                if (cover && state_cost[first] < kUnreachable) {
                    padded.assign(at.text, at.text + size);
                    padded.resize(static_cast<size_t>(size) + lmprog::kPadding);
                    lmprog::cover((kind == kText ? cover : in_strings)->tokens, padded.data(), size, state_cost.data() + first);
                    work += int64_t{size} * 100;
                }
                at.text += size;
                break;
            case kAllBut:
                all_but(size);
                if (spelled) respell(first, edges_before);
                break;
            default:
                automaton(in.automata, size);
                if (spelled) respell(first, edges_before);
        }
        mark_strings(kind, first, text, size);
        return work + static_cast<int64_t>(edges.size() - edges_before) * 3 + num_states() - first;
    }

    // The states of the last leaf inside of strings, and those in which every content of a JSON string goes on. Without some
    // bytes there are none of these.
    void mark_strings(LeafKind kind, int32_t first, const uint8_t* text, int32_t size) {
        string_state.resize(num_edges.size(), kind == kAutomaton || kind == kText || kind == kJsonText ? kOutside : kInside);
        if (kind == kJsonText) {
            bool is_inside = false;
            for (int32_t i = 0; i < size; i++) {
                if (is_inside) string_state[static_cast<size_t>(first + i)] = kInside;
                if (text[i] == '"') is_inside = !is_inside;
                if (text[i] == '\\' && ++i < size) string_state[static_cast<size_t>(first + i)] = kInside;
            }
        }
        if (spelled) return;
        if (kind == kAnyCharacter) string_state[static_cast<size_t>(first)] = first;
        if (kind != kAllBut) return;
        const int32_t behind = num_states() - static_cast<int32_t>(any_text.num_states);
        std::fill(string_state.begin() + first, string_state.begin() + behind + 1, behind);
    }

    void text_leaf(const uint8_t* text, int32_t size) {
        const int32_t first = num_states();
        for (int32_t i = 0; i < size; i++) edges.push_back({text[i], text[i], first + i + 1});
        num_edges.insert(num_edges.end(), static_cast<size_t>(size), 1);
        num_edges.push_back(0);
        final_state.insert(final_state.end(), static_cast<size_t>(size), 0);
        final_state.push_back(1);
        for (int32_t i = size; i >= 0; i--) state_cost.push_back(i);
    }

    void automaton(const lmprog_leaf_automata& of, int32_t size) {
        append(of, at.state, size, of.edges + 3 * at.edge);
        for (int32_t q = 0; q < size; q++) at.edge += of.num_edges[at.state + q];
        at.state += size;
    }

    void append(const lmprog_leaf_automata& of, int64_t from, int64_t count, const int32_t* edge) {
        const int32_t first = num_states();
        for (int64_t q = from; q < from + count; q++) {
            for (int32_t e = 0; e < of.num_edges[q]; e++, edge += 3)
                edges.push_back({edge[0], edge[1], first + edge[2]});
        }
        num_edges.insert(num_edges.end(), of.num_edges + from, of.num_edges + from + count);
        final_state.insert(final_state.end(), of.final + from, of.final + from + count);
        state_cost.insert(state_cost.end(), of.cost + from, of.cost + from + count);
    }

    // A state on the way to a name: what it stands for in `any_text`, and what leads on.
    struct OnTheWay {
        int32_t place;
        std::vector<std::pair<lmprog::Spelled, int32_t>> children;
    };

    // First the vertices of the names, then the states within a character.
    void all_but(int32_t num_names) {
        lmprog::NameTrie trie;
        for (int32_t i = 0; i < num_names; i++) at.text = trie.add(at.text);
        std::vector<OnTheWay> states(static_cast<size_t>(trie.size()));
        for (int32_t vertex = 0; vertex < trie.size(); vertex++)
            trie.each_child(vertex, [&](int32_t character, int32_t child) {
                for (const lmprog::Spelling& one : lmprog::spellings_of(character)) add_way(states, vertex, one, child);
            });
        const int32_t first = num_states(), behind = first + static_cast<int32_t>(states.size());
        for (int32_t state = 0; state < static_cast<int32_t>(states.size()); state++) {
            const OnTheWay& here = states[static_cast<size_t>(state)];
            const size_t before = edges.size();
            leaving(here, behind);
            for (const auto& [by, child] : here.children) {
                edges.push_back({by.byte, by.byte, first + child});
                if (by.other != by.byte) edges.push_back({by.other, by.other, first + child});
            }
            num_edges.push_back(static_cast<int32_t>(edges.size() - before));
            const bool is_name = state < trie.size() && trie.is_name(state);
            final_state.push_back(here.place == 0 && !is_name);
            state_cost.push_back(is_name ? 1 : any_text.cost[here.place]);  // a name needs one character more
        }
        append(any_text, 0, any_text.num_states, any_text.edges);
    }

    void add_way(std::vector<OnTheWay>& states, int32_t from, const lmprog::Spelling& spelling, int32_t to) const {
        for (size_t i = 0; i + 1 < spelling.size(); i++) {
            const uint8_t byte = spelling[i].byte;
            const auto& known = states[static_cast<size_t>(from)].children;
            const auto found = std::find_if(known.begin(), known.end(), [&](const auto& one) { return one.first.byte == byte; });
            if (found != known.end()) {
                from = found->second;
                continue;
            }
            const int32_t place = after(states[static_cast<size_t>(from)].place, byte), made = static_cast<int32_t>(states.size());
            states[static_cast<size_t>(from)].children.push_back({spelling[i], made});
            states.push_back({place, {}});
            from = made;
        }
        states[static_cast<size_t>(from)].children.push_back({spelling.back(), to});
    }

    // The state of `any_text` behind another.
    int32_t after(int32_t place, uint8_t byte) const {
        const int32_t* edge = edges_of(place);
        while (byte < edge[0] || byte > edge[1]) edge += 3;
        return edge[2];
    }

    const int32_t* edges_of(int32_t place) const {
        const int32_t* edge = any_text.edges;
        for (int32_t q = 0; q < place; q++) edge += 3 * any_text.num_edges[q];
        return edge;
    }

    // The edges of `any_text` but for the bytes that lead on.
    void leaving(const OnTheWay& here, int32_t behind) {
        taken.clear();
        for (const auto& [by, child] : here.children) taken.insert(taken.end(), {by.byte, by.other});
        std::sort(taken.begin(), taken.end());
        const int32_t* edge = edges_of(here.place);
        for (int32_t e = 0; e < any_text.num_edges[here.place]; e++, edge += 3) {
            int32_t low = edge[0];
            for (const uint8_t byte : taken) {
                if (byte < low || byte > edge[1]) continue;
                if (byte > low) edges.push_back({low, byte - 1, behind + edge[2]});
                low = byte + 1;
            }
            if (low <= edge[1]) edges.push_back({low, edge[1], behind + edge[2]});
        }
    }

    // Leaves out the bytes without a token of their own, from the last leaf.
    void respell(int32_t first, size_t edges_before) {
        const std::vector<Edge> old(edges.begin() + static_cast<std::ptrdiff_t>(edges_before), edges.end());
        edges.resize(edges_before);
        const Edge* edge = old.data();
        for (size_t q = static_cast<size_t>(first); q < num_edges.size(); q++) {
            const size_t before = edges.size();
            for (int32_t e = 0; e < num_edges[q]; e++, edge++)
                for (int32_t byte = edge->low; byte <= edge->high; byte++)
                    if (spelled[byte]) edges.push_back({byte, byte, edge->to});
            num_edges[q] = static_cast<int32_t>(edges.size() - before);
        }
        shortest(first, edges_before);
    }

    // Fewest bytes to acceptance of the last leaf's states, breadth first from the final ones.
    void shortest(int32_t first, size_t edges_before) {
        const size_t size = num_edges.size() - static_cast<size_t>(first);
        std::vector<std::vector<int32_t>> sources(size);
        std::vector<int32_t> queue;
        size_t e = edges_before;
        for (size_t q = 0; q < size; q++) {
            const size_t state = static_cast<size_t>(first) + q;
            for (int32_t i = 0; i < num_edges[state]; i++)
                sources[static_cast<size_t>(edges[e++].to - first)].push_back(static_cast<int32_t>(q));
            state_cost[state] = final_state[state] ? 0 : kUnreachable;
            if (final_state[state]) queue.push_back(static_cast<int32_t>(q));
        }
        for (size_t i = 0; i < queue.size(); i++)
            for (const int32_t source : sources[static_cast<size_t>(queue[i])])
                if (state_cost[static_cast<size_t>(first + source)] == kUnreachable) {
                    state_cost[static_cast<size_t>(first + source)] =
                        state_cost[static_cast<size_t>(first + queue[i])] + 1;
                    queue.push_back(source);
                }
    }

    // ---- costs of nodes: the least fixed point, in passes over the other parts and then the net itself ----

    size_t first_part() const { return parts.size() > 1 ? 1 : 0; }

    bool is_recursive() const {
        return std::any_of(parts.begin(), parts.end(), [](const lmprog_net_part* one) { return one->is_recursive; });
    }

    int64_t next_costs(int64_t most) {
        const lmprog_net_part& in = *parts[part];
        int64_t work = 0;
        for (; node < in.num_nodes && work < most; node++) work += 4 + settle(in, node);
        if (node < in.num_nodes) return work;
        node = 0;
        if (part) {
            part = part + 1 < parts.size() ? part + 1 : 0;
            return work + 1;
        }
        // Where parts precede the nodes made of them, one pass is enough.
        if (!changed || !is_recursive()) costs_done = true;
        changed = false;
        part = first_part();
        return work + 1;
    }

    int64_t settle(const lmprog_net_part& in, int32_t n) {
        const int32_t* args = in.args + args_start[part][static_cast<size_t>(n)];
        const int32_t count = in.num_args[n], base = node_base[part];
        int64_t now = 0;
        bool empty = true;
        switch (in.kind[n]) {
            case kLeaf: {
                const auto state = static_cast<size_t>(leaf_start[part][static_cast<size_t>(args[0])]);
                now = state_cost[state];
                empty = final_state[state];
                break;
            }
            case kSeq:
                for (int32_t i = 0; i < count; i++) {
                    now += cost[static_cast<size_t>(base + args[i])];
                    empty = empty && nullable[static_cast<size_t>(base + args[i])];
                }
                break;
            case kAlt:
                now = kUnreachable;
                empty = false;
                for (int32_t i = 0; i < count; i++) {
                    now = std::min(now, cost[static_cast<size_t>(base + args[i])]);
                    empty = empty || nullable[static_cast<size_t>(base + args[i])];
                }
                break;
            case kRepeat:
                now = lmprog::times(cost[static_cast<size_t>(base + args[0])], args[1]);
                empty = args[1] == 0 || nullable[static_cast<size_t>(base + args[0])];
                break;
            case kOnce:
                now = cost_of_members(base, args, count);
                empty = false;
                break;
            case kTable:
                if (tables.count(base + n)) return 0;  // what it is made of comes before it
                now = table(base + n, args);
                empty = now < kUnreachable && nullable_table(base + n);
                break;
            default: {
                const auto root = static_cast<size_t>(root_of(args[0]));
                now = cost[root];
                empty = nullable[root];
            }
        }
        now = std::min(now, kUnreachable);
        const auto here = static_cast<size_t>(base + n);
        if (now < cost[here] || empty != static_cast<bool>(nullable[here])) {
            cost[here] = now;
            nullable[here] = empty;
            changed = true;
        }
        return count;
    }

    int64_t cost_at(int32_t node) const { return cost[static_cast<size_t>(node)]; }

    // The required members, and as many of the cheapest others as are needed.
    int64_t cost_of_members(int32_t base, const int32_t* args, int32_t count) {
        const int32_t low = args[0], num_required = args[2];
        int64_t sum = lmprog::times(cost_at(base + args[4]), low - 1);
        others.clear();
        for (int32_t i = kHead; i < count; i++) {
            if (i < kHead + num_required)
                sum += cost_at(base + args[i]);
            else
                others.push_back(cost_at(base + args[i]));
        }
        if (args[3] >= 0) others.push_back(cost_at(base + args[3]));
        const auto needed = static_cast<size_t>(low - num_required);
        if (others.size() < needed) return kUnreachable;
        std::sort(others.begin(), others.end());
        for (size_t i = 0; i < needed; i++) sum += others[i];
        return sum;
    }

    int64_t table(int32_t node, const int32_t* args) {
        const auto cost_of = [&](int32_t item) { return cost[static_cast<size_t>(node_base[part] + item)]; };
        const auto number_of = [&](int32_t item) { return node_of(part, item); };
        lmprog::TableBuild made(args, cost_of, number_of);
        const int64_t now = made.make(tables[node]);
        return now < decltype(made)::kNever ? now : kUnreachable;
    }

    bool nullable_table(int32_t node) const {
        const lmprog::TextTable table(tables.at(node).data());
        bool out = table.is_final(0);
        table.each_edge(0, [&](int32_t to, int32_t item) { out = out || (to < 0 && nullable[static_cast<size_t>(item)]); });
        return out && table.low() == 0;
    }

    int32_t root_of(int32_t p) const { return node_base[static_cast<size_t>(p)] + parts[static_cast<size_t>(p)]->root; }

    // The node of a part's own number; where that stands for another part, its root.
    int32_t node_of(size_t p, int32_t n) const {
        if (parts[p]->kind[n] == kPart) return root_of(parts[p]->args[args_start[p][static_cast<size_t>(n)]]);
        return node_base[p] + n;
    }

    // ---- the arrays ----

    bool is_live(const Edge& edge) const { return state_cost[static_cast<size_t>(edge.to)] < kUnreachable; }

    lmprog_net_sizes measured() const {
        const int32_t root = node_of(0, parts[0]->root);
        int64_t items = 0;
        each_node([&](size_t p, int32_t n, Kind kind, const int32_t* args, int32_t count) {
            if (kind == kSeq || kind == kAlt)
                for (int32_t i = 0; i < count; i++) items += is_kept(p, kind, args[i]);
            if (kind == kOnce) items += kKeptHead + static_cast<int64_t>(kept_members(p, args, count).size());
            if (kind == kTable) items += static_cast<int64_t>(tables.at(node_base[p] + n).size());
        });
        return {static_cast<int64_t>(cost.size()),
                items,
                num_states(),
                std::count_if(edges.begin(), edges.end(), [this](const Edge& edge) { return is_live(edge); }),
                root,
                cost[static_cast<size_t>(root)]};
    }

    // By the numbers of the part: the required members, then the others from the cheapest on.
    std::vector<int32_t> kept_members(size_t p, const int32_t* args, int32_t count) const {
        std::vector<int32_t> out(args + kHead, args + kHead + args[2]);
        for (int32_t i = kHead + args[2]; i < count; i++)
            if (is_kept(p, kOnce, args[i])) out.push_back(args[i]);
        std::stable_sort(out.begin() + args[2], out.end(), [&](int32_t a, int32_t b) {
            return cost_at(node_base[p] + a) < cost_at(node_base[p] + b);
        });
        return out;
    }

    bool is_kept(size_t p, Kind kind, int32_t item) const {
        return kind == kSeq || cost[static_cast<size_t>(node_base[p] + item)] < kUnreachable;
    }

    template <class Body> void each_node(Body body) const {
        for (size_t p = 0; p < parts.size(); p++)
            for (int32_t n = 0; n < parts[p]->num_nodes; n++)
                body(p, n, static_cast<Kind>(parts[p]->kind[n]), parts[p]->args + args_start[p][static_cast<size_t>(n)],
                     parts[p]->num_args[n]);
    }

    void copy(void* block) const {
        auto* node_cost = static_cast<int64_t*>(block);
        int64_t* costs = std::copy(cost.begin(), cost.end(), node_cost);
        auto* out = reinterpret_cast<int32_t*>(std::copy(state_cost.begin(), state_cost.end(), costs));
        int32_t* items = out + 3 * size.num_nodes;
        int32_t* starts = items + size.num_items;
        int32_t* edge = std::copy(string_state.begin(), string_state.end(), starts + size.num_states + 1);
        auto* kinds = reinterpret_cast<uint8_t*>(edge + 3 * size.num_edges);
        copy_nodes(out, items, kinds);
        std::copy(final_state.begin(), final_state.end(), kinds + size.num_nodes);
        size_t e = 0;
        int32_t kept = 0;
        for (size_t q = 0; q < num_edges.size(); q++) {
            *starts++ = kept;
            for (int32_t i = 0; i < num_edges[q]; i++, e++) {
                if (!is_live(edges[e])) continue;
                *edge++ = edges[e].low;
                *edge++ = edges[e].high;
                *edge++ = edges[e].to;
                kept++;
            }
        }
        *starts = kept;
    }

    void copy_nodes(int32_t* out, int32_t* items, uint8_t* kinds) const {
        int32_t offset = 0;
        each_node([&](size_t p, int32_t n, Kind kind, const int32_t* args, int32_t count) {
            int32_t first = 0, second = 0, third = 0;
            if (kind == kLeaf) {
                first = leaf_start[p][static_cast<size_t>(args[0])];
            } else if (kind == kPart) {
                kind = kAlt;  // nothing refers to it
            } else if (kind == kRepeat) {
                const auto item = static_cast<size_t>(node_base[p] + args[0]);
                if (cost[item] >= kUnreachable) {
                    kind = args[1] == 0 ? kSeq : kAlt;
                } else {  // a repetition of something that may be empty can always be shortened
                    first = node_of(p, args[0]);
                    second = nullable[item] ? 0 : args[1];
                    third = args[2];
                }
            } else if (kind == kOnce) {
                first = offset;
                items[offset++] = args[0];
                items[offset++] = is_kept(p, kind, args[4]) ? args[1] : 1;  // without a separator there is one member
                items[offset++] = args[3] >= 0 && is_kept(p, kind, args[3]) ? node_of(p, args[3]) : -1;
                items[offset++] = node_of(p, args[4]);
                for (const int32_t member : kept_members(p, args, count)) items[offset++] = node_of(p, member);
                second = offset - first - kKeptHead;
                third = args[2];
            } else if (kind == kTable) {
                const std::vector<int32_t>& table = tables.at(node_base[p] + n);
                std::copy(table.begin(), table.end(), items + offset);
                first = offset;
                offset += second = static_cast<int32_t>(table.size());
            } else {
                first = offset;
                for (int32_t i = 0; i < count; i++)
                    if (is_kept(p, kind, args[i])) items[offset++] = node_of(p, args[i]);
                second = offset - first;
            }
            kinds[node_base[p] + n] = kind;
            *out++ = first;
            *out++ = second;
            *out++ = third;
        });
    }
};

LMPROG_EXPORT lmprog_cover* lmprog_cover_new(const uint8_t* tokens, const int32_t* lengths, int64_t num_tokens) {
    try {
        return new lmprog_cover{lmprog::ShortTexts(tokens, lengths, num_tokens)};
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

LMPROG_EXPORT void lmprog_cover_free(lmprog_cover* cover) { delete cover; }

LMPROG_EXPORT lmprog_net_build* lmprog_net_begin(const lmprog_net_part* const* parts, int32_t num_parts,
                                                 const lmprog_leaf_automata* any_text, const lmprog_cover* cover,
                                                 const lmprog_cover* in_strings, const uint8_t* spelled) {
    try {
        return new lmprog_net_build(parts, num_parts, *any_text, cover, in_strings, spelled);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

LMPROG_EXPORT int64_t lmprog_net_step(lmprog_net_build* build, int64_t work, lmprog_net_sizes* sizes) {
    try {
        if (!build->step(work)) return 1;
        *sizes = build->size = build->measured();
        return 0;
    } catch (const std::bad_alloc&) {
        return LMPROG_NETS_MEMORY;
    }
}

LMPROG_EXPORT void lmprog_net_copy(const lmprog_net_build* build, void* block) { build->copy(block); }

LMPROG_EXPORT void lmprog_net_free(lmprog_net_build* build) { delete build; }
