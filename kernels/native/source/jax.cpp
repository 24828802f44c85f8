// The core as XLA FFI handlers, for JAX. Shapes are read from the buffers, so
// that a call with symbolic sizes runs with any. `jax.vmap` adds leading axes
// to every buffer, which become the core's groups.
#include <array>
#include <string>
#include <vector>

#include "xla_calls.h"
#include "xla_cuda.h"

namespace {

namespace ffi = xla::ffi;
using keras_linrec::Core;
using keras_linrec::CudaCore;
using keras_linrec::OnCpu;
using keras_linrec::OnGpu;
using keras_linrec::Queue;
using keras_linrec::Scratch;
using keras_linrec::no_scratch;

struct Arrays : keras_linrec::Buffers {
  using Buffers::Buffers;

  // The size of a buffer's axis, counted from the end: 1 is the last one.
  int64_t axis(size_t buffer, size_t from_the_end) const {
    const auto shape = arguments[buffer].dimensions();
    return shape[shape.size() - from_the_end];
  }

  // The product of the sizes before the last `known` axes.
  int64_t groups(size_t buffer, size_t known) const {
    const auto shape = arguments[buffer].dimensions();
    int64_t product = 1;
    for (size_t i = 0; i + known < shape.size(); i++) product *= shape[i];
    return product;
  }

  // The flags with the number type.
  int with_type(int64_t flags) const {
    const bool wide = arguments[0].element_type() == ffi::DataType::F64;
    return static_cast<int>(flags) | (wide ? kKerasLinrecFloat64 : 0);
  }

