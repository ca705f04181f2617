// The lazily determinised automaton of a net; lmprog/constraints/automaton.py explains the idea.
//
// Plain C++17 on vectors. Frames, positions and states are hash-consed to integers. Knows bytes, not tokens.
#ifndef LMPROG_AUTOMATON_H
#define LMPROG_AUTOMATON_H
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "lmprog_interned.h"
#include "lmprog_largest_positions.h"
#include "lmprog_masks.h"
#include "lmprog_once.h"
#include "lmprog_rows.h"
#include "lmprog_text_table.h"

namespace lmprog {

class Automaton {
  public:
    explicit Automaton(const lmprog_net& net) : net_(net) {
        frames_.push_back({-1, 0, 0, 0, 0, 0});
        closures_.emplace_back();
        dead_.assign(256, 0);
        states_.push_back({0, 0, false});
        costs_.push_back(kUnreachable);
        rows_.push_back(dead_.data());
        of_state_.emplace_back();
        Closure first;
        entered_.assign(1, {net.root, 0});
        close(first);
        start_ = intern(first);
    }

    uint32_t start() const { return start_; }
    int64_t num_states() const { return static_cast<int64_t>(states_.size()); }
    int64_t num_bytes() const {
        return blocks_.num_bytes() + static_cast<int64_t>(states_.size()) * 64 +
               static_cast<int64_t>(frames_.size()) * 64 + static_cast<int64_t>(positions_.size()) * 32 +
               (static_cast<int64_t>(pool_.size() + closed_) + once_.num_held()) * 4 +
               static_cast<int64_t>(moves_.size()) * 8;
    }
    bool is_final(uint32_t state) const { return states_[state].final; }
    int64_t cost(uint32_t state) const { return costs_[state]; }

    // The next states for all bytes: a row of the automaton's own, or `scratch` where the state has few moves and is not
    // asked for often.
    const uint32_t* row(uint32_t state, ScratchRow& scratch) {
        if (rows_[state]) return rows_[state];
        const Moves moves = moves_of(state);
        return rows_[state] ? rows_[state] : scratch.with(moves_.data() + moves.begin, moves.count);
    }

    uint32_t after(uint32_t state, uint8_t byte) {
        if (rows_[state]) return rows_[state][byte];
        if (states_[state].length > kManyPositions && !of_state_[state].num_asked) {  // the other bytes are hardly wanted
            uint32_t found = 0;
            each_move(state, byte, byte, [&](int, int, uint32_t to) { found = to; });
            return found;
        }
        const Moves moves = moves_of(state);
        if (rows_[state]) return rows_[state][byte];
        for (uint32_t i = moves.begin; i < moves.begin + moves.count; i++)
            if (moves_[i].first <= byte && byte <= moves_[i].last) return moves_[i].to;
        return 0;
    }

    // The byte that all that may follow begins with, or -1. Makes no state.
    int32_t only_byte(uint32_t state) const {
        int32_t only = -1;
        for (uint32_t i = 0; i < states_[state].length; i++) {
            const int32_t at = positions_[pool_[states_[state].begin + i]].leaf_state;
            for (int32_t e = net_.edge_start[at]; e < net_.edge_start[at + 1]; e++) {
                const int32_t low = net_.edges[3 * e];
                if (low != net_.edges[3 * e + 1] || (only >= 0 && only != low)) return -1;
                only = low;
            }
        }
        return only;
    }

    // The leaf states of a state, each with the frame behind it.
    template <class Body> void each_position(uint32_t state, Body body) const {
        for (uint32_t i = 0; i < states_[state].length; i++) body(positions_[pool_[states_[state].begin + i]]);
    }

    // The state after a byte that led to these leaf states (`to`), each with its frame.
    uint32_t target(const Edge* edges, size_t count) {
        Closure& all = target_;
        all.positions.clear();
        all.final = false;
        step(kOfAnEdge * static_cast<int64_t>(count));
        for (size_t i = 0; i < count; i++) {
            if (moves(edges[i].to)) all.positions.push_back(position(edges[i].to, edges[i].frame));
            if (net_.final_state[edges[i].to]) {
                const Closure& behind = frame_closure(edges[i].frame);
                all.positions.insert(all.positions.end(), behind.positions.begin(), behind.positions.end());
                all.final |= behind.final;
            }
        }
        return intern(all);
    }

