// Rows in tiles whose size the compiler knows.
#pragma once
#include "vector_math.h"

namespace lmprog {
namespace {

template <int N>
struct Count {
    static constexpr int value = N;
};

// Calls f(Count<R>) with R = count, which is at most Max.
template <int Max, class F>
LMPROG_INLINE void with_count(int count, F &&f) {
    if constexpr (Max > 1) {
        if (count < Max) return with_count<Max - 1>(count, f);
    }
    f(Count<Max>{});
}

// Calls f(first, Count<R>) for rows 0 .. count, at most Max at once and about as many each time: 7 are 4 and 3, not 6
// and 1, since a tile of one row loads a word for every product.
template <int Max, class F>
LMPROG_INLINE void by_rows(int count, F &&f) {
    for (int r = 0; r < count;) {
        const int left = count - r, times = (left + Max - 1) / Max, rows = (left + times - 1) / times;
        with_count<Max>(rows, [&](auto n) { f(r, n); });
        r += rows;
    }
}

}  // namespace
}  // namespace lmprog
