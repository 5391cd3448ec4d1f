// The runtime below a build of torch for CUDA or HIP, on a machine that has no GPU.
//
// It is loaded before all libraries (LD_PRELOAD), so these functions are found before those of
// libcudart or libamdhip64, which load and are not asked. Memory is the host's and begins as zeros.
// Copies are made at once, kernels are not launched, and all else succeeds. Both runtimes have the
// same functions under other names: PREFIX is "cuda" or "hip". The header of the runtime for which
// torch was built says what its properties look like.
//
// Not run: with HIP this was compiled and linked with nothing, as there was no HIP build of torch.
#ifdef HIP
#define __HIP_PLATFORM_AMD__
#include <hip/hip_runtime_api.h>
#define PREFIX "hip"
using Properties = hipDeviceProp_t;
#else
#include <driver_types.h>
#define PREFIX "cuda"
using Properties = cudaDeviceProp;
#endif

#include <dlfcn.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "facts.h"

namespace {

enum { OK = 0, BAD_VALUE = 1, NO_MEMORY = 2, UNSUPPORTED = 801 };

struct Range {
  size_t size;
  bool host;
};

// Never destroyed: torch frees memory while a process ends.
std::mutex& lock() {
  static auto* made = new std::mutex;
  return *made;
}
std::map<uintptr_t, Range>& ranges() {
  static auto* made = new std::map<uintptr_t, Range>;
  return *made;
}

// Sizes by the handles of memory without addresses.
std::map<uintptr_t, size_t>& created() {
  static auto* made = new std::map<uintptr_t, size_t>;
  return *made;
}

std::atomic<size_t> taken{0};
std::atomic<int> last{OK};
std::atomic<void*> capturing{nullptr};
std::atomic<uintptr_t> handles{1};

int fails(int error) {
  last = error;
  return error;
}

int allocate(void** address, size_t size, bool host) {
  *address = nullptr;
  if (size == 0) {
    return OK;
  }
  if (!host && taken + size > MEMORY) {
    return fails(NO_MEMORY);
  }
  const auto flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* made = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (made == MAP_FAILED) {
    return fails(NO_MEMORY);
  }
  taken += host ? 0 : size;
  const std::lock_guard<std::mutex> hold(lock());
  ranges()[reinterpret_cast<uintptr_t>(made)] = {size, host};
  *address = made;
  return OK;
}

int release(void* address) {
  const std::lock_guard<std::mutex> hold(lock());
  const auto found = ranges().find(reinterpret_cast<uintptr_t>(address));
  if (found != ranges().end()) {
    munmap(address, found->second.size);
    taken -= found->second.host ? 0 : found->second.size;
    ranges().erase(found);
  }
  return OK;
}

const Range* range_of(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  auto next = ranges().upper_bound(at);
  if (next == ranges().begin()) {
    return nullptr;
  }
  --next;
  return at < next->first + next->second.size ? &next->second : nullptr;
}

int handle(void* into) {
  // A stream and an event differ from the null stream, and nobody looks into them.
  *static_cast<uintptr_t*>(into) = handles++ << 4;
  return OK;
}

int copy(void* to, const void* from, size_t size) {
  std::memmove(to, from, size);
  return OK;
}

int fill(void* into, int value, size_t size) {
  // Zeros for much memory, as it is new: it costs none then.
  if (value != 0 || size < (1 << 16)) {
    std::memset(into, value, size);
    return OK;
  }
  const auto begin = reinterpret_cast<uintptr_t>(into), end = begin + size;
  const auto first = (begin + 4095) / 4096 * 4096, past = end / 4096 * 4096;
  std::memset(into, 0, first - begin);
  madvise(reinterpret_cast<void*>(first), past - first, MADV_DONTNEED);
  std::memset(reinterpret_cast<void*>(past), 0, end - past);
  return OK;
}

template <typename Ints>
void set(Ints& into, int a, int b, int c) {
  into[0] = a;
  into[1] = b;
  into[2] = c;
}

int properties(void* into) {
  Properties made;
  std::memset(&made, 0, sizeof made);
  std::snprintf(made.name, sizeof made.name, "%s", NAME);
  made.totalGlobalMem = MEMORY;
  made.sharedMemPerBlock = LDS_OF_BLOCK;
  made.sharedMemPerBlockOptin = LDS;
  made.sharedMemPerMultiprocessor = LDS_OF_PROCESSOR;
  made.regsPerBlock = made.regsPerMultiprocessor = REGISTERS;
  made.warpSize = WAVEFRONT;
  made.memPitch = 2147483647;
  made.maxThreadsPerBlock = THREADS_OF_BLOCK;
  set(made.maxThreadsDim, 1024, 1024, 64);
  set(made.maxGridSize, 2147483647, 65535, 65535);
  made.totalConstMem = 65536;
  made.major = MAJOR;
  made.minor = MINOR;
  made.textureAlignment = 512;
  made.multiProcessorCount = PROCESSORS;
  made.canMapHostMemory = made.concurrentKernels = made.unifiedAddressing = 1;
  made.l2CacheSize = L2;
  made.maxThreadsPerMultiProcessor = THREADS_OF_PROCESSOR;
  made.streamPrioritiesSupported = made.cooperativeLaunch = made.managedMemory = 1;
  made.maxBlocksPerMultiProcessor = 32;
  made.asyncEngineCount = 2;
#ifdef HIP
  std::snprintf(made.gcnArchName, sizeof made.gcnArchName, "%s", TARGET);
  made.maxSharedMemoryPerMultiProcessor = LDS_OF_PROCESSOR;
#endif
  std::memcpy(into, &made, sizeof made);
  return OK;
}

#ifdef HIP
#define ATTRIBUTE(name) hipDeviceAttribute##name
#else
#define ATTRIBUTE(name) cudaDevAttr##name
#endif

int attribute(int* value, int which) {
  *value = 0;
  switch (which) {
    case ATTRIBUTE(MaxThreadsPerBlock): *value = THREADS_OF_BLOCK; break;
    case ATTRIBUTE(MaxSharedMemoryPerBlock): *value = LDS_OF_BLOCK; break;
    case ATTRIBUTE(WarpSize): *value = WAVEFRONT; break;
    case ATTRIBUTE(MaxRegistersPerBlock): *value = REGISTERS; break;
    case ATTRIBUTE(ComputeCapabilityMajor): *value = MAJOR; break;
    case ATTRIBUTE(ComputeCapabilityMinor): *value = MINOR; break;
    case ATTRIBUTE(MaxSharedMemoryPerMultiprocessor): *value = LDS_OF_PROCESSOR; break;
    case ATTRIBUTE(MaxRegistersPerMultiprocessor): *value = REGISTERS; break;
    case ATTRIBUTE(CooperativeLaunch): *value = 1; break;
#ifdef HIP
    case hipDeviceAttributeMultiprocessorCount: *value = PROCESSORS; break;
    case hipDeviceAttributeMaxThreadsPerMultiProcessor: *value = THREADS_OF_PROCESSOR; break;
    case hipDeviceAttributeSharedMemPerBlockOptin: *value = LDS; break;
    case hipDeviceAttributeL2CacheSize: *value = L2; break;
#else
    case cudaDevAttrMultiProcessorCount: *value = PROCESSORS; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = THREADS_OF_PROCESSOR; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = LDS; break;
    case cudaDevAttrL2CacheSize: *value = L2; break;
    // In kHz: what an H100 has. Inductor divides by them where it estimates a kernel's time.
    case cudaDevAttrClockRate: *value = 1980000; break;
    case cudaDevAttrMemoryClockRate: *value = 2619000; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = 5120; break;
#endif
    default: break;
  }
  return OK;
}

int unsupported() {
  return UNSUPPORTED;
}

} // namespace

