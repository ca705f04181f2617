// Writing and copying slots: the only code besides the kernels that knows the layout of a block (see the header).
#pragma once
#include <math.h>
#include <string.h>

#include <vector>

#include "attention_task.h"

namespace lmprog {

inline Layout layout_of(const lmprog_attention_shape &shape) {
    Layout l;
    const int per = shape.kv_type == LMPROG_F32 ? 1 : shape.kv_type == LMPROG_BF16 ? 2 : 4;  // numbers of a word
    const int scales = shape.kv_type == LMPROG_INT8 ? kBlock : 0;
    l.head_dim = shape.head_dim;
    l.v_head_dim = shape.v_head_dim;
    l.kv_heads = shape.num_kv_heads;
    l.group = shape.num_heads / shape.num_kv_heads;
    l.page_size = shape.page_size;
    l.kv_type = shape.kv_type;
    l.key_words = (shape.head_dim + per - 1) / per;
    l.columns = static_cast<int>(up16(shape.v_head_dim));
    l.key_block = l.key_words * kBlock + scales;
    l.value_block = l.columns * (kBlock / per) + scales;
    l.record = l.columns + 16;
    return l;
}

// One slot and head of memory as numbers of type T: key d is at keys[key(d)], value d at values[d * step].
template <class T>
struct Slot {
    static constexpr int per = 4 / sizeof(T);
    T *keys, *values;
    float *key_scale, *value_scale;  // of int8

    Slot(const Layout &l, void *key_memory, void *value_memory, long slot, int head) {
        const long block = slot / kBlock * l.kv_heads + head, lane = slot % kBlock;
        keys = static_cast<T *>(key_memory) + (block * l.key_block + lane) * per;
        values = static_cast<T *>(value_memory) + (block * l.value_block + lane / per * l.columns) * per + lane % per;
        key_scale = static_cast<float *>(key_memory) + (block + 1) * l.key_block - kBlock + lane;
        value_scale = static_cast<float *>(value_memory) + (block + 1) * l.value_block - kBlock + lane;
    }
    static long key(int d) { return static_cast<long>(d / per) * kBlock * per + d % per; }
    static constexpr int step = per;
};

inline float widened(uint16_t half) {
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

inline uint16_t narrowed(float value) {  // to nearest, ties to even
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline void convert(float from, float &to) { to = from; }
inline void convert(float from, uint16_t &to) { to = narrowed(from); }
inline void convert(uint16_t from, float &to) { to = widened(from); }
inline void convert(uint16_t from, uint16_t &to) { to = from; }

// Rounds `count` numbers to bytes with one scale, which it returns; with NaN where one is infinite or none.
template <class From, class Put>
float put_bytes(const From *from, int count, Put &&put) {
    float top = 0, broken = 0, number = 0;
    for (int d = 0; d < count; d++) {
        convert(from[d], number);
        top = fabsf(number) > top ? fabsf(number) : top;
        broken += number * 0.0f;
    }
    const bool whole = broken == 0;
    const float inverse = whole && top > 1e-36f ? 127.0f / top : 0.0f;  // over less it may be infinite
    for (int d = 0; d < count; d++) {
        convert(from[d], number);
        put(d, whole ? static_cast<int8_t>(nearbyintf(number * inverse)) : static_cast<int8_t>(1));
    }
    return top / 127.0f + broken;
}

// Writes writes[first .. last] of the batch. T: type of the memory; From: of the numbers.
template <class T, class From>
void write_slots(const Layout &l, const lmprog_attention_batch &batch, void *keys, void *values,
                 const lmprog_attention_array &k, const lmprog_attention_array &v, int first, int last) {
    for (int i = first; i < last; i++) {
        const long token = batch.write_tokens[i];
        const From *key = static_cast<const From *>(k.data) + token * k.stride;
        const From *value = static_cast<const From *>(v.data) + token * v.stride;
        for (int head = 0; head < l.kv_heads; head++, key += l.head_dim, value += l.v_head_dim) {
            const Slot<T> slot(l, keys, values, batch.write_slots[i], head);
            for (int d = l.head_dim; d < l.key_words * slot.per; d++) slot.keys[slot.key(d)] = 0;
            if constexpr (Slot<T>::per == 4) {
                *slot.key_scale = put_bytes(key, l.head_dim, [&](int d, T byte) { slot.keys[slot.key(d)] = byte; });
                *slot.value_scale =
                    put_bytes(value, l.v_head_dim, [&](int d, T byte) { slot.values[d * slot.step] = byte; });
            } else {
                for (int d = 0; d < l.head_dim; d++) convert(key[d], slot.keys[slot.key(d)]);
                for (int d = 0; d < l.v_head_dim; d++) convert(value[d], slot.values[d * slot.step]);
            }
        }
    }
}

template <class T>
void copy_slots(const Layout &l, void *keys, void *values, const int32_t *copies, int count) {
    const int key_count = l.key_words * Slot<T>::per, size = key_count + l.columns;
    std::vector<T> held(static_cast<size_t>(count) * l.kv_heads * size);
    std::vector<float> scales(static_cast<size_t>(count) * l.kv_heads * 2);
    T *at = held.data();
    float *scale = scales.data();
    for (int i = 0; i < count; i++)
        for (int head = 0; head < l.kv_heads; head++, at += size) {
            const Slot<T> slot(l, keys, values, copies[2 * i], head);
            for (int d = 0; d < key_count; d++) at[d] = slot.keys[slot.key(d)];
            for (int d = 0; d < l.columns; d++) at[key_count + d] = slot.values[d * slot.step];
            if constexpr (Slot<T>::per == 4) {
                *scale++ = *slot.key_scale;
                *scale++ = *slot.value_scale;
            }
        }
    at = held.data();
    scale = scales.data();
    for (int i = 0; i < count; i++)
        for (int head = 0; head < l.kv_heads; head++, at += size) {
            const Slot<T> slot(l, keys, values, copies[2 * i + 1], head);
            for (int d = 0; d < key_count; d++) slot.keys[slot.key(d)] = at[d];
            for (int d = 0; d < l.columns; d++) slot.values[d * slot.step] = at[key_count + d];
            if constexpr (Slot<T>::per == 4) {
                *slot.key_scale = *scale++;
                *slot.value_scale = *scale++;
            }
        }
}

}  // namespace lmprog
