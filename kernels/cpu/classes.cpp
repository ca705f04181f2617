// One character of a set as a byte automaton.
//
// A spelling is a chain of sets of bytes whose ends are shared, so equal ends are one number. A state of the automaton is
// a set of such ends. Knows UTF-8 and how JSON escapes characters; knows no patterns.
#include <algorithm>
#include <array>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <new>
#include <unordered_map>
#include <vector>

#include "lmprog_derivatives.h"
#include "lmprog_leaf.h"

#define LMPROG_EXPORT extern "C" __attribute__((visibility("default")))

using lmprog::CharRange;
using lmprog::CharRanges;
using lmprog::Numbers;

namespace {

constexpr int32_t kEnd = 0;  // the spelling of nothing
constexpr int32_t kBackslash = 92, kLargestInBmp = 0xFFFF;
constexpr CharRange kPlainAscii[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x7F}};  // may stand for themselves in a string
enum Way : int32_t { kUtf8, kEvery, kStrict, kShortest };  // LMPROG_CLASS_...

struct Escape {
    int32_t character;
    uint8_t letter;
};
// In the order of their letters.
constexpr Escape kEscapes[] = {{0x22, '"'}, {0x2F, '/'}, {0x5C, '\\'}, {8, 'b'}, {12, 'f'}, {10, 'n'}, {13, 'r'}, {9, 't'}};

// A set of bytes as a number: a range of bytes, of hexadecimal digits in either case, or letters of escapes.
constexpr int32_t kDigits = 1 << 16, kLetters = 1 << 17;
int32_t bytes(int32_t low, int32_t high) { return low << 8 | high; }
int32_t digits(int32_t low, int32_t high) { return kDigits | low << 4 | high; }

template <class Body> void each_range(int32_t set, Body body) {
    if (set & kLetters) {
        for (size_t i = 0; i < std::size(kEscapes); i++)
            if (set >> i & 1) body(kEscapes[i].letter, kEscapes[i].letter);
    } else if (set & kDigits) {
        const int32_t low = set >> 4 & 15, high = set & 15;
        if (low <= 9) body(48 + low, 48 + std::min(high, 9));
        if (high < 10) return;
        body(55 + std::max(low, 10), 55 + high);
        body(87 + std::max(low, 10), 87 + high);
    } else {
        body(set >> 8, set & 255);
    }
}

using Places = std::vector<CharRange>;  // the lowest and highest value of each place of a number

// All numbers from `low` to `high`, of `size` places from `first` to `last` (the first one whatever it says), as few
// ranges by place, in order.
void split(const int32_t* low, const int32_t* high, size_t size, int32_t first, int32_t last, const Places& before,
           std::vector<Places>& out) {
    const auto with = [&](int32_t from, int32_t to) {
        Places more = before;
        more.push_back({from, to});
        return more;
    };
    if (size == 1) {
        out.push_back(with(low[0], high[0]));
        return;
    }
    if (low[0] == high[0]) return split(low + 1, high + 1, size - 1, first, last, with(low[0], low[0]), out);
    const std::array<int32_t, 4> lowest{first, first, first, first}, highest{last, last, last, last};
    int32_t begin = low[0], end = high[0];
    if (!std::equal(low + 1, low + size, lowest.begin())) {
        split(low + 1, highest.data(), size - 1, first, last, with(begin, begin), out);
        begin++;
    }
    const bool has_tail = !std::equal(high + 1, high + size, highest.begin());
    end -= has_tail;
    if (begin <= end) {
        Places all = with(begin, end);
        all.resize(before.size() + size, {first, last});
        out.push_back(std::move(all));
    }
    if (has_tail) split(lowest.data(), high + 1, size - 1, first, last, with(high[0], high[0]), out);
}

CharRanges common(const CharRanges& some, int32_t low, int32_t high) {
    CharRanges out;
    for (const CharRange& one : some)
        if (one.low <= high && one.high >= low) out.push_back({std::max(one.low, low), std::min(one.high, high)});
    return out;
}

struct Spelling {
    int32_t set, rest;
};

class Spellings {
  public:
    Spellings() : all_{{0, 0}} {}
    void add(const Numbers& sets) {
        int32_t rest = kEnd;
        for (size_t i = sets.size(); i-- > 0;) rest = chain(sets[i], rest);
        begun.push_back(rest);
    }
    const Spelling& operator[](int32_t number) const { return all_[static_cast<size_t>(number)]; }

