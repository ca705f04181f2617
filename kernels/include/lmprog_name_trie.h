// Names by their characters, and how a character is spelled in a JSON string where printable ASCII is never escaped.
#ifndef LMPROG_NAME_TRIE_H
#define LMPROG_NAME_TRIE_H
#include <algorithm>
#include <cstdint>
#include <vector>

namespace lmprog {

// Vertices in the order in which the names make them; 0 is the empty text.
class NameTrie {
  public:
    NameTrie() { add_vertex(0); }

    // A name that a zero byte ends, in UTF-8 but for U+0000, which is C0 80. Returns the place behind that.
    const uint8_t* add(const uint8_t* name) {
        int32_t at = 0;
        while (*name) {
            const int32_t first = *name++;
            int32_t code = first < 0x80 ? first : first & (first < 0xE0 ? 0x1F : first < 0xF0 ? 0x0F : 0x07);
            while ((*name & 0xC0) == 0x80) code = code << 6 | (*name++ & 0x3F);
            at = after(at, code);
        }
        vertices_[at].is_name = true;
        return name + 1;
    }

    int32_t size() const { return static_cast<int32_t>(vertices_.size()); }
    bool is_name(int32_t vertex) const { return vertices_[vertex].is_name; }

    // The characters behind a vertex with the vertices that they lead to, in the order of the names.
    template <class Body> void each_child(int32_t vertex, Body body) const {
        for (int32_t child = vertices_[vertex].first; child; child = vertices_[child].next)
            body(vertices_[child].character, child);
    }

  private:
    struct Vertex {
        int32_t first, last, next;  // its first and last child; the next child of the same vertex; 0: none
        int32_t character;
        bool is_name;
    };
    void add_vertex(int32_t character) { vertices_.push_back({0, 0, 0, character, false}); }
    int32_t after(int32_t at, int32_t character) {
        for (int32_t child = vertices_[at].first; child; child = vertices_[child].next)
            if (vertices_[child].character == character) return child;
        const int32_t made = size();
        add_vertex(character);
        Vertex& above = vertices_[at];
        if (above.last)
            vertices_[above.last].next = made;
        else
            above.first = made;
        above.last = made;
        return made;
    }
    std::vector<Vertex> vertices_;
};

// A byte, or a letter that stands for a hexadecimal digit in either case.
struct Spelled {
    uint8_t byte, other;
};
using Spelling = std::vector<Spelled>;

inline void add_hexadecimal(Spelling& out, int32_t unit) {
    out.insert(out.end(), {{'\\', '\\'}, {'u', 'u'}});
    for (int shift = 12; shift >= 0; shift -= 4) {
        const auto digit = static_cast<size_t>(unit >> shift & 15);
        out.push_back({static_cast<uint8_t>("0123456789abcdef"[digit]), static_cast<uint8_t>("0123456789ABCDEF"[digit])});
    }
}

inline std::vector<Spelling> spellings_of(int32_t code) {
    const auto byte = [](int32_t value) { return Spelled{static_cast<uint8_t>(value), static_cast<uint8_t>(value)}; };
    if (code >= 0x20 && code < 0x80 && code != '"' && code != '\\') return {{byte(code)}};
    std::vector<Spelling> out;
    if (code >= 0x10000)
        out.push_back({byte(0xF0 | code >> 18), byte(0x80 | (code >> 12 & 63)), byte(0x80 | (code >> 6 & 63)), byte(0x80 | (code & 63))});
    else if (code >= 0x800)
        out.push_back({byte(0xE0 | code >> 12), byte(0x80 | (code >> 6 & 63)), byte(0x80 | (code & 63))});
    else if (code >= 0x80)
        out.push_back({byte(0xC0 | code >> 6), byte(0x80 | (code & 63))});
    for (const char* escape : {"\"\"", "\\\\", "\bb", "\ff", "\nn", "\rr", "\tt"})
        if (code == escape[0]) out.push_back({byte('\\'), byte(escape[1])});
    out.emplace_back();
    if (code >= 0x10000) {
        add_hexadecimal(out.back(), 0xD800 + ((code - 0x10000) >> 10));
        add_hexadecimal(out.back(), 0xDC00 + ((code - 0x10000) & 1023));
    } else {
        add_hexadecimal(out.back(), code);
    }
    return out;
}

}  // namespace lmprog
#endif
