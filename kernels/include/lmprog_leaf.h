// A byte automaton that is being made, state by state. Knows bytes only.
#ifndef LMPROG_LEAF_H
#define LMPROG_LEAF_H
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lmprog_leaves.h"

struct lmprog_leaf {
    // A new state; edges that are added then are its own.
    void begin(bool is_final) {
        final.push_back(is_final);
        num_edges.push_back(0);
    }
    void edge(int32_t low, int32_t high, int32_t to) {
        edges.insert(edges.end(), {low, high, to});
        num_edges.back()++;
    }

    // Fewest bytes to the end, breadth first from where it may be.
    void measure() {
        constexpr int64_t kFar = int64_t{1} << 40;
        std::vector<size_t> begin(final.size() + 1, 0);  // of the states that lead to each
        for (size_t at = 2; at < edges.size(); at += 3) begin[static_cast<size_t>(edges[at]) + 1]++;
        for (size_t state = 0; state < final.size(); state++) begin[state + 1] += begin[state];
        std::vector<size_t> sources(edges.size() / 3), next(begin.begin(), begin.end() - 1), queue;
        size_t at = 2;
        for (size_t state = 0; state < final.size(); state++)
            for (int32_t edge = 0; edge < num_edges[state]; edge++, at += 3)
                sources[next[static_cast<size_t>(edges[at])]++] = state;
        cost.assign(final.size(), kFar);
        for (size_t state = 0; state < final.size(); state++) {
            if (!final[state]) continue;
            cost[state] = 0;
            queue.push_back(state);
        }
        for (size_t place = 0; place < queue.size(); place++) {
            const size_t state = queue[place];
            for (size_t i = begin[state]; i < begin[state + 1]; i++) {
                if (cost[sources[i]] != kFar) continue;
                cost[sources[i]] = cost[state] + 1;
                queue.push_back(sources[i]);
            }
        }
    }

    std::vector<int32_t> edges, num_edges;
    std::vector<uint8_t> final;
    std::vector<int64_t> cost;
};
#endif