    void add_utf8(const CharRanges& ranges) {
        for (const CharRange& range : ranges) {
            int32_t low = range.low;
            for (const int32_t last : {0x7F, 0x7FF, 0xFFFF, 0x10FFFF}) {
                if (low > last || low > range.high) continue;
                const int32_t high = std::min(range.high, last);
                std::array<int32_t, 4> from{}, to{};
                const size_t size = encode(low, from.data());
                encode(high, to.data());
                std::vector<Places> parts;
                split(from.data(), to.data(), size, 0x80, 0xBF, {}, parts);
                for (const Places& part : parts) {
                    Numbers sets;
                    for (const CharRange& one : part) sets.push_back(bytes(one.low, one.high));
                    add(sets);
                }
                low = high + 1;
            }
        }
    }

    void add_json(const CharRanges& ranges) {
        for (const auto& [low, high] : {CharRange{0x20, 0x21}, {0x23, 0x5B}, {0x5D, lmprog::kLastCharacter}})
            add_utf8(common(ranges, low, high));
        int32_t letters = 0;
        for (size_t i = 0; i < std::size(kEscapes); i++)
            if (!common(ranges, kEscapes[i].character, kEscapes[i].character).empty()) letters |= 1 << i;
        if (letters) add({bytes(kBackslash, kBackslash), kLetters | letters});
        for (const CharRange& one : common(ranges, 0, kLargestInBmp))
            for (const Numbers& hex : hexadecimal(one.low, one.high)) add(escaped({hex}));
        for (const CharRange& one : common(ranges, kLargestInBmp + 1, lmprog::kLastCharacter)) add_pairs(one.low, one.high);
    }

    // Printable ASCII is never escaped.
    void add_strict(const CharRanges& ranges) {
        for (const auto& [low, high] : kPlainAscii) add_utf8(common(ranges, low, high));
        for (const auto& [low, high] : {CharRange{0, 0x1F}, {0x22, 0x22}, {0x5C, 0x5C}, {0x80, lmprog::kLastCharacter}})
            add_json(common(ranges, low, high));
    }

    // One spelling for each character, that of Python's json.
    void add_shortest(const CharRanges& ranges) {
        for (const auto& [low, high] : kPlainAscii) add_utf8(common(ranges, low, high));
        add_utf8(common(ranges, 0x80, lmprog::kLastCharacter));
        for (const auto& [from, to] : {CharRange{0, 0x1F}, {0x22, 0x22}, {0x5C, 0x5C}})
            for (const CharRange& one : common(ranges, from, to))
                for (int32_t code = one.low; code <= one.high; code++) add_escape(code);
    }

    Numbers begun;  // whole spellings

  private:
    void add_escape(int32_t code) {
        const auto exactly = [](int32_t byte) { return bytes(byte, byte); };
        for (const Escape& escape : kEscapes)
            if (escape.character == code) return add({exactly(kBackslash), exactly(escape.letter)});
        const char* hex = "0123456789abcdef";
        add({exactly(kBackslash), exactly('u'), exactly('0'), exactly('0'), exactly(hex[code >> 4]), exactly(hex[code & 15])});
    }

    int32_t chain(int32_t set, int32_t rest) {
        const uint64_t key = static_cast<uint64_t>(set) << 32 | static_cast<uint32_t>(rest);
        const auto [found, is_new] = index_.try_emplace(key, static_cast<int32_t>(all_.size()));
        if (is_new) all_.push_back({set, rest});
        return found->second;
    }

    static size_t encode(int32_t code, int32_t* out) {
        if (code <= 0x7F) return out[0] = code, 1;
        const size_t size = code <= 0x7FF ? 2 : code <= 0xFFFF ? 3 : 4;
        for (size_t i = size; i-- > 1; code >>= 6) out[i] = 0x80 | (code & 0x3F);
        out[0] = code | (size == 2 ? 0xC0 : size == 3 ? 0xE0 : 0xF0);
        return size;
    }

    // Four hexadecimal digits in a range of numbers, in either case.
    static std::vector<Numbers> hexadecimal(int32_t low, int32_t high) {
        std::array<int32_t, 4> from{}, to{};
        for (size_t i = 0; i < 4; i++) {
            from[i] = low >> (12 - 4 * i) & 15;
            to[i] = high >> (12 - 4 * i) & 15;
        }
        std::vector<Places> parts;
        split(from.data(), to.data(), 4, 0, 15, {}, parts);
        std::vector<Numbers> out;
        for (const Places& part : parts) {
            out.emplace_back();
            for (const CharRange& one : part) out.back().push_back(digits(one.low, one.high));
        }
        return out;
    }

