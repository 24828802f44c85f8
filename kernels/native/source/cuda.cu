// The functions that PyTorch calls on a GPU. nvcc builds them for the GPU; a
// C++ compiler (-x c++) builds them for arrays on the CPU, for the tests.
#include <cstring>

#include "core.h"
#include "cuda_kernels.h"
#include "cuda_nonlinear.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>
#endif

namespace keras_linrec {
namespace cuda {
namespace {

#ifdef __CUDACC__

template <class Body>
__global__ void run(Body body, int64_t threads) {
  const int64_t thread =
      static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (thread < threads) body(thread);
}

// Clears an error left by another call. The error of our own launch is queried
// by the same function, and the old one would be reported as ours.
void forget_earlier_errors() { cudaGetLastError(); }

// This neither waits for the GPU nor allocates memory, so a CUDA graph can
// capture it.
template <class Body>
int launch(const Body& body, int64_t threads, void* stream) {
  constexpr int block = 128;
  const int64_t blocks = (threads + block - 1) / block;
  // A larger grid is impossible, and the cast below would hide it.
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;
  forget_earlier_errors();
  run<<<static_cast<unsigned>(blocks), block, 0,
        static_cast<cudaStream_t>(stream)>>>(body, threads);
  return cudaGetLastError();
}

// The most threads in a block of a nonlinear scan. The compiler limits the
// registers of each thread accordingly.
template <class Pass>
__global__ void __launch_bounds__(1024) run_blocks(Pass pass) {
  extern __shared__ __align__(16) unsigned char memory[];
  pass(Block{blockIdx.x, memory});
}

template <class Pass>
int launch_blocks(const Pass& pass, int64_t blocks, int64_t bytes,
                  void* stream) {
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;
  const int failed = cudaFuncSetAttribute(
      run_blocks<Pass>, cudaFuncAttributeMaxDynamicSharedMemorySize,
      static_cast<int>(bytes));
  if (failed) return failed;
  forget_earlier_errors();
  run_blocks<<<static_cast<unsigned>(blocks), pass.threads(), bytes,
               static_cast<cudaStream_t>(stream)>>>(pass);
  return cudaGetLastError();
}

int ask_device(int64_t& shared_memory, int64_t& processors) {
  int device, bytes, count;
  int failed = cudaGetDevice(&device);
  if (!failed)
    failed = cudaDeviceGetAttribute(
        &bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (!failed)
    failed = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount,
                                    device);
  if (failed) return failed;
  shared_memory = bytes;
  processors = count;
  return 0;
}

#else

template <class Body>
int launch(const Body& body, int64_t threads, void*) {
  for (int64_t thread = 0; thread < threads; thread++) body(thread);
  return 0;
}

template <class Pass>
int launch_blocks(const Pass& pass, int64_t blocks, int64_t bytes, void*) {
  for (int64_t block = 0; block < blocks; block++) {
    // Doubles have the alignment of shared memory; NaN shows reads of memory
    // that was never written.
    std::vector<double> memory(bytes / sizeof(double) + 1);
    std::memset(memory.data(), 0xff, memory.size() * sizeof(double));
    pass(Block{block, reinterpret_cast<unsigned char*>(memory.data())});
  }
  return 0;
}

int ask_device(int64_t& shared_memory, int64_t& processors) {
  shared_memory = emulation.shared_memory;
  processors = emulation.processors;
  return 0;
}

#endif

// Takes the quantities of a call, in order, from its list of arrays.
template <class Real, int parts>
struct Reader {
  const void* const* from;
  void* const* to;

