// The functions of the CUDA core that frameworks call: see cuda_core.h.
#include <cstring>

#include "cuda/cuda_core.h"
#include "cuda/cuda_driver.h"
#include "cuda/cuda_passes.h"

namespace keras_linrec {
namespace cuda {
namespace {

template <class Pass>
struct Named;
#define KERAS_LINREC_NAME(kernel, ...)           \
  template <>                                    \
  struct Named<__VA_ARGS__> {                    \
    static constexpr const char* name = #kernel; \
  };
KERAS_LINREC_KERNELS(KERAS_LINREC_NAME)
#undef KERAS_LINREC_NAME

// A call's arrays, in their order, and where it runs.
struct Call {
  const void* const* from;
  void* const* to;
  unsigned char* scratch;
  void* stream;

  template <class Real, int parts>
  In<Real, parts> in() {
    In<Real, parts> array;
    for (auto& part : array.part) part = static_cast<const Real*>(*from++);
    return array;
  }
  template <class Real, int parts>
  Out<Real, parts> out() {
    Out<Real, parts> array;
    for (auto& part : array.part) part = static_cast<Real*>(*to++);
    return array;
  }
  template <class Real>
  const Real* resets(int flags) {
    const void* given = *from++;
    return flags & kKerasLinrecResets ? static_cast<const Real*>(given)
                                      : nullptr;
  }
  template <class Pass>
  void launch(const Device& device, const Pass& pass, int64_t blocks,
              int64_t shared_bytes) const {
    device.launch(Named<Pass>::name, &pass, blocks, pass.threads(),
                  shared_bytes, stream);
  }
};

Sizes sizes_of(int flags, const int64_t* numbers) {
  return {numbers[0], numbers[1], numbers[2], numbers[3],
          (flags & kKerasLinrecReverse) != 0};
}

// The sums of a time-invariant decay's gradient: see `ScanBackward`.
template <int parts>
Out<double, parts> place_sums(const Sizes& sizes, const Tiling& tiling,
                              Memory& memory) {
  Out<double, parts> sums;
  for (auto& part : sums.part)
    part = memory.take<double>(sizes.rows() * tiling.tiles * sizes.channels);
  return sums;
}

template <class Real, int parts, bool per_step>
struct Scans {
  using Forward = Scan<Real, parts, per_step>;
  using Backward = ScanBackward<Real, parts, per_step>;

  static int64_t scratch(bool backward, const Sizes& sizes) {
    const Tiling tiling(sizes, backward ? Backward::bytes : Forward::bytes);
    Memory memory{nullptr};
    Links::place<parts>(tiling, memory);
    if (backward && !per_step) place_sums<parts>(sizes, tiling, memory);
    return memory.used;
  }

  static void forward(int flags, const Sizes& sizes, Call call) {
    Memory memory{call.scratch};
    Forward pass(sizes);
    pass.links = Links::place<parts>(pass.tiling, memory);
    pass.decay = call.in<Real, parts>();
    pass.inputs = call.in<Real, parts>();
    pass.resets = call.resets<Real>(flags);
    pass.initial = call.in<Real, parts>();
    pass.outputs = call.out<Real, parts>();
    pass.final_state = call.out<Real, parts>();
    per_step ? pass.move(pass.inputs, pass.outputs, pass.decay)
             : pass.move(pass.inputs, pass.outputs);
    const Device device(pass.outputs.part[0]);
    run(device, call, pass);
  }

  static void backward(int flags, const Sizes& sizes, Call call) {
    Memory memory{call.scratch};
    Backward pass(sizes);
    pass.links = Links::place<parts>(pass.tiling, memory);
    pass.decay = call.in<Real, parts>();
    pass.outputs = call.in<Real, parts>();
    pass.resets = call.resets<Real>(flags);
    pass.first_state = call.in<Real, parts>();
    pass.d_outputs = call.in<Real, parts>();
    pass.initial = call.in<Real, parts>();
    const auto d_decay = call.out<Real, parts>();
    pass.d_inputs = call.out<Real, parts>();
    pass.d_initial = call.out<Real, parts>();
    const Device device(d_decay.part[0]);
    pass.move(pass.outputs, pass.first_state, pass.d_outputs, pass.d_inputs);
    if (per_step) {
      pass.d_decay = d_decay;
      if (pass.wide)
        pass.move(pass.outputs, pass.first_state, pass.d_outputs,
                  pass.d_inputs, pass.decay, pass.d_decay);
      run(device, call, pass);
      return;
    }
    pass.sums = place_sums<parts>(sizes, pass.tiling, memory);
    run(device, call, pass);
    const AddDecays<Real, parts> add(sizes, pass.tiling, pass.sums, d_decay);
    call.launch(device, add, add.blocks(), add.shared_bytes());
  }

