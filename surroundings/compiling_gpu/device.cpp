// The device below torch: memory that can't be read, and operators that know shapes only.
//
// A build of torch for the CPU has the dispatch key CUDA, which is also ROCm's, and nothing behind
// it. This registers the least that makes tensors there ordinary ones: a guard, the hooks that say
// that there is a device, an allocator, the operators that change views and storages, and for all
// other operators one fallback that asks their meta kernels for shapes. Memory is reserved address
// space without access: a read is a segmentation fault, never a number. What a program needs a
// result for fails with a RuntimeError.
#include <ATen/EmptyTensor.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::IntArrayRef;
using c10::IValue;
using c10::Stream;
using c10::Storage;

namespace {

const Device GPU(DeviceType::CUDA, 0);
const auto NOT_RUN = "compiling_gpu: this device compiles and does not run, so there is no result: ";

[[noreturn]] void no_result(const std::string& what) {
  TORCH_CHECK(false, NOT_RUN, what);
}

// Memory: reserved addresses. Counters stand for torch.cuda.memory_allocated() and the like.
std::atomic<size_t> allocated{0}, peak{0}, capacity{SIZE_MAX};

// What the host itself said, such as the 2 of torch.full([], 2), is known. Inductor folds such
// constants by running them on the device, so a small block has a copy on the CPU. Operators run on it
// as long as all that goes in is known. Only compilers may read it (see ask).
constexpr size_t SMALL = 1024;

struct Block {
  void* address;
  size_t size;
  std::unique_ptr<Storage> copy;
  bool known = false;
};

// Whether a compiler asks; Python sets it, as only Python sees who calls.
bool (*compiler_asks)() = nullptr;

void ask(const std::string& what) {
  if (compiler_asks == nullptr || !compiler_asks()) {
    no_result(what);
  }
}

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  munmap(block->address, block->size);
  allocated -= block->size;
  delete block;
}

struct Reserve final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    if (size == 0) {
      return {nullptr, GPU};
    }
    if (allocated + size > capacity) {
      TORCH_CHECK_WITH(
          OutOfMemoryError, false, "compiling_gpu: out of memory: ", size, " bytes asked for, ",
          allocated.load(), " of ", capacity.load(), " are taken");
    }
    void* address = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(address != MAP_FAILED, "compiling_gpu: no address space for ", size, " bytes");
    allocated += size;
    peak = std::max(peak.load(), allocated.load());
    auto block = std::make_unique<Block>(Block{address, size});
    if (size <= SMALL) {
      auto* cpu = c10::GetAllocator(DeviceType::CPU);
      block->copy = std::make_unique<Storage>(Storage::use_byte_size_t(), size, cpu, false);
    }
    return {address, block.release(), &release, GPU};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }
  void copy_data(void*, const void*, size_t) const override {}
};
Reserve memory;

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
  c10::Allocator* getCUDADeviceAllocator() const override { return &memory; }
  void deviceSynchronize(DeviceIndex) const override {}
  const at::Generator& getDefaultGenerator(DeviceIndex) const override {
    static const auto generator = at::make_generator<Generator>();
    return generator;
  }
  at::Generator getNewGenerator(DeviceIndex) const override { return at::make_generator<Generator>(); }
};

// Tensors.
const c10::DispatchKeySet KEYS(c10::DispatchKey::CUDA);

Tensor strided(IntArrayRef size, IntArrayRef stride, c10::ScalarType dtype) {
  return at::detail::empty_strided_generic(size, stride, &memory, KEYS, dtype);
}

Tensor empty(
    IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
    std::optional<Device>, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory, KEYS, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    IntArrayRef size, IntArrayRef stride, std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout>, std::optional<Device>, std::optional<bool>) {
  return strided(size, stride, c10::dtype_or_default(dtype));
}

const Tensor& resize_(const Tensor& self, IntArrayRef size, std::optional<c10::MemoryFormat> format) {
  auto made = at::detail::empty_generic(size, &memory, KEYS, self.scalar_type(), format);
  auto* impl = self.unsafeGetTensorImpl();
  if (made.storage().nbytes() > self.storage().nbytes()) {
    impl->set_storage_keep_dtype(made.storage());
  }
  impl->set_sizes_and_strides(made.sizes(), made.strides());
  return self;
}

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

Block* block(const Tensor& tensor) {
  return static_cast<Block*>(tensor.storage().data_ptr().get_context());
}

