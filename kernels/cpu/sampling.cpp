#include "sampling.h"

namespace lmprog {

namespace {
constexpr float kHidden = -std::numeric_limits<float>::infinity();
constexpr float kColdest = 1e-6f;  // temperatures below are this one: nothing is divided by almost nothing
// Candidates are looked for above these first: so far below the best one, in natural logarithms.
constexpr float kNear[] = {-4.0f, -16.0f};

int bits(int count) {  // of the number
    int found = 0;
    for (; count > 0; count >>= 1) found++;
    return found;
}
}  // namespace

int32_t Sampling::pick(int index, SamplingSpace &space) const {
    const lmprog_pick &pick = call_.picks[index];
    const float *values = row(pick.row);
    float best;
    long at;
    if (!kernels_.best(values, call_.vocab, &best, &at)) return -1;
    if (edited(pick)) {
        edit(pick, values, space.values);
        values = space.values.data();
        int64_t all_widths = 0;
        float best_of_all = 0.0f;
        if (pick.weighed) {
            kernels_.best(values, call_.vocab, &best_of_all, &at);
            all_widths = all(pick, best_of_all, space);
        }
        mask(pick, space.values);
        kernels_.best(values, call_.vocab, &best, &at);  // what is hidden is infinite, and does not count
        if (!isfinite(best)) return -1;                   // nothing is allowed
        if (pick.weighed) {
            const int32_t token = draw(pick, values, best, space);
            const double heat = std::max(pick.temperature, kColdest), allowed = static_cast<double>(space.total);
            call_.odds[2 * index] = log(truncf(space.widths[token]) / allowed);
            call_.odds[2 * index + 1] =
                log(allowed / static_cast<double>(all_widths)) + (static_cast<double>(best) - best_of_all) / heat;
            return token;
        }
    }
    return pick.temperature > 0 ? draw(pick, values, best, space) : static_cast<int32_t>(at);
}

// The sum of all widths, before anything is masked.
int64_t Sampling::all(const lmprog_pick &pick, float best, SamplingSpace &space) const {
    const int vocab = call_.vocab;
    const float scale = ldexpf(1.0f, std::min(44, 62 - bits(vocab)));
    std::vector<float> before(space.values);
    space.widths.resize(vocab);
    kernels_.widths(before.data(), best, std::max(pick.temperature, kColdest), scale, before.data(), space.widths.data(),
                    vocab);
    return sum(space);
}

void Sampling::edit(const lmprog_pick &pick, const float *row, std::vector<float> &values) const {
    const int vocab = call_.vocab;
    values.assign(row, row + vocab);
    cells(pick, LMPROG_CELL_BIAS, [&](int token, float amount) { values[token] += amount; });
    cells(pick, LMPROG_CELL_REPEATED, [&](int token, float amount) {
        values[token] = values[token] > 0 ? values[token] / amount : values[token] * amount;
    });
    cells(pick, LMPROG_CELL_COUNTED, [&](int token, float amount) { values[token] -= amount; });
    cells(pick, LMPROG_CELL_BANNED, [&](int token, float) { values[token] = kHidden; });
}

void Sampling::mask(const lmprog_pick &pick, std::vector<float> &values) const {
    const int vocab = call_.vocab;
    if (pick.only_cells) {
        std::vector<std::pair<int, float>> kept;
        cells(pick, LMPROG_CELL_ALLOWED, [&](int token, float) { kept.push_back({token, values[token]}); });
        std::fill(values.begin(), values.end(), kHidden);
        for (const auto &[token, value] : kept) values[token] = value;
    }
    if (pick.allowed == nullptr) return;
    for (int first = 0; first < vocab; first += 32) {
        const uint32_t word = first / 32 < pick.allowed_words ? pick.allowed[first / 32] : 0;
        if (word == 0xffffffffu) continue;
        const int last = std::min(first + 32, vocab);
        for (int token = first; token < last; token++)
            values[token] = word >> (token - first) & 1 ? values[token] : kHidden;
    }
}

int32_t Sampling::draw(const lmprog_pick &pick, const float *values, float best, SamplingSpace &space) const {
    const int vocab = call_.vocab;
    const float scale = ldexpf(1.0f, std::min(44, 62 - bits(vocab)));
    std::vector<float> &relative = space.values, &widths = space.widths;
    const bool own = values == relative.data();
    if (!own) relative.resize(vocab);
    widths.resize(vocab);
    kernels_.widths(values, best, std::max(pick.temperature, kColdest), scale, relative.data(), widths.data(), vocab);
    if (pick.least > kHidden)
        for (int i = 0; i < vocab; i++) widths[i] = relative[i] >= pick.least ? widths[i] : 0.0f;
    if (pick.top_k > 0 && pick.top_k < vocab) {
        const float least = of_top_k(relative, pick.top_k, space);
        for (int i = 0; i < vocab; i++) widths[i] = relative[i] >= least ? widths[i] : 0.0f;
    }
    int64_t total = sum(space);
    if (pick.top_p < 1) {
        const float least = of_top_p(pick.top_p, total, space);
        for (int i = 0; i < vocab; i++) widths[i] = truncf(widths[i]) >= least ? widths[i] : 0.0f;
        total = sum(space);
    }
    space.total = total;
    int64_t point = static_cast<int64_t>(uniform(pick.seed, pick.step) * static_cast<double>(total));
    point = std::min(point, total - 1);
    size_t block = 0;
    for (; point >= space.blocks[block]; block++) point -= space.blocks[block];
    int token = static_cast<int>(block) * kBlock;
    for (;; token++) {
        point -= static_cast<int64_t>(widths[token]);
        if (point < 0) return token;
    }
}

// Sums of the widths' whole parts by blocks, and over all.
int64_t Sampling::sum(SamplingSpace &space) const {
    const int vocab = call_.vocab, blocks = (vocab + kBlock - 1) / kBlock;
    space.blocks.resize(blocks);
    int64_t total = 0;
    for (int i = 0; i < blocks; i++) {
        const int first = i * kBlock;
        space.blocks[i] = kernels_.whole_sum(space.widths.data() + first, std::min(kBlock, vocab - first));
        total += space.blocks[i];
    }
    return total;
}

// The k-th largest value; those equal to it are kept with it.
float Sampling::of_top_k(const std::vector<float> &values, int k, SamplingSpace &space) const {
    std::vector<float> &found = space.candidates;
    for (float near : {kNear[0], kNear[1], kHidden}) {
        found.clear();
        for (float value : values)
            if (value > near) found.push_back(value);
        if (static_cast<int>(found.size()) >= k) {
            std::nth_element(found.begin(), found.begin() + (k - 1), found.end(), std::greater<float>());
            return found[k - 1];
        }
    }
    return kHidden;  // fewer than k are possible at all
}

// The width of the last token before which less than the wanted mass stands; the first is always kept. Masses are first
// added up by the leading bits of the widths, whose order is that of the numbers, so that few tokens need be sorted.
float Sampling::of_top_p(double top_p, int64_t total, SamplingSpace &space) const {
    const double wanted = top_p * static_cast<double>(total);
    const auto bucket = [](float width) {
        uint32_t bits;
        memcpy(&bits, &width, 4);
        return bits >> 20;
    };
    int64_t masses[1 << 11] = {};
    for (float width : space.widths) masses[bucket(width)] += static_cast<int64_t>(width);
    int64_t before = 0;
    int last = (1 << 11) - 1;
    while (last > 0 && (masses[last] == 0 || static_cast<double>(before + masses[last]) < wanted)) before += masses[last--];
    std::vector<float> &found = space.candidates;
    found.clear();
    for (float width : space.widths)
        if (bucket(width) == static_cast<uint32_t>(last)) found.push_back(truncf(width));
    std::sort(found.begin(), found.end(), std::greater<float>());
    float least = found.empty() ? 0.0f : found.front();
    for (float width : found) {
        if (before > 0 && !(static_cast<double>(before) < wanted)) break;
        least = width;
        before += static_cast<int64_t>(width);
    }
    return least;
}

void Sampling::read(const lmprog_reading &reading, int32_t token, int index, SamplingSpace &space) const {
    const float *values = row(reading.row);
    int32_t *tokens = call_.top_tokens + static_cast<long>(index) * call_.most;
    float *logprobs = call_.top_logprobs + static_cast<long>(index) * call_.most;
    std::fill(tokens, tokens + call_.most, -1);
    float best;
    long at;
    call_.logprobs[index] = std::numeric_limits<float>::quiet_NaN();
    if (!kernels_.best(values, call_.vocab, &best, &at) || token < 0) return;
    const float rest = logf(kernels_.exp_sum(values, best, call_.vocab));
    call_.logprobs[index] = values[token] - best - rest;
    const int top = std::min(reading.top, call_.vocab);
    if (top == 0) return;
    std::vector<int32_t> &ids = space.ids;
    for (float near : {kNear[0], kNear[1], kHidden}) {
        ids.clear();
        for (int i = 0; i < call_.vocab; i++)
            if (values[i] - best >= near) ids.push_back(i);
        if (static_cast<int>(ids.size()) >= top) break;
    }
    const auto is_likelier = [values](int32_t a, int32_t b) {
        return values[a] > values[b] || (values[a] == values[b] && a < b);
    };
    std::nth_element(ids.begin(), ids.begin() + (top - 1), ids.end(), is_likelier);
    std::sort(ids.begin(), ids.begin() + top, is_likelier);
    for (int i = 0; i < top; i++) {
        tokens[i] = ids[i];
        logprobs[i] = values[ids[i]] - best - rest;
    }
}

}  // namespace lmprog