  template <Core core>
  ffi::Error run(int64_t flags, const int64_t* sizes) const {
    return keras_linrec::run("keras_linrec", core, with_type(flags), sizes,
                             from, to);
  }
};

size_t parts_of(int64_t flags) { return flags & kKerasLinrecComplex ? 2 : 1; }

// Groups, batch, time, channels.
std::array<int64_t, 4> scan_sizes(const Arrays& arrays, int64_t flags) {
  const size_t inputs = parts_of(flags);
  return {arrays.groups(inputs, 3), arrays.axis(inputs, 3),
          arrays.axis(inputs, 2), arrays.axis(inputs, 1)};
}

template <Core core>
ffi::Error scan(ffi::RemainingArgs arguments, ffi::RemainingRets results,
                int64_t flags) {
  const Arrays arrays(arguments, results);
  if (arrays.error.failure()) return arrays.error;
  return arrays.run<core>(flags, scan_sizes(arrays, flags).data());
}

template <Core core>
ffi::Error projected_scan(ffi::RemainingArgs arguments,
                          ffi::RemainingRets results, int64_t flags,
                          int64_t block) {
  const Arrays arrays(arguments, results);
  if (arrays.error.failure()) return arrays.error;
  const size_t inputs = parts_of(flags);
  const size_t output_kernel = 2 * parts_of(flags) + 1;
  const int64_t sizes[] = {arrays.groups(inputs, 3),
                           arrays.axis(inputs, 3),
                           arrays.axis(inputs, 2),
                           arrays.axis(inputs, 1),
                           arrays.axis(output_kernel, 2),
                           arrays.axis(output_kernel, 1),
                           block};
  return arrays.run<core>(flags, sizes);
}

// Groups, features, channels, state, time, alpha, and any length of blocks.
std::array<int64_t, 7> response_sizes(const Arrays& arrays, int64_t time,
                                      int64_t alpha) {
  constexpr size_t output_matrix = 6;
  return {arrays.groups(output_matrix, 3),
          arrays.axis(output_matrix, 3),
          arrays.axis(output_matrix, 2),
          arrays.axis(output_matrix, 1),
          time,
          alpha,
          0};
}

template <Core core>
ffi::Error impulse_response(ffi::RemainingArgs arguments,
                            ffi::RemainingRets results, int64_t time,
                            int64_t alpha) {
  const Arrays arrays(arguments, results);
  if (arrays.error.failure()) return arrays.error;
  return arrays.run<core>(0, response_sizes(arrays, time, alpha).data());
}

template <Core core>
ffi::Error varying_response(ffi::RemainingArgs arguments,
                            ffi::RemainingRets results, int64_t block,
                            int64_t alpha) {
  const Arrays arrays(arguments, results);
  if (arrays.error.failure()) return arrays.error;
  constexpr size_t output_matrix = 6, inputs = 9;
  const int64_t sizes[] = {arrays.groups(inputs, 3),
                           arrays.axis(inputs, 3),
                           arrays.axis(inputs, 2),
                           arrays.axis(inputs, 1),
                           arrays.axis(output_matrix, 2),
                           arrays.axis(output_matrix, 1),
                           block,
                           alpha};
  return arrays.run<core>(0, sizes);
}

template <Core core>
ffi::Error carried_response(ffi::RemainingArgs arguments,
                            ffi::RemainingRets results, int64_t alpha) {
  const Arrays arrays(arguments, results);
  if (arrays.error.failure()) return arrays.error;
  constexpr size_t output_matrix = 6, inputs = 9;
  const int64_t sizes[] = {arrays.groups(inputs, 3),
                           arrays.axis(inputs, 3),
                           arrays.axis(inputs, 2),
                           arrays.axis(inputs, 1),
                           arrays.axis(output_matrix, 2),
                           arrays.axis(output_matrix, 1),
                           alpha};
  return arrays.run<core>(0, sizes);
}

template <Core core>
ffi::Error causal_convolution(ffi::RemainingArgs arguments,
                              ffi::RemainingRets results, int64_t flags,
                              int64_t leak) {
  const Arrays arrays(arguments, results);
  if (arrays.error.failure()) return arrays.error;
  constexpr size_t inputs = 0, response = 1;
  const int64_t sizes[] = {
      arrays.groups(inputs, 3), arrays.axis(inputs, 3),
      arrays.axis(inputs, 2),   arrays.axis(inputs, 1),
      arrays.axis(response, 2), arrays.axis(response, 1),
      leak};
  return arrays.run<core>(flags, sizes);
}

template <Core core>
ffi::Error move_steps(ffi::RemainingArgs arguments, ffi::RemainingRets results,
                      int64_t flags) {
  const Arrays arrays(arguments, results);
  if (arrays.error.failure()) return arrays.error;
  constexpr size_t sequences = 0;
  const int64_t sizes[] = {arrays.groups(sequences, 3),
                           arrays.axis(sequences, 3),
                           arrays.axis(sequences, 2),
                           arrays.axis(sequences, 1)};
  return arrays.run<core>(flags, sizes);
}

template <Core core>
ffi::Error nonlinear_scan(ffi::RemainingArgs arguments,
                          ffi::RemainingRets results, int64_t flags,
                          int64_t leak) {
  constexpr bool backward = core == keras_linrec_nonlinear_scan_backward;
  const Arrays arrays(arguments, results);
  if (arrays.error.failure()) return arrays.error;
  constexpr size_t inputs = 0, expansion = 4, initial_state = 8, d_outputs = 10;
  const auto outputs = arrays.results[0].dimensions();
  const int64_t time = arrays.axis(inputs, 2);
  const int64_t sizes[] = {arrays.groups(inputs, 3),
                           arrays.axis(inputs, 3),
                           time,
                           arrays.axis(inputs, 1),
                           arrays.axis(initial_state, 1),
                           arrays.axis(expansion, 2),
                           backward ? time : outputs[outputs.size() - 2],
                           backward ? arrays.axis(d_outputs, 2) : 0,
                           leak};
  return arrays.run<core>(flags, sizes);
}

// The CUDA core, on the stream of the program.

template <CudaCore core>
ffi::Error queue(const Arrays& arrays, int flags, const int64_t* sizes,
                 const Queue& where) {
  return keras_linrec::queue(core, flags, sizes, arrays.from, arrays.to, where);
}

template <CudaCore core, Scratch bytes>
struct CudaScan {
  template <class Where>
  static ffi::Error run(Where&& where, ffi::RemainingArgs arguments,
                        ffi::RemainingRets results, int64_t flags) {
    const Arrays arrays(arguments, results);
    if (arrays.error.failure()) return arrays.error;
    const auto sizes = scan_sizes(arrays, flags);
    const int typed = arrays.with_type(flags);
    return queue<core>(arrays, typed, sizes.data(),
                       where(bytes(typed, sizes.data())));
  }
};

template <CudaCore core>
struct CudaNonlinearScan {
  template <class Where>
  static ffi::Error run(Where&& where, ffi::RemainingArgs arguments,
                        ffi::RemainingRets results, int64_t flags,
                        int64_t leak) {
    constexpr bool backward = core == keras_linrec_cuda_nonlinear_scan_backward;
    constexpr size_t sequences = 0, d_outputs = 3, last_state = 4;
    const Arrays arrays(arguments, results);
    if (arrays.error.failure()) return arrays.error;
    const auto outputs =
        (backward ? arrays.arguments[d_outputs] : arrays.results[0])
            .dimensions();
    const int64_t sizes[] = {arrays.groups(last_state, 2),
                             arrays.axis(last_state, 2),
                             arrays.axis(sequences, 2),
                             arrays.axis(last_state, 1),
                             outputs[outputs.size() - 2] > 0,
                             leak};
    return queue<core>(arrays, arrays.with_type(flags), sizes,
                       where(no_scratch(0, sizes)));
  }
};

template <CudaCore core, Scratch bytes>
struct CudaImpulseResponse {
  template <class Where>
  static ffi::Error run(Where&& where, ffi::RemainingArgs arguments,
                        ffi::RemainingRets results, int64_t time,
                        int64_t alpha) {
    const Arrays arrays(arguments, results);
    if (arrays.error.failure()) return arrays.error;
    const auto sizes = response_sizes(arrays, time, alpha);
    return queue<core>(arrays, arrays.with_type(0), sizes.data(),
                       where(bytes(0, sizes.data())));
  }
};

template <class Call, class... Attributes>
ffi::Error on_gpu(void* stream, ffi::ScratchAllocator memory,
                  ffi::RemainingArgs arguments, ffi::RemainingRets results,
                  Attributes... attributes) {
  return Call::run(OnGpu{stream, memory}, arguments, results, attributes...);
}

template <class Call, class... Attributes>
ffi::Error on_cpu(ffi::RemainingArgs arguments, ffi::RemainingRets results,
                  Attributes... attributes) {
  return Call::run(OnCpu{}, arguments, results, attributes...);
}

auto cuda_scan_binding() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::PlatformStream<void*>>()
      .Ctx<ffi::ScratchAllocator>()
      .RemainingArgs()
      .RemainingRets()
      .Attr<int64_t>("flags");
}

