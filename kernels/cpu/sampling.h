// One pick and one reading: selection among candidates here, passes over the vocabulary in the kernels.
#pragma once
#include <math.h>
#include <string.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "lmprog_sampling.h"
#include "product_task.h"

namespace lmprog {

// What one worker keeps between picks.
struct SamplingSpace {
    std::vector<float> values, widths, candidates;
    std::vector<int64_t> blocks;
    std::vector<int32_t> ids;
    int64_t total;  // of the last draw's widths
};

class Sampling {
  public:
    Sampling(const lmprog_sampling &call, const StepKernels &kernels) : call_(call), kernels_(kernels) {}

    int32_t pick(int index, SamplingSpace &space) const;
    void read(const lmprog_reading &reading, int32_t token, int index, SamplingSpace &space) const;

  private:
    const float *row(int index) const { return call_.logits + index * call_.stride; }
    bool edited(const lmprog_pick &pick) const {
        return pick.allowed != nullptr || pick.only_cells || pick.cells[0] != pick.cells[LMPROG_CELL_KINDS];
    }
    void edit(const lmprog_pick &pick, const float *row, std::vector<float> &values) const;
    void mask(const lmprog_pick &pick, std::vector<float> &values) const;
    int64_t all(const lmprog_pick &pick, float best, SamplingSpace &space) const;
    int32_t draw(const lmprog_pick &pick, const float *values, float best, SamplingSpace &space) const;
    float of_top_k(const std::vector<float> &values, int k, SamplingSpace &space) const;
    float of_top_p(double top_p, int64_t total, SamplingSpace &space) const;
    int64_t sum(SamplingSpace &space) const;

    template <class Apply>
    void cells(const lmprog_pick &pick, int kind, Apply &&apply) const {
        for (int i = pick.cells[kind]; i < pick.cells[kind + 1]; i++)
            if (call_.cell_tokens[i] < call_.vocab) apply(call_.cell_tokens[i], call_.cell_amounts[i]);
    }

    static constexpr int kBlock = 1024;
    const lmprog_sampling &call_;
    const StepKernels &kernels_;
};

// splitmix64 (Steele, Lea, Flood 2014) on a mix of seed and step: a number in (0, 1).
inline double uniform(uint64_t seed, uint64_t step) {
    constexpr uint64_t golden = 0x9E3779B97F4A7C15u;
    const auto mixed = [](uint64_t value) {
        value += golden;
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
        value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
        return value ^ (value >> 31);
    };
    return static_cast<double>(mixed(mixed(seed) ^ (step * golden)) >> 11 | 1) / 9007199254740992.0;  // 2^53
}

}  // namespace lmprog
