// The magnitudes of numbers within bounds as a byte automaton.
//
// It reads digits from the left. Its state is what a prefix says: how it compares with as many digits of each bound, and
// the remainder. Knows digits; lmprog/constraints/schema/numbers.py makes bounds and steps of a schema.
#include <algorithm>
#include <iterator>
#include <memory>
#include <new>
#include <string_view>
#include <unordered_map>

#include "lmprog_leaf.h"

#define LMPROG_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// A prefix. `places` is -1 before the point; `to_low` and `to_high` compare it with the bounds: -1, 0, 1.
struct At {
    int32_t whole = 0, places = -1, remainder = 0;
    int32_t to_low = 0, to_high = 0;
    bool leading_zero = false, fraction = false;  // a fraction that is not zero
    bool finer = false;                           // a digit that is not zero, beyond the scale of all steps

    uint64_t key() const {  // whole digits are at most some hundreds, places some millions
        uint64_t out = static_cast<uint64_t>(places + 1);
        out = out << 11 | static_cast<uint64_t>(whole);
        out = out << 15 | static_cast<uint64_t>(remainder);
        out = out << 2 | static_cast<uint64_t>(to_low + 1);
        out = out << 2 | static_cast<uint64_t>(to_high + 1);
        return out << 3 | static_cast<uint64_t>(leading_zero) << 2 | static_cast<uint64_t>(fraction) << 1 |
               static_cast<uint64_t>(finer);
    }
};

struct Bound {
    std::string_view before, behind;
    std::string_view digits(bool in_fraction) const { return in_fraction ? behind : before; }
    static int32_t size(std::string_view digits) { return static_cast<int32_t>(digits.size()); }
};

class Magnitudes {
  public:
    explicit Magnitudes(const lmprog_magnitudes& of)
        : of_(of), low_{of.low_before, of.low_behind}, high_{of.high_before, of.high_behind},
          longest_(std::max(Bound::size(low_.before), Bound::size(high_.before)) + 1) {}

    // False where there are too many states.
    bool make(lmprog_leaf& leaf) {
        states_.emplace_back();
        known_.emplace(states_[0].key(), 0);
        for (size_t number = 0; number < states_.size(); number++) {
            const At at = states_[number];
            leaf.begin(is_final(at));
            At behind;
            if (at.places < 0 && at.whole && !of_.integer && behind_point(at, behind))
                leaf.edge('.', '.', state_of(behind));
            const uint32_t cuts = cuts_of(at);
            for (int32_t first = 0, after; first < 10; first = after) {
                for (after = first + 1; !(cuts >> after & 1); after++) {}
                if (behind_digit(at, first, behind)) leaf.edge('0' + first, '0' + after - 1, state_of(behind));
            }
            if (static_cast<int64_t>(states_.size()) > of_.most_states) return false;
        }
        leaf.measure();
        return true;
    }

  private:
    int32_t state_of(const At& at) {
        const auto [found, is_new] = known_.try_emplace(at.key(), static_cast<int32_t>(states_.size()));
        if (is_new) states_.push_back(at);
        return found->second;
    }

    // Bits of the digits before which others lead to another state.
    uint32_t cuts_of(const At& at) const {
        const bool in_fraction = at.places >= 0;
        const int32_t place = in_fraction ? at.places : at.whole;
        if (of_.modulus && !(in_fraction && place >= of_.scale)) return ~uint32_t{0};
        uint32_t cuts = 1u << 10;
        if (in_fraction ? of_.fractional || of_.modulus : place == 0) cuts |= 2;  // a zero may be a leading one, or no fraction
        const auto cut = [&](int32_t sign, const Bound& bound) {
            if (sign) return;
            const std::string_view digits = bound.digits(in_fraction);
            if (place < Bound::size(digits)) cuts |= 3u << (digits[static_cast<size_t>(place)] - '0');
            else if (in_fraction) cuts |= 2;  // a bound goes on with zeros
        };
        cut(at.to_low, low_);
        cut(at.to_high, high_);
        return cuts;
    }

    bool behind_point(const At& at, At& out) const {
        out = At{};
        out.places = 0;
        out.remainder = at.remainder;
        out.to_low = settled(at.whole, at.to_low, low_.before);
        out.to_high = settled(at.whole, at.to_high, high_.before);
        return is_within(out);
    }

    // Behind the point no digit changes what is settled: false if no number is within the bounds. A bound that is met
    // whatever follows is not compared further.
    bool is_within(At& at) const {
        if (at.to_low < 0 || (of_.has_high && at.to_high > 0)) return false;
        if (at.places >= Bound::size(low_.behind) && !of_.low_exclusive) at.to_low = 1;
        if (!of_.has_high) at.to_high = -1;
        return true;
    }

