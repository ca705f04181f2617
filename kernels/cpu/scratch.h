// Memory of one call that the next one takes over.
#pragma once
#include <stdint.h>
#include <stdlib.h>

namespace lmprog {

// Scratch memory that only grows. malloc's blocks are moved up to a multiple of 64 bytes.
struct Scratch {
    void *block = nullptr;
    size_t size = 0;

    float *floats(long count) {
        const size_t wanted = static_cast<size_t>(count) * sizeof(float) + 64;
        if (wanted > size) {
            free(block);
            block = malloc(wanted);
            if (block == nullptr) abort();  // a few megabytes: the process is beyond help
            size = wanted;
        }
        return reinterpret_cast<float *>((reinterpret_cast<uintptr_t>(block) + 63) / 64 * 64);
    }
    ~Scratch() { free(block); }
};

}  // namespace lmprog
