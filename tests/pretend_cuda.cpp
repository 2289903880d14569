// The pretend CUDA device of pretend_cuda.py, which says what this is for.
#include <torch/library.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/Tensor.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/conv2d.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <cstring>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace pretend {
using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;

const c10::Device kDevice(c10::kCUDA, 0);
std::atomic<int64_t> live_bytes{0};
std::atomic<int64_t> peak_bytes{0};
using Listener = void (*)(const char* kind, const char* op);
std::atomic<Listener> listener{nullptr};
std::unordered_set<std::string>& host_scalar_ops() { static std::unordered_set<std::string> s; return s; }
std::unordered_set<std::string>& missing_ops() { static std::unordered_set<std::string> s; return s; }

void tell(const char* kind, const char* op) {
  if (Listener l = listener.load()) l(kind, op);
}

// ---- memory ---------------------------------------------------------------------------------
struct Block { c10::DataPtr host; int64_t n; };
void free_block(void* b) {
  auto* block = static_cast<Block*>(b);
  live_bytes -= block->n;
  delete block;
}
c10::DataPtr on_device(c10::DataPtr host, int64_t n) {
  void* data = host.get();
  int64_t now = (live_bytes += n);
  int64_t peak = peak_bytes.load();
  while (now > peak && !peak_bytes.compare_exchange_weak(peak, now)) {}
  return {data, new Block{std::move(host), n}, &free_block, kDevice};
}
struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override { return on_device(c10::GetCPUAllocator()->allocate(n), (int64_t)n); }
  void copy_data(void* to, const void* from, size_t n) const override { std::memcpy(to, from, n); }
};
DeviceAllocator device_allocator;
static c10::AllocatorRegisterer<c10::DeviceType::CUDA> allocator_registration(&device_allocator);

// ---- generator: on the device by name, the host's Mersenne twister inside ----------------------
struct DeviceGenerator final : c10::GeneratorImpl {
  at::Generator host = at::detail::createCPUGenerator();
  DeviceGenerator() : GeneratorImpl(kDevice, DispatchKeySet(DispatchKey::CUDA)) {}
  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "the pretend generator has no offset"); }
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return host.seed(); }
  // The state has another length than the CPU's, so that neither generator takes the other's.
  void set_state(const c10::TensorImpl& state) override {
    auto inside = host.get_state();
    TORCH_CHECK(state.device().is_cpu() && state.dtype() == inside.dtype(), "RNG state must be a torch.ByteTensor");
    TORCH_CHECK(state.numel() == inside.numel() + kMark, "RNG state is wrong size");
    std::memcpy(inside.data_ptr(), static_cast<const uint8_t*>(state.data()) + kMark, inside.numel());
    host.set_state(inside);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto inside = at::Generator(host).get_state();
    Tensor marked(at::detail::empty_cpu({inside.numel() + kMark}, at::kByte));
    std::memset(marked.data_ptr(), 0, kMark);
    std::memcpy(static_cast<uint8_t*>(marked.data_ptr()) + kMark, inside.data_ptr(), inside.numel());
    return marked.getIntrusivePtr();
  }
  static constexpr int64_t kMark = 16;
  DeviceGenerator* clone_impl() const override {
    auto* g = new DeviceGenerator();
    g->host = host.clone();
    return g;
  }
};
const at::Generator& default_generator() {
  static at::Generator g = at::make_generator<DeviceGenerator>();
  return g;
}

