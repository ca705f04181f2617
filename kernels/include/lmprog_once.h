// Members of which each comes at most once: what may follow those that were used.
//
// What was used is interned, one number for each node and set of members: a bit for each member, and in the last word how
// often the one came that may come again. Knows costs, not bytes.
#ifndef LMPROG_ONCE_H
#define LMPROG_ONCE_H
#include <algorithm>
#include <cstdint>
#include <vector>

#include "lmprog_costs.h"
#include "lmprog_interned.h"
#include "lmprog_masks.h"

namespace lmprog {

constexpr int32_t kBegun = 0, kReading = 1;  // where the text is: a member has to follow; in member i: kReading + i

class Once {
  public:
    // The number of a set in which nothing is used.
    int32_t nothing(const lmprog_net& net, int32_t node) {
        words_.assign(num_words(net, node), 0);
        return interned(net, node);
    }

    int32_t with(const lmprog_net& net, int32_t used, int32_t member) {
        const Used from = sets_[static_cast<size_t>(used)];
        const Node of(net, from.node);
        words_.assign(pool_.begin() + static_cast<std::ptrdiff_t>(from.begin),
                      pool_.begin() + static_cast<std::ptrdiff_t>(from.begin + num_words(net, from.node)));
        if (member < of.size)
            words_[static_cast<size_t>(member >> 6)] |= uint64_t{1} << (member & 63);
        else if (of.high != kNoLimit || !words_.back())
            words_.back()++;  // how often it came again: only as far as a bound needs it
        return interned(net, from.node);
    }

    // The number here of another's set.
    int32_t moved(const lmprog_net& net, const Once& old, int32_t used) {
        const Used& from = old.sets_[static_cast<size_t>(used)];
        const auto begin = old.pool_.begin() + static_cast<std::ptrdiff_t>(from.begin);
        words_.assign(begin, begin + static_cast<std::ptrdiff_t>(num_words(net, from.node)));
        return interned(net, from.node);
    }

    bool may_end(const lmprog_net& net, int32_t used) const { return left(net, used).needed <= 0; }

    // The members that may follow: body(member, its node).
    template <class Body> void each_choice(const lmprog_net& net, int32_t used, Body body) const {
        const Node of(net, sets_[static_cast<size_t>(used)].node);
        const Left now = left(net, used);
        if (now.room <= 0) return;
        const int32_t last = now.room > now.required ? of.size : of.num_required;
        for (int32_t i = 0; i < last; i++)
            if (!has(used, i)) body(i, of.members[i]);
        if (of.again >= 0 && now.room > (now.has_again ? std::max<int64_t>(now.needed, 0) : now.required)) body(of.size, of.again);
    }

    bool may_go_on(const lmprog_net& net, int32_t used) const {
        bool may = false;
        each_choice(net, used, [&](int32_t, int32_t) { may = true; });
        return may;
    }

    static int32_t separator(const lmprog_net& net, int32_t node) { return Node(net, node).separator; }

    // What is needed from there on, without the rest of the member that is being read.
    int64_t cost(const lmprog_net& net, int32_t used, int32_t where) const {
        const Node of(net, sets_[static_cast<size_t>(used)].node);
        const bool begun = where == kBegun;
        const int32_t reading = begun ? -1 : where - kReading;
        const Left now = left(net, used, reading);
        const int64_t wanted = std::max<int64_t>(now.needed, begun);
        int64_t sum = times(net.node_cost[of.separator], wanted - begun);
        for (int32_t i = 0; i < of.num_required && sum < kUnreachable; i++)
            if (!has(used, i) && i != reading) sum += net.node_cost[of.members[i]];
        int64_t others = wanted - now.required;
        int64_t again = of.again >= 0 && (!now.has_again || now.needed <= 0) ? net.node_cost[of.again] : kUnreachable;
        for (int32_t i = of.num_required; others > 0; i++) {
            while (i < of.size && (has(used, i) || i == reading)) i++;
            int64_t next = i < of.size ? net.node_cost[of.members[i]] : kUnreachable;
            if (again < next) {  // the others are sorted by their costs
                std::swap(next, again);
                again = kUnreachable;
                i--;
            }
            if (next >= kUnreachable) return kUnreachable;
            sum += next;
            others--;
        }
        return std::min(sum, kUnreachable);
    }

