// Which tokens may begin within forced bytes and end beyond them, and texts that go on behind such a token or behind all
// of the bytes: what a tokenizer is asked to learn how much of a forced text is certain. How much is looked at is counted
// and bounded, whatever states are known already: what is found depends on nothing but the automaton, the state and the
// vocabulary. Knows bytes and sorted tokens; knows no tokenizer.
#ifndef LMPROG_DOUBTS_H
#define LMPROG_DOUBTS_H
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lmprog_automaton.h"

namespace lmprog {

class Doubts {
  public:
    Doubts(Automaton& automaton, const lmprog_token_texts& texts) : a_(automaton), texts_(texts) {}

    // Groups one after the other, each of 32-bit numbers and bytes: where its token begins, the token's bytes (0: any
    // longer one), how many texts, and each text's length and bytes. The last group has what follows all of the bytes.
    const std::string& find(uint32_t state, const uint8_t* forced, int64_t length) {
        out_.clear();
        const std::string all(reinterpret_cast<const char*>(forced), static_cast<size_t>(length));
        for (const char byte : all) state = a_.after(state, static_cast<uint8_t>(byte));
        left_ = kMostFound;
        visits_left_ = kMostVisits;
        for (int64_t begin = std::max<int64_t>(0, length - texts_.longest); begin < length; begin++)
            look(state, all.substr(static_cast<size_t>(begin)), begin);
        std::vector<std::string> texts;
        go_on(state, kMostBehind, "", texts);
        put(length, 0, texts);
        return out_;
    }

    // The bytes that every continuation of `state` starts with, at most `most`; `state` becomes the one behind them.
    template <class Body> static void each_forced(Automaton& a, uint32_t& state, int64_t most, Body body) {
        for (; most > 0 && !a.is_final(state); most--) {
            const int32_t byte = a.only_byte(state);
            if (byte < 0) return;
            body(static_cast<uint8_t>(byte));
            state = a.after(state, static_cast<uint8_t>(byte));
        }
    }

  private:
    static constexpr int64_t kMostFound = 64, kMostAtOnePlace = 32;  // tokens
    static constexpr int64_t kMostVisits = 2048;                     // bytes of tokens
    static constexpr size_t kMostBehind = 8, kBehindToken = 3;       // texts
    static constexpr int64_t kFurther = 40;                          // bytes
    static constexpr size_t kLongestSample = 4;                      // bytes behind the first

    std::string_view token(int64_t i) const {
        return {reinterpret_cast<const char*>(texts_.bytes) + texts_.begins[i],
                static_cast<size_t>(texts_.begins[i + 1] - texts_.begins[i])};
    }

    // The first token from `from` on that does not start with `text`.
    int64_t past(std::string_view text, int64_t from) const {
        int64_t to = texts_.count;
        for (int64_t width = 1; from + width < to; width *= 2) {  // it is near, mostly
            if (token(from + width).substr(0, text.size()) > text)
                to = from + width;
            else
                from += width;
        }
        while (from < to) {
            const int64_t middle = from + (to - from) / 2;
            if (token(middle).substr(0, text.size()) <= text)
                from = middle + 1;
            else
                to = middle;
        }
        return from;
    }

    int64_t first_from(std::string_view text) const {
        int64_t from = 0, to = texts_.count;
        while (from < to) {
            const int64_t middle = from + (to - from) / 2;
            if (token(middle) < text)
                from = middle + 1;
            else
                to = middle;
        }
        return from;
    }

