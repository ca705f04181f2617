// Nodes and leaves of a net, equal ones once: the native side of NetBuilder in lmprog/constraints/net.py.
//
// Nodes are numbered on from those that the caller has; what was written is taken over piece by piece (`begin`). Knows
// nets; knows no schemas.
#ifndef LMPROG_PART_WRITER_H
#define LMPROG_PART_WRITER_H
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace lmprog {

constexpr int32_t kEmptyNode = 0, kFailNode = 1, kNoLimit = -1;

class PartWriter {
  public:
    // A new piece: forgets what was written, not how it is numbered.
    void begin(int32_t first_node, int32_t first_leaf) {
        first_node_ = first_node;
        first_leaf_ = first_leaf;
        kinds.clear(), num_args.clear(), args.clear(), leaf_kinds.clear(), leaf_sizes.clear(), texts.clear();
        holes_.clear();
        is_recursive = false;
    }

    int32_t text(std::string_view value) {
        if (value.empty()) return kEmptyNode;
        const auto [found, is_new] = texts_.try_emplace(std::string(value), 0);
        if (is_new) {
            texts += value;
            found->second = leaf(kText, static_cast<int32_t>(value.size()));
        }
        return found->second;
    }
    // All contents of JSON strings but these, which are of plain characters.
    int32_t all_but(const std::vector<std::string_view>& names) {
        for (const std::string_view name : names) {
            texts += name;
            texts += '\0';
        }
        return leaf(kAllBut, static_cast<int32_t>(names.size()));
    }
    int32_t seq(std::initializer_list<int32_t> items) {
        items_.clear();
        for (const int32_t item : items) {
            if (item == kFailNode) return kFailNode;
            if (item != kEmptyNode) items_.push_back(item);
        }
        return items_.empty() ? kEmptyNode : items_.size() == 1 ? items_[0] : node(kSeq, items_);
    }
    int32_t alt(const std::vector<int32_t>& items) {
        items_.clear();
        std::unordered_set<int32_t> seen;  // where there are many
        for (const int32_t item : items) {
            const bool is_known = items.size() > kFew ? !seen.insert(item).second
                                                      : std::find(items_.begin(), items_.end(), item) != items_.end();
            if (item != kFailNode && !is_known) items_.push_back(item);
        }
        return items_.empty() ? kFailNode : items_.size() == 1 ? items_[0] : node(kAlt, items_);
    }
    int32_t repeat(int32_t item, int32_t low, int32_t high) {
        if (high == 0 || item == kEmptyNode) return kEmptyNode;
        if (item == kFailNode) return low == 0 ? kEmptyNode : kFailNode;
        if (low == 1 && high == 1) return item;
        items_ = {item, low, high};
        return node(kRepeat, items_);
    }
    // A node that is filled later, in the same piece.
    int32_t hole() {
        items_ = {kFailNode};
        is_recursive = true;
        const int32_t made = new_node(kAlt, items_);
        holes_.emplace(made, args.size() - 1);
        return made;
    }
    void fill(int32_t hole, int32_t with) { args[holes_.at(hole)] = with; }

    std::vector<uint8_t> kinds, leaf_kinds;
    std::vector<int32_t> num_args, args, leaf_sizes;
    std::string texts;
    bool is_recursive = false;

  private:
    enum Kind : uint8_t { kLeaf, kSeq, kAlt, kRepeat };
    enum LeafKind : uint8_t { kText = 1, kAllBut };
    static constexpr size_t kFew = 16;

    int32_t leaf(LeafKind kind, int32_t size) {
        leaf_kinds.push_back(kind);
        leaf_sizes.push_back(size);
        items_ = {first_leaf_ + static_cast<int32_t>(leaf_kinds.size()) - 1};
        return new_node(kLeaf, items_);
    }
    int32_t node(Kind kind, const std::vector<int32_t>& items) {
        key_.assign(1, static_cast<char>(kind));
        key_.append(reinterpret_cast<const char*>(items.data()), 4 * items.size());
        const auto [found, is_new] = known_.try_emplace(key_, 0);
        if (is_new) found->second = new_node(kind, items);
        return found->second;
    }
    int32_t new_node(Kind kind, const std::vector<int32_t>& items) {
        kinds.push_back(kind);
        num_args.push_back(static_cast<int32_t>(items.size()));
        args.insert(args.end(), items.begin(), items.end());
        return first_node_ + static_cast<int32_t>(kinds.size()) - 1;
    }

    int32_t first_node_ = 0, first_leaf_ = 0;
    std::unordered_map<std::string, int32_t> texts_, known_;
    std::vector<int32_t> items_;
    std::unordered_map<int32_t, size_t> holes_;  // where the argument is
    std::string key_;
};

}  // namespace lmprog
#endif