 private:
  template <class Pass>
  static void run(const Device& device, const Call& call, const Pass& pass) {
    if (pass.blocks() == 0) return;
    if (pass.tiling.tiles > 1)
      device.clear(pass.links.counter, Links::cleared(pass.tiling),
                   call.stream);
    call.launch(device, pass, pass.blocks(), pass.shared_bytes());
  }
};

// Calls function(Scans<...>) for the scan of these flags.
template <class Real, class Function>
auto with_real(int flags, Function function) {
  const bool per_step = flags & kKerasLinrecPerStep;
  if (flags & kKerasLinrecComplex)
    return per_step ? function(Scans<Real, 2, true>())
                    : function(Scans<Real, 2, false>());
  return per_step ? function(Scans<Real, 1, true>())
                  : function(Scans<Real, 1, false>());
}

template <class Function>
auto with_scans(int flags, Function function) {
  return flags & kKerasLinrecFloat64 ? with_real<double>(flags, function)
                                     : with_real<float>(flags, function);
}

template <class Pass>
bool fits(Pass& pass, int64_t shared_memory, int64_t& bytes) {
  for (const bool resident : {true, false}) {
    Memory memory{nullptr};
    pass.place(memory);
    pass.resident = resident;
    bytes = memory.used + resident * pass.matrix_bytes();
    if (bytes <= shared_memory) return true;
  }
  return false;
}

// Rows share a block, and its reads of the matrix, only if every multiprocessor
// of the GPU has a block without that.
template <class Real, template <class, int> class Pass>
void nonlinear(const NonlinearSizes& sizes, const Call& call) {
  const Device device(call.to[1]);
  const int64_t shared_memory = device.shared_memory();
  int64_t bytes;
  if (sizes.groups * sizes.batch > device.processors()) {
    Pass<Real, 4> pass(sizes, call.from, call.to);
    if (fits(pass, shared_memory, bytes)) {
      call.launch(device, pass, sizes.groups * pass.blocks_a_group(), bytes);
      return;
    }
  }
  Pass<Real, 1> pass(sizes, call.from, call.to);
  // If even this does not fit, the launch fails.
  fits(pass, shared_memory, bytes);
  call.launch(device, pass, sizes.groups * pass.blocks_a_group(), bytes);
}

template <template <class, int> class Pass>
void call_nonlinear(int flags, const int64_t* numbers, const Call& call) {
  const int solver = flags >> kKerasLinrecSolverBit & 3;
  NonlinearSizes sizes{numbers[0],
                       numbers[1],
                       numbers[2],
                       static_cast<int>(numbers[3]),
                       numbers[4] != 0,
                       (flags & kKerasLinrecPerStep) != 0,
                       (flags & kKerasLinrecLinear) != 0,
                       (flags & kKerasLinrecGated) != 0,
                       (flags & kKerasLinrecResets) != 0,
                       solver > 0,
                       static_cast<Activation>(
                           flags >> kKerasLinrecActivationBit & 15),
                       0.0,
                       methods[solver]};
  std::memcpy(&sizes.leak, &numbers[5], sizeof(sizes.leak));
  if (sizes.groups * sizes.batch == 0) return;
  if (flags & kKerasLinrecFloat64)
    nonlinear<double, Pass>(sizes, call);
  else
    nonlinear<float, Pass>(sizes, call);
}

ResponseSizes response_sizes(const int64_t* numbers) {
  ResponseSizes sizes{numbers[0],
                      numbers[1],
                      numbers[2],
                      numbers[4],
                      static_cast<int>(numbers[3]),
                      0.0};
  std::memcpy(&sizes.alpha, &numbers[5], sizeof(sizes.alpha));
  return sizes;
}

template <class Pass>
void launch_whole(const Device& device, const Call& call, const Pass& pass) {
  if (pass.blocks() > 0)
    call.launch(device, pass, pass.blocks(), pass.shared_bytes());
}

// The most bytes that the contour may take.
constexpr int64_t kMostContourBytes = 1 << 30;

// The longest response that was seen to be accurate by the contour: with errors
// of float32's rounding, and of 1e-11.
int64_t most_contour_steps(bool is_double) {
  return is_double ? 1 << 14 : 1 << 16;
}

// Whether there may be a contour, whatever the GPU.
bool may_have_contour(const ResponseSizes& sizes, bool is_double,
                      bool backward) {
  if (sizes.systems() * sizes.channels * sizes.state * sizes.time == 0 ||
      sizes.time > most_contour_steps(is_double))
    return false;
  Memory memory{nullptr};
  ContourMemory::place(sizes, Circle(sizes.time, is_double), backward, memory);
  return memory.used <= kMostContourBytes;
}

template <class Pass>
bool has_room_for(const Device& device, const Pass& pass) {
  return pass.shared_bytes() <= device.shared_memory();
}

template <class Real>
void impulse_response(const ResponseSizes& sizes, const Call& call) {
  constexpr bool is_double = sizeof(Real) == sizeof(double);
  if (sizes.systems() * sizes.channels == 0) return;
  const Device device(call.to[0]);
  const unsigned* right = nullptr;
  if (device.has_fast_float64() && may_have_contour(sizes, is_double, false)) {
    Memory memory{call.scratch};
    const Circle circle(sizes.time, is_double);
    const auto kept = ContourMemory::place(sizes, circle, false, memory);
    const ContourValues<Real> values(sizes, call.from, circle, kept);
    const ContourResponse<Real> transform(sizes, call.from, circle, kept,
                                          call.to[0]);
    if (has_room_for(device, values) && has_room_for(device, transform)) {
      launch_whole(device, call, values);
      launch_whole(device, call, transform);
      right = kept.right;
    }
  }
  launch_whole(device, call,
               ImpulseResponse<Real>(sizes, call.from, call.to, right));
}

template <class Real>
void impulse_response_backward(const ResponseSizes& sizes, const Call& call) {
  const bool wants_systems = call.to[0];
  if (!wants_systems && sizes.systems() * sizes.channels == 0) return;
  constexpr bool is_double = sizeof(Real) == sizeof(double);
  Memory memory{call.scratch};
  const auto kept_of_steps = ResponseMemory::place(sizes, memory);
  const Device device(wants_systems ? call.to[0] : call.to[6]);
  const unsigned* right = nullptr;
  if (device.has_fast_float64() && may_have_contour(sizes, is_double, true)) {
    const Circle circle(sizes.time, is_double);
    const auto kept = ContourMemory::place(sizes, circle, true, memory);
    const ContourValues<Real> values(sizes, call.from, circle, kept);
    const ContourCotangents<Real> transform(sizes, call.from, circle, kept);
    const ContourSums<Real> sums(sizes, call.from, circle, kept);
    const ContourGradients<Real> gradients(
        sizes, call.from, call.to, circle, kept, kept_of_steps.gradients);
    if (has_room_for(device, values) && has_room_for(device, transform) &&
        has_room_for(device, sums) && has_room_for(device, gradients)) {
      launch_whole(device, call, values);
      launch_whole(device, call, transform);
      launch_whole(device, call, sums);
      launch_whole(device, call, gradients);
      right = kept.right;
    }
  }
  const ImpulseResponseBackward<Real> pass(sizes, call.from, call.to,
                                           kept_of_steps, right);
  launch_whole(device, call, pass);
  if (wants_systems)
    launch_whole(device, call, AddFeatures<Real>(
                                   sizes, pass.memory.gradients, call.to));
}

// Bytes of memory: some allocators return null for 0.
int64_t at_least_one(int64_t bytes) { return bytes ? bytes : sizeof(double); }

template <class Function>
int status_of(Function function) {
  try {
    function();
  } catch (const Failure&) {
    return kKerasLinrecFailed;
  }
  return kKerasLinrecDone;
}

int scan(bool backward, int flags, const int64_t* numbers,
         const void* const* from, void* const* to, void* scratch,
         void* stream) {
  const Sizes sizes = sizes_of(flags, numbers);
  const Call call{from, to, static_cast<unsigned char*>(scratch), stream};
  // Without rows, there is still the gradient of a time-invariant decay.
  const bool has_results =
      sizes.batch || (backward && !(flags & kKerasLinrecPerStep));
  if (sizes.groups * sizes.channels == 0 || !has_results)
    return kKerasLinrecDone;
  return status_of([&] {
    with_scans(flags, [&](auto scans) {
      backward ? scans.backward(flags, sizes, call)
               : scans.forward(flags, sizes, call);
    });
  });
}

}  // namespace
}  // namespace cuda
}  // namespace keras_linrec