    // The state in the midst of a repetition that may end here and has no last round, with `rest` behind it.
    uint32_t repeating(int32_t node, uint32_t rest) {
        const uint32_t behind = frame(node, 0, kNoLimit, rest);
        return after_closure(behind);
    }

    // The state at a final leaf state that reads on.
    uint32_t reading_on(int32_t leaf_state, uint32_t frame) {
        const Edge there{0, 0, leaf_state, frame};
        return target(&there, 1);
    }

    // The state of some positions of a state, of which none covers another.
    uint32_t state_of(const std::vector<Position>& positions, bool is_final) {
        target_.positions.clear();
        target_.final = is_final;
        for (const Position& at : positions) target_.positions.push_back(position(at.leaf_state, at.frame));
        return intern(target_, true);
    }

    const Frame& frame_of(uint32_t frame) const { return frames_[frame]; }
    size_t num_positions(uint32_t state) const { return states_[state].length; }

    // The next states for the bytes low..high, as far as there are any: body(first, after last, state). Not to be nested.
    template <class Body> void each_move(uint32_t state, int32_t low, int32_t high, Body body) {
        edges_.clear();
        for (uint32_t i = 0; i < states_[state].length; i++) {
            const Position at = positions_[pool_[states_[state].begin + i]];
            for (int32_t e = net_.edge_start[at.leaf_state]; e < net_.edge_start[at.leaf_state + 1]; e++) {
                const int32_t first = std::max(net_.edges[3 * e], low), last = std::min(net_.edges[3 * e + 1], high);
                if (first <= last) edges_.push_back({first, last, net_.edges[3 * e + 2], at.frame});
            }
        }
        sweep_(edges_, [this](const Edge* edges, size_t count) { return target(edges, count); }, body);
    }

    const lmprog_net& net() const { return net_; }

    // Between calls only: pointers to rows die here, and the work of one call begins. False where the memory is full:
    // its owner has to `collect` before the call.
    bool begin_call(int64_t most_work = kMaxWork) {
        work_ = {0, most_work};
        states_before_ = num_states();
        held_before_ = num_held();
        if (is_paused_) return true;  // another call still has pointers to rows, and goes on
        if (blocks_.num_bytes() > net_.max_row_bytes) {
            blocks_.clear();
            std::fill(rows_.begin() + 1, rows_.end(), nullptr);
        }
        return states_before_ < state_room_ && held_before_ < held_room_;
    }

    int64_t work() const { return work_.taken; }
    void take_work(int64_t steps) { work_.take(steps); }

    // In the midst of a call, others are made meanwhile.
    template <class Body> void pause(Body others) {
        const Work work = work_;
        const int64_t states = num_states() - states_before_, held = num_held() - held_before_;
        is_paused_ = true;
        others();
        is_paused_ = false;
        work_ = work;
        states_before_ = num_states() - states;  // what others added is not this call's
        held_before_ = num_held() - held;
    }

    // A fresh automaton of the same net with some of the states. `to[i]` becomes the new number of `from[i]`: of the
    // first `needed` whatever they take, of the others as long as half of the states are free and nearly all positions
    // (states of many are hardly met twice, and to move them takes time); 0 for those left out.
    static Automaton collected(const Automaton& old, const uint32_t* from, int64_t count, int64_t needed, uint32_t* to) {
        Automaton fresh(old.net_);
        std::vector<uint32_t> frames(old.frames_.size(), kNotMoved);
        frames[0] = 0;
        Closure set;
        for (int64_t i = 0; i < count; i++) {
            to[i] = 0;
            if (i >= needed && kKept * (fresh.num_held() - 1) > old.net_.max_positions) continue;
            if (i >= needed && 2 * fresh.num_states() > old.net_.max_states) continue;
            const State& state = old.states_[from[i]];
            fresh.begin_call();
            set.positions.clear();
            set.final = state.final;
            for (uint32_t k = 0; k < state.length; k++) {
                const Position& at = old.positions_[old.pool_[state.begin + k]];
                set.positions.push_back(fresh.position(at.leaf_state, fresh.moved(old, at.frame, frames)));
            }
            to[i] = fresh.intern(set, true);
        }
        // States that are needed are never refused; what they take comes on top.
        fresh.state_room_ = std::max<int64_t>(old.net_.max_states, 2 * fresh.num_states());
        fresh.held_room_ = std::max<int64_t>(old.net_.max_positions, 2 * fresh.num_held());
        return fresh;
    }

