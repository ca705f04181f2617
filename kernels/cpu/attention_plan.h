// Cuts one layer's attention into pieces of work: which queries read which chunks of which pages together.
//
// Every piece is computed as the header guarantees, so how the work is cut changes only the time it takes.
#pragma once
#include <algorithm>
#include <vector>

#include "attention_task.h"

namespace lmprog {

// Queries first .. last, counted over the neighboring rows row_begin .. row_end of `order` (each has its tokens times
// `group` of them), against chunks first_chunk .. end_chunk of the pages that these rows have in common.
struct Piece {
    int row_begin, row_end, first, last, first_chunk, end_chunk;
};

class Plan {
  public:
    std::vector<Piece> pieces;   // of one kv head; the same for all
    std::vector<int> split;      // [rows] whether the row's results are merged from records
    std::vector<long> records;   // [rows] where the row's records start; see record_of
    long num_records = 0;

    Plan(const Layout &layout, const lmprog_attention_layer &layer, const lmprog_attention_batch &batch, int threads)
        : split(batch.num_rows, 0), records(batch.num_rows, 0), layout_(layout), layer_(layer), batch_(batch) {
        for (int at = 0; at < batch.num_rows;) at = add_rows(at);
        spread(threads);
        for (int row = 0; row < batch.num_rows; row++) {
            if (!split[row]) continue;
            records[row] = num_records;
            num_records += static_cast<long>(tokens(row)) * layout.group * layout.kv_heads * chunks(row);
        }
    }

    int row(int at) const { return batch_.order == nullptr ? at : batch_.order[at]; }
    int tokens(int row) const { return batch_.row_starts[row + 1] - batch_.row_starts[row]; }
    // Positions that token `index` of a row sees: begin .. end.
    int end(int row, int index) const { return batch_.kv_lens[row] - tokens(row) + index + 1; }
    int begin(int row, int index) const {
        const int seen = end(row, index);
        return layer_.window > 0 && seen > layer_.window ? seen - layer_.window : 0;
    }
    int first_chunk(int row) const { return begin(row, 0) / kChunk; }
    int end_chunk(int row) const { return (batch_.kv_lens[row] + kChunk - 1) / kChunk; }
    int chunks(int row) const { return end_chunk(row) - first_chunk(row); }
    // The record of query `index` (token * group + head of the group) for chunk `first_chunk(row) + at`.
    long record_of(int row, int kv_head, int index, int at) const {
        const long queries = static_cast<long>(tokens(row)) * layout_.group;
        return records[row] + (kv_head * queries + index) * chunks(row) + at;
    }

  private:
    bool narrow(int row) const { return tokens(row) * layout_.group <= kTile; }

    // Chunks from 0 on that the rows at `at` and `at + 1` share and that all their tokens see to the end.
    int shared(int at) const {
        if (batch_.common == nullptr || at + 1 >= batch_.num_rows) return 0;
        const int left = row(at), right = row(at + 1);
        if (!narrow(left) || !narrow(right)) return 0;
        return std::min({batch_.common[at], end(left, 0), end(right, 0)}) / kChunk;
    }

    // A row that shares pays for records of all its chunks, about 3 in 100 of its time (bf16, 7 heads to a kv head).
    bool worth(int at, int chunks_shared) const {
        const int gained = chunks_shared - first_chunk(row(at));
        return gained >= 2 && gained * 8 >= chunks(row(at));
    }

    // Adds the row at `at` of the order, with those after it that share enough; returns the first one not added.
    int add_rows(int at) {
        int end = at + 1;
        while (worth(at, shared(end - 1))) end++;
        if (end > at + 1) {
            share(at, end, 0);
            return end;
        }
        const int r = row(at), queries = tokens(r) * layout_.group;
        for (int first = 0; first < queries; first += kTile) {
            const int last = std::min(first + kTile, queries);
            const int begin_chunk = begin(r, first / layout_.group) / kChunk;
            const int stop = (this->end(r, (last - 1) / layout_.group) + kChunk - 1) / kChunk;
            pieces.push_back({at, end, first, last, begin_chunk, stop});
        }
        return end;
    }

    // Rows at .. end stand on the same chunks 0 .. `from` (done already) and maybe more: a walk down a tree.
    void share(int at, int end, int from) {
        int to = end_chunk(row(at)), start = first_chunk(row(at)), queries = 0;
        for (int i = at; i < end; i++) {
            split[row(i)] = 1;
            start = std::min(start, first_chunk(row(i)));
            queries += tokens(row(i)) * layout_.group;
            if (i + 1 < end) to = std::min(to, shared(i));
        }
        start = std::max(start, from);
        if (to > start)
            for (int first = 0; first < queries; first += kTile)
                pieces.push_back({at, end, first, std::min(first + kTile, queries), start, to});
        if (end - at == 1) return;
        for (int begin = at; begin < end;) {
            int next = begin + 1;
            while (next < end && shared(next - 1) > to) next++;
            share(begin, next, std::max(to, from));
            begin = next;
        }
    }

    // Cuts long pieces so that every thread has some: pieces of one row at first, then by chunks.
    void spread(int threads) {
        if (threads == 1) return;
        long work = 0;
        for (const Piece &p : pieces) work += weight(p);
        const long most = std::max(work * layout_.kv_heads / (threads * 4L), 1L);
        std::vector<Piece> cut;
        for (const Piece &p : pieces) {
            const int chunks = p.end_chunk - p.first_chunk;
            const int parts = static_cast<int>(std::min<long>(chunks, (weight(p) + most - 1) / most));
            if (parts > 1)
                for (int i = p.row_begin; i < p.row_end; i++) split[row(i)] = 1;
            for (int i = 0; i < parts; i++)
                cut.push_back({p.row_begin, p.row_end, p.first, p.last, p.first_chunk + chunks * i / parts,
                               p.first_chunk + chunks * (i + 1) / parts});
        }
        pieces = std::move(cut);
        std::stable_sort(pieces.begin(), pieces.end(),
                         [](const Piece &a, const Piece &b) { return weight(a) > weight(b); });
    }

    // Reading a chunk costs about as much as computing eight queries with it.
    static long weight(const Piece &p) {
        return static_cast<long>(p.last - p.first + 8) * (p.end_chunk - p.first_chunk);
    }

    const Layout &layout_;
    const lmprog_attention_layer &layer_;
    const lmprog_attention_batch &batch_;
};

}  // namespace lmprog