    // The tokens that start with `suffix`, the rest of the forced bytes, and go on as `end` allows.
    void look(uint32_t end, const std::string& suffix, int64_t begin) {
        int64_t at = first_from(suffix);
        if (at < texts_.count && token(at).substr(0, suffix.size()) != suffix) return;
        const int64_t stop = past(suffix, at);
        std::vector<uint32_t> path{end};  // the states along the last token, behind the suffix
        std::string_view before = suffix;
        std::vector<std::pair<std::string_view, uint32_t>> found;
        while (at < stop) {
            const std::string_view text = token(at);
            size_t shared = suffix.size();
            while (shared < std::min(before.size(), text.size()) && before[shared] == text[shared]) shared++;
            path.resize(std::min(path.size(), shared - suffix.size() + 1));
            size_t read = suffix.size() + path.size() - 1;
            while (read < text.size() && path.back()) {
                if (--visits_left_ < 0) return put(begin, 0, {});
                path.push_back(a_.after(path.back(), static_cast<uint8_t>(text[read++])));
            }
            before = text.substr(0, read);
            if (!path.back()) {
                path.pop_back();
                before.remove_suffix(1);
                at = past(text.substr(0, read), at);
                continue;
            }
            if (text.size() > suffix.size() && (found.empty() || found.back().first != text)) {
                if (found.size() >= static_cast<size_t>(std::min(left_, kMostAtOnePlace))) return put(begin, 0, {});
                found.emplace_back(text, path.back());
            }
            at++;
        }
        left_ -= static_cast<int64_t>(found.size());
        for (const auto& [text, after] : found) {
            std::vector<std::string> texts{std::string(text)};
            uint32_t behind = after;
            std::string further(text);
            each_forced(a_, behind, kFurther, [&](uint8_t byte) { further.push_back(static_cast<char>(byte)); });
            if (further.size() > text.size())
                texts.push_back(further);
            else
                go_on(after, kBehindToken, std::string(text), texts);
            put(begin, static_cast<int64_t>(text.size()), texts);
        }
    }

    // Some of the texts that may follow: characters of kinds that tokenizers tell apart come first.
    void go_on(uint32_t state, size_t most, const std::string& text, std::vector<std::string>& texts) {
        static const std::string kLetters = "etaoinshrdlcumwfgypbvkjxqz";
        static const std::string kKinds[] = {" ", kLetters, "0123456789", "\n\r\t", "TAIOSWCBPHFMDRLENGUVYJKQXZ",
                                             "'", ",.;:!?", "\"", "-_/", "()[]{}<>"};
        static const std::string kUsual = "e 1\",";
        ScratchRow scratch;
        const uint32_t* row = a_.row(state, scratch);
        std::string firsts;
        for (const std::string& kind : kKinds) {
            const auto at = std::find_if(kind.begin(), kind.end(), [&](char byte) { return row[static_cast<uint8_t>(byte)]; });
            if (at != kind.end()) firsts.push_back(*at);
        }
        for (int byte = 255; byte >= 0 && firsts.size() < most; byte--)
            if (row[byte] && firsts.find(static_cast<char>(byte)) == std::string::npos) firsts.push_back(static_cast<char>(byte));
        if (firsts.size() > most) firsts.resize(most);
        for (const char first : firsts) {
            std::string made = text + first;
            uint32_t at = a_.after(state, static_cast<uint8_t>(first));
            for (size_t i = 0; i < kLongestSample; i++) {
                uint32_t next = 0;
                for (const char byte : kLetters[i] + kUsual)
                    if ((next = a_.after(at, static_cast<uint8_t>(byte)))) {
                        made.push_back(byte);
                        break;
                    }
                if (!next) {
                    const uint32_t* moves = a_.row(at, scratch);
                    const uint32_t* any = std::find_if(moves, moves + 256, [](uint32_t to) { return to != 0; });
                    if (any == moves + 256) break;
                    made.push_back(static_cast<char>(any - moves));
                    next = *any;
                }
                at = next;
            }
            texts.push_back(made);
        }
    }

    void put(int64_t begin, int64_t length, const std::vector<std::string>& texts) {
        number(begin);
        number(length);
        number(static_cast<int64_t>(texts.size()));
        for (const std::string& text : texts) {
            number(static_cast<int64_t>(text.size()));
            out_ += text;
        }
    }

    void number(int64_t value) {
        const auto one = static_cast<int32_t>(value);
        char bytes[4];
        std::memcpy(bytes, &one, 4);
        out_.append(bytes, 4);
    }

    Automaton& a_;
    const lmprog_token_texts& texts_;
    int64_t left_ = 0, visits_left_ = 0;
    std::string out_;
};

}  // namespace lmprog
#endif