  private:
    struct Entered {
        int32_t node;
        uint32_t frame;
    };

    static constexpr uint32_t kNotMoved = ~uint32_t{0};
    static constexpr int kNarrow = 8, kOften = 3;
    static constexpr size_t kFew = 8, kManyPositions = 16, kRecent = 512;
    static constexpr int64_t kKept = 32;      // a part of the positions
    static constexpr int64_t kOfAnEdge = 16;  // steps that its part of a state takes

    // Numbers kept: positions, frames and the members of states and closures.
    int64_t num_held() const {
        return static_cast<int64_t>(pool_.size() + positions_.size() + frames_.size() + closed_) + once_.num_held();
    }

    // The number here of another automaton's frame, with all that follows it.
    uint32_t moved(const Automaton& old, uint32_t frame_id, std::vector<uint32_t>& known) {
        chain_.clear();
        while (known[frame_id] == kNotMoved) {
            chain_.push_back(frame_id);
            frame_id = old.frames_[frame_id].rest;
        }
        uint32_t here = known[frame_id];
        for (size_t i = chain_.size(); i-- > 0;) {
            const Frame& f = old.frames_[chain_[i]];
            const bool once = net_.kind[f.node] == kOnce;
            here = known[chain_[i]] = frame(f.node, once ? once_.moved(net_, old.once_, f.first) : f.first, f.second, here);
        }
        return here;
    }

    // One call may add as much again as the memory holds.
    void grow_check() const {
        if (num_states() - states_before_ > net_.max_states || num_held() - held_before_ > net_.max_positions) throw Grown();
    }

    bool moves(int32_t leaf_state) const { return net_.edge_start[leaf_state] != net_.edge_start[leaf_state + 1]; }

    uint32_t after_closure(uint32_t frame) {
        target_ = frame_closure(frame);
        return intern(target_);
    }

    // A part of moves_.
    struct Moves {
        uint32_t begin = 0;
        uint8_t count = 0, num_asked = 0;
        bool is_narrow = false;  // of few bytes, as inside of texts: no row is worth its kilobyte
    };

    // The moves of a state that has no row. Afterwards it may have one: where it has many moves, or is asked for often.
    Moves moves_of(uint32_t state) {
        Moves moves = of_state_[state];
        if (!moves.num_asked) {
            found_.clear();
            each_move(state, 0, 255, [&](int first, int end, uint32_t to) {
                found_.push_back({static_cast<uint8_t>(first), static_cast<uint8_t>(end - 1), to});
            });
            if (found_.size() > ScratchRow::kMost) {
                fill(state, found_.data(), found_.size());
                return moves;
            }
            moves.begin = static_cast<uint32_t>(moves_.size());
            moves.count = static_cast<uint8_t>(found_.size());
            int width = 0;
            for (const Move& move : found_) width += move.last - move.first + 1;
            moves.is_narrow = width <= kNarrow;
            moves_.insert(moves_.end(), found_.begin(), found_.end());
        } else if (!moves.is_narrow && moves.num_asked == kOften) {
            fill(state, moves_.data() + moves.begin, moves.count);
            return moves;
        }
        if (moves.num_asked < kOften) moves.num_asked++;
        return of_state_[state] = moves;
    }

