// All contents of JSON strings but some names, as one byte automaton: the twin of lmprog/constraints/exclusion.py for
// names of printable ASCII characters without quotes and backslashes, which are never escaped there.
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

    // A name that a zero byte ends. Returns the place behind that.
    const uint8_t* add(const uint8_t* name) {
        int32_t at = 0;
        for (; *name; name++) at = after(at, *name);
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
        uint8_t character;
        bool is_name;
    };
    void add_vertex(uint8_t character) { vertices_.push_back({0, 0, 0, character, false}); }
    int32_t after(int32_t at, uint8_t character) {
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

}  // namespace lmprog
#endif