    int64_t num_held() const { return static_cast<int64_t>(2 * pool_.size() + 8 * sets_.size()); }

  private:
    // How the arrays of a net describe such a node.
    struct Node {
        Node(const lmprog_net& net, int32_t node)
            : low(net.items[net.args[3 * node]]), high(net.items[net.args[3 * node] + 1]),
              again(net.items[net.args[3 * node] + 2]), separator(net.items[net.args[3 * node] + 3]),
              members(net.items + net.args[3 * node] + 4), size(net.args[3 * node + 1]), num_required(net.args[3 * node + 2]) {}
        int32_t low, high, again, separator;
        const int32_t* members;  // behind the required ones from the cheapest on
        int32_t size, num_required;
    };

    struct Used {
        size_t begin;  // into the pool: a bit for each member, then how often one came again
        int32_t node, count, required;
    };

    struct Left {
        int64_t required, needed, room;
        bool has_again;
    };

    static size_t num_words(const lmprog_net& net, int32_t node) {
        return static_cast<size_t>((net.args[3 * node + 1] + 63) / 64 + 1);
    }

    bool has(int32_t used, int32_t member) const {
        const size_t word = sets_[static_cast<size_t>(used)].begin + static_cast<size_t>(member >> 6);
        return pool_[word] >> (member & 63) & 1;
    }

    // What may follow, once the member that is being read has ended.
    Left left(const lmprog_net& net, int32_t used, int32_t reading = -1) const {
        const Used& now = sets_[static_cast<size_t>(used)];
        const Node of(net, now.node);
        int64_t again = static_cast<int64_t>(pool_[now.begin + num_words(net, now.node) - 1]);
        int64_t count = now.count, required = of.num_required - now.required;
        if (reading >= of.size) {
            again += of.high != kNoLimit || !again;
        } else if (reading >= 0) {
            count++;
            required -= reading < of.num_required;
        }
        const int64_t needed = std::max<int64_t>(required, of.low - count - std::min<int64_t>(again, 1));
        return {required, needed, of.high == kNoLimit ? kUnreachable : of.high - count - again, again > 0};
    }

    // The number of the set in words_, which become its own.
    int32_t interned(const lmprog_net& net, int32_t node) {
        uint64_t hash = mix(5, static_cast<uint64_t>(node));
        for (const uint64_t word : words_) hash = mix(hash, word);
        const int64_t found = index_.find(hash, [&](uint32_t i) {
            return sets_[i].node == node &&
                   std::equal(words_.begin(), words_.end(), pool_.begin() + static_cast<std::ptrdiff_t>(sets_[i].begin));
        });
        if (found >= 0) return static_cast<int32_t>(found);
        Used made{pool_.size(), node, 0, 0};
        const int32_t num_required = net.args[3 * node + 2];
        for (int32_t i = 0; i < 64 * static_cast<int32_t>(words_.size() - 1); i++) {
            const bool is_used = words_[static_cast<size_t>(i >> 6)] >> (i & 63) & 1;
            made.count += is_used;
            made.required += is_used && i < num_required;
        }
        const auto number = static_cast<uint32_t>(sets_.size());
        pool_.insert(pool_.end(), words_.begin(), words_.end());
        sets_.push_back(made);
        index_.add(hash, number);
        return static_cast<int32_t>(number);
    }

    std::vector<Used> sets_;
    std::vector<uint64_t> pool_, words_;
    Index index_;
};

}  // namespace lmprog
#endif
