// Sorts page tables, and finds what neighbors share.
#include "lmprog_runs.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace {

// Rows first .. end of the order have pages begin .. stop in common, and nobody beside them has all of those.
struct Run {
    int32_t first, end, begin, stop;
    int64_t saved(int32_t page_size) const {
        return static_cast<int64_t>(end - first - 1) * (stop - begin) * page_size;
    }
};

class Runs {
  public:
    explicit Runs(const lmprog_paged_rows &given) : given_(given), order_(given.num_rows), settled_(given.num_rows) {
        for (int32_t row = 0; row < given.num_rows; row++)
            settled_[row] = given.positions[given.row_starts[row]] / given.page_size;
        std::iota(order_.begin(), order_.end(), 0);
        std::sort(order_.begin(), order_.end(), [this](int32_t a, int32_t b) {
            const int32_t same = common(a, b);
            if (same == settled_[a] || same == settled_[b])
                return settled_[a] != settled_[b] ? settled_[a] < settled_[b] : a < b;
            return table(a)[same] < table(b)[same];
        });
        for (int32_t at = 0; at + 1 < given.num_rows; at++) common_.push_back(common(order_[at], order_[at + 1]));
    }

    std::vector<Run> worth(int64_t least, int64_t most_parts) {
        const int64_t room = most_parts - given_.row_starts[given_.num_rows];
        while (true) {
            find();
            bool is_settled = true;
            int64_t smallest = INT64_MAX, queries = 0;
            for (const Run &run : runs_) {
                const int64_t saved = run.saved(given_.page_size);
                smallest = std::min(smallest, saved);
                for (int32_t at = run.first; at < run.end; at++) queries += tokens(order_[at]);
                if (saved >= least) continue;
                is_settled = false;
                for (int32_t at = run.first; at + 1 < run.end; at++)
                    if (common_[at] == run.stop) common_[at] = run.begin;
            }
            if (!is_settled) continue;
            if (runs_.empty() || queries <= room) return runs_;
            least = smallest + 1;
        }
    }

    int32_t row(int32_t at) const { return order_[at]; }
    int32_t tokens(int32_t row) const { return given_.row_starts[row + 1] - given_.row_starts[row]; }
    const int32_t *table(int32_t row) const { return given_.pages + given_.page_starts[row]; }

  private:
    // How many leading pages two rows share: the last common one is looked for by halves.
    int32_t common(int32_t a, int32_t b) const {
        const int32_t *left = table(a), *right = table(b);
        int32_t same = 0, other = std::min(settled_[a], settled_[b]) + 1;  // same <= answer < other
        while (other - same > 1) {
            const int32_t middle = same + (other - same) / 2;
            if (left[middle - 1] == right[middle - 1])
                same = middle;
            else
                other = middle;
        }
        return same;
    }

    // Every run of the neighbors' common pages, one walk with the runs that are open kept on a stack.
    void find() {
        runs_.clear();
        open_.clear();
        const int32_t count = static_cast<int32_t>(common_.size());
        for (int32_t at = 0; at <= count; at++) {
            const int32_t depth = at < count ? common_[at] : 0;
            int32_t first = at;
            while (!open_.empty() && open_.back().stop > depth) {
                Run run = open_.back();
                open_.pop_back();
                run.begin = std::max(depth, open_.empty() ? 0 : open_.back().stop);
                run.end = at + 1;
                first = run.first;
                runs_.push_back(run);
            }
            if (depth > 0 && (open_.empty() || open_.back().stop < depth)) open_.push_back({first, 0, 0, depth});
        }
    }

    const lmprog_paged_rows &given_;
    std::vector<int32_t> order_, settled_, common_;
    std::vector<Run> runs_, open_;
};

}  // namespace

void lmprog_shared_runs(const lmprog_paged_rows *rows, int64_t worth, int64_t most_parts, lmprog_runs *found) {
    thread_local std::vector<int32_t> numbers;
    Runs all(*rows);
    const std::vector<Run> runs = all.worth(worth, most_parts);
    const int32_t num_tokens = rows->row_starts[rows->num_rows];
    *found = {static_cast<int32_t>(runs.size()), 0, 0, 0, nullptr};
    if (runs.empty()) return;
    numbers.clear();
    std::vector<int32_t> pages{0}, depths(rows->num_rows, 0), next(num_tokens + 1, 0);
    numbers.push_back(0);
    for (const Run &run : runs) {
        for (int32_t at = run.first; at < run.end; at++) {
            const int32_t row = all.row(at);
            depths[row] = std::max(depths[row], run.stop);
            found->num_queries += all.tokens(row);
            for (int32_t token = rows->row_starts[row]; token < rows->row_starts[row + 1]; token++) next[token + 1]++;
        }
        numbers.push_back(found->num_queries);
        found->num_pages += run.stop - run.begin;
        pages.push_back(found->num_pages);
    }
    numbers.insert(numbers.end(), pages.begin(), pages.end());
    for (const Run &run : runs) {
        const int32_t *table = all.table(all.row(run.first));
        numbers.insert(numbers.end(), table + run.begin, table + run.stop);
    }
    for (int32_t token = 0; token < num_tokens; token++) next[token + 1] += next[token] + 1;
    const std::vector<int32_t> part_starts = next;
    std::vector<int32_t> parts;
    parts.reserve(found->num_queries);
    for (const Run &run : runs)
        for (int32_t at = run.first; at < run.end; at++)
            for (int32_t token = rows->row_starts[all.row(at)]; token < rows->row_starts[all.row(at) + 1]; token++) {
                numbers.push_back(token);
                parts.push_back(++next[token]);
            }
    const auto append = [](const std::vector<int32_t> &part) { numbers.insert(numbers.end(), part.begin(), part.end()); };
    append(parts);
    append(part_starts);
    append(depths);
    found->num_numbers = static_cast<int32_t>(numbers.size());
    found->numbers = numbers.data();
}