  In<Real, parts> in() {
    In<Real, parts> array;
    for (auto& part : array.part) part = static_cast<const Real*>(*from++);
    return array;
  }
  Out<Real, parts> out() {
    Out<Real, parts> array;
    for (auto& part : array.part) part = static_cast<Real*>(*to++);
    return array;
  }
};

// The first two passes: they leave the state that enters each chunk in the last
// arrays of a call.
template <bool backward, class Ends, class Real, int parts>
int enter_chunks(const Sizes& sizes, Ends ends, const In<Real, parts>& initial,
                 Reader<Real, parts>& read, In<Real, parts>& entering,
                 void* stream) {
  entering = initial;
  if (sizes.chunks == 1) return 0;
  ends.products = read.out();
  ends.ends = read.out();
  entering = ends.ends;
  const int failed = launch(ends, sizes.states() * sizes.chunks, stream);
  if (failed) return failed;
  return launch(CarryStates<Real, parts, backward>{sizes, ends.products,
                                                   initial, ends.ends},
                sizes.states(), stream);
}

template <class Real, int parts, bool per_step>
int scan(const Sizes& sizes, Reader<Real, parts> read, void* stream) {
  const auto decay = read.in(), inputs = read.in(), initial = read.in();
  const auto outputs = read.out(), final_state = read.out();
  In<Real, parts> entering;
  const int failed = enter_chunks<false>(
      sizes, ScanEnds<Real, parts, per_step>{sizes, decay, inputs, {}, {}},
      initial, read, entering, stream);
  if (failed) return failed;
  return launch(Scan<Real, parts, per_step>{sizes, decay, inputs, entering,
                                            outputs, final_state},
                sizes.states() * sizes.chunks, stream);
}

template <class Real, int parts, bool per_step>
int scan_backward(const Sizes& sizes, Reader<Real, parts> read, void* stream) {
  const auto decay = read.in(), outputs = read.in(), initial = read.in();
  const auto d_outputs = read.in(), d_final_state = read.in();
  const auto d_decay = read.out(), d_inputs = read.out();
  const auto d_initial = read.out();
  In<Real, parts> entering;
  const int failed = enter_chunks<true>(
      sizes,
      ScanBackwardEnds<Real, parts, per_step>{sizes, decay, d_outputs, {}, {}},
      d_final_state, read, entering, stream);
  if (failed) return failed;
  return launch(
      ScanBackward<Real, parts, per_step>{sizes, decay, outputs, initial,
                                          d_outputs, entering, d_decay,
                                          d_inputs, d_initial},
      sizes.states() * sizes.chunks, stream);
}

template <class Real, int parts, bool per_step>
int call(bool backward, const Sizes& sizes, const void* const* from,
         void* const* to, void* stream) {
  const Reader<Real, parts> read{from, to};
  return backward ? scan_backward<Real, parts, per_step>(sizes, read, stream)
                  : scan<Real, parts, per_step>(sizes, read, stream);
}

template <class Real>
int call_as(int flags, bool backward, const int64_t* numbers,
            const void* const* from, void* const* to, void* stream) {
  const Sizes sizes{numbers[0], numbers[1], numbers[2], numbers[3],
                    numbers[4], (flags & kKerasLinrecReverse) != 0};
  // An empty grid would be an error.
  if (sizes.states() == 0) return 0;
  const bool per_step = flags & kKerasLinrecPerStep;
  const auto real = per_step ? call<Real, 1, true> : call<Real, 1, false>;
  const auto complex = per_step ? call<Real, 2, true> : call<Real, 2, false>;
  const auto chosen = flags & kKerasLinrecComplex ? complex : real;
  return chosen(backward, sizes, from, to, stream);
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
int nonlinear(const NonlinearSizes& sizes, const void* const* from,
              void* const* to, void* stream) {
  int64_t shared_memory, processors, bytes;
  const int failed = ask_device(shared_memory, processors);
  if (failed) return failed;
  if (sizes.groups * sizes.batch > processors) {
    Pass<Real, 4> pass(sizes, from, to);
    if (fits(pass, shared_memory, bytes))
      return launch_blocks(pass, sizes.groups * pass.blocks_a_group(), bytes,
                           stream);
  }
  Pass<Real, 1> pass(sizes, from, to);
  // If even this does not fit, the launch returns an error.
  fits(pass, shared_memory, bytes);
  return launch_blocks(pass, sizes.groups * pass.blocks_a_group(), bytes,
                       stream);
}

template <template <class, int> class Pass>
int call_nonlinear(int flags, const int64_t* numbers, const void* const* from,
                   void* const* to, void* stream) {
  const int solver = flags >> kKerasLinrecSolverBit & 3;
  NonlinearSizes sizes{numbers[0],
                       numbers[1],
                       numbers[2],
                       static_cast<int>(numbers[3]),
                       numbers[4] != 0,
                       (flags & kKerasLinrecPerStep) != 0,
                       (flags & kKerasLinrecLinear) != 0,
                       (flags & kKerasLinrecGated) != 0,
                       solver > 0,
                       static_cast<Activation>(
                           flags >> kKerasLinrecActivationBit & 15),
                       0.0,
                       methods[solver]};
  std::memcpy(&sizes.leak, &numbers[5], sizeof(sizes.leak));
  if (sizes.groups * sizes.batch == 0) return 0;
  const auto run = flags & kKerasLinrecFloat64 ? nonlinear<double, Pass>
                                               : nonlinear<float, Pass>;
  return run(sizes, from, to, stream);
}

}  // namespace
}  // namespace cuda
}  // namespace keras_linrec

extern "C" {

// h_t = decay_t * h_{t-1} + inputs_t, on arrays on the stream's device.
// Quantities and flags are those of `keras_linrec_scan` in core.h. Returns the
// cudaError_t of the launches, without waiting for their end.
//   sizes: groups, batch, time, channels, chunks of time
//   from: decay, inputs, initial state
//   to: outputs, final state and, with more than one chunk, two quantities for
//     intermediate results, (batch, chunks, channels) each
KERAS_LINREC_PUBLIC int keras_linrec_cuda_scan(int flags, const int64_t* sizes,
                                               const void* const* from,
                                               void* const* to, void* stream) {
  using namespace keras_linrec::cuda;
  const auto run =
      flags & kKerasLinrecFloat64 ? call_as<double> : call_as<float>;
  return run(flags, false, sizes, from, to, stream);
}

//   from: decay, outputs, initial state, d_outputs, d_final_state
//   to: d_decay, for a time-invariant decay as (batch, chunks, channels), which
//     the caller adds up; d_inputs, d_initial_state; and two quantities as
//     above
KERAS_LINREC_PUBLIC int keras_linrec_cuda_scan_backward(
    int flags, const int64_t* sizes, const void* const* from, void* const* to,
    void* stream) {
  using namespace keras_linrec::cuda;
  const auto run =
      flags & kKerasLinrecFloat64 ? call_as<double> : call_as<float>;
  return run(flags, true, sizes, from, to, stream);
}

// h_t = activation(h_{t-1} R + z_t), or a step of a solver, as in
// `keras_linrec_nonlinear_scan` in core.h, but without activations of pairs.
//   sizes: groups, batch, time, units, whether outputs are needed, the bits of
//     the leak
//   from: z, followed by z' with a gate, (batch, time, units or twice as many);
//     R (units, units), or A and R side by side; step sizes, initial state
//   to: outputs (batch, time, units), final state
KERAS_LINREC_PUBLIC int keras_linrec_cuda_nonlinear_scan(
    int flags, const int64_t* sizes, const void* const* from, void* const* to,
    void* stream) {
  using namespace keras_linrec::cuda;
  return call_nonlinear<NonlinearScan>(flags, sizes, from, to, stream);
}

// The sequential part of the gradient; cuda_nonlinear.h defines e.
//   sizes: the same, with whether there are d_outputs
//   from: factors (stages, groups, batch, time, units or twice as many), the
//     transpose of (A, R), d_outputs, d_final_state
//   to: e (stages, groups, batch, time, units), d_initial_state
KERAS_LINREC_PUBLIC int keras_linrec_cuda_nonlinear_scan_backward(
    int flags, const int64_t* sizes, const void* const* from, void* const* to,
    void* stream) {
  using namespace keras_linrec::cuda;
  return call_nonlinear<NonlinearScanBackward>(flags, sizes, from, to, stream);
}

#ifndef __CUDACC__
// Sets the properties of the emulated GPU: see `Emulation`.
KERAS_LINREC_PUBLIC void keras_linrec_cuda_emulate(int64_t shared_memory,
                                                   int64_t processors,
                                                   int64_t backwards) {
  keras_linrec::cuda::emulation = {shared_memory, processors, backwards, {}};
}
#endif

// The name of an error.
KERAS_LINREC_PUBLIC const char* keras_linrec_cuda_error(int error) {
#ifdef __CUDACC__
  return cudaGetErrorString(static_cast<cudaError_t>(error));
#else
  return error ? "unknown" : "no error";
#endif
}

}  // extern "C"