    bool behind_digit(const At& at, int32_t digit, At& out) const {
        out = At{};
        const int32_t place = at.places;
        if (place < 0) {
            if (at.leading_zero) return false;
            const int32_t longest = Bound::size(high_.before);
            out.to_high = compared(at.to_high, digit, high_.before, at.whole, false);
            if (longest && (at.whole >= longest || (out.to_high > 0 && at.whole + 1 == longest))) return false;
            out.whole = std::min(at.whole + 1, longest_);  // all further digits lead to one state
            out.to_low = compared(at.to_low, digit, low_.before, at.whole, false);
            out.remainder = behind(at.remainder, digit);
            out.leading_zero = at.whole == 0 && digit == 0;
            return true;
        }
        if (place >= of_.most_places) return false;
        const bool beyond_scale = of_.modulus && place >= of_.scale;
        if (beyond_scale && digit && of_.step) return false;
        out.places = place + 1;
        out.to_low = compared(at.to_low, digit, low_.behind, place, true);
        out.to_high = compared(at.to_high, digit, high_.behind, place, true);
        out.remainder = beyond_scale ? at.remainder : behind(at.remainder, digit);
        out.fraction = of_.fractional && (at.fraction || digit);
        out.finer = at.finer || (beyond_scale && digit);
        return is_within(out);
    }

    bool is_final(const At& at) const {
        if (at.places == 0 || (at.places < 0 && at.whole == 0)) return false;
        if (of_.fractional && !at.fraction) return false;
        const int32_t read = std::max(at.places, 0);
        int32_t to_low = at.to_low, to_high = at.to_high;
        if (at.places < 0) {
            to_low = settled(at.whole, to_low, low_.before);
            to_high = settled(at.whole, to_high, high_.before);
        }
        // An equal prefix is smaller if the bound has digits left.
        if (!to_low && Bound::size(low_.behind) > read) to_low = -1;
        if (!to_high && Bound::size(high_.behind) > read) to_high = -1;
        if (to_low < 0 || (to_low == 0 && of_.low_exclusive)) return false;
        if (of_.has_high && (to_high > 0 || (to_high == 0 && of_.high_exclusive))) return false;
        if (!of_.modulus || at.finer) return true;
        int64_t value = at.remainder;
        for (int32_t missing = of_.scale - std::min(read, of_.scale); missing > 0; missing--) value *= 10;
        return (!of_.step || value % of_.step == 0) &&
               std::all_of(of_.others, of_.others + of_.num_others, [&](int32_t other) { return value % other != 0; });
    }

    int32_t behind(int32_t remainder, int32_t digit) const {
        return of_.modulus ? (remainder * 10 + digit) % of_.modulus : 0;
    }
    // Compares integer parts by length first.
    static int32_t settled(int32_t length, int32_t sign, std::string_view digits) {
        const int32_t other = Bound::size(digits);
        return length == other ? sign : length > other ? 1 : -1;
    }
    // The comparison with one more digit. Behind its digits a bound has zeros, or nothing to compare with.
    static int32_t compared(int32_t sign, int32_t digit, std::string_view digits, int32_t place, bool has_zeros) {
        const bool has_digit = place < Bound::size(digits);
        if (sign || !(has_digit || has_zeros)) return sign;
        const int32_t other = has_digit ? digits[static_cast<size_t>(place)] - '0' : 0;
        return (digit > other) - (digit < other);
    }

    const lmprog_magnitudes& of_;
    const Bound low_, high_;
    const int32_t longest_;  // digits before the point, that are told apart
    std::vector<At> states_;
    std::unordered_map<uint64_t, int32_t> known_;
};

}  // namespace

LMPROG_EXPORT lmprog_leaf* lmprog_magnitudes_new(const lmprog_magnitudes* of, int32_t* too_many) try {
    auto made = std::make_unique<lmprog_leaf>();
    *too_many = !Magnitudes(*of).make(*made);
    return *too_many ? nullptr : made.release();
} catch (const std::bad_alloc&) {
    return nullptr;
}

LMPROG_EXPORT void lmprog_leaf_sizes(const lmprog_leaf* made, int64_t* num_states, int64_t* num_edges) {
    *num_states = static_cast<int64_t>(made->final.size());
    *num_edges = static_cast<int64_t>(made->edges.size() / 3);
}

LMPROG_EXPORT void lmprog_leaf_copy(const lmprog_leaf* made, int32_t* edges, int32_t* num_edges, uint8_t* final,
                                    int64_t* cost) {
    std::copy(made->edges.begin(), made->edges.end(), edges);
    std::copy(made->num_edges.begin(), made->num_edges.end(), num_edges);
    std::copy(made->final.begin(), made->final.end(), final);
    std::copy(made->cost.begin(), made->cost.end(), cost);
}

LMPROG_EXPORT void lmprog_leaf_free(lmprog_leaf* made) { delete made; }