extern "C" {

using namespace keras_linrec::cuda;

int64_t keras_linrec_cuda_scan_scratch(int flags, const int64_t* sizes) {
  return with_scans(flags, [&](auto scans) {
    return scans.scratch(false, sizes_of(flags, sizes));
  });
}

int64_t keras_linrec_cuda_scan_backward_scratch(int flags,
                                                const int64_t* sizes) {
  return with_scans(flags, [&](auto scans) {
    return scans.scratch(true, sizes_of(flags, sizes));
  });
}

int keras_linrec_cuda_scan(int flags, const int64_t* sizes,
                           const void* const* from, void* const* to,
                           void* scratch, void* stream) {
  return scan(false, flags, sizes, from, to, scratch, stream);
}

int keras_linrec_cuda_scan_backward(int flags, const int64_t* sizes,
                                    const void* const* from, void* const* to,
                                    void* scratch, void* stream) {
  return scan(true, flags, sizes, from, to, scratch, stream);
}

int keras_linrec_cuda_nonlinear_scan(int flags, const int64_t* sizes,
                                     const void* const* from, void* const* to,
                                     void*, void* stream) {
  return status_of([&] {
    call_nonlinear<NonlinearScan>(flags, sizes, {from, to, nullptr, stream});
  });
}

int keras_linrec_cuda_nonlinear_scan_backward(int flags, const int64_t* sizes,
                                              const void* const* from,
                                              void* const* to, void*,
                                              void* stream) {
  return status_of([&] {
    call_nonlinear<NonlinearScanBackward>(flags, sizes,
                                          {from, to, nullptr, stream});
  });
}

int64_t keras_linrec_cuda_impulse_response_scratch(int flags,
                                                   const int64_t* numbers) {
  const ResponseSizes sizes = response_sizes(numbers);
  const bool is_double = flags & kKerasLinrecFloat64;
  Memory memory{nullptr};
  if (may_have_contour(sizes, is_double, false))
    ContourMemory::place(sizes, Circle(sizes.time, is_double), false, memory);
  return at_least_one(memory.used);
}

int keras_linrec_cuda_impulse_response(int flags, const int64_t* sizes,
                                       const void* const* from,
                                       void* const* to, void* scratch,
                                       void* stream) {
  return status_of([&] {
    const Call call{from, to, static_cast<unsigned char*>(scratch), stream};
    flags & kKerasLinrecFloat64
        ? impulse_response<double>(response_sizes(sizes), call)
        : impulse_response<float>(response_sizes(sizes), call);
  });
}

int64_t keras_linrec_cuda_impulse_response_backward_scratch(
    int flags, const int64_t* numbers) {
  const ResponseSizes sizes = response_sizes(numbers);
  const bool is_double = flags & kKerasLinrecFloat64;
  Memory memory{nullptr};
  ResponseMemory::place(sizes, memory);
  if (may_have_contour(sizes, is_double, true))
    ContourMemory::place(sizes, Circle(sizes.time, is_double), true, memory);
  return at_least_one(memory.used);
}

int keras_linrec_cuda_impulse_response_backward(
    int flags, const int64_t* sizes, const void* const* from, void* const* to,
    void* scratch, void* stream) {
  return status_of([&] {
    const Call call{from, to, static_cast<unsigned char*>(scratch), stream};
    flags & kKerasLinrecFloat64
        ? impulse_response_backward<double>(response_sizes(sizes), call)
        : impulse_response_backward<float>(response_sizes(sizes), call);
  });
}

}  // extern "C"
