// Which instruction sets this processor has.
#pragma once
#include <string.h>

#include "attention_task.h"
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace lmprog {

#if defined(__x86_64__)
inline bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

// Old compilers do not know the names of these.
inline bool has_avx_vnni() {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1) && __builtin_cpu_supports("avx2");
}

inline bool has_avx512_vnni() {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c >> 11 & 1) && has_avx512();
}

inline bool has_avx512_bf16() {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1) && has_avx512();
}
#elif defined(__aarch64__)
#if defined(__linux__)
// Bits of the kernel's interface; old headers do not know the second.
inline bool has_dot_product() { return getauxval(AT_HWCAP) >> 20 & 1; }
inline bool has_bf16() { return getauxval(AT_HWCAP2) >> 14 & 1; }
#elif defined(__APPLE__)
inline bool has_feature(const char *name) {
    int found = 0;
    size_t size = sizeof found;
    return sysctlbyname(name, &found, &size, nullptr, 0) == 0 && found != 0;
}
inline bool has_dot_product() { return has_feature("hw.optional.arm.FEAT_DotProd"); }
inline bool has_bf16() { return has_feature("hw.optional.arm.FEAT_BF16"); }
#else
inline bool has_dot_product() { return false; }
inline bool has_bf16() { return false; }
#endif
#endif

// Whether code for the path called `name` can run here.
inline bool runs_here(const char *name) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!strcmp(name, "avx512bf16")) return has_avx512_bf16() && has_avx512_vnni();
    if (!strcmp(name, "avx512vnni")) return has_avx512_vnni();
    if (!strcmp(name, "avx512")) return has_avx512();
    if (!strcmp(name, "avx2vnni")) return has_avx_vnni() && __builtin_cpu_supports("fma");
    if (!strcmp(name, "avx2")) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#elif defined(__aarch64__)
    if (!strcmp(name, "neonbf16")) return has_bf16() && has_dot_product();
    if (!strcmp(name, "neondot")) return has_dot_product();
    if (!strcmp(name, "neon")) return true;
#endif
    return !strcmp(name, "generic");
}

// The attention kernels of a path that runs here.
inline const Kernels *attention_kernels(const char *name) {
    if (!runs_here(name)) return nullptr;
    if (!strcmp(name, "avx512bf16")) return kernels_avx512bf16();
    if (!strcmp(name, "avx512vnni")) return kernels_avx512vnni();
    if (!strcmp(name, "avx512")) return kernels_avx512();
    if (!strcmp(name, "avx2vnni")) return kernels_avx2vnni();
    if (!strcmp(name, "avx2")) return kernels_avx2();
    if (!strcmp(name, "neonbf16")) return kernels_neonbf16();
    if (!strcmp(name, "neondot")) return kernels_neondot();
    if (!strcmp(name, "neon")) return kernels_neon();
    return kernels_generic();
}

}  // namespace lmprog
