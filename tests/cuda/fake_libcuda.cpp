// A library that `cuda.bindings` takes for NVIDIA's driver: it knows the calls that lmprog makes, and hands launches to
// whoever asked for them. It computes nothing itself. Memory is mapped behind reserved addresses by the system's own
// means, so that a touch of addresses without memory, or without access, ends the process.
//
// FAKE_CUDA_FAILS names a call that fails; FAKE_CUDA_VERSION is the driver's version; FAKE_CUDA_MEMORY is how many bytes
// handles may have; without FAKE_CUDA_VMM=1 there is no such memory.
#include <map>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

extern "C" {

// A launch: the kernel's name, blocks, threads, bytes of shared memory, stream, and the first argument.
typedef void (*on_launch)(const char *, const unsigned *, const unsigned *, unsigned, void *, void *);
static on_launch launched;
void fake_cuda_on_launch(on_launch then) { launched = then; }

// What a function was allowed to use.
static struct {
    const char *kernel;
    int shared_bytes;
} allowed[1024];

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

// --- memory behind reserved addresses
enum { kOutOfMemory = 2, kGranularity = 2 << 20, kPinned = 1, kOnDevice = 1, kReadWrite = 3 };
enum { kHasVirtualMemory = 102 };  // CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
struct Location {
    int type, id;
};
struct Properties {  // CUmemAllocationProp, as far as it is read here
    int type, handle_types;
    Location location;
};
struct Access {
    Location location;
    int flags;
};
struct Mapped {
    size_t bytes;
    int file;
};
static std::map<uintptr_t, size_t> reserved;
static std::map<uintptr_t, Mapped> mapped;
static std::map<int, size_t> handles;  // by the file that is the memory
static size_t in_use;

static bool is_whole(uintptr_t number) { return number && number % kGranularity == 0; }
static bool is_ours(const Location &location) { return location.type == kOnDevice && location.id == 0; }

static size_t limit() {
    const char *given = getenv("FAKE_CUDA_MEMORY");
    return given ? strtoull(given, nullptr, 10) : 1u << 30;
}

int cuMemGetInfo_v2(size_t *free, size_t *total) {
    *free = limit() - in_use, *total = limit();
    return result("cuMemGetInfo");
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    if (attribute != kHasVirtualMemory || device != 0) return kInvalidValue;
    *value = getenv("FAKE_CUDA_VMM") != nullptr;
    return result("cuDeviceGetAttribute");
}

int cuMemGetAllocationGranularity(size_t *bytes, const Properties *kind, int option) {
    if (kind->type != kPinned || !is_ours(kind->location) || option != 0) return kInvalidValue;
    *bytes = kGranularity;
    return result("cuMemGetAllocationGranularity");
}

int cuMemAddressReserve(uintptr_t *address, size_t bytes, size_t, uintptr_t hint, unsigned long long flags) {
    if (!is_whole(bytes) || hint || flags) return kInvalidValue;
    void *found = mmap(nullptr, bytes + kGranularity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *address = (reinterpret_cast<uintptr_t>(found) + kGranularity - 1) / kGranularity * kGranularity;
    reserved[*address] = bytes;
    return result("cuMemAddressReserve");
}

int cuMemAddressFree(uintptr_t address, size_t bytes) {
    if (!reserved.count(address) || reserved[address] != bytes) return kInvalidValue;
    const auto next = mapped.lower_bound(address);
    if (next != mapped.end() && next->first < address + bytes) return kInvalidValue;
    reserved.erase(address);
    return result("cuMemAddressFree");
}

int cuMemCreate(uint64_t *handle, size_t bytes, const Properties *kind, unsigned long long flags) {
    if (!is_whole(bytes) || kind->type != kPinned || !is_ours(kind->location) || flags) return kInvalidValue;
    if (in_use + bytes > limit()) return kOutOfMemory;
    const int file = memfd_create("fake", 0);
    if (file < 0 || ftruncate(file, (off_t)bytes)) return kOutOfMemory;
    *handle = (uint64_t)file;
    handles[file] = bytes, in_use += bytes;
    return result("cuMemCreate");
}

int cuMemMap(uintptr_t address, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags) {
    auto range = reserved.upper_bound(address);
    if (!is_whole(address) || range == reserved.begin() || offset || flags) return kInvalidValue;
    --range;
    if (address + bytes > range->first + range->second || mapped.count(address)) return kInvalidValue;
    if (!handles.count((int)handle) || handles[(int)handle] != bytes) return kInvalidValue;
    void *at = reinterpret_cast<void *>(address);
    if (mmap(at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)handle, 0) != at) return kInvalidValue;
    mapped[address] = {bytes, (int)handle};
    return result("cuMemMap");
}

int cuMemSetAccess(uintptr_t address, size_t bytes, const Access *access, size_t count) {
    const auto found = mapped.find(address);
    if (found == mapped.end() || found->second.bytes != bytes || count != 1) return kInvalidValue;
    if (!is_ours(access->location) || access->flags != kReadWrite) return kInvalidValue;
    void *at = reinterpret_cast<void *>(address);
    if (mprotect(at, bytes, PROT_READ | PROT_WRITE)) return kInvalidValue;
    memset(at, 0xFF, bytes);
    return result("cuMemSetAccess");
}

int cuMemUnmap(uintptr_t address, size_t bytes) {
    const auto found = mapped.find(address);
    if (found == mapped.end() || found->second.bytes != bytes) return kInvalidValue;
    mmap(reinterpret_cast<void *>(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
         0);
    mapped.erase(found);
    return result("cuMemUnmap");
}

int cuMemRelease(uint64_t handle) {
    if (!handles.count((int)handle)) return kInvalidValue;
    for (const auto &one : mapped)
        if (one.second.file == (int)handle) return kInvalidValue;  // a driver would wait for the unmapping
    in_use -= handles[(int)handle];
    handles.erase((int)handle);
    close((int)handle);
    return result("cuMemRelease");
}

// --- the host's memory that is registered
static std::map<uintptr_t, size_t> registered;

int cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(address);
    if (!at || !bytes || flags != 1 || registered.count(at)) return kInvalidValue;
    registered[at] = bytes;
    return result("cuMemHostRegister");
}

int cuMemHostUnregister(void *address) {
    return registered.erase(reinterpret_cast<uintptr_t>(address)) ? kSuccess : kInvalidValue;
}

size_t fake_cuda_registered() {
    size_t bytes = 0;
    for (const auto &one : registered) bytes += one.second;
    return bytes;
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
                 {"cuMemGetInfo", reinterpret_cast<void *>(cuMemGetInfo_v2)},
                 {"cuDeviceGetAttribute", reinterpret_cast<void *>(cuDeviceGetAttribute)},
                 {"cuMemGetAllocationGranularity", reinterpret_cast<void *>(cuMemGetAllocationGranularity)},
                 {"cuMemAddressReserve", reinterpret_cast<void *>(cuMemAddressReserve)},
                 {"cuMemAddressFree", reinterpret_cast<void *>(cuMemAddressFree)},
                 {"cuMemCreate", reinterpret_cast<void *>(cuMemCreate)},
                 {"cuMemMap", reinterpret_cast<void *>(cuMemMap)},
                 {"cuMemSetAccess", reinterpret_cast<void *>(cuMemSetAccess)},
                 {"cuMemUnmap", reinterpret_cast<void *>(cuMemUnmap)},
                 {"cuMemRelease", reinterpret_cast<void *>(cuMemRelease)},
                 {"cuMemHostRegister", reinterpret_cast<void *>(cuMemHostRegister_v2)},
                 {"cuMemHostUnregister", reinterpret_cast<void *>(cuMemHostUnregister)},
                 {"cuGetProcAddress", reinterpret_cast<void *>(cuGetProcAddress_v2)}};
    *address = nullptr;
    for (const auto &call : calls)
        if (!strcmp(call.name, name)) *address = call.address;
    if (status) *status = *address ? 0 : 1;
    return *address ? kSuccess : kNotFound;
}

}  // extern "C"
