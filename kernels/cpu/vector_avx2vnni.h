// Vectors of 8 with one instruction for the sum of four products of bytes, for processors with AVX-VNNI.
#pragma once
#include "vector_avx2.h"

namespace lmprog {
namespace {

struct Avx2Vnni : Avx2 {
    static LMPROG_INLINE i dot(i sum, i bytes, i signed_bytes) {
        __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(bytes), "x"(signed_bytes));
        return sum;
    }
};

}  // namespace
}  // namespace lmprog
