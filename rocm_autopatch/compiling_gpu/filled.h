// Memory to fill: it is the host's, and begins as zeros. Small operators are run on the CPU.
#pragma once
#include "shapes.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ExpandUtils.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/set_native.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>

namespace filled {

// An operator is run if all that goes in and comes out has at most so many bytes. What steers a
// program is smaller: token and position ids, lengths, masks (a causal one of 1024 x 1024 booleans
// has just as many), counters, losses. Weights and activations are mostly larger, and their
// values would be worth nothing after the first kernel that is not run. One core does such an
// operator in a millisecond or less.
constexpr int64_t LARGEST = 1 << 20;

// What takes the CPU longer than its bytes say, and steers nothing.
constexpr const char* HEAVY[] = {
    "convolution", "_convolution", "conv_", "cudnn_", "_cudnn_", "miopen_", "mkldnn_", "slow_conv", "lstm",
    "gru", "_scaled_dot_product", "_flash_", "_efficient_attention", "_transformer",
};

// How often values were asked for, which are zeros where a kernel was not run.
std::atomic<size_t> reads{0};
// Operators that neither a CPU nor a meta kernel could stand for.
std::atomic<size_t> run_on_cpu{0}, left_zero{0};

// A large range is given back to the system, which makes it zeros and costs no memory. It must be
// private and anonymous, as all of the device's memory is.
void zero(void* address, size_t size) {
  if (size == 0) {
    return;
  }
  constexpr uintptr_t PAGE = 4096;
  const auto begin = reinterpret_cast<uintptr_t>(address), end = begin + size;
  const auto first = (begin + PAGE - 1) / PAGE * PAGE, last = end / PAGE * PAGE;
  if (size < 16 * PAGE || madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED) != 0) {
    std::memset(address, 0, size);
    return;
  }
  std::memset(address, 0, first - begin);
  std::memset(reinterpret_cast<void*>(last), 0, end - last);
}

bool dense(const Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense();
}

int64_t bytes(const Tensor& tensor) {
  return tensor.defined() ? tensor.numel() * static_cast<int64_t>(tensor.itemsize()) : 0;
}

// CPU tensors over the memory of the device's.
struct Host {
  std::map<c10::StorageImpl*, Storage> storages;
  std::vector<std::pair<Tensor, Tensor>> made;

  Tensor of(const Tensor& tensor) {
    for (const auto& [gpu, cpu] : made) {
      if (gpu.is_same(tensor)) {
        return cpu;
      }
    }
    const auto& storage = tensor.storage();
    auto& shared = storages[storage.unsafeGetStorageImpl()];
    if (!shared) {
      shared = Storage(
          Storage::use_byte_size_t(), storage.nbytes(),
          c10::DataPtr(storage.mutable_data(), Device(DeviceType::CPU)), nullptr, false);
    }
    auto cpu = at::detail::make_tensor<c10::TensorImpl>(
        Storage(shared), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
    auto* impl = cpu.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      impl->set_wrapped_number(true);
    }
    made.emplace_back(tensor, cpu);
    return cpu;
  }
};

Tensor host(const Tensor& tensor) {
  return on_gpu(tensor) ? Host().of(tensor) : tensor;
}

// Random numbers are drawn from a generator of our own, so that the program's CPU draws what it
// would draw beside a GPU.
at::Generator& generator() {
  static auto made = at::make_generator<at::CPUGeneratorImpl>();
  return made;
}

struct KeepGenerator {
  at::Generator cpu = at::detail::getDefaultCPUGenerator();
  Tensor state;
  explicit KeepGenerator(bool draws) {
    if (draws) {
      state = cpu.get_state();
    }
  }
  ~KeepGenerator() {
    if (state.defined()) {
      cpu.set_state(state);
    }
  }
};

// Run the operator on the CPU, over the device's memory. What it returns are the CPU's tensors.
torch::jit::Stack run(const Call& call, Host& shared) {
  c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset);
  c10::impl::ExcludeDispatchKeyGuard no_view(c10::DispatchKey::ADInplaceOrView);
  const auto& schema = call.op.schema();
  bool draws = call.op.hasTag(at::Tag::nondeterministic_seeded);
  torch::jit::Stack stack;
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    const auto& type = *schema.arguments()[i].type();
    if (type.str().rfind("Generator", 0) == 0) {
      stack.emplace_back(generator());
      draws = false;
    } else {
      stack.push_back(translate(
          call.arguments[i], DeviceType::CPU, [&](const Tensor& one) { return shared.of(one); }));
    }
  }
  const KeepGenerator keep(draws);
  call.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  ++run_on_cpu;
  return stack;
}

