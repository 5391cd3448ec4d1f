// The device below torch: memory, and operators that know shapes, or run where it costs little.
//
// A build of torch for the CPU has the dispatch key CUDA, which is also ROCm's, and nothing behind
// it. With CPU_BUILD, this registers the least that makes tensors there ordinary ones: a guard, the
// hooks that say that there is a device, an allocator, the operators that change views and
// storages, and for all other operators one fallback (filled.h, unreadable.h). A build for a GPU
// has all of that, above the runtime that runtime.cpp stands in for; there the fallback takes the
// place of each operator that would launch kernels or call a library.
#include "filled.h"
#ifdef CPU_BUILD
#include "cpu_build.h"
#include "unreadable.h"
#endif

#include <ATen/detail/CUDAHooksInterface.h>

namespace {

bool has_memory = false;

#ifdef CPU_BUILD
c10::Allocator* device_memory() {
  static HostMemory readable;
  static unreadable::Reserve reserved;
  return has_memory ? static_cast<c10::Allocator*>(&readable) : &reserved;
}

// Each allocation is new memory of the system's.
void make_zero(void*, size_t) {}
#else
c10::Allocator* device_memory() {
  return at::detail::getCUDAHooks().getCUDADeviceAllocator();
}

// torch's allocator has blocks that were used before.
void make_zero(void* address, size_t size) {
  filled::zero(address, size);
}
#endif

void register_filled(torch::Library& m) {
  using Function = torch::CppFunction;
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("copy_", &filled::copy_);
  m.impl("_local_scalar_dense", &filled::local_scalar_dense);
  for (const auto* name : filled::CHOOSES) {
    m.impl(name, Function::makeFromBoxedFunction<&filled::fallback>());
  }
  for (const auto* name : filled::BY_VALUES) {
    m.impl(name, Function::makeFromBoxedFunction<&filled::run_by_values>());
  }
}

#ifdef CPU_BUILD
void register_all() {
  using Function = torch::CppFunction;
  static torch::Library every(
      torch::Library::IMPL, "_", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  static torch::Library aten(
      torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  register_views(aten);
  if (has_memory) {
    every.fallback(Function::makeFromBoxedFunction<&filled::fallback>());
    register_filled(aten);
  } else {
    every.fallback(Function::makeFromBoxedFunction<&unreadable::fallback>());
    unreadable::register_operators(aten);
  }
}
#else
// These launch nothing, and call no library: they choose one, or change what a tensor refers to.
constexpr const char* KEPT[] = {
    "aten::_fused_sdp_choice", "aten::record_stream",  "aten::is_set_to", "aten::set_",
    "aten::resize_",           "aten::_use_cudnn_ctc", "aten::is_pinned",
};

bool kept(const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  const auto begins = [&](const char* name) { return schema.name().rfind(name, 0) == 0; };
  return std::any_of(std::begin(KEPT), std::end(KEPT), begins) ||
      // A view of what came in.
      std::any_of(returns.begin(), returns.end(), [](const auto& one) {
           return one.alias_info() != nullptr && !one.alias_info()->isWrite();
         });
}

// LSTMs and GRUs call cuDNN in C++ above the operators if this says so. Dynamo leaves them to eager
// mode, so no graph depends on it. (Not seen to: MIOpen, which a HIP build asks in another way.)
bool cudnn_is_acceptable(const Tensor&) {
  return false;
}

// Its meta kernel asks cuDNN. Weights stay where they are; nobody looks into the buffer.
Tensor flatten_weights(
    at::TensorList weights, int64_t, c10::SymInt, int64_t, c10::SymInt, c10::SymInt, int64_t, bool, bool) {
  int64_t count = 0;
  for (const auto& weight : weights) {
    count += weight.numel();
  }
  return strided({count}, {1}, weights[0].scalar_type());
}

struct Silent final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

void register_all() {
  // torch warns that the first one has a kernel already, which is what this is about.
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  static torch::Library aten(
      torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) {
      continue;
    }
    const auto op = dispatcher.findSchema(name);
    if (op && op->hasKernelForDispatchKey(c10::DispatchKey::CUDA) && !kept(op->schema())) {
      const auto full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
      aten.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&filled::fallback>());
    }
  }
  register_filled(aten);
  aten.impl("cudnn_is_acceptable", &cudnn_is_acceptable);
  aten.impl("_cudnn_rnn_flatten_weight", &flatten_weights);
}
#endif

} // namespace

extern "C" {
void compiling_gpu_start(bool fills) {
  has_memory = fills;
  register_all();
}
size_t compiling_gpu_reads() {
  return filled::reads;
}
size_t compiling_gpu_run_on_cpu() {
  return filled::run_on_cpu;
}
size_t compiling_gpu_left_zero() {
  return filled::left_zero;
}
}
