// A table: an automaton over classes of characters, as one node of a net (`UnfinishedTable` in lmprog/constraints/net.py).
//
// A builder's table is low, high (-1: none), the number of states and of edges; by state whether it is final, and the node
// of its loop (a state that is final and leads to itself alone is a repetition; else -1); the first edge of each state and
// the end of the last; the targets of all edges, and their nodes. A target of -1 is behind the table: the node is all that
// follows.
//
// A finished table has the same, but the number of edges, in whose place is the cost of the dearest class; then come,
// before the targets, for every number of characters that is still needed, from 0 to `low`, by state the fewest characters
// to the end (-1: there is none), and by state the most (-1: without end). Without bounds the fewest are tokens, each class
// at its node's cost. Knows how tables lie in arrays; knows no expressions.
#ifndef LMPROG_TEXT_TABLE_H
#define LMPROG_TEXT_TABLE_H
#include <algorithm>
#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

namespace lmprog {

// Reads a finished table.
class TextTable {
  public:
    explicit TextTable(const int32_t* at) : t_(at), size_(at[2]), after_starts_(at + 5 + 3 * at[2]) {}
    bool counts() const { return t_[0] > 0 || t_[1] >= 0; }
    int32_t low() const { return t_[0]; }
    int32_t high() const { return t_[1]; }
    bool is_final(int32_t state) const { return t_[4 + state]; }
    int32_t loop(int32_t state) const { return t_[4 + size_ + state]; }

    // body(state or -1, node): a node that may follow, and the state behind it; -1: behind the table.
    template <class Body> void each_edge(int32_t state, Body body) const {
        const int32_t* start = t_ + 4 + 2 * size_;
        const int32_t* to = after_starts_ + (t_[0] + 2) * size_;
        for (int32_t e = start[state]; e < start[state + 1]; e++) body(to[e], to[start[size_] + e]);
    }

    int64_t cost(int32_t state, int32_t length) const {
        return counts() ? int64_t{t_[3]} * fewest(needed(length), state) : fewest(0, state);
    }

    // Whether a text may go on in `state` after so many characters.
    bool may_end(int32_t state, int32_t length) const {
        if (length < 0) return true;
        const int32_t more = fewest(needed(length), state);
        return more >= 0 && (t_[1] < 0 || length + more <= t_[1]);
    }

    // The number of characters as far as it matters: -1 where the bounds hold whatever follows.
    int32_t counted(int32_t state, int32_t length) const {
        if (length < 0) return length;
        const int32_t most = after_starts_[(t_[0] + 1) * size_ + state];
        const bool fits = t_[1] < 0 || (most >= 0 && length + most <= t_[1]);
        if (fits && length + fewest(0, state) >= t_[0]) return -1;
        return length;
    }

  private:
    int32_t needed(int32_t length) const { return length < 0 ? 0 : std::max(t_[0] - length, 0); }
    int32_t fewest(int32_t need, int32_t state) const { return after_starts_[need * size_ + state]; }