auto cuda_activated_binding() {
  return cuda_scan_binding().Attr<int64_t>("leak");
}

auto cuda_impulse_response_binding() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::PlatformStream<void*>>()
      .Ctx<ffi::ScratchAllocator>()
      .RemainingArgs()
      .RemainingRets()
      .Attr<int64_t>("time")
      .Attr<int64_t>("alpha");
}

auto scan_binding() {
  return ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<int64_t>(
      "flags");
}

auto projected_scan_binding() { return scan_binding().Attr<int64_t>("block"); }

auto activated_binding() { return scan_binding().Attr<int64_t>("leak"); }

auto carried_response_binding() {
  return ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<int64_t>(
      "alpha");
}

auto varying_response_binding() {
  return ffi::Ffi::Bind()
      .RemainingArgs()
      .RemainingRets()
      .Attr<int64_t>("block")
      .Attr<int64_t>("alpha");
}

auto impulse_response_binding() {
  return ffi::Ffi::Bind()
      .RemainingArgs()
      .RemainingRets()
      .Attr<int64_t>("time")
      .Attr<int64_t>("alpha");
}

}  // namespace

#define SYMBOL(symbol, binding, ...)                                        \
  extern "C" KERAS_LINREC_PUBLIC XLA_FFI_Error* symbol(XLA_FFI_CallFrame*); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(symbol, (__VA_ARGS__), binding())
#define HANDLER(name, function, binding) \
  SYMBOL(name##_xla, binding, function<name>)
#define CUDA_SCAN(name)                                                      \
  SYMBOL(name##_xla, cuda_scan_binding,                                      \
         on_gpu<CudaScan<name, name##_scratch>, int64_t>);                   \
  SYMBOL(name##_on_cpu_xla, scan_binding,                                    \
         on_cpu<CudaScan<name, name##_scratch>, int64_t>)
#define CUDA_NONLINEAR_SCAN(name)                                  \
  SYMBOL(name##_xla, cuda_activated_binding,                       \
         on_gpu<CudaNonlinearScan<name>, int64_t, int64_t>);       \
  SYMBOL(name##_on_cpu_xla, activated_binding,                     \
         on_cpu<CudaNonlinearScan<name>, int64_t, int64_t>)
#define CUDA_IMPULSE_RESPONSE(name, bytes)                           \
  SYMBOL(name##_xla, cuda_impulse_response_binding,                  \
         on_gpu<CudaImpulseResponse<name, bytes>, int64_t, int64_t>); \
  SYMBOL(name##_on_cpu_xla, impulse_response_binding,                \
         on_cpu<CudaImpulseResponse<name, bytes>, int64_t, int64_t>)

HANDLER(keras_linrec_scan, scan, scan_binding);
HANDLER(keras_linrec_scan_backward, scan, scan_binding);
HANDLER(keras_linrec_projected_scan, projected_scan, projected_scan_binding);
HANDLER(keras_linrec_projected_scan_backward, projected_scan,
        projected_scan_binding);
HANDLER(keras_linrec_impulse_response, impulse_response,
        impulse_response_binding);
HANDLER(keras_linrec_impulse_response_backward, impulse_response,
        impulse_response_binding);
HANDLER(keras_linrec_varying_response, varying_response,
        varying_response_binding);
HANDLER(keras_linrec_varying_response_backward, varying_response,
        varying_response_binding);
HANDLER(keras_linrec_carried_response, carried_response,
        carried_response_binding);
HANDLER(keras_linrec_carried_response_backward, carried_response,
        carried_response_binding);
HANDLER(keras_linrec_causal_convolution, causal_convolution, activated_binding);
HANDLER(keras_linrec_causal_convolution_backward, causal_convolution,
        activated_binding);
HANDLER(keras_linrec_move_steps, move_steps, scan_binding);
HANDLER(keras_linrec_nonlinear_scan, nonlinear_scan, activated_binding);
HANDLER(keras_linrec_nonlinear_scan_backward, nonlinear_scan,
        activated_binding);
CUDA_SCAN(keras_linrec_cuda_scan);
CUDA_SCAN(keras_linrec_cuda_scan_backward);
CUDA_NONLINEAR_SCAN(keras_linrec_cuda_nonlinear_scan);
CUDA_NONLINEAR_SCAN(keras_linrec_cuda_nonlinear_scan_backward);
CUDA_IMPULSE_RESPONSE(keras_linrec_cuda_impulse_response, no_scratch);
CUDA_IMPULSE_RESPONSE(keras_linrec_cuda_impulse_response_backward,
                      keras_linrec_cuda_impulse_response_backward_scratch);