// A function of the runtime by its name without the prefix, declared beside the header's own.
#define RUNTIME_OF(type, name, parameters)                                            \
  extern "C" __attribute__((visibility("default"))) type our_##name parameters __asm__(PREFIX #name); \
  extern "C" type our_##name parameters
#define RUNTIME(name, parameters) RUNTIME_OF(int, name, parameters)

using Size = size_t;
using Int = int;
using Flags = unsigned;

RUNTIME(GetDeviceCount, (Int * count)) { *count = 1; return OK; }
RUNTIME(GetDevice, (Int * device)) { *device = 0; return OK; }
RUNTIME(SetDevice, (Int device)) { return device == 0 ? OK : fails(101); }
RUNTIME(GetDeviceProperties, (void* into, Int)) { return properties(into); }
RUNTIME(GetDeviceProperties_v2, (void* into, Int)) { return properties(into); }
RUNTIME(GetDevicePropertiesR0600, (void* into, Int)) { return properties(into); }
RUNTIME(DeviceGetAttribute, (Int * value, Int which, Int)) { return attribute(value, which); }
RUNTIME(DeviceGetPCIBusId, (char* into, Int size, Int)) {
  std::snprintf(into, size, "0000:01:00.0");
  return OK;
}
RUNTIME(DeviceGetStreamPriorityRange, (Int * least, Int* greatest)) {
  *least = 0;
  *greatest = -5;
  return OK;
}
RUNTIME(DeviceCanAccessPeer, (Int * can, Int, Int)) { *can = 0; return OK; }
RUNTIME(DeviceEnablePeerAccess, (Int, Flags)) { return OK; }
RUNTIME(DeviceSynchronize, ()) { return OK; }
RUNTIME(DeviceReset, ()) { return OK; }
RUNTIME(DeviceGetDefaultMemPool, (void* into, Int)) { return handle(into); }
RUNTIME(DriverGetVersion, (Int * version)) { *version = VERSION; return OK; }
RUNTIME(RuntimeGetVersion, (Int * version)) { *version = VERSION; return OK; }
RUNTIME(GetLastError, ()) { return last.exchange(OK); }
RUNTIME(PeekAtLastError, ()) { return last; }
RUNTIME_OF(const char*, GetErrorName, (Int)) { return "an error of compiling_gpu"; }
RUNTIME_OF(const char*, GetErrorString, (Int error)) {
  return error == NO_MEMORY ? "out of memory" : "compiling_gpu: the stand-in can't do this";
}

