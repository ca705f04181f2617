// Vectors of 16 with one instruction for the sum of four products of bytes.
#pragma once
#include "vector_avx512.h"

namespace lmprog {
namespace {

struct Avx512Vnni : Avx512 {
    static LMPROG_INLINE i dot(i sum, i bytes, i signed_bytes) {
        // As assembly, because GCC 12 spills the array of sums around the intrinsic.
        __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(signed_bytes));
        return sum;
    }
};

}  // namespace
}  // namespace lmprog
