// JSON texts as flat trees: values in the order of the text, each with its place there. Knows JSON; knows no schemas.
#ifndef LMPROG_JSON_H
#define LMPROG_JSON_H
#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lmprog {

enum class JsonKind : uint8_t { kNull, kFalse, kTrue, kNumber, kString, kArray, kObject };

struct JsonValue {
    JsonKind kind;
    int32_t next = 0;       // the value behind this one and all that it holds
    int32_t begin = 0, end = 0;  // its place in the text
    int32_t count = 0;      // members or items
    int32_t parent = -1;
    std::string_view key;   // of a member
    std::string_view text;  // of a string, decoded
};

// A text is refused where it is no JSON, and where readers may differ: a key that comes twice, half of a surrogate pair,
// a number of more than 1,000 characters, values nested deeper than 200, and a zero character in any string.
class JsonText {
  public:
    // The text is borrowed while this lives. It is UTF-8: whoever owns it has made sure.
    explicit JsonText(std::string_view text) : text_(text) {
        skip_blanks();
        refused_ = text.size() > INT32_MAX / 2 || !read_value({}, -1, 0);
        skip_blanks();
        refused_ = refused_ || at_ != text_.size();
    }
    bool is_refused() const { return refused_; }
    size_t size() const { return values_.size(); }
    const JsonValue& operator[](int32_t index) const { return values_[static_cast<size_t>(index)]; }
    std::string_view raw(const JsonValue& value) const {
        return text_.substr(static_cast<size_t>(value.begin), static_cast<size_t>(value.end - value.begin));
    }
    // The value at a key of an object, or -1.
    int32_t member(int32_t of, std::string_view key) const {
        if ((*this)[of].count > kManyMembers) {
            auto& members = members_[of];
            if (members.empty()) each(of, [&](int32_t at) { members.emplace((*this)[at].key, at); });
            const auto found = members.find(key);
            return found == members.end() ? -1 : found->second;
        }
        for (int32_t at = of + 1; at < (*this)[of].next; at = (*this)[at].next)
            if ((*this)[at].key == key) return at;
        return -1;
    }
    // The items of an array, in ascending order.
    const std::vector<int32_t>& items(int32_t of) const {
        auto& items = items_[of];
        if (items.empty()) each(of, [&](int32_t at) { items.push_back(at); });
        return items;
    }
    // Of an object's values, or an array's items.
    template <class Body> void each(int32_t of, Body body) const {
        for (int32_t at = of + 1; at < (*this)[of].next; at = (*this)[at].next) body(at);
    }

  private:
    static constexpr int kDeepest = 200;
    static constexpr size_t kLongestNumber = 1000, kFewMembers = 8;
    static constexpr int32_t kManyMembers = 32;  // that are looked up one by one

    bool more() const { return at_ < text_.size(); }
    bool take(char wanted) {
        if (!more() || text_[at_] != wanted) return false;
        at_++;
        return true;
    }
    bool take_word(std::string_view word) {
        if (text_.compare(at_, word.size(), word) != 0) return false;
        at_ += word.size();
        return true;
    }
    void skip_blanks() {
        while (more() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) at_++;
    }

    bool read_value(std::string_view key, int32_t parent, int depth) {
        if (!more() || depth > kDeepest) return false;
        const auto index = static_cast<int32_t>(values_.size());
        values_.push_back({});
        values_.back().key = key;
        values_.back().parent = parent;
        values_.back().begin = static_cast<int32_t>(at_);
        JsonKind kind = JsonKind::kNumber;
        std::string_view text;
        int32_t count = 0;
        switch (text_[at_]) {
            case '{': kind = JsonKind::kObject; if (!read_object(index, depth, count)) return false; break;
            case '[': kind = JsonKind::kArray; if (!read_array(index, depth, count)) return false; break;
            case '"': kind = JsonKind::kString; if (!read_string(text)) return false; break;
            case 'n': kind = JsonKind::kNull; if (!take_word("null")) return false; break;
            case 't': kind = JsonKind::kTrue; if (!take_word("true")) return false; break;
            case 'f': kind = JsonKind::kFalse; if (!take_word("false")) return false; break;
            default: if (!read_number()) return false;
        }
        JsonValue& made = values_[static_cast<size_t>(index)];
        made.kind = kind;
        made.text = text;
        made.count = count;
        made.next = static_cast<int32_t>(values_.size());
        made.end = static_cast<int32_t>(at_);
        return true;
    }

    bool read_object(int32_t index, int depth, int32_t& count) {
        at_++;
        skip_blanks();
        if (take('}')) return true;
        do {
            skip_blanks();
            std::string_view key;
            if (!more() || text_[at_] != '"' || !read_string(key)) return false;
            skip_blanks();
            if (!take(':')) return false;
            skip_blanks();
            if (!read_value(key, index, depth + 1)) return false;
            count++;
            skip_blanks();
        } while (take(','));
        return take('}') && keys_differ(index, count);
    }

    bool read_array(int32_t index, int depth, int32_t& count) {
        at_++;
        skip_blanks();
        if (take(']')) return true;
        do {
            skip_blanks();
            if (!read_value({}, index, depth + 1)) return false;
            count++;
            skip_blanks();
        } while (take(','));
        return take(']');
    }

