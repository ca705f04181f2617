// Which instruction sets this processor has.
#pragma once
#include <string.h>

#include "attention_task.h"
#if defined(__x86_64__)
#include <cpuid.h>
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
#endif
    return !strcmp(name, "generic");
}

// The attention kernels of a path that runs here; the VNNI paths differ in products of int8 only.
inline const Kernels *attention_kernels(const char *name) {
    if (!runs_here(name)) return nullptr;
    if (!strcmp(name, "avx512bf16")) return kernels_avx512bf16();
    if (!strncmp(name, "avx512", 6)) return kernels_avx512();
    if (!strncmp(name, "avx2", 4)) return kernels_avx2();
    return kernels_generic();
}

}  // namespace lmprog