    void fill(uint32_t state, const Move* moves, size_t count) {
        uint32_t* row = rows_[state] = blocks_.row();
        for (size_t i = 0; i < count; i++) std::fill(row + moves[i].first, row + moves[i].last + 1, moves[i].to);
    }

    const Closure& frame_closure(uint32_t frame) {
        if (!closures_[frame]) {
            auto made = std::make_unique<Closure>();
            entered_.clear();  // a call that grew too large left some
            resumed_.assign(1, frame);
            close(*made);
            closed_ += made->positions.size();
            closures_[frame] = std::move(made);
        }
        return *closures_[frame];
    }

    // Everything reachable without reading a byte from entered_ and resumed_, which it empties.
    void close(Closure& out) {
        met_.clear();
        while (!entered_.empty() || !resumed_.empty()) {
            step();
            if (entered_.empty()) {
                const uint32_t frame = resumed_.back();
                resumed_.pop_back();
                if (frame == 0)
                    out.final = true;
                else
                    proceed(frames_[frame].node, frames_[frame].first, frames_[frame].second, frames_[frame].rest);
                continue;
            }
            const Entered at = entered_.back();
            entered_.pop_back();
            const int32_t* args = net_.args + 3 * at.node;
            if (net_.kind[at.node] == kLeaf) {
                if (moves(args[0])) out.positions.push_back(position(args[0], at.frame));
                if (net_.final_state[args[0]]) resumed_.push_back(at.frame);
            } else if (net_.kind[at.node] == kAlt) {
                if (met_.first_time(at.node, at.frame, 0))
                    for (int32_t i = args[1] - 1; i >= 0; i--)
                        entered_.push_back({net_.items[args[0] + i], at.frame});
            } else {
                const bool repeat = net_.kind[at.node] == kRepeat;
                if (net_.kind[at.node] == kOnce)
                    choose(at.node, once_.nothing(net_, at.node), kBegun, at.frame);
                else
                    proceed(at.node, repeat ? args[1] : 0, repeat ? args[2] : 0, at.frame);  // a table: its start
            }
        }
    }

    // Goes on with the rest of a sequence, or with one more or no more round of a repetition.
    void proceed(int32_t node, int32_t first, int32_t second, uint32_t rest) {
        const int32_t* args = net_.args + 3 * node;
        if (net_.kind[node] == kOnce) return choose(node, first, second, rest);
        if (net_.kind[node] == kSeq) {
            if (first == args[1]) {
                resumed_.push_back(rest);
                return;
            }
            const uint32_t behind = first + 1 == args[1] ? rest : frame(node, first + 1, 0, rest);
            entered_.push_back({net_.items[args[0] + first], behind});
            return;
        }
        if (net_.kind[node] == kTable) {
            proceed_in_table(node, first, second, rest);
            return;
        }
        if (first == 0) {
            // Met again without a byte read, a repetition can only have fewer rounds left: nothing new.
            if (!met_.first_time(node, rest, 1)) return;
            resumed_.push_back(rest);
        }
        if (second != 0) {
            const int32_t fewer = second == kNoLimit ? second : second - 1;
            const uint32_t behind = fewer == 0 ? rest : frame(node, std::max(first - 1, 0), fewer, rest);
            entered_.push_back({args[0], behind});
        }
    }

    // Goes on with a member that may follow, or ends.
    void choose(int32_t node, int32_t used, int32_t where, uint32_t rest) {
        if (where == kBegun) {
            once_.each_choice(net_, used, [&](int32_t member, int32_t item) {
                entered_.push_back({item, frame(node, used, kReading + member, rest)});
            });
            return;
        }
        used = once_.with(net_, used, where - kReading);
        if (once_.may_end(net_, used)) resumed_.push_back(rest);
        if (once_.may_go_on(net_, used)) entered_.push_back({Once::separator(net_, node), frame(node, used, kBegun, rest)});
    }