bool on_gpu(const Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == DeviceType::CUDA;
}

// The copy on the CPU; undefined where there is none.
Tensor copy_of(const Tensor& tensor) {
  if (!on_gpu(tensor)) {
    return tensor;
  }
  auto* its = block(tensor);
  if (its == nullptr || its->copy == nullptr) {
    return {};
  }
  auto copy = at::empty({0}, at::TensorOptions().dtype(tensor.dtype()));
  return copy.set_(*its->copy, tensor.storage_offset(), tensor.sizes(), tensor.strides());
}

bool known(const Tensor& tensor) {
  return !on_gpu(tensor) || (block(tensor) != nullptr && block(tensor)->known);
}

bool fills(const Tensor& tensor) {
  return tensor.numel() * tensor.itemsize() == static_cast<int64_t>(tensor.storage().nbytes());
}

void set_known(const Tensor& tensor, bool value) {
  if (auto* its = block(tensor)) {
    its->known = value && its->copy != nullptr;
  }
}

Tensor& copy_(Tensor& self, const Tensor& source, bool) {
  if (!on_gpu(self)) {
    ask("a copy to the CPU");
    if (!known(source)) {
      no_result("a copy to the CPU");
    }
    return self.copy_(copy_of(source));
  }
  (void)at::infer_size(self.sizes(), source.sizes());
  const auto copy = copy_of(self);
  const bool knows = copy.defined() && known(source) && (known(self) || fills(self));
  if (knows) {
    at::NoGradGuard guard;
    copy.copy_(copy_of(source));
  }
  set_known(self, knows);
  return self;
}

c10::Scalar local_scalar_dense(const Tensor& self) {
  const auto what = "a number from a tensor, as .item() and if ask for it";
  ask(what);
  if (!known(self)) {
    no_result(what);
  }
  return copy_of(self).item();
}

// How many there are depends on values.
void depends_on_values(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) {
  no_result(op.schema().operator_name().name + " makes as many elements as the values say");
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

// All other operators: their meta kernel tells what comes out.
struct Meta {
  std::map<c10::TensorImpl*, Tensor> made;

  IValue of(const IValue& value) {
    if (value.isTensor()) {
      const auto& tensor = value.toTensor();
      return tensor.defined() && tensor.device().type() == DeviceType::CUDA ? IValue(of(tensor)) : value;
    }
    if (value.isDevice()) {
      return value.toDevice().type() == DeviceType::CUDA ? IValue(Device(DeviceType::Meta)) : value;
    }
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& one : value.toTensorVector()) {
        list.push_back(of(IValue(one)).toTensor());
      }
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const std::optional<Tensor>& one : value.toOptionalTensorList()) {
        list.push_back(one ? std::optional<Tensor>(of(IValue(*one)).toTensor()) : one);
      }
      return list;
    }
    return value;
  }

  Tensor of(const Tensor& tensor) {
    auto& meta = made[tensor.unsafeGetTensorImpl()];
    if (!meta.defined()) {
      meta = at::detail::empty_strided_meta(
          tensor.sizes(), tensor.strides(), tensor.scalar_type(), std::nullopt, std::nullopt, std::nullopt);
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
        meta.unsafeGetTensorImpl()->set_wrapped_number(true);
      }
    }
    return meta;
  }

  // The tensor of the GPU for one of the meta kernel's: one that came in, a view of one, or a new one.
  Tensor back(const Tensor& meta, const std::vector<Tensor>& given) const {
    if (!meta.defined() || meta.device().type() != DeviceType::Meta) {
      return meta;
    }
    for (const Tensor& tensor : given) {
      const Tensor& before = made.at(tensor.unsafeGetTensorImpl());
      if (before.is_same(meta)) {
        if (tensor.sizes() != meta.sizes()) {
          resize_(tensor, meta.sizes(), std::nullopt);
          tensor.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes(), meta.strides());
        }
        return tensor;
      }
      if (before.storage().is_alias_of(meta.storage()) && before.dtype() == meta.dtype()) {
        return at::native::as_strided_tensorimpl(
            tensor, meta.sizes(), meta.strides(), tensor.storage_offset() + meta.storage_offset());
      }
    }
    return strided(meta.sizes(), meta.strides(), meta.scalar_type());
  }
};