    const int32_t *t_, size_, *after_starts_;
};

// Finishes a builder's table: leaves out what cannot be spelled, and counts the characters to the end.
template <class Cost, class Number> class TableBuild {
  public:
    TableBuild(const int32_t* args, Cost cost, Number number)
        : low_(args[0]), high_(args[1]), size_(static_cast<size_t>(args[2])), cost_(cost), number_(number) {
        const int32_t *final = args + 4, *loop = final + size_, *start = loop + size_, *to = start + size_ + 1, *node = to + args[3];
        final_.assign(final, final + size_);
        loop_.assign(loop, loop + size_);
        edges_.resize(size_);
        for (size_t s = 0; s < size_; s++)
            for (int32_t e = start[s]; e < start[s + 1]; e++)
                if (cost_(node[e]) < kNever) edges_[s].push_back({to[e], node[e]});
    }

    static constexpr int64_t kNever = int64_t{1} << 30;

    // The table, and what it costs: kNever where no text is left.
    int64_t make(std::vector<int32_t>& out) {
        const bool counts = low_ > 0 || high_ >= 0;
        std::vector<int32_t> fewest = counts ? characters() : tokens();
        for (size_t s = 0; s < size_; s++) {
            auto& of = edges_[s];
            of.erase(std::remove_if(of.begin(), of.end(),
                                    [&](const Edge& e) { return e.to >= 0 && fewest[static_cast<size_t>(e.to)] < 0; }),
                     of.end());
            if (of.empty()) loop_[s] = -1;
        }
        for (int32_t need = 1; need <= low_; need++) one_more(fewest, static_cast<size_t>(need) * size_);
        const std::vector<int32_t> longest = most_characters(fewest);
        int64_t span = 1;
        for (const auto& of : edges_)
            for (const Edge& e : of) span = std::max(span, cost_(e.node));
        int32_t num_edges = 0;
        out = {low_, high_, static_cast<int32_t>(size_), static_cast<int32_t>(span)};
        out.insert(out.end(), final_.begin(), final_.end());
        for (const int32_t loop : loop_) out.push_back(loop < 0 ? loop : number_(loop));
        for (const auto& of : edges_) {
            out.push_back(num_edges);
            num_edges += static_cast<int32_t>(of.size());
        }
        out.push_back(num_edges);
        out.insert(out.end(), fewest.begin(), fewest.end());
        out.insert(out.end(), longest.begin(), longest.end());
        for (const auto& of : edges_)
            for (const Edge& e : of) out.push_back(e.to);
        for (const auto& of : edges_)
            for (const Edge& e : of) out.push_back(number_(e.node));
        const TextTable made(out.data());
        return made.may_end(0, 0) ? std::min(made.cost(0, 0), kNever) : kNever;
    }

  private:
    struct Edge {
        int32_t to, node;
    };

    // By state, the fewest tokens to the end, each class of characters at the cost of its node; -1: there is none.
    std::vector<int32_t> tokens() {
        using Way = std::pair<int64_t, size_t>;
        std::vector<int64_t> best(size_, kNever);
        std::vector<std::vector<std::pair<size_t, int64_t>>> sources(size_);
        std::priority_queue<Way, std::vector<Way>, std::greater<Way>> queue;
        const auto reach = [&](size_t state, int64_t cost) {
            if (cost >= best[state]) return;
            best[state] = cost;
            queue.push({cost, state});
        };
        for (size_t s = 0; s < size_; s++) {
            if (final_[s]) reach(s, 0);
            for (const Edge& e : edges_[s]) {
                if (e.to < 0)
                    reach(s, cost_(e.node));
                else
                    sources[static_cast<size_t>(e.to)].push_back({s, cost_(e.node)});
            }
        }
        while (!queue.empty()) {
            const auto [cost, state] = queue.top();
            queue.pop();
            if (cost > best[state]) continue;
            for (const auto& [source, more] : sources[state]) reach(source, cost + more);
        }
        std::vector<int32_t> out(size_);
        for (size_t s = 0; s < size_; s++) out[s] = best[s] >= kNever ? -1 : static_cast<int32_t>(best[s]);
        return out;
    }

    // The same in characters.
    std::vector<int32_t> characters() const {
        std::vector<int32_t> out(size_, -1);
        std::vector<std::vector<size_t>> sources(size_);
        std::vector<size_t> queue;
        for (size_t s = 0; s < size_; s++) {
            for (const Edge& e : edges_[s]) sources[static_cast<size_t>(e.to)].push_back(s);
            if (!final_[s]) continue;
            out[s] = 0;
            queue.push_back(s);
        }
        for (size_t i = 0; i < queue.size(); i++)
            for (const size_t source : sources[queue[i]])
                if (out[source] < 0) {
                    out[source] = out[queue[i]] + 1;
                    queue.push_back(source);
                }
        return out;
    }

    // Appends the fewest characters where one more of them is needed than in the rows before.
    void one_more(std::vector<int32_t>& fewest, size_t row) const {
        fewest.resize(row + size_, -1);
        for (size_t s = 0; s < size_; s++)
            for (const Edge& e : edges_[s]) {
                const int32_t rest = fewest[row - size_ + static_cast<size_t>(e.to)];
                if (rest >= 0 && (fewest[row + s] < 0 || rest + 1 < fewest[row + s])) fewest[row + s] = rest + 1;
            }
    }

    // By state, the most characters to the end; -1: without end.
    std::vector<int32_t> most_characters(const std::vector<int32_t>& fewest) const {
        std::vector<int32_t> out(size_, -1);
        std::vector<std::vector<size_t>> sources(size_);
        std::vector<size_t> missing(size_), queue;
        for (size_t s = 0; s < size_; s++) {
            missing[s] = edges_[s].size();
            for (const Edge& e : edges_[s])
                if (e.to >= 0) sources[static_cast<size_t>(e.to)].push_back(s);
            if (!missing[s] && fewest[s] >= 0) queue.push_back(s);
        }
        for (size_t i = 0; i < queue.size(); i++) {  // a state comes after all its successors
            const size_t state = queue[i];
            out[state] = 0;
            for (const Edge& e : edges_[state]) out[state] = std::max(out[state], out[static_cast<size_t>(e.to)] + 1);
            for (const size_t source : sources[state])
                if (--missing[source] == 0) queue.push_back(source);
        }
        return out;
    }

    const int32_t low_, high_;
    const size_t size_;
    Cost cost_;
    Number number_;
    std::vector<uint8_t> final_;
    std::vector<int32_t> loop_;
    std::vector<std::vector<Edge>> edges_;
};

}  // namespace lmprog
#endif
