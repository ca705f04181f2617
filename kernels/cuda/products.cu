// The products with weights of 8 and 4 bits, for activations of LM_TYPE (bf16, f16, float): one
// compilation, one cubin beside that of module.cu.
#ifdef LM_EMULATED
#include "dev.cuh"
#endif
#include "product.cuh"

#if LM_EXACT
#define LM_PRODUCT(kind, Kind)                                                                 \
    LM_KERNEL(product_##kind##_few, ProductArgs<float>, kProductThreads, 2) {                  \
        product_exact<Kind>(args);                                                             \
    }                                                                                          \
    LM_KERNEL(unpack_##kind, UnpackArgs<float>, kUnpackThreads, 4) {                           \
        unpack_weights<float, Kind>(args);                                                     \
    }
#else
#define LM_PRODUCT(kind, Kind)                                                                 \
    LM_KERNEL(product_##kind##_few, ProductArgs<LM_TYPE>, kProductThreads, 2) {                \
        product<LM_TYPE, Kind, FewTokens>(args);                                               \
    }                                                                                          \
    LM_KERNEL(product_##kind##_many, ProductArgs<LM_TYPE>, kProductThreads, 1) {               \
        product<LM_TYPE, Kind, ManyTokens>(args);                                              \
    }                                                                                          \
    LM_KERNEL(unpack_##kind, UnpackArgs<LM_TYPE>, kUnpackThreads, 4) {                         \
        unpack_weights<LM_TYPE, Kind>(args);                                                   \
    }
#endif

LM_PRODUCT(int8, kInt8)
LM_PRODUCT(int4, kInt4)
LM_PRODUCT(fp8, kFp8)
