// Compares every path of this processor with the generic one on random numbers: products, attention, and what happens
// to a row between products. Prints a line for each comparison, `PATH WHAT ERROR`, and ends with 1 if one is too large.
//
// Built for another processor and run by an emulator, it stands for the tests in Python, which do the same on the
// machine at hand.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "lmprog_engine.h"
#include "step_kernels.h"
#include "vector_generic.h"
#if defined(__aarch64__)
#include "vector_neon.h"
#elif defined(__AVX2__)
#include "vector_avx2.h"
#endif

namespace {

using Floats = std::vector<float>;

std::mt19937 generator(20261122);
int failures = 0;

// Nearly normal: sums of four bytes, which cost the emulator little.
Floats numbers(size_t count) {
    Floats found(count);
    for (float &one : found) {
        const uint32_t bits = generator();
        const uint32_t sum = (bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24);
        one = (static_cast<float>(sum) - 510.0f) / 148.0f;
    }
    return found;
}

// The greatest difference over the root of the mean square; a NaN counts as infinite.
double difference(const Floats &found, const Floats &wanted) {
    double worst = 0, squares = 1e-30;
    for (size_t i = 0; i < wanted.size(); i++) {
        const double off = fabs(static_cast<double>(found[i]) - wanted[i]);
        worst = off >= worst || off != off ? (off != off ? INFINITY : off) : worst;
        squares += static_cast<double>(wanted[i]) * wanted[i];
    }
    return worst / sqrt(squares / static_cast<double>(wanted.size()));
}

void judge(const char *path, const std::string &what, double error, double bound) {
    printf("%s %s %.2e\n", path, what.c_str(), error);
    if (error <= bound) return;
    printf("%s %s: more than %.2e\n", path, what.c_str(), bound);
    failures++;
}

bool rounds(const char *path) { return strstr(path, "bf16") != nullptr; }

void compare_products(const char *path) {
    const struct {
        int type;
        const char *name;
        double bound;
    } types[] = {{LMPROG_F32, "float32", 1e-5},
                 {LMPROG_BF16, "bfloat16", rounds(path) ? 5e-2 : 1e-5},
                 {LMPROG_INT8, "int8", 1e-5},
                 {LMPROG_INT4, "int4", 1e-5}};
    for (const auto &type : types) {
        double worst = 0;
        for (const auto &size : {std::pair<int, int>{1, 1}, {33, 31}, {70, 160}}) {
            const lmprog_product product = {type.type, size.first, size.second};
            const long inputs = lmprog::up32(size.second), outputs = lmprog::up32(size.first);
            Floats weight = numbers(static_cast<size_t>(size.first) * size.second);
            const size_t bytes = static_cast<size_t>(lmprog_engine_packed_bytes(&product));
            std::vector<char> packed(bytes + 64);
            char *at = packed.data() + (64 - reinterpret_cast<uintptr_t>(packed.data()) % 64) % 64;
            const lmprog_rows rows = {weight.data(), LMPROG_F32, size.first, size.second, 0, 1, 0};
            lmprog_engine_pack(&product, at, &rows, 0, size.first);
            for (const int count : {1, 2, 3, 5, 7, 14}) {
                Floats x(static_cast<size_t>(count * inputs)), found(static_cast<size_t>(count * outputs)), wanted = found;
                for (int r = 0; r < count; r++) {
                    const Floats row = numbers(static_cast<size_t>(size.second));
                    memcpy(x.data() + r * inputs, row.data(), row.size() * 4);
                }
                if (lmprog_engine_multiply(path, &product, at, x.data(), count, found.data(), outputs)) exit(2);
                if (lmprog_engine_multiply("generic", &product, at, x.data(), count, wanted.data(), outputs)) exit(2);
                worst = fmax(worst, difference(found, wanted));
            }
        }
        judge(path, std::string("product ") + type.name, worst, type.bound);
    }
}

Floats attended(const char *path, int kv_type, int page_size, int head_dim, unsigned seed) {
    generator.seed(seed);
    const lmprog_attention_shape shape = {6, 2, head_dim, head_dim, page_size, kv_type};
    const Floats sinks = numbers(6);
    const lmprog_attention_layer layer = {0.125f, seed % 2 ? 40 : 0, seed % 2 ? 0.0f : 20.0f,
                                          seed % 2 ? sinks.data() : nullptr};
    const int lengths[] = {1, 17, 270};
    std::vector<int32_t> starts = {0}, page_starts = {0}, pages, tokens, slots;
    for (int row = 0; row < 3; row++) {
        const int count = (lengths[row] + page_size - 1) / page_size;
        const int first = static_cast<int>(pages.size());
        for (int page = 0; page < count; page++) pages.push_back(first + count - 1 - page);
        page_starts.push_back(first + count);
        starts.push_back(starts.back() + lengths[row]);
        for (int at = 0; at < lengths[row]; at++) {
            tokens.push_back(static_cast<int32_t>(tokens.size()));
            slots.push_back(pages[static_cast<size_t>(first + at / page_size)] * page_size + at % page_size);
        }
    }
    const int all = starts.back(), slot_count = static_cast<int>(pages.size()) * page_size;
    lmprog_attention_batch batch = {3,
                                    all,
                                    starts.data(),
                                    lengths,
                                    page_starts.data(),
                                    pages.data(),
                                    tokens.data(),
                                    slots.data(),
                                    nullptr,
                                    nullptr};
    std::vector<char> keys(static_cast<size_t>(lmprog_attention_key_bytes(&shape, slot_count)) + 64, '\x7f');
    std::vector<char> values(static_cast<size_t>(lmprog_attention_value_bytes(&shape, slot_count)) + 64, '\x7f');
    const auto aligned = [](std::vector<char> &of) {
        return of.data() + (64 - reinterpret_cast<uintptr_t>(of.data()) % 64) % 64;
    };
    Floats k = numbers(static_cast<size_t>(all) * 2 * head_dim), v = numbers(k.size());
    Floats q = numbers(k.size() * 3), out(q.size());
    const lmprog_attention_array to_write = {k.data(), 2 * head_dim, LMPROG_F32}, also = {v.data(), 2 * head_dim, LMPROG_F32};
    const lmprog_attention_array ask = {q.data(), 6 * head_dim, LMPROG_F32}, answer = {out.data(), 6 * head_dim, LMPROG_F32};
    lmprog_attention *handle = lmprog_attention_open(1, path);
    if (handle == nullptr) exit(2);
    lmprog_attention_write(handle, &shape, &batch, aligned(keys), aligned(values), &to_write, &also);
    lmprog_attention_attend(handle, &shape, &layer, &batch, aligned(keys), aligned(values), &ask, &answer);
    lmprog_attention_close(handle);
    return out;
}

// What the generic path attends, computed once for all others.
const Floats &generic_attended(int kv_type, int page_size, int head_dim, unsigned seed) {
    static std::map<std::tuple<int, int, int, unsigned>, Floats> known;
    Floats &found = known[{kv_type, page_size, head_dim, seed}];
    if (found.empty()) found = attended("generic", kv_type, page_size, head_dim, seed);
    return found;
}

void compare_attention(const char *path) {
    for (const int type : {LMPROG_F32, LMPROG_BF16, LMPROG_INT8}) {
        double worst = 0;
        // every pair of a page's size, a head's and a seed
        const std::tuple<int, int, unsigned> cases[] = {{16, 64, 1}, {16, 7, 2}, {24, 64, 2}, {24, 7, 1}};
        for (const auto &[page_size, head_dim, seed] : cases)
            worst = fmax(worst, difference(attended(path, type, page_size, head_dim, seed),
                                           generic_attended(type, page_size, head_dim, seed)));
        const bool bf16 = type == LMPROG_BF16, in_digits = type == LMPROG_INT8 && (rounds(path) || strstr(path, "dot") || strstr(path, "vnni"));
        judge(path, bf16 ? "attention bfloat16" : type == LMPROG_F32 ? "attention float32" : "attention int8", worst,
              bf16 && rounds(path) ? 5e-2 : in_digits ? 3e-3 : 3e-5);
    }
}

// The functions of a row, of vectors V beside the generic ones.
template <class V>
void compare_rows(const char *path) {
    using namespace lmprog;
    using One = Step<V, WidenedBf16<V>, WidenedInt8<V>>;
    using Other = Step<Generic, WidenedBf16<Generic>, WidenedInt8<Generic>>;
    for (const long count : {16L, 80L, 4096L}) {
        const size_t size = static_cast<size_t>(count);
        const Floats x = numbers(size), y = numbers(size), z = numbers(size);
        const auto row = [&](const char *what, double bound, auto &&one, auto &&other) {
            Floats found = x, wanted = x;
            one(found.data());
            other(wanted.data());
            judge(path, std::string(what) + " of " + std::to_string(count), difference(found, wanted), bound);
        };
        row("add", 1e-6, [&](float *to) { One::add(to, y.data(), 0.5f, count); },
            [&](float *to) { Other::add(to, y.data(), 0.5f, count); });
        row("norm", 1e-5, [&](float *to) { One::norm(y.data(), z.data(), 1e-5f, count, to); },
            [&](float *to) { Other::norm(y.data(), z.data(), 1e-5f, count, to); });
        row("rotate", 1e-5, [&](float *to) { One::rotate(to, y.data(), z.data(), static_cast<int>(count / 2)); },
            [&](float *to) { Other::rotate(to, y.data(), z.data(), static_cast<int>(count / 2)); });
        const std::pair<Activation, const char *> activations[] = {
            {{LMPROG_SILU, 0, 0}, "silu"}, {{LMPROG_GELU_TANH, 0, 0}, "gelu"}, {{LMPROG_CLAMPED, 1.7f, 0.8f}, "clamped"}};
        for (const auto &[how, name] : activations)
            row(name, 1e-5, [&, how = how](float *to) { One::activate(how, y.data(), z.data(), to, count); },
                [&, how = how](float *to) { Other::activate(how, y.data(), z.data(), to, count); });
        row("bound", 1e-5, [&](float *to) { One::bound(to, 3.0f, 5.0f, count); },
            [&](float *to) { Other::bound(to, 3.0f, 5.0f, count); });
        const long odd = count - 3;
        float best[2] = {};
        long at[2] = {};
        const bool whole = One::best(x.data(), odd, best, at) && Other::best(x.data(), odd, best + 1, at + 1);
        judge(path, "best of " + std::to_string(odd), whole && best[0] == best[1] && at[0] == at[1] ? 0 : 1, 0);
        Floats broken = x;
        broken[size / 2] = NAN;
        judge(path, "best with NaN", One::best(broken.data(), odd, best, at) ? 1 : 0, 0);
        Floats relative = x, widths = x, other_relative = x, other_widths = x;
        One::widths(x.data(), best[1], 0.7f, 1e6f, relative.data(), widths.data(), odd);
        Other::widths(x.data(), best[1], 0.7f, 1e6f, other_relative.data(), other_widths.data(), odd);
        judge(path, "widths of " + std::to_string(odd), difference(widths, other_widths), 1e-5);
        const double sums = One::exp_sum(x.data(), best[1], odd), wanted = Other::exp_sum(x.data(), best[1], odd);
        judge(path, "exp_sum of " + std::to_string(odd), fabs(sums - wanted) / wanted, 1e-5);
    }
}

// A head's matrix and a convolution over a few tokens, of vectors V beside the generic ones.
template <class V>
void compare_recurrence(const char *path) {
    using namespace lmprog;
    const int keys = 9, values = 80, tokens = 4;
    const long width = 2 * keys + values;
    const Floats x = numbers(tokens * width), gates = numbers(tokens * 2), state = numbers(96 * keys), weights = numbers(4 * 48);
    const auto computed = [&](auto vectors, bool corrects) {
        using One = Recurrent<decltype(vectors)>;
        Floats matrix = state, out(2 * tokens * values), before(3 * 48, 0.5f);
        One::recur({matrix.data(), x.data(), x.data() + keys, x.data() + 2 * keys, width, out.data(), values, gates.data(),
                    gates.data() + 1, 2, keys, values, tokens, corrects});
        One::convolve({x.data(), x.data() + 1, x.data() + 2, out.data() + tokens * values, width, values, before.data(), weights.data(), nullptr,
                       48, 4, tokens, 48, corrects});
        out.insert(out.end(), matrix.begin(), matrix.end());
        return out;
    };
    for (const bool corrects : {false, true})
        judge(path, "recurrence", difference(computed(V(), corrects), computed(Generic(), corrects)), 1e-5);
}

}  // namespace

int main() {
    const char *const paths[] = {"avx512bf16", "avx512vnni", "avx512", "avx2vnni", "avx2", "neonbf16", "neondot", "neon"};
    lmprog_product one = {LMPROG_F32, 1, 1};
    std::vector<char> packed(static_cast<size_t>(lmprog_engine_packed_bytes(&one)) + 64);
    Floats x(32), out(32);
    printf("best %s\n", lmprog_engine_best_path());
    for (const char *path : paths) {
        char *at = packed.data() + (64 - reinterpret_cast<uintptr_t>(packed.data()) % 64) % 64;
        if (lmprog_engine_multiply(path, &one, at, x.data(), 1, out.data(), 32)) continue;
        compare_products(path);
        lmprog_attention *handle = lmprog_attention_open(1, path);
        if (handle == nullptr) continue;
        lmprog_attention_close(handle);
        compare_attention(path);
    }
#if defined(__aarch64__)
    compare_rows<lmprog::Neon>("neon");
    compare_recurrence<lmprog::Neon>("neon");
#elif defined(__AVX2__)
    compare_rows<lmprog::Avx2>("avx2");
    compare_recurrence<lmprog::Avx2>("avx2");
#endif
    return failures ? 1 : 0;
}