    bool keys_differ(int32_t index, int32_t count) const {
        const auto end = static_cast<int32_t>(values_.size());
        const auto next = [&](int32_t at) { return values_[static_cast<size_t>(at)].next; };
        const auto key = [&](int32_t at) { return values_[static_cast<size_t>(at)].key; };
        if (static_cast<size_t>(count) <= kFewMembers) {
            for (int32_t one = index + 1; one < end; one = next(one))
                for (int32_t other = next(one); other < end; other = next(other))
                    if (key(one) == key(other)) return false;
            return true;
        }
        std::vector<std::string_view> keys;
        for (int32_t one = index + 1; one < end; one = next(one)) keys.push_back(key(one));
        std::sort(keys.begin(), keys.end());
        return std::adjacent_find(keys.begin(), keys.end()) == keys.end();
    }

    bool read_number() {
        const size_t begin = at_;
        take('-');
        if (!take('0') && !read_digits()) return false;
        if (take('.') && !read_digits()) return false;
        if (more() && (text_[at_] == 'e' || text_[at_] == 'E')) {
            at_++;
            if (!take('+')) take('-');
            if (!read_digits()) return false;
        }
        return at_ - begin <= kLongestNumber;
    }
    bool read_digits() {
        const size_t begin = at_;
        while (more() && text_[at_] >= '0' && text_[at_] <= '9') at_++;
        return at_ > begin;
    }

    bool read_string(std::string_view& out) {
        const size_t begin = ++at_;
        while (more() && text_[at_] != '"' && text_[at_] != '\\' && static_cast<uint8_t>(text_[at_]) >= 0x20) at_++;
        if (!more()) return false;
        if (text_[at_] == '"') {
            out = text_.substr(begin, at_++ - begin);
            return true;
        }
        std::string& made = decoded_.emplace_back(text_.substr(begin, at_ - begin));
        while (more() && text_[at_] != '"') {
            if (static_cast<uint8_t>(text_[at_]) < 0x20) return false;
            if (text_[at_] != '\\') {
                made += text_[at_++];
            } else if (!read_escape(made)) {
                return false;
            }
        }
        out = made;
        return take('"');
    }

    bool read_escape(std::string& out) {
        at_++;
        if (!more()) return false;
        const char letter = text_[at_++];
        static constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
        const size_t known = kLetters.find(letter);
        if (known != std::string_view::npos) {
            out += kMeanings[known];
            return true;
        }
        uint32_t code = 0, tail = 0;
        if (letter != 'u' || !read_hex(code) || code == 0) return false;
        if (code >= 0xD800 && code <= 0xDFFF) {
            if (code > 0xDBFF || !take_word("\\u") || !read_hex(tail) || tail < 0xDC00 || tail > 0xDFFF) return false;
            code = 0x10000 + ((code - 0xD800) << 10) + (tail - 0xDC00);
        }
        add_utf8(out, code);
        return true;
    }

    bool read_hex(uint32_t& out) {
        if (text_.size() - at_ < 4) return false;
        out = 0;
        for (int place = 0; place < 4; place++) {
            const char digit = text_[at_++];
            uint32_t value = 0;
            if (digit >= '0' && digit <= '9') value = static_cast<uint32_t>(digit - '0');
            else if (digit >= 'a' && digit <= 'f') value = static_cast<uint32_t>(digit - 'a' + 10);
            else if (digit >= 'A' && digit <= 'F') value = static_cast<uint32_t>(digit - 'A' + 10);
            else return false;
            out = out << 4 | value;
        }
        return true;
    }

    static void add_utf8(std::string& out, uint32_t code) {
        const auto tail = [&](int shift) { out += static_cast<char>(0x80 | (code >> shift & 0x3F)); };
        if (code < 0x80) {
            out += static_cast<char>(code);
        } else if (code < 0x800) {
            out += static_cast<char>(0xC0 | code >> 6);
            tail(0);
        } else if (code < 0x10000) {
            out += static_cast<char>(0xE0 | code >> 12);
            tail(6), tail(0);
        } else {
            out += static_cast<char>(0xF0 | code >> 18);
            tail(12), tail(6), tail(0);
        }
    }

    std::string_view text_;
    size_t at_ = 0;
    bool refused_ = true;
    std::vector<JsonValue> values_;
    std::deque<std::string> decoded_;  // strings with escapes
    // Made when they are first asked for, by the object or array.
    mutable std::unordered_map<int32_t, std::unordered_map<std::string_view, int32_t>> members_;
    mutable std::unordered_map<int32_t, std::vector<int32_t>> items_;
};

// A string as generated JSON writes it: no needless escapes.
inline std::string json_string(std::string_view text) {
    static constexpr char kHex[] = "0123456789abcdef";
    std::string out = "\"";
    for (const char letter : text) {
        switch (letter) {
            case '"': out += "\\\""; break;
            case '\\': out += "\\\\"; break;
            case '\b': out += "\\b"; break;
            case '\f': out += "\\f"; break;
            case '\n': out += "\\n"; break;
            case '\r': out += "\\r"; break;
            case '\t': out += "\\t"; break;
            default:
                if (static_cast<uint8_t>(letter) < 0x20) {
                    out += "\\u00";
                    out += kHex[static_cast<uint8_t>(letter) >> 4];
                    out += kHex[letter & 15];
                } else {
                    out += letter;
                }
        }
    }
    return out += '"';
}

}  // namespace lmprog
#endif
