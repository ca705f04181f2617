// Vectors of 4 with one instruction for the sum of four products of signed bytes (the extension "dotprod").
#pragma once
#include "vector_neon.h"

namespace lmprog {
namespace {

struct NeonDot : Neon {
    static LMPROG_INLINE i dot(i sum, w bytes, i more) {
        return vdotq_s32(sum, vreinterpretq_s8_u32(bytes), vreinterpretq_s8_s32(more));
    }
};

}  // namespace
}  // namespace lmprog
