// A library that `cuda.bindings` takes for NVIDIA's driver: it knows the calls that lmprog makes, and hands launches to
// whoever asked for them. It computes nothing itself.
//
// FAKE_CUDA_FAILS names a call that fails; FAKE_CUDA_VERSION is the driver's version.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern "C" {

// A launch: the kernel's name, blocks, threads, bytes of shared memory, stream, and the first argument.
typedef void (*on_launch)(const char *, const unsigned *, const unsigned *, unsigned, void *, void *);
static on_launch launched;
void fake_cuda_on_launch(on_launch then) { launched = then; }

// What a function was allowed to use.
static struct {
    const char *kernel;
    int shared_bytes;
} allowed[64];

enum { kSuccess = 0, kInvalidValue = 1, kInvalidImage = 200, kNotFound = 500 };
enum { kMostSharedBytes = 8 };  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

static int result(const char *call) {
    const char *fails = getenv("FAKE_CUDA_FAILS");
    return fails && !strcmp(fails, call) ? kInvalidImage : kSuccess;
}

int cuDriverGetVersion(int *version) {
    const char *given = getenv("FAKE_CUDA_VERSION");
    *version = given ? atoi(given) : 13000;
    return result("cuDriverGetVersion");
}

int cuLibraryLoadData(void **library, const void *code, void *, void *, unsigned, void *, void *, unsigned) {
    *library = const_cast<void *>(code);
    return memcmp(code, "cubin", 5) ? kInvalidValue : result("cuLibraryLoadData");
}

int cuLibraryGetKernel(void **kernel, void *, const char *name) {
    *kernel = strdup(name);
    return result("cuLibraryGetKernel");
}

int cuKernelGetFunction(void **function, void *kernel) {
    *function = kernel;
    return result("cuKernelGetFunction");
}

int cuFuncSetAttribute(void *function, int attribute, int value) {
    if (attribute != kMostSharedBytes) return kInvalidValue;
    for (auto &one : allowed) {
        if (one.kernel) continue;
        one = {static_cast<const char *>(function), value};
        return result("cuFuncSetAttribute");
    }
    return kInvalidValue;
}

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared_bytes, void *stream, void **arguments, void **extra) {
    const char *kernel = static_cast<const char *>(function);
    int most = -1;
    for (const auto &one : allowed)
        if (one.kernel == kernel) most = one.shared_bytes;
    if (extra || static_cast<int>(shared_bytes) > most) return kInvalidValue;
    const unsigned blocks[] = {gx, gy, gz}, threads[] = {bx, by, bz};
    launched(kernel, blocks, threads, shared_bytes, stream, arguments[0]);
    return result("cuLaunchKernel");
}

int cuGetProcAddress_v2(const char *name, void **address, int, uint64_t, int *status) {
    static const struct {
        const char *name;
        void *address;
    } calls[] = {{"cuDriverGetVersion", reinterpret_cast<void *>(cuDriverGetVersion)},
                 {"cuLibraryLoadData", reinterpret_cast<void *>(cuLibraryLoadData)},
                 {"cuLibraryGetKernel", reinterpret_cast<void *>(cuLibraryGetKernel)},
                 {"cuKernelGetFunction", reinterpret_cast<void *>(cuKernelGetFunction)},
                 {"cuFuncSetAttribute", reinterpret_cast<void *>(cuFuncSetAttribute)},
                 {"cuLaunchKernel", reinterpret_cast<void *>(cuLaunchKernel)},
                 {"cuGetProcAddress", reinterpret_cast<void *>(cuGetProcAddress_v2)}};
    *address = nullptr;
    for (const auto &call : calls)
        if (!strcmp(call.name, name)) *address = call.address;
    if (status) *status = *address ? 0 : 1;
    return *address ? kSuccess : kNotFound;
}

}  // extern "C"