template <typename Visit>
void each(const IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const Tensor& one : value.toTensorVector()) {
      visit(one);
    }
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<Tensor>& one : value.toOptionalTensorList()) {
      if (one) {
        visit(*one);
      }
    }
  }
}

// The results that an operator has on the copies, if all that goes in is known and small.
std::optional<torch::jit::Stack> on_copies(const c10::OperatorHandle& op, at::ArrayRef<IValue> arguments) {
  const auto& schema = op.schema();
  if (op.hasTag(at::Tag::nondeterministic_seeded)) {
    return std::nullopt;
  }
  torch::jit::Stack stack;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& value = arguments[i];
    const auto* alias = schema.arguments()[i].alias_info();
    const bool written = alias != nullptr && alias->isWrite();
    // fill_ and its like, and out=, overwrite what they write to. Others read it first.
    const auto& name = schema.operator_name();
    const bool overwrites = written &&
        (schema.arguments()[i].is_out() || name.name == "aten::fill_" || name.name == "aten::zero_");
    bool serves = true;
    each(value, [&](const Tensor& one) {
      const auto copy = one.defined() ? copy_of(one) : one;
      const bool small = !one.defined() || (copy.defined() && copy.nbytes() <= SMALL);
      serves = serves && small && (!one.defined() || known(one) || (overwrites && fills(one)));
    });
    if (!serves) {
      return std::nullopt;
    }
    if (value.isTensor() && value.toTensor().defined()) {
      stack.emplace_back(copy_of(value.toTensor()));
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      each(value, [&](const Tensor& one) { list.push_back(copy_of(one)); });
      stack.emplace_back(std::move(list));
    } else if (value.isOptionalTensorList()) {
      return std::nullopt;
    } else if (value.isDevice() && value.toDevice().type() == DeviceType::CUDA) {
      stack.emplace_back(Device(DeviceType::CPU));
    } else {
      stack.push_back(value);
    }
  }
  try {
    op.callBoxed(&stack);
  } catch (const c10::NotImplementedError&) {
    return std::nullopt; // An operator of GPUs alone.
  }
  return stack;
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto count = schema.arguments().size();
  const auto arguments = torch::jit::last(*stack, count).vec();
  Meta meta;
  std::vector<Tensor> given, written;
  torch::jit::Stack inner;
  for (size_t i = 0; i < count; ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    each(arguments[i], [&](const Tensor& one) {
      if (on_gpu(one)) {
        given.push_back(one);
        if (alias != nullptr && alias->isWrite()) {
          written.push_back(one);
        }
      }
    });
    inner.push_back(meta.of(arguments[i]));
  }
  try {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &inner);
  } catch (const c10::NotImplementedError&) {
    no_result(schema.operator_name().name + " has no meta kernel");
  }
  for (const auto& value : inner) {
    each(value, [&](const Tensor& one) { (void)meta.back(one, written); });
  }
  const auto values = on_copies(op, arguments);
  for (const auto& one : written) {
    set_known(one, values.has_value());
  }
  torch::jit::drop(*stack, count);
  for (size_t i = 0; i < inner.size(); ++i) {
    const auto& value = inner[i];
    if (value.isTensor()) {
      auto result = meta.back(value.toTensor(), given);
      const bool made = on_gpu(result) &&
          std::none_of(given.begin(), given.end(), [&](const Tensor& one) {
            return one.storage().is_alias_of(result.storage());
          });
      if (values && made && fills(result) && copy_of(result).defined()) {
        copy_of(result).copy_((*values)[i].toTensor());
        set_known(result, true);
      }
      stack->emplace_back(std::move(result));
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      each(value, [&](const Tensor& one) { list.push_back(meta.back(one, given)); });
      stack->emplace_back(std::move(list));
    } else {
      stack->push_back(value);
    }
  }
}

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("resize_", &resize_);
  m.impl("set_.source_Storage", &set_source);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("copy_", &copy_);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("record_stream", &record_stream);
  // These choose a library by the device in C++, and have meta kernels besides.
  for (const auto* name : {"convolution", "convolution_backward"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
  for (const auto* name : {"nonzero", "masked_select", "_unique2", "equal"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&depends_on_values>());
  }
}

const bool chosen = (at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&attention), true);

} // namespace

namespace at {
using ::CUDAHooks;
REGISTER_CUDA_HOOKS(CUDAHooks);
} // namespace at

extern "C" {
void compiling_gpu_asks(bool (*function)()) {
  compiler_asks = function;
}
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