    // Goes on in a state of a table, after so many characters.
    void proceed_in_table(int32_t node, int32_t state, int32_t length, uint32_t rest) {
        const TextTable table(net_.items + net_.args[3 * node]);
        if (const int32_t loop = table.loop(state); loop >= 0) {  // a repetition of one class, with counters of its own
            const bool is_free = length < 0 || !table.counts();
            const int32_t more = is_free ? 0 : std::max(table.low() - length, 0);
            const int32_t most = is_free || table.high() < 0 ? kNoLimit : table.high() - length;
            if (more == 0) resumed_.push_back(rest);
            if (most == 0) return;
            const int32_t fewer = most == kNoLimit ? most : most - 1;
            entered_.push_back({net_.args[3 * loop], fewer == 0 ? rest : frame(loop, std::max(more - 1, 0), fewer, rest)});
            return;
        }
        if (table.is_final(state) && (length < 0 || length >= table.low())) resumed_.push_back(rest);
        const int32_t after = length < 0 ? length : length + table.counts();
        table.each_edge(state, [&](int32_t to, int32_t item) {
            if (to < 0)
                entered_.push_back({item, rest});
            else if (!table.counts() || table.may_end(to, after))
                entered_.push_back({item, frame(node, to, table.counts() ? table.counted(to, after) : 0, rest)});
        });
    }

    uint32_t frame(int32_t node, int32_t first, int32_t second, uint32_t rest) {
        const uint64_t hash = mix(mix(mix(mix(1, node), first), static_cast<uint32_t>(second)), rest);
        const int64_t found = frame_index_.find(hash, [&](uint32_t i) {
            const Frame& f = frames_[i];
            return f.node == node && f.first == first && f.second == second && f.rest == rest;
        });
        if (found >= 0) return static_cast<uint32_t>(found);
        const int32_t* args = net_.args + 3 * node;
        int64_t cost = 0;
        if (net_.kind[node] == kSeq)
            for (int32_t i = first; i < args[1]; i++) cost += net_.node_cost[net_.items[args[0] + i]];
        else if (net_.kind[node] == kOnce)
            cost = once_.cost(net_, first, second);
        else if (net_.kind[node] == kTable)
            cost = TextTable(net_.items + args[0]).cost(first, second);
        else
            cost = times(net_.node_cost[args[0]], first);
        const auto made = static_cast<uint32_t>(frames_.size());
        grow_check();
        const uint32_t num_counts = frames_[rest].num_counts + (net_.kind[node] == kRepeat);
        frames_.push_back({node, first, second, rest, std::min(cost + frames_[rest].cost, kUnreachable), num_counts});
        closures_.emplace_back();
        frame_index_.add(hash, made);
        return made;
    }

    uint32_t position(int32_t leaf_state, uint32_t frame) {
        const uint64_t hash = mix(mix(2, static_cast<uint32_t>(leaf_state)), frame);
        const int64_t found = position_index_.find(hash, [&](uint32_t i) {
            return positions_[i].leaf_state == leaf_state && positions_[i].frame == frame;
        });
        if (found >= 0) return static_cast<uint32_t>(found);
        const auto made = static_cast<uint32_t>(positions_.size());
        grow_check();
        positions_.push_back({leaf_state, frame});
        position_index_.add(hash, made);
        return made;
    }

    // The position with the counters of several.
    uint32_t joined(int32_t leaf_state, const LargestPositions::Joined& one) {
        const Frame last = frames_[one.frame];
        uint32_t made = frame(last.node, one.first, one.second, last.rest);
        for (size_t i = one.above.size(); i-- > 0;) {
            const Frame f = frames_[one.above[i]];
            made = frame(f.node, f.first, f.second, made);
        }
        largest();  // frames may have moved
        return position(leaf_state, made);
    }