    static Numbers escaped(std::initializer_list<Numbers> codes) {
        Numbers out;
        for (const Numbers& code : codes) {
            out.insert(out.end(), {bytes(kBackslash, kBackslash), bytes('u', 'u')});
            out.insert(out.end(), code.begin(), code.end());
        }
        return out;
    }

    // Surrogate pairs of characters beyond the Basic Multilingual Plane.
    void add_pairs(int32_t low, int32_t high) {
        int32_t first = low - 0x10000;
        const int32_t last = high - 0x10000;
        while (first <= last) {
            const int32_t lead = first >> 10, tail = first & 1023;
            const int32_t whole_leads = tail == 0 ? (last + 1 - first) >> 10 : 0;
            const int32_t end_lead = whole_leads ? lead + whole_leads - 1 : lead;
            const int32_t last_tail = whole_leads ? 1023 : std::min(1023, tail + last - first);
            const auto rights = hexadecimal(0xDC00 + tail, 0xDC00 + last_tail);
            for (const Numbers& left : hexadecimal(0xD800 + lead, 0xD800 + end_lead))
                for (const Numbers& right : rights) add(escaped({left, right}));
            first = (end_lead << 10) + last_tail + 1;
        }
    }

    std::vector<Spelling> all_;
    std::unordered_map<uint64_t, int32_t> index_;
};

struct Branch {
    int32_t low, high, rest;
};

class Maker {
  public:
    Maker(const CharRanges& ranges, int32_t way, lmprog_leaf& leaf) : leaf_(leaf) {
        switch (way) {
            case kUtf8: spellings_.add_utf8(ranges); break;
            case kEvery: spellings_.add_json(ranges); break;
            case kStrict: spellings_.add_strict(ranges); break;
            default: spellings_.add_shortest(ranges);
        }
        state_of(spellings_.begun);
        for (size_t state = 0; state < states_.size(); state++) explore(state);
        leaf.measure();
    }

  private:
    int32_t state_of(Numbers ends) {
        std::sort(ends.begin(), ends.end());
        ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
        const auto [found, is_new] = index_.try_emplace(ends, static_cast<int32_t>(states_.size()));
        if (is_new) states_.push_back(std::move(ends));
        return found->second;
    }

    void explore(size_t state) {
        const Numbers ends = states_[state];
        std::vector<Branch> ways;
        std::vector<int32_t> bounds;
        for (const int32_t end : ends) {
            if (end == kEnd) continue;
            each_range(spellings_[end].set, [&](int32_t low, int32_t high) {
                ways.push_back({low, high, spellings_[end].rest});
                bounds.insert(bounds.end(), {low, high + 1});
            });
        }
        std::sort(bounds.begin(), bounds.end());
        bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
        std::sort(ways.begin(), ways.end(), [](const Branch& a, const Branch& b) { return a.low < b.low; });
        leaf_.begin(!ends.empty() && ends[0] == kEnd);
        std::vector<Branch> active;
        size_t at = 0;
        for (size_t i = 0; i + 1 < bounds.size(); i++) {
            const int32_t first = bounds[i];
            active.erase(std::remove_if(active.begin(), active.end(), [&](const Branch& way) { return way.high < first; }),
                         active.end());
            while (at < ways.size() && ways[at].low == first) active.push_back(ways[at++]);
            if (active.empty()) continue;
            Numbers rests;
            for (const Branch& way : active) rests.push_back(way.rest);
            leaf_.edge(first, bounds[i + 1] - 1, state_of(std::move(rests)));
        }
    }

    Spellings spellings_;
    std::vector<Numbers> states_;  // the ends of spellings that may follow
    lmprog::ByNumbers<int32_t> index_;
    lmprog_leaf& leaf_;
};

}  // namespace

LMPROG_EXPORT lmprog_leaf* lmprog_class_new(const int32_t* ranges, int64_t count, int32_t way) {
    try {
        CharRanges all;
        for (int64_t i = 0; i < count; i++) all.push_back({ranges[2 * i], ranges[2 * i + 1]});
        auto made = std::make_unique<lmprog_leaf>();
        Maker(all, way, *made);
        return made.release();
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}
