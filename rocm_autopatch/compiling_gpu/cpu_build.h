// What a CPU build of torch lacks for a device: guard, hooks, generator, and changes of storages.
#pragma once
#include "shapes.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace {

// Counters stand for torch.cuda.memory_allocated() and the like.
std::atomic<size_t> allocated{0}, peak{0}, capacity{SIZE_MAX};

void take(size_t size) {
  if (allocated + size > capacity) {
    TORCH_CHECK_WITH(
        OutOfMemoryError, false, "compiling_gpu: out of memory: ", size, " bytes asked for, ",
        allocated.load(), " of ", capacity.load(), " are taken");
  }
  allocated += size;
  peak = std::max(peak.load(), allocated.load());
}

// Addresses of the system, without memory before they are used.
void* reserve(size_t size, int access) {
  const auto flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* address = mmap(nullptr, size, access, flags, -1, 0);
  TORCH_CHECK(address != MAP_FAILED, "compiling_gpu: no address space for ", size, " bytes");
  return address;
}

// Memory of the host that begins as zeros.
struct HostMemory final : c10::Allocator {
  struct Range {
    void* address;
    size_t size;
  };
  // Smaller ones are the heap's: a process may have 65,530 maps.
  static constexpr size_t MAPPED = 1 << 16;

  static void release(void* context) {
    auto* range = static_cast<Range*>(context);
    if (range->size < MAPPED) {
      std::free(range->address);
    } else {
      munmap(range->address, range->size);
    }
    allocated -= range->size;
    delete range;
  }

  c10::DataPtr allocate(size_t size) override {
    if (size == 0) {
      return {nullptr, GPU};
    }
    take(size);
    void* address = nullptr;
    if (size >= MAPPED) {
      address = reserve(size, PROT_READ | PROT_WRITE);
    } else {
      // Compilers ask how an address is aligned; CUDA's and HIP's memory is by 512 bytes.
      TORCH_CHECK(posix_memalign(&address, 512, size) == 0, "compiling_gpu: no memory on the host");
      std::memset(address, 0, size);
    }
    return {address, new Range{address, size}, &release, GPU};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }
};

// The guard and the hooks: there is one device, and one stream.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device) const override { return GPU; }
  Device getDevice() const override { return GPU; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, GPU); }
  Stream getDefaultStream(Device) const override { return Stream(Stream::DEFAULT, GPU); }
  Stream getNewStream(Device, int) const override { return Stream(Stream::DEFAULT, GPU); }
  Stream getStreamFromGlobalPool(Device, bool) const override { return Stream(Stream::DEFAULT, GPU); }
  Stream exchangeStream(Stream) const noexcept override { return Stream(Stream::DEFAULT, GPU); }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
};
const c10::impl::DeviceGuardImplRegistrar guard(DeviceType::CUDA, new Guard());

// Seeds and states are kept as a CPU generator keeps them. Nothing is ever drawn from it.
struct Generator final : at::CPUGeneratorImpl {
  Generator() {
    device_ = GPU;
  }
};

struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasROCM() const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  int getNumGPUs() const override { return 1; }
  bool isPinnedPtr(const void*) const override { return false; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(DeviceType::CPU); }
  c10::Allocator* getCUDADeviceAllocator() const override { return device_memory(); }
  void deviceSynchronize(DeviceIndex) const override {}
  const at::Generator& getDefaultGenerator(DeviceIndex) const override {
    static const auto generator = at::make_generator<Generator>();
    return generator;
  }
  at::Generator getNewGenerator(DeviceIndex) const override { return at::make_generator<Generator>(); }
};

Tensor& set_storage(Tensor& self, Storage storage, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  if (stride.data() == nullptr) {
    impl->set_sizes_contiguous(size);
    impl->set_storage_offset(offset);
  } else {
    impl->set_sizes_and_strides(size, stride, offset);
  }
  return self;
}

Tensor& set_source(Tensor& self, Storage storage) {
  const int64_t count = storage.nbytes() / self.dtype().itemsize();
  return set_storage(self, std::move(storage), 0, {count}, {});
}

void record_stream(Tensor&, Stream) {}

// torch chooses the attention kernel in C++ that only a GPU build has. This is ROCm's order: flash
// for half precision without a mask, then the memory-efficient kernel.
int64_t attention(
    const Tensor& query, const Tensor&, const Tensor&, const std::optional<Tensor>& mask, double,
    bool, std::optional<double>, bool) {
  const auto& context = at::globalContext();
  const bool half = query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16;
  if (half && !mask.has_value() && context.userEnabledFlashSDP()) {
    return static_cast<int64_t>(sdp::SDPBackend::flash_attention);
  }
  if (context.userEnabledMemEfficientSDP()) {
    return static_cast<int64_t>(sdp::SDPBackend::efficient_attention);
  }
  return static_cast<int64_t>(sdp::SDPBackend::math);
}


void register_views(torch::Library& m) {
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("resize_", &resize_);
  m.impl("set_.source_Storage", &set_source);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("record_stream", &record_stream);
}

const bool chosen = (at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&attention), true);

} // namespace

namespace at {
using ::CUDAHooks;
REGISTER_CUDA_HOOKS(CUDAHooks);
} // namespace at

extern "C" {
void compiling_gpu_capacity(size_t bytes) {
  capacity = bytes;
}
size_t compiling_gpu_allocated() {
  return allocated;
}
size_t compiling_gpu_peak() {
  return peak;
}
void compiling_gpu_reset_peak() {
  peak = allocated.load();
}
}