    // `is_reduced`: no position covers another.
    uint32_t intern(Closure& set, bool is_reduced = false) {
        std::vector<uint32_t>& ids = set.positions;
        if (ids.size() == 1 && !set.final) {  // most states: found without a hash
            if (singles_.size() <= ids[0]) singles_.resize(positions_.size() + 64, 0);
            if (!singles_[ids[0]]) singles_[ids[0]] = made(set);
            return singles_[ids[0]];
        }
        Recent* recent = nullptr;
        if (is_reduced) {
            largest().sort(ids);
        } else if (ids.size() > kFew) {
            std::sort(ids.begin(), ids.end());
            ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
            uint64_t all = mix(4, set.final);
            for (uint32_t id : ids) all = mix(all, id);
            recent = &recent_[all % kRecent];
            if (recent->state && recent->final == set.final && recent->ids == ids) return recent->state;
            recent->ids = ids;
            recent->final = set.final;
            recent->state = 0;
        }
        if (!is_reduced && ids.size() > 1) {
            largest().join(ids, [this](int32_t leaf_state, const LargestPositions::Joined& one) { return joined(leaf_state, one); });
            if (ids.size() > 1) largest().keep(ids);
        }
        const uint32_t found = interned(set);
        if (recent) recent->state = found;
        return found;
    }

    uint32_t interned(const Closure& set) {
        const std::vector<uint32_t>& ids = set.positions;
        uint64_t hash = mix(3, set.final);
        for (uint32_t id : ids) hash = mix(hash, id);
        const int64_t found = state_index_.find(hash, [&](uint32_t i) {
            const State& s = states_[i];
            return s.length == ids.size() && s.final == set.final &&
                   std::equal(ids.begin(), ids.end(), pool_.begin() + static_cast<std::ptrdiff_t>(s.begin));
        });
        if (found >= 0) return static_cast<uint32_t>(found);
        const uint32_t one = made(set);
        state_index_.add(hash, one);
        return one;
    }

    uint32_t made(const Closure& set) {
        const std::vector<uint32_t>& ids = set.positions;
        const auto made = static_cast<uint32_t>(states_.size());
        grow_check();
        int64_t cost = set.final ? 0 : kUnreachable;
        for (uint32_t id : ids)
            cost = std::min(cost, net_.state_cost[positions_[id].leaf_state] + frames_[positions_[id].frame].cost);
        states_.push_back({pool_.size(), static_cast<uint32_t>(ids.size()), set.final});
        costs_.push_back(cost);
        rows_.push_back(nullptr);
        of_state_.emplace_back();
        pool_.insert(pool_.end(), ids.begin(), ids.end());
        return made;
    }

    // A set of many positions that was met, and its state, which may have fewer.
    struct Recent {
        std::vector<uint32_t> ids;
        bool final = false;
        uint32_t state = 0;
    };

    // Of what is here now: an automaton may be moved.
    LargestPositions& largest() {
        largest_.of(net_, frames_, positions_, work_);
        return largest_;
    }

    void step(int64_t steps = 1) { work_.take(steps); }

    lmprog_net net_;
    uint32_t start_ = 0;
    std::vector<Frame> frames_;
    std::vector<std::unique_ptr<Closure>> closures_;  // by frame
    std::vector<Position> positions_;
    std::vector<State> states_;
    std::vector<int64_t> costs_;    // by state, apart from it: the walk reads little else
    std::vector<uint32_t*> rows_;   // by state; null where there is none
    std::vector<Moves> of_state_;   // by state
    std::vector<Move> moves_, found_;
    std::vector<uint32_t> pool_, dead_;
    std::vector<uint32_t> singles_;  // by position: the state that is that position and nothing else
    Index frame_index_, position_index_, state_index_;
    Once once_;
    Blocks blocks_;
    std::vector<Entered> entered_;
    std::vector<uint32_t> resumed_;
    std::vector<Edge> edges_;  // of one sweep, which never meets another
    Sweep sweep_;
    Closure target_;
    Met met_;
    std::vector<Recent> recent_{kRecent};
    LargestPositions largest_;
    std::vector<uint32_t> chain_;
    size_t closed_ = 0;  // members of closures_
    Work work_;
    bool is_paused_ = false;
    int64_t states_before_ = 0, held_before_ = 0;  // when the call began
    int64_t state_room_ = net_.max_states, held_room_ = net_.max_positions;  // beyond which states are collected
};

}  // namespace lmprog
#endif