RUNTIME(Malloc, (void** into, Size size)) { return allocate(into, size, false); }
RUNTIME(MallocAsync, (void** into, Size size, void*)) { return allocate(into, size, false); }
RUNTIME(MallocManaged, (void** into, Size size, Flags)) { return allocate(into, size, false); }
RUNTIME(ExtMallocWithFlags, (void** into, Size size, Flags)) { return allocate(into, size, false); }
RUNTIME(Free, (void* address)) { return release(address); }
RUNTIME(FreeAsync, (void* address, void*)) { return release(address); }
RUNTIME(HostAlloc, (void** into, Size size, Flags)) { return allocate(into, size, true); }
RUNTIME(HostMalloc, (void** into, Size size, Flags)) { return allocate(into, size, true); }
RUNTIME(MallocHost, (void** into, Size size)) { return allocate(into, size, true); }
RUNTIME(FreeHost, (void* address)) { return release(address); }
RUNTIME(HostFree, (void* address)) { return release(address); }
RUNTIME(HostRegister, (void*, Size, Flags)) { return OK; }
RUNTIME(HostUnregister, (void*)) { return OK; }
RUNTIME(HostGetDevicePointer, (void** into, void* host, Flags)) { *into = host; return OK; }
RUNTIME(MemGetInfo, (Size * free, Size* total)) {
  *free = MEMORY - taken;
  *total = MEMORY;
  return OK;
}
RUNTIME(PointerGetAttributes, (void* into, const void* address)) {
  struct {
    int type, device;
    void *on_device, *on_host;
  } told = {0, 0, const_cast<void*>(address), const_cast<void*>(address)};
  const std::lock_guard<std::mutex> hold(lock());
  if (const auto* range = range_of(address)) {
    told.type = range->host ? 1 : 2;
  }
  std::memcpy(into, &told, sizeof told);
  return OK;
}
RUNTIME(Memcpy, (void* to, const void* from, Size size, Int)) { return copy(to, from, size); }
RUNTIME(MemcpyAsync, (void* to, const void* from, Size size, Int, void*)) { return copy(to, from, size); }
RUNTIME(MemcpyWithStream, (void* to, const void* from, Size size, Int, void*)) { return copy(to, from, size); }
RUNTIME(MemcpyPeerAsync, (void* to, Int, const void* from, Int, Size size, void*)) { return copy(to, from, size); }
RUNTIME(Memcpy2DAsync, (void* to, Size pitch, const void* from, Size from_pitch, Size width, Size height, Int, void*)) {
  for (Size row = 0; row < height; ++row) {
    copy(static_cast<char*>(to) + row * pitch, static_cast<const char*>(from) + row * from_pitch, width);
  }
  return OK;
}
RUNTIME(MemcpyToSymbol, (const void*, const void*, Size, Size, Int)) { return OK; }
RUNTIME(GetSymbolAddress, (void** into, const void*)) { return allocate(into, 1 << 20, false); }
RUNTIME(Memset, (void* into, Int value, Size size)) { return fill(into, value, size); }
RUNTIME(MemsetAsync, (void* into, Int value, Size size, void*)) { return fill(into, value, size); }
RUNTIME(MemPoolGetAttribute, (void*, Int, uint64_t* value)) { *value = 0; return OK; }
RUNTIME(MemPoolSetAttribute, (void*, Int, void*)) { return OK; }
RUNTIME(MemPoolSetAccess, (void*, const void*, Size)) { return OK; }
RUNTIME(MemPoolTrimTo, (void*, Size)) { return OK; }

