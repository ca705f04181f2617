// The fewest tokens that spell a text, from every place of it to its end. Knows bytes; knows no token ids.
#ifndef LMPROG_COVER_H
#define LMPROG_COVER_H
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "lmprog_interned.h"

namespace lmprog {

constexpr int kLongestCover = 12;

constexpr int kPadding = 16;  // bytes that can be read behind a text

// A text of at most 12 bytes and its length, so that two are equal exactly if their texts are.
struct ShortText {
    uint64_t low, high;
    // Reads 16 bytes, whatever the length.
    ShortText(const uint8_t* text, int length) {
        std::memcpy(&low, text, 8);
        std::memcpy(&high, text + 8, 8);
        low &= ones(std::min(length, 8));
        high = (high & ones(std::max(length - 8, 0))) | static_cast<uint64_t>(length) << 32;
    }
    static uint64_t ones(int bytes) { return bytes == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * bytes)) - 1; }
    uint64_t hash() const { return mix(mix(11, low), high); }
    bool operator==(const ShortText& other) const { return low == other.low && high == other.high; }
};

class ShortTexts {
  public:
    ShortTexts(const uint8_t* texts, const int32_t* lengths, int64_t count) : seen_(kSeen / 64, 0) {
        size_t slots = 64;
        while (slots < static_cast<size_t>(2 * count)) slots *= 2;
        slots_.assign(slots, {0, 0});
        uint8_t padded[kLongestCover + kPadding] = {};
        for (int64_t i = 0; i < count; texts += lengths[i++]) {
            if (lengths[i] <= 0 || lengths[i] > kLongestCover) continue;
            std::memcpy(padded, texts, static_cast<size_t>(lengths[i]));
            add(ShortText(padded, lengths[i]));
        }
    }
    bool has(const ShortText& text) const {
        const uint64_t hash = text.hash(), bit = hash >> kShift;
        if (!(seen_[bit / 64] >> (bit % 64) & 1)) return false;  // most texts end here, within the second cache
        for (size_t at = hash & (slots_.size() - 1); slots_[at].second; at = (at + 1) & (slots_.size() - 1))
            if (slots_[at] == std::make_pair(text.low, text.high)) return true;
        return false;
    }

  private:
    static constexpr uint64_t kSeen = 1u << 21;
    static constexpr int kShift = 64 - 21;
    void add(const ShortText& text) {
        const uint64_t hash = text.hash(), bit = hash >> kShift;
        seen_[bit / 64] |= uint64_t{1} << (bit % 64);
        size_t at = hash & (slots_.size() - 1);
        while (slots_[at].second) at = (at + 1) & (slots_.size() - 1);
        slots_[at] = {text.low, text.high};
    }
    std::vector<uint64_t> seen_;
    std::vector<std::pair<uint64_t, uint64_t>> slots_;  // second is never 0: it holds the length
};

// cost[i] becomes the fewest tokens for text[i..length); it is length - i before. kPadding bytes follow the text.
inline void cover(const ShortTexts& tokens, const uint8_t* text, int length, int64_t* cost) {
    for (int begin = length - 2; begin >= 0; begin--) {
        int64_t best = cost[begin];
        // The longest first: what follows a shorter token seldom costs less.
        for (int stop = std::min(length, begin + kLongestCover); stop > begin; stop--)
            if (cost[stop] + 1 < best && tokens.has(ShortText(text + begin, stop - begin))) best = cost[stop] + 1;
        cost[begin] = best;
    }
}

}  // namespace lmprog
#endif
