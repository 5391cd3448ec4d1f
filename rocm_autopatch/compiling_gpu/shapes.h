// Operators that know shapes only: what both kinds of memory share.
#pragma once
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/as_strided_native.h>
#include <torch/library.h>

#include <algorithm>
#include <functional>
#include <map>

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::IntArrayRef;
using c10::IValue;
using c10::Storage;
using c10::Stream;

namespace {

const Device GPU(DeviceType::CUDA, 0);
const c10::DispatchKeySet KEYS(c10::DispatchKey::CUDA);
const auto NOT_RUN = "compiling_gpu: this device compiles and does not run, so there is no result: ";

[[noreturn]] void no_result(const std::string& what) {
  TORCH_CHECK(false, NOT_RUN, what);
}

// New memory of the device, and what makes it zeros again where it may have been used before.
c10::Allocator* device_memory();
void make_zero(void* address, size_t size);

Tensor strided(IntArrayRef size, IntArrayRef stride, c10::ScalarType dtype) {
  auto made = at::detail::empty_strided_generic(size, stride, device_memory(), KEYS, dtype);
  make_zero(made.storage().mutable_data(), made.storage().nbytes());
  return made;
}

Tensor empty(
    IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
    std::optional<Device>, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  auto made =
      at::detail::empty_generic(size, device_memory(), KEYS, c10::dtype_or_default(dtype), format);
  make_zero(made.storage().mutable_data(), made.storage().nbytes());
  return made;
}

Tensor empty_strided(
    IntArrayRef size, IntArrayRef stride, std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout>, std::optional<Device>, std::optional<bool>) {
  return strided(size, stride, c10::dtype_or_default(dtype));
}

const Tensor& resize_(const Tensor& self, IntArrayRef size, std::optional<c10::MemoryFormat> format) {
  auto made =
      at::detail::empty_generic(size, device_memory(), KEYS, self.scalar_type(), format);
  auto* impl = self.unsafeGetTensorImpl();
  if (made.storage().nbytes() > self.storage().nbytes()) {
    make_zero(made.storage().mutable_data(), made.storage().nbytes());
    impl->set_storage_keep_dtype(made.storage());
  }
  impl->set_sizes_and_strides(made.sizes(), made.strides());
  return self;
}

bool on_gpu(const Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == DeviceType::CUDA;
}

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

// An argument with other tensors in place of the GPU's, and another device in place of the GPU.
IValue translate(
    const IValue& value, DeviceType device, const std::function<Tensor(const Tensor&)>& other) {
  const auto of = [&](const Tensor& tensor) { return on_gpu(tensor) ? other(tensor) : tensor; };
  if (value.isTensor()) {
    return of(value.toTensor());
  }
  if (value.isDevice()) {
    return value.toDevice().type() == DeviceType::CUDA ? IValue(Device(device)) : value;
  }
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& one : value.toTensorVector()) {
      list.push_back(of(one));
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const std::optional<Tensor>& one : value.toOptionalTensorList()) {
      list.push_back(one ? std::optional<Tensor>(of(*one)) : one);
    }
    return list;
  }
  return value;
}

// What an operator's meta kernel takes for the GPU's tensors, and says of what comes out.
struct Meta {
  std::map<c10::TensorImpl*, Tensor> made;

  IValue of(const IValue& value) {
    return translate(value, DeviceType::Meta, [this](const Tensor& tensor) { return of(tensor); });
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

// An operator's arguments, and those tensors of the GPU among them that it reads or writes.
struct Call {
  const c10::OperatorHandle& op;
  std::vector<IValue> arguments;
  std::vector<Tensor> given, written;

  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack) : op(op) {
    const auto& schema = op.schema();
    const auto count = schema.arguments().size();
    arguments = torch::jit::last(*stack, count).vec();
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
    }
  }

  // What the meta kernel returns. Written tensors get the size that it gives them.
  torch::jit::Stack shapes(Meta& meta) const {
    torch::jit::Stack inner;
    for (const auto& value : arguments) {
      inner.push_back(meta.of(value));
    }
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &inner);
    for (const auto& value : inner) {
      each(value, [&](const Tensor& one) { (void)meta.back(one, written); });
    }
    return inner;
  }
};

} // namespace
