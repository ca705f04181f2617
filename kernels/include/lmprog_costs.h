// Costs: upper bounds on how many tokens are needed to complete something. The twin of UNREACHABLE in
// lmprog/constraints/net.py. Knows numbers.
#ifndef LMPROG_COSTS_H
#define LMPROG_COSTS_H
#include <algorithm>
#include <cstdint>

namespace lmprog {

constexpr int64_t kUnreachable = int64_t{1} << 40;

// What so many of something cost. Counts are a stranger's, and go up to 2^31: the product need not fit.
inline int64_t times(int64_t cost, int64_t count) {
    int64_t out = 0;
    return __builtin_mul_overflow(cost, count, &out) ? kUnreachable : std::min(out, kUnreachable);
}

}  // namespace lmprog
#endif