RUNTIME(StreamCreate, (void* into)) { return handle(into); }
RUNTIME(StreamCreateWithFlags, (void* into, Flags)) { return handle(into); }
RUNTIME(StreamCreateWithPriority, (void* into, Flags, Int)) { return handle(into); }
RUNTIME(StreamDestroy, (void*)) { return OK; }
RUNTIME(StreamGetPriority, (void*, Int* priority)) { *priority = 0; return OK; }
RUNTIME(StreamQuery, (void*)) { return OK; }
RUNTIME(StreamSynchronize, (void*)) { return OK; }
RUNTIME(StreamWaitEvent, (void*, void*, Flags)) { return OK; }
RUNTIME(StreamAddCallback, (void* stream, void (*call)(void*, Int, void*), void* data, Flags)) {
  call(stream, OK, data);
  return OK;
}
RUNTIME(LaunchHostFunc, (void*, void (*call)(void*), void* data)) { call(data); return OK; }
RUNTIME(EventCreate, (void* into)) { return handle(into); }
RUNTIME(EventCreateWithFlags, (void* into, Flags)) { return handle(into); }
RUNTIME(EventDestroy, (void*)) { return OK; }
RUNTIME(EventRecord, (void*, void*)) { return OK; }
RUNTIME(EventRecordWithFlags, (void*, void*, Flags)) { return OK; }
RUNTIME(EventQuery, (void*)) { return OK; }
RUNTIME(EventSynchronize, (void*)) { return OK; }
// All that is measured takes a millisecond: candidates tie, and the first one wins.
RUNTIME(EventElapsedTime, (float* milliseconds, void*, void*)) { *milliseconds = 1; return OK; }

// A captured graph is empty.
RUNTIME(StreamBeginCapture, (void* stream, Int)) { capturing = stream; return OK; }
RUNTIME(StreamEndCapture, (void*, void* graph)) { capturing = nullptr; return handle(graph); }
RUNTIME(StreamIsCapturing, (void* stream, Int* status)) {
  *status = stream != nullptr && capturing == stream;
  return OK;
}
RUNTIME(StreamGetCaptureInfo, (void* stream, Int* status, uint64_t* id)) {
  *status = stream != nullptr && capturing == stream;
  if (id != nullptr) {
    *id = 1;
  }
  return OK;
}
RUNTIME(StreamGetCaptureInfo_v2, (void* stream, Int* status, uint64_t* id)) {
  return our_StreamGetCaptureInfo(stream, status, id);
}
RUNTIME(StreamGetCaptureInfo_v3, (void* stream, Int* status, uint64_t* id)) {
  return our_StreamGetCaptureInfo(stream, status, id);
}
RUNTIME(ThreadExchangeStreamCaptureMode, (Int*)) { return OK; }
RUNTIME(GraphInstantiate, (void* into, void*)) { return handle(into); }
RUNTIME(GraphInstantiateWithFlags, (void* into, void*, unsigned long long)) { return handle(into); }
RUNTIME(GraphGetNodes, (void*, void*, Size* count)) { *count = 1; return OK; }
RUNTIME(GraphLaunch, (void*, void*)) { return OK; }
RUNTIME(GraphDestroy, (void*)) { return OK; }
RUNTIME(GraphExecDestroy, (void*)) { return OK; }
RUNTIME(GraphDebugDotPrint, (void*, const char*, Flags)) { return OK; }