// The device's tensor for the CPU's: one that came in, or a new one with its values.
Tensor back(const Tensor& cpu, const Host& shared) {
  if (!cpu.defined()) {
    return cpu;
  }
  for (const auto& [gpu, alias] : shared.made) {
    if (alias.is_same(cpu)) {
      return gpu;
    }
  }
  auto made = strided(cpu.sizes(), cpu.strides(), cpu.scalar_type());
  host(made).copy_(cpu);
  return made;
}

void all_back(torch::jit::Stack& results, const Host& shared) {
  for (auto& value : results) {
    if (value.isTensor()) {
      value = back(value.toTensor(), shared);
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      each(value, [&](const Tensor& one) { list.push_back(back(one, shared)); });
      value = list;
    }
  }
}

void give(torch::jit::Stack* stack, size_t count, torch::jit::Stack results) {
  torch::jit::drop(*stack, count);
  for (auto& value : results) {
    stack->emplace_back(std::move(value));
  }
}

// How many elements come out, or what the program does next, depends on values.
void run_by_values(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  ++reads;
  const Call call(op, stack);
  Host shared;
  auto results = run(call, shared);
  all_back(results, shared);
  give(stack, call.arguments.size(), std::move(results));
}

bool heavy(const std::string& name) {
  const auto base = name.substr(name.find("::") + 2);
  return std::any_of(std::begin(HEAVY), std::end(HEAVY), [&](const char* word) {
    return base.rfind(word, 0) == 0;
  });
}

// A boolean index stands for as many elements as it has true ones.
bool selects(const Call& call) {
  bool found = false;
  for (const auto& value : call.arguments) {
    if (value.isOptionalTensorList()) {
      each(value, [&](const Tensor& one) {
        found = found || one.scalar_type() == at::kBool || one.scalar_type() == at::kByte;
      });
    }
  }
  return found;
}

// Copy what the CPU made into the device's new tensors; what it wrote to is there already.
IValue with_values(const IValue& ours, const IValue& cpu, const Host& shared) {
  std::vector<Tensor> into, from;
  each(ours, [&](const Tensor& one) { into.push_back(one); });
  each(cpu, [&](const Tensor& one) { from.push_back(one); });
  if (into.empty() && !ours.isTensorList()) {
    return cpu;
  }
  for (size_t i = 0; i < std::min(into.size(), from.size()); ++i) {
    const auto is = [&](const auto& pair) { return pair.second.is_same(from[i]); };
    const bool written = std::any_of(shared.made.begin(), shared.made.end(), is);
    if (from[i].defined() && on_gpu(into[i]) && !written && into[i].sizes() == from[i].sizes()) {
      host(into[i]).copy_(from[i]);
    }
  }
  return ours;
}

torch::jit::Stack results_without_shapes(const Call& call) {
  Host shared;
  torch::jit::Stack results;
  try {
    results = run(call, shared);
  } catch (const c10::NotImplementedError&) {
    const auto& schema = call.op.schema();
    const auto in_place = std::all_of(
        schema.returns().begin(), schema.returns().end(),
        [](const auto& one) { return one.alias_info() != nullptr && one.alias_info()->isWrite(); });
    if (!in_place || schema.returns().size() > call.written.size()) {
      no_result(schema.operator_name().name + " has neither a meta kernel nor one for a CPU");
    }
    return {call.written.begin(), call.written.begin() + schema.returns().size()};
  }
  all_back(results, shared);
  return results;
}