// ---- hooks and guard ---------------------------------------------------------------------------
struct Hooks : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex = -1) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex = -1) const override { return at::make_generator<DeviceGenerator>(); }
  c10::Device getDeviceFromPtr(void*) const override { return kDevice; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  c10::Allocator* getCUDADeviceAllocator() const override { return &device_allocator; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  int getNumGPUs() const override { return 1; }
  void deviceSynchronize(c10::DeviceIndex) const override { tell("sync", "synchronize"); }
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = c10::DeviceType::CUDA;
  c10::DeviceType type() const override { return static_type; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool = false) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const override { return stream(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
};
static c10::impl::DeviceGuardImplRegistrar guard_registration(c10::DeviceType::CUDA, new Guard());

// ---- the same memory, seen from the host, and back ------------------------------------------------
Tensor seen_from_host(const Tensor& t) {
  const auto& storage = t.storage();
  c10::Storage host(c10::Storage::use_byte_size_t(), storage.nbytes(),
      c10::DataPtr(const_cast<void*>(storage.data()), c10::Device(c10::kCPU)), c10::GetCPUAllocator(), /*resizable=*/true);
  Tensor out = at::detail::make_tensor<c10::TensorImpl>(std::move(host), DispatchKeySet(DispatchKey::CPU), t.dtype());
  auto* impl = out.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  if (t.is_conj()) impl->_set_conj(true);
  if (t.is_neg()) impl->_set_neg(true);
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return out;
}
struct Holder { c10::Storage s; };
Tensor moved_to_device(const Tensor& t) {
  if (!t.defined() || !t.is_cpu()) return t;
  c10::Storage from = t.storage();
  void* data = const_cast<void*>(from.data());
  int64_t n = (int64_t)from.nbytes();
  c10::DataPtr keep(data, new Holder{from}, [](void* h) { delete static_cast<Holder*>(h); }, c10::Device(c10::kCPU));
  c10::Storage to(c10::Storage::use_byte_size_t(), n, on_device(std::move(keep), n), &device_allocator, true);
  Tensor out = at::detail::make_tensor<c10::TensorImpl>(std::move(to), DispatchKeySet(DispatchKey::CUDA), t.dtype());
  auto* impl = out.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  if (t.is_conj()) impl->_set_conj(true);
  if (t.is_neg()) impl->_set_neg(true);
  return out;
}
Tensor view_of(const Tensor& base, const Tensor& host) {
  Tensor out = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(), host.dtype());
  out.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
  return out;
}

// ---- every other operator: check what CUDA would check, then compute on the host ----------------
bool starts(const std::string& s, const char* p) { return s.rfind(p, 0) == 0; }

struct Call {
  const c10::OperatorHandle& op;
  std::string name;
  std::vector<std::pair<Tensor, Tensor>> pairs;  // on the device, the same on the host

  Tensor host(const Tensor& t) {
    for (auto& p : pairs) if (p.first.unsafeGetTensorImpl() == t.unsafeGetTensorImpl()) return p.second;
    pairs.emplace_back(t, seen_from_host(t));
    return pairs.back().second;
  }
  Tensor device(const Tensor& t) {
    if (!t.defined() || !t.is_cpu()) return t;
    for (auto& p : pairs) if (p.second.unsafeGetTensorImpl() == t.unsafeGetTensorImpl()) return p.first;
    for (auto& p : pairs) if (p.second.storage().unsafeGetStorageImpl() == t.storage().unsafeGetStorageImpl()) return view_of(p.first, t);
    return moved_to_device(t);
  }
  void refuse(const Tensor& t, const std::string& argument) {
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but got ", argument, " is on cpu (shape ", t.sizes(),
        "), different from other tensors on cuda:0 (when checking argument in method wrapper_CUDA_", name, ")");
  }
  c10::IValue in(const c10::IValue& v, const c10::Argument& a) {
    if (v.isTensor()) {
      const Tensor& t = v.toTensor();
      if (!t.defined()) return v;
      if (t.is_cuda()) {
        TORCH_CHECK(t.numel() == 0 || t.storage().data() != nullptr, "pretend device: a tensor without memory in ", name);
        return host(t);
      }
      TORCH_CHECK(t.is_cpu(), "unexpected device ", t.device());
      bool index = a.name() == "indices" && (starts(name, "index") || starts(name, "_index_put") || starts(name, "_unsafe_index"));
      bool scalar = t.dim() == 0 && !(a.alias_info() && a.alias_info()->isWrite()) &&
          (t.unsafeGetTensorImpl()->is_wrapped_number() || host_scalar_ops().count(name));
      if (!index && !scalar) refuse(t, a.name());
      return v;
    }
    if (v.isTensorList()) {
      std::vector<Tensor> out;
      for (const Tensor& t : v.toTensorVector()) out.push_back(in(c10::IValue(t), a).toTensor());
      return c10::IValue(out);
    }
    if (v.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> out;
      for (const auto& t : v.toOptionalTensorList()) {
        std::optional<Tensor> o = t;
        if (o.has_value() && o->defined()) out.push_back(in(c10::IValue(*o), a).toTensor());
        else out.push_back(o);
      }
      return c10::IValue(out);
    }
    if (v.isDevice()) return c10::IValue(c10::Device(c10::kCPU));
    if (v.isGenerator()) return generator(v.toGenerator());
    if (v.isNone() && a.type()->kind() == c10::TypeKind::OptionalType &&
        a.type()->castRaw<c10::OptionalType>()->getElementType()->kind() == c10::TypeKind::GeneratorType)
      return generator(default_generator());
    return v;
  }
  c10::IValue generator(const at::Generator& g) {
    TORCH_CHECK(g.device().is_cuda(), "Expected a 'cuda' device type for generator but found '", g.device().type(), "'");
    return c10::IValue(g.get<DeviceGenerator>()->host);
  }
  // An operator with out= may have resized what it was given: hand the new memory over.
  void hand_over() {
    for (auto& [device, host] : pairs) {
      auto* to = device.unsafeGetTensorImpl();
      if (host.storage().data() != device.storage().data()) {
        c10::Storage from = host.storage();
        int64_t n = (int64_t)from.nbytes();
        c10::DataPtr keep(const_cast<void*>(from.data()), new Holder{from}, [](void* h) { delete static_cast<Holder*>(h); }, c10::Device(c10::kCPU));
        device.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(on_device(std::move(keep), n));
        device.storage().unsafeGetStorageImpl()->set_nbytes(n);
      }
      if (to->sizes() != host.sizes() || to->strides() != host.strides())
        to->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    }
  }
};

bool integer_matmul(const std::string& base, const Tensor& t) {
  static const std::unordered_set<std::string> names{"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "addmv_", "dot", "vdot", "addr"};
  return names.count(base) && c10::isIntegralType(t.scalar_type(), true);
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& arguments = schema.arguments();
  const size_t n = arguments.size(), start = stack->size() - n;
  std::string base = schema.name().substr(schema.name().find("::") + 2);
  std::string name = schema.overload_name().empty() ? base : base + "_" + schema.overload_name();
  TORCH_CHECK_NOT_IMPLEMENTED(!missing_ops().count(name), "Could not run '", schema.name(), "' with arguments from the 'CUDA' backend.");
  Call call{op, name, {}};
  for (size_t i = 0; i < n; ++i) {
    c10::IValue& v = (*stack)[start + i];
    if (v.isTensor() && v.toTensor().defined())
      TORCH_CHECK(!integer_matmul(base, v.toTensor()), "\"", base, "_cuda\" not implemented for '", v.toTensor().scalar_type(), "'");
    v = call.in(v, arguments[i]);
  }
  if (base == "linalg_lstsq") {
    size_t d = 0;
    while (d < n && arguments[d].name() != "driver") ++d;
    const c10::IValue& driver = (*stack)[start + d];
    TORCH_CHECK(driver.isNone() || driver.toStringRef() == "gels", "torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA");
  }
  static const std::unordered_set<std::string> waits{"_local_scalar_dense", "nonzero", "nonzero_out", "masked_select", "masked_select_out", "_unique",
      "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive", "equal", "bincount", "repeat_interleave_Tensor"};
  tell(waits.count(name) ? "sync" : "kernel", name.c_str());
  {
    at::AutoDispatchBelowAutograd below;
    op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
  }
  call.hand_over();
  const size_t first = stack->size() - schema.returns().size();
  for (size_t i = first; i < stack->size(); ++i) {
    c10::IValue& v = (*stack)[i];
    if (v.isTensor()) v = call.device(v.toTensor());
    else if (v.isTensorList()) {
      std::vector<Tensor> out;
      for (const Tensor& t : v.toTensorVector()) out.push_back(call.device(t));
      v = c10::IValue(out);
    }
  }
}

// ---- the few operators that must know about the device ---------------------------------------------
void check_device(std::optional<c10::Device> d) {
  TORCH_CHECK(!d || d->index() <= 0, "CUDA error: invalid device ordinal");
}
Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device> device,
             std::optional<bool>, std::optional<at::MemoryFormat> format) {
  check_device(device);
  return Tensor(at::detail::empty_generic(size, &device_allocator, DispatchKeySet(DispatchKey::CUDA), c10::dtype_or_default(dtype), format));
}
Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<at::Device> device, std::optional<bool>) {
  check_device(device);
  return Tensor(at::detail::empty_strided_generic(size, stride, &device_allocator, DispatchKeySet(DispatchKey::CUDA), c10::dtype_or_default(dtype)));
}
Tensor efficient_zeros(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device>,
                       std::optional<bool>) {
  static at::native::ZeroTensorAllocator nothing(kDevice);
  auto keys = DispatchKeySet(DispatchKey::CUDA).add(DispatchKey::ZeroTensor);
  return Tensor(at::detail::empty_generic(size, &nothing, keys, c10::dtype_or_default(dtype), std::nullopt));
}
Tensor& copy_(Tensor& self, const Tensor& src, bool non_blocking) {
  if (self.is_cuda() && src.is_cuda()) tell("kernel", "copy_");
  else tell(self.is_cuda() ? (src.dim() == 0 && src.unsafeGetTensorImpl()->is_wrapped_number() ? "kernel" : "h2d") : "d2h", "copy_");
  Tensor to = self.is_cuda() ? seen_from_host(self) : self, from = src.is_cuda() ? seen_from_host(src) : src;
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "").typed<Tensor&(Tensor&, const Tensor&, bool)>();
  at::AutoDispatchBelowAutograd below;
  op.redispatch(DispatchKeySet(DispatchKey::CPU), to, from, non_blocking);
  return self;
}
Tensor as_strided(const Tensor& self, at::IntArrayRef size, at::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
void storage_of(Tensor& self, const c10::Storage& storage, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(storage);
  impl->set_storage_offset(offset);
  if (stride.data() == nullptr || stride.size() != size.size()) impl->set_sizes_contiguous(size);
  else impl->set_sizes_and_strides(size, stride, offset);
}
Tensor& set_storage(Tensor& self, c10::Storage source) {
  int64_t n = (int64_t)source.nbytes() / (int64_t)self.dtype().itemsize();
  storage_of(self, source, 0, {n}, {});
  return self;
}
Tensor& set_storage_offset(Tensor& self, c10::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  TORCH_CHECK(source.device().is_cuda(), "Attempted to set the storage of a tensor on device \"cuda:0\" to a storage on different device \"cpu\"");
  storage_of(self, source, offset, size, stride);
  return self;
}
Tensor& set_tensor(Tensor& self, const Tensor& source) {
  storage_of(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
  return self;
}
Tensor& set_nothing(Tensor& self) {
  storage_of(self, c10::Storage(c10::Storage::use_byte_size_t(), 0, &device_allocator, true), 0, {0}, {});
  return self;
}
const Tensor& resize_(const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  int64_t n = self.dtype().itemsize();
  for (int64_t s : size) n *= s;
  n += self.storage_offset() * (int64_t)self.dtype().itemsize();
  auto* storage = self.storage().unsafeGetStorageImpl();
  if (n > (int64_t)storage->nbytes()) {
    c10::DataPtr fresh = device_allocator.allocate(n);
    if (storage->nbytes()) std::memcpy(fresh.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(fresh));
    storage->set_nbytes(n);
  }
  impl->set_sizes_contiguous(size);
  return self;
}
// Only CUDA has this kernel; the host does the same with groups.
Tensor depthwise(const Tensor& x, const Tensor& w, at::IntArrayRef, const std::optional<Tensor>& bias, at::IntArrayRef stride,
                 at::IntArrayRef padding, at::IntArrayRef dilation) {
  for (const Tensor& t : {w, bias.value_or(w)}) TORCH_CHECK(t.is_cuda(), "Expected all tensors to be on the same device");
  tell("kernel", "_conv_depthwise2d");
  at::AutoDispatchBelowAutograd below;
  std::optional<Tensor> b;
  if (bias && bias->defined()) b = seen_from_host(*bias);
  return moved_to_device(at::conv2d(seen_from_host(x), seen_from_host(w), b, stride, padding, dilation, x.size(1)));
}
}  // namespace pretend


TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&pretend::fallback>()); }
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &pretend::empty);
  m.impl("empty_strided", &pretend::empty_strided);
  m.impl("_efficientzerotensor", &pretend::efficient_zeros);
  m.impl("copy_", &pretend::copy_);
  m.impl("as_strided", &pretend::as_strided);
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("set_.source_Storage", &pretend::set_storage);
  m.impl("set_.source_Storage_storage_offset", &pretend::set_storage_offset);
  m.impl("set_.source_Tensor", &pretend::set_tensor);
  m.impl("set_", &pretend::set_nothing);
  m.impl("resize_", &pretend::resize_);
  m.impl("_conv_depthwise2d", &pretend::depthwise);
}

extern "C" {
// torch made its hooks while it was imported. They hold nothing but a table of functions: put another in that place.
void pretend_switch(bool on) {
  static_assert(sizeof(pretend::Hooks) == sizeof(at::CUDAHooksInterface));
  auto* place = const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks());
  if (on) new (place) pretend::Hooks(at::CUDAHooksArgs{});
  else new (place) at::CUDAHooksInterface();
}
void pretend_listen(pretend::Listener l) { pretend::listener = l; }
void pretend_host_scalars(const char* name) { pretend::host_scalar_ops().insert(name); }
void pretend_missing(const char* name) { pretend::missing_ops().insert(name); }
int64_t pretend_live_bytes() { return pretend::live_bytes; }
int64_t pretend_peak_bytes(bool reset) { if (reset) pretend::peak_bytes = pretend::live_bytes.load(); return pretend::peak_bytes; }
void pretend_seed(uint64_t seed) { at::Generator(pretend::default_generator()).set_current_seed(seed); }
}