// torch's own kernels, as far as they are reached beside its operators.
RUNTIME(LaunchKernel, ()) { return OK; }
RUNTIME(LaunchKernelExC, ()) { return OK; }
RUNTIME(LaunchCooperativeKernel, ()) { return OK; }
RUNTIME(ExtLaunchKernel, ()) { return OK; }
RUNTIME(FuncSetAttribute, (const void*, Int, Int)) { return OK; }
RUNTIME(FuncGetAttributes, (void* into, const void*)) {
  struct {
    size_t shared, constant, local;
    int threads, registers, ptx, binary, cache, most_shared, carveout;
  } told = {0, 0, 0, THREADS_OF_BLOCK, 32, MAJOR * 10 + MINOR, MAJOR * 10 + MINOR, 0, LDS_OF_BLOCK, 0};
  std::memcpy(into, &told, sizeof told);
  return OK;
}
RUNTIME(OccupancyMaxActiveBlocksPerMultiprocessor, (Int * blocks, const void*, Int, Size)) { *blocks = 1; return OK; }
RUNTIME(OccupancyMaxActiveBlocksPerMultiprocessorWithFlags, (Int * blocks, const void*, Int, Size, Flags)) {
  *blocks = 1;
  return OK;
}
RUNTIME(ProfilerStart, ()) { return OK; }
RUNTIME(ProfilerStop, ()) { return OK; }

// Addresses and memory apart, for torch's expandable segments. All of the addresses have memory.
#ifdef HIP
#define VIRTUAL(name, parameters) RUNTIME(name, parameters)
#else
#define VIRTUAL(name, parameters)                                                              \
  extern "C" __attribute__((visibility("default"))) int our_##name parameters __asm__("cu" #name); \
  extern "C" int our_##name parameters
#endif
VIRTUAL(MemAddressReserve, (void** into, Size size, Size, void*, unsigned long long)) {
  const auto flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  *into = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, -1, 0);
  // The driver's errors are not those that the runtime remembers.
  return *into == MAP_FAILED ? NO_MEMORY : OK;
}
VIRTUAL(MemAddressFree, (void* address, Size size)) { munmap(address, size); return OK; }
VIRTUAL(MemCreate, (uintptr_t * into, Size size, const void*, unsigned long long)) {
  if (taken + size > MEMORY) {
    return NO_MEMORY;
  }
  taken += size;
  handle(into);
  const std::lock_guard<std::mutex> hold(lock());
  created()[*into] = size;
  return OK;
}
VIRTUAL(MemRelease, (uintptr_t handle)) {
  const std::lock_guard<std::mutex> hold(lock());
  taken -= created()[handle];
  created().erase(handle);
  return OK;
}
VIRTUAL(MemMap, (void*, Size, Size, void*, unsigned long long)) { return OK; }
VIRTUAL(MemUnmap, (void* address, Size size)) { return fill(address, 0, size); }
VIRTUAL(MemSetAccess, (void*, Size, const void*, Size)) { return OK; }
VIRTUAL(MemGetAllocationGranularity, (Size * bytes, const void*, Int)) { *bytes = 1 << 21; return OK; }

// Of the driver below the runtime. Multicast and green contexts need more; they are refused.
RUNTIME(GetDriverEntryPoint, (const char* name, void** into, unsigned long long, Int* status)) {
  void* ours = dlsym(RTLD_DEFAULT, name);
  *into = ours != nullptr ? ours : reinterpret_cast<void*>(&unsupported);
  if (status != nullptr) {
    *status = 0;
  }
  return OK;
}
RUNTIME(GetDriverEntryPointByVersion, (const char* name, void** into, Flags, unsigned long long flags, Int* status)) {
  return our_GetDriverEntryPoint(name, into, flags, status);
}
#ifdef HIP
RUNTIME(DevicePrimaryCtxGetState, (Int, Flags* flags, Int* active)) { *flags = 0; *active = 1; return OK; }
RUNTIME(Init, (Flags)) { return OK; }
RUNTIME(CtxGetCurrent, (void** context)) { *context = nullptr; return OK; }
#else
// This library has the name of NVIDIA's driver, too, which torch loads by it.
#define DRIVER(name, parameters) \
  extern "C" __attribute__((visibility("default"))) int name parameters
DRIVER(cuInit, (Flags)) { return OK; }
DRIVER(cuDevicePrimaryCtxGetState, (Int, Flags* flags, Int* active)) { *flags = 0; *active = 1; return OK; }
DRIVER(cuCtxGetCurrent, (void** context)) { *context = nullptr; return OK; }
DRIVER(cuCtxSetCurrent, (void*)) { return OK; }
DRIVER(cuDeviceGet, (Int * device, Int)) { *device = 0; return OK; }
DRIVER(cuDeviceGetAttribute, (Int * value, Int, Int)) { *value = 0; return OK; }
DRIVER(cuDeviceGetCount, (Int * count)) { *count = 1; return OK; }
DRIVER(cuDriverGetVersion, (Int * version)) { *version = VERSION; return OK; }
#endif
