// Weights of a checkpoint become panels (lmprog_engine.h says how they look), and single outputs numbers again.
#pragma once
#include <math.h>
#include <string.h>

#include <vector>

#include "attention_memory.h"
#include "product_task.h"

namespace lmprog {

inline float from_f16(uint16_t half) {
    const uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31u, fraction = half & 0x3ffu;
    if (exponent == 0) {  // zero, or a multiple of 2^-24
        const float value = static_cast<float>(fraction) * 5.9604644775390625e-8f;
        return sign ? -value : value;
    }
    const uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// Row `row` of an array as f32.
inline void read_row(const void *data, int type, int64_t stride, int64_t row, int count, float *to) {
    if (type == LMPROG_F32) {
        memcpy(to, static_cast<const float *>(data) + row * stride, static_cast<size_t>(count) * 4);
        return;
    }
    const uint16_t *from = static_cast<const uint16_t *>(data) + row * stride;
    if (type == LMPROG_BF16)
        for (int i = 0; i < count; i++) to[i] = widened(from[i]);
    else
        for (int i = 0; i < count; i++) to[i] = from_f16(from[i]);
}

// One output's place in a packed product.
struct Place {
    char *panel;
    int lane;

    Place(const Panels &panels, long output)
        : panel(const_cast<char *>(panels.data) + output / kPanel * panels.stride),
          lane(static_cast<int>(output % kPanel)) {}
    char *word(long index) const { return panel + (index * kPanel + lane) * 4; }
    char *group(long index) const { return panel + index * kGroupBytes; }
    float *group_scale(long index) const {
        return reinterpret_cast<float *>(group(index) + kPanel * kGroup / 2) + lane;
    }
};

// The scale of which all numbers are whole multiples low .. high, if the one farthest from 0, `top`, is one; else 0. So
// weights that were rounded to such steps before keep their numbers.
inline float scale_of_steps(const float *row, int first, int last, float top, int low, int high) {
    const float off = 2e-6f * fabsf(top), whole = 12582912.0f;  // 1.5 * 2^23: the sum has no bits below 1
    for (int most = low; most <= high; most++) {
        if (most == 0) continue;
        const float scale = top / static_cast<float>(most);
        int i = first;
        for (; i < last; i++) {
            const float times = row[i] / scale + whole - whole;
            if (fabsf(times * scale - row[i]) > off) break;
            if (times < static_cast<float>(low) || times > static_cast<float>(high)) break;
        }
        if (i == last) return scale;
    }
    return 0;
}

inline void pack_int8(const Panels &panels, const Place &place, const float *row, int count) {
    float top = 0;
    for (int i = 0; i < count; i++) top = fabsf(row[i]) > fabsf(top) ? row[i] : top;
    float scale = top != 0 ? scale_of_steps(row, 0, count, top, -128, 127) : 0.0f;
    const float inverse = scale != 0 ? 1.0f / scale : top != 0 ? 127.0f / fabsf(top) : 0.0f;
    if (scale == 0) scale = fabsf(top) / 127.0f;
    int32_t sum = 0;
    for (int i = 0; i < count; i++) {
        const int value = static_cast<int>(nearbyintf(row[i] * inverse));
        place.word(i / 4)[i % 4] = static_cast<char>(value);
        sum += value;
    }
    char *tail = place.panel + panels.stride - 2 * kPanel * 4;
    const int32_t shifted = 128 * sum;
    memcpy(tail + place.lane * 4, &scale, 4);
    memcpy(tail + (kPanel + place.lane) * 4, &shifted, 4);
}

inline int nibble(float value, float inverse) {  // weight / scale + 8, within 4 bits
    const int moved = static_cast<int>(nearbyintf(value * inverse)) + 8;
    return moved < 0 ? 0 : moved > 15 ? 15 : moved;
}

// The number farthest from 0 becomes -8, so that one more step is used than with a symmetric scale.
inline void pack_int4(const Panels &panels, const Place &place, const float *row, int count) {
    for (int g = 0; g < panels.inputs / kGroup; g++) {
        const int first = g * kGroup, last = first + kGroup < count ? first + kGroup : count;
        float top = 0;
        for (int i = first; i < last; i++) top = fabsf(row[i]) > fabsf(top) ? row[i] : top;
        float scale = top != 0 ? scale_of_steps(row, first, last, top, -8, 7) : 0.0f;
        const float inverse = scale != 0 ? 1.0f / scale : top != 0 ? -8.0f / top : 0.0f;
        if (scale == 0) scale = top / -8.0f;
        *place.group_scale(g) = scale;
        char *words = place.group(g) + place.lane * 4;
        for (int at = 0; at < kGroup / 2; at++) {  // byte `at` holds two inputs, four apart
            const int low = first + at / 4 * 8 + at % 4, high = low + 4;
            const int a = low < last ? nibble(row[low], inverse) : 8, b = high < last ? nibble(row[high], inverse) : 8;
            words[at / 4 * kPanel * 4 + at % 4] = static_cast<char>(a | b << 4);
        }
    }
}

inline void pack_row(const Panels &panels, const Place &place, const float *row, int count) {
    if (panels.type == LMPROG_F32) {
        for (int i = 0; i < count; i++) memcpy(place.word(i), row + i, 4);
    } else if (panels.type == LMPROG_BF16) {
        for (int i = 0; i < count; i++) {
            const uint16_t half = narrowed(row[i]);
            memcpy(place.word(i / 2) + i % 2 * 2, &half, 2);
        }
    } else if (panels.type == LMPROG_INT8) {
        pack_int8(panels, place, row, count);
    } else {
        pack_int4(panels, place, row, count);
    }
}

inline void unpack_row(const Panels &panels, long output, int count, float *to) {
    const Place place(panels, output);
    if (panels.type == LMPROG_F32) {
        for (int i = 0; i < count; i++) memcpy(to + i, place.word(i), 4);
    } else if (panels.type == LMPROG_BF16) {
        for (int i = 0; i < count; i++) {
            uint16_t half;
            memcpy(&half, place.word(i / 2) + i % 2 * 2, 2);
            to[i] = widened(half);
        }
    } else if (panels.type == LMPROG_INT8) {
        float scale;
        memcpy(&scale, place.panel + panels.stride - 2 * kPanel * 4 + place.lane * 4, 4);
        for (int i = 0; i < count; i++) to[i] = static_cast<float>(static_cast<int8_t>(place.word(i / 4)[i % 4])) * scale;
    } else {
        for (int i = 0; i < count; i++) {
            const int at = i % kGroup;
            const uint8_t byte = place.group(i / kGroup)[(at / 8 * kPanel + place.lane) * 4 + at % 4];
            to[i] = static_cast<float>((at % 8 < 4 ? byte & 15 : byte >> 4) - 8) * *place.group_scale(i / kGroup);
        }
    }
}

// Rows first_row .. end_row to their places.
inline void pack_rows(const lmprog_product &product, void *packed, const lmprog_rows &rows, int first_row,
                      int end_row) {
    const Panels panels = panels_of(packed, product.type, product.outputs, product.inputs);
    std::vector<float> row(static_cast<size_t>(product.inputs));
    for (int i = first_row; i < end_row; i++) {
        const long at = static_cast<long>(rows.first) + i;
        const long output = (at / kPanel * rows.step + rows.offset) * kPanel + at % kPanel;
        read_row(rows.data, rows.type, rows.stride, i, product.inputs, row.data());
        pack_row(panels, Place(panels, output), row.data(), product.inputs);
    }
}

}  // namespace lmprog