// A convolution comes out in the memory format of the library that torch chooses by the device. The
// meta kernel does not know it, and compiled code insists on it.
void as_library(const Call& call, torch::jit::Stack& results) {
  const bool backward = call.op.schema().operator_name().name == "aten::convolution_backward";
  const size_t first = backward ? 1 : 0;
  const auto& arguments = call.arguments;
  const auto& input = arguments[first].toTensor();
  const auto& weight = arguments[first + 1].toTensor();
  // As torch's fake tensors do, which see no library for three dimensions.
  if (weight.dim() < 4 || input.dim() != weight.dim() || input.numel() == 0) {
    return;
  }
  const auto ints = [&](size_t i) { return arguments[first + i].toSymIntVector(); };
  const auto stride = ints(3), padding = ints(4), dilation = ints(5), output_padding = ints(7);
  const auto sizes = backward && !arguments[3].isNone() ? ints(2) : std::vector<c10::SymInt>();
  const auto bias = backward ? std::optional<Tensor>() : arguments[2].toOptional<Tensor>();
  const auto library = at::native::select_conv_backend(
      input, weight, bias, stride, padding, dilation, arguments[first + 6].toBool(), output_padding,
      arguments[first + 8].toSymInt(),
      sizes.empty() ? at::OptionalSymIntArrayRef() : at::OptionalSymIntArrayRef(sizes));
  const auto format = at::native::_determine_backend_memory_format(input, weight, library);
  for (size_t i = 0; i < (backward ? 2 : 1); ++i) {
    if (results[i].isTensor() && results[i].toTensor().defined()) {
      results[i] = results[i].toTensor().contiguous(format);
    }
  }
}

// All operators that are not named below.
void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const Call call(op, stack);
  if (selects(call)) {
    run_by_values(op, keys, stack);
    return;
  }
  Meta meta;
  torch::jit::Stack inner;
  try {
    inner = call.shapes(meta);
  } catch (const c10::NotImplementedError&) {
    give(stack, call.arguments.size(), results_without_shapes(call));
    return;
  }
  const auto& name = op.schema().operator_name().name;
  if (name == "aten::convolution" || name == "aten::convolution_backward") {
    as_library(call, inner);
  }
  torch::jit::Stack results;
  int64_t size = 0;
  for (const auto& value : call.arguments) {
    each(value, [&](const Tensor& one) { size += bytes(one); });
  }
  for (const auto& value : inner) {
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      each(value, [&](const Tensor& one) { list.push_back(meta.back(one, call.given)); });
      results.emplace_back(std::move(list));
    } else {
      results.push_back(value.isTensor() ? IValue(meta.back(value.toTensor(), call.given)) : value);
    }
    each(results.back(), [&](const Tensor& one) { size += bytes(one); });
  }
  const auto& returns = op.schema().returns();
  // What comes out of these is memory that went in.
  const bool views = std::any_of(returns.begin(), returns.end(), [](const auto& one) {
    return one.alias_info() != nullptr && !one.alias_info()->isWrite();
  });
  if (!views && size <= LARGEST && !heavy(name)) {
    try {
      Host shared;
      const auto values = run(call, shared);
      for (size_t i = 0; i < results.size(); ++i) {
        results[i] = with_values(results[i], values[i], shared);
      }
    } catch (const std::exception&) {
      // No CPU kernel, not for this type, or values that it refuses: a GPU would not say so here.
      ++left_zero;
    }
  } else if (!views) {
    ++left_zero;
    if (name == "aten::zero_") {
      const auto& self = call.written.at(0);
      if (dense(self)) {
        zero(self.mutable_data_ptr(), bytes(self));
      } else {
        host(self).zero_();
      }
    }
  }
  give(stack, call.arguments.size(), std::move(results));
}

Tensor& copy_(Tensor& self, const Tensor& source, bool) {
  c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset);
  (void)at::infer_size(self.sizes(), source.sizes());
  if (!on_gpu(self)) {
    ++reads;
    host(self).copy_(host(source));
  } else if (bytes(self) <= LARGEST) {
    host(self).copy_(host(source));
  }
  return self;
}

c10::Scalar local_scalar_dense(const Tensor& self) {
  ++reads;
  return host(self).item();
}

// How many elements they make depends on values; or they are values.
constexpr const char* BY_VALUES[] = {
    "nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive",
    "unique_dim_consecutive", "equal", "bincount", "repeat_interleave.Tensor",
};

// torch chooses among libraries in C++ in these, by the device. They have meta kernels besides.
constexpr const char* CHOOSES[] = {"convolution", "convolution_backward"};

} // namespace filled
