// Memory that can't be read: reserved address space without access. A read is a segmentation fault,
// never a number. What a program needs a result for fails with a RuntimeError.
#pragma once
#include "cpu_build.h"

#include <ATen/ExpandUtils.h>

#include <memory>

namespace unreadable {

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
    take(size);
    void* address = reserve(size, PROT_NONE);
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
Block* block(const Tensor& tensor) {
  return static_cast<Block*>(tensor.storage().data_ptr().get_context());
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
  const Call call(op, stack);
  Meta meta;
  torch::jit::Stack inner;
  try {
    inner = call.shapes(meta);
  } catch (const c10::NotImplementedError&) {
    no_result(op.schema().operator_name().name + " has no meta kernel");
  }
  const auto values = on_copies(op, call.arguments);
  for (const auto& one : call.written) {
    set_known(one, values.has_value());
  }
  torch::jit::drop(*stack, call.arguments.size());
  for (size_t i = 0; i < inner.size(); ++i) {
    const auto& value = inner[i];
    if (value.isTensor()) {
      auto result = meta.back(value.toTensor(), call.given);
      const bool made = on_gpu(result) &&
          std::none_of(call.given.begin(), call.given.end(), [&](const Tensor& one) {
            return one.storage().is_alias_of(result.storage());
          });
      if (values && made && fills(result) && copy_of(result).defined()) {
        copy_of(result).copy_((*values)[i].toTensor());
        set_known(result, true);
      }
      stack->emplace_back(std::move(result));
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      each(value, [&](const Tensor& one) { list.push_back(meta.back(one, call.given)); });
      stack->emplace_back(std::move(list));
    } else {
      stack->push_back(value);
    }
  }
}

void register_operators(torch::Library& m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("copy_", &copy_);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  // These choose a library by the device in C++, and have meta kernels besides.
  for (const auto* name : {"convolution", "convolution_backward"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
  for (const auto* name : {"nonzero", "masked_select", "_unique2", "equal"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&depends_on_values>());
  }
}

} // namespace unreadable

extern "C" void compiling_gpu_asks(bool (*function)()) {
  unreadable::compiler_asks = function;
}
