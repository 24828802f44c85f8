// The scan of rows, and its gradient.
#pragma once
#include "scan/scan_kernels.h"
#include "base/vectors-inl.h"

namespace keras_linrec {
namespace {

// As many numbers as fill a register in float64.
struct AllLanes {
  static constexpr int64_t width = VECTOR_BYTES / 8;
  typedef Doubles State;
  template <class Real>
  static INLINE State load(const Real* from) {
    return __builtin_convertvector(
        *reinterpret_cast<const typename Types<Real>::NarrowInMemory*>(from),
        Doubles);
  }
  template <class Real>
  static INLINE void store(Real* to, State value) {
    *reinterpret_cast<typename Types<Real>::NarrowInMemory*>(to) =
        __builtin_convertvector(value, typename Types<Real>::Narrow);
  }
};

// The same, stored past the caches. The address is a multiple of the register's
// bytes; `finish_streams` makes the numbers visible to other threads.
struct StreamedLanes : AllLanes {
#if defined(__AVX512F__)
  static INLINE void store(float* to, State value) {
    _mm256_stream_ps(
        to, (__m256)__builtin_convertvector(value, Types<float>::Narrow));
  }
  static INLINE void store(double* to, State value) {
    _mm512_stream_pd(to, (__m512d)value);
  }
#elif defined(__AVX2__)
  static INLINE void store(float* to, State value) {
    _mm_stream_ps(
        to, (__m128)__builtin_convertvector(value, Types<float>::Narrow));
  }
  static INLINE void store(double* to, State value) {
    _mm256_stream_pd(to, (__m256d)value);
  }
#endif
};

#if defined(__AVX2__)
constexpr bool streams_exist = true;
INLINE void finish_streams() { _mm_sfence(); }
#else
constexpr bool streams_exist = false;
INLINE void finish_streams() {}
#endif

// Whether rows of numbers can be streamed from here on.
template <class Real>
INLINE bool aligned(const Real* array, int64_t stride) {
  constexpr uintptr_t bytes = AllLanes::width * sizeof(Real);
  return reinterpret_cast<uintptr_t>(array) % bytes == 0 &&
         stride * sizeof(Real) % bytes == 0;
}

// One number.
struct OneLane {
  static constexpr int64_t width = 1;
  typedef double State;
  template <class Real>
  static INLINE State load(const Real* from) {
    return *from;
  }
  template <class Real>
  static INLINE void store(Real* to, State value) {
    *to = static_cast<Real>(value);
  }
};

// The first `count` numbers of a register. One at a time, 7 channels took 2.4
// times as long for each as 8.
#if defined(__AVX512F__)
#define HAS_SOME_LANES
struct SomeLanes {
  static constexpr int64_t width = VECTOR_BYTES / 8;
  typedef Doubles State;
  __mmask8 mask;
  explicit SomeLanes(int64_t count)
      : mask(static_cast<__mmask8>((1 << count) - 1)) {}
  INLINE State load(const float* from) const {
    return __builtin_convertvector(
        (Types<float>::Narrow)_mm256_maskz_loadu_ps(mask, from), Doubles);
  }
  INLINE State load(const double* from) const {
    return (State)_mm512_maskz_loadu_pd(mask, from);
  }
  INLINE void store(float* to, State value) const {
    _mm256_mask_storeu_ps(
        to, mask, (__m256)__builtin_convertvector(value, Types<float>::Narrow));
  }
  INLINE void store(double* to, State value) const {
    _mm512_mask_storeu_pd(to, mask, (__m512d)value);
  }
};
#elif defined(__AVX2__)
#define HAS_SOME_LANES
struct SomeLanes {
  static constexpr int64_t width = VECTOR_BYTES / 8;
  typedef Doubles State;
  __m256i mask;
  explicit SomeLanes(int64_t count)
      : mask(_mm256_cmpgt_epi64(_mm256_set1_epi64x(count),
                                _mm256_setr_epi64x(0, 1, 2, 3))) {}
  // The even halves of the mask, for numbers of half the size.
  INLINE __m128i narrow() const {
    return _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(
        mask, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6)));
  }
  INLINE State load(const float* from) const {
    return __builtin_convertvector(
        (Types<float>::Narrow)_mm_maskload_ps(from, narrow()), Doubles);
  }
  INLINE State load(const double* from) const {
    return (State)_mm256_maskload_pd(from, mask);
  }
  INLINE void store(float* to, State value) const {
    _mm_maskstore_ps(
        to, narrow(),
        (__m128)__builtin_convertvector(value, Types<float>::Narrow));
  }
  INLINE void store(double* to, State value) const {
    _mm256_maskstore_pd(to, mask, (__m256d)value);
  }
};
#endif

// Calls run(first channel, lanes) for the channels that do not fill a register.
template <class Run>
INLINE void for_the_rest(int64_t first, int64_t channels, Run run) {
#ifdef HAS_SOME_LANES
  if (channels - first > 1) return run(first, SomeLanes(channels - first));
#endif
  for (; first < channels; first++) run(first, OneLane());
}

// A real or complex number, and the three operations that the scans need.
template <class State, bool complex>
struct Number {
  State real, imag;
};

template <class State, bool complex>
INLINE Number<State, complex> multiply_add(Number<State, complex> a,
                                           Number<State, complex> b,
                                           Number<State, complex> c) {
  if (!complex) return {a.real * b.real + c.real, c.imag};
  // The products with the new input come first: only two operations depend
  // on the step before.
  return {a.real * b.real + (c.real - a.imag * b.imag),
          a.real * b.imag + (c.imag + a.imag * b.real)};
}

// conj(a) * b
template <class State, bool complex>
INLINE Number<State, complex> conjugate_multiply(Number<State, complex> a,
                                                 Number<State, complex> b) {
  if (!complex) return {a.real * b.real, b.imag};
  return {a.real * b.real + a.imag * b.imag, a.real * b.imag - a.imag * b.real};
}

// Rows of one block of time, small enough to stay in the cache for the passes
// of all column groups.
constexpr int64_t block_bytes = 1 << 16;

template <class Real>
int64_t block_rows(int64_t channels) {
  int64_t rows = block_bytes / (channels * static_cast<int64_t>(sizeof(Real)));
  return rows < 8 ? 8 : rows;
}

// Asks for `groups` lane groups of a row to be brought into the cache. Passes
// over a part of the channels jump from row to row, which a processor does not
// foresee: without this, a scan of 13 MB takes twice as long.
template <bool complex, int groups, class Real>
INLINE void prefetch(const Real* const* parts, int64_t at) {
  constexpr int64_t line = 64 / sizeof(Real);
  UNROLL for (int64_t i = 0; i < groups * AllLanes::width; i += line) {
    __builtin_prefetch(parts[0] + at + i, 0, 2);
    if (complex) __builtin_prefetch(parts[1] + at + i, 0, 2);
  }
}

template <class Lanes, bool complex>
struct Access {
  typedef Number<typename Lanes::State, complex> N;
  Lanes lanes;
  template <class Pointer>
  INLINE N load(Pointer const* parts, int64_t at) const {
    typename Lanes::State none = {};
    return {lanes.load(parts[0] + at),
            complex ? lanes.load(parts[1] + at) : none};
  }
  template <class Real>
  INLINE void store(Real* const* parts, int64_t at, N value) const {
    lanes.store(parts[0] + at, value.real);
    if (complex) lanes.store(parts[1] + at, value.imag);
  }
};

// `groups` lane groups from channel `first` on, all steps, state in registers.
// `Output` is how the outputs are stored.
template <bool complex, bool per_step, int groups, class Output, class Real,
          class Factor, class Lanes>
INLINE void scan_columns(const ScanRows<Real, Factor>& s, int64_t first,
                         Lanes lanes, Output output) {
  constexpr int64_t width = Lanes::width;
  const Access<Lanes, complex> at{lanes};
  const Access<Output, complex> out{output};
  Number<typename Lanes::State, complex> decay[groups], state[groups];
  UNROLL for (int g = 0; g < groups; g++) {
    state[g] = at.load(s.state, first + g * width);
    if (!per_step) decay[g] = at.load(s.decay, first + g * width);
  }
  const int64_t step = s.reverse ? -1 : 1;
  const int64_t ahead = step * block_rows<Real>(s.channels);
  int64_t t = s.reverse ? s.time - 1 : 0;
  for (int64_t count = 0; count < s.time; count++, t += step) {
    if (s.read_ahead) {
      const int64_t row = t + ahead;
      prefetch<complex, groups>(s.inputs, row * s.input_stride + first);
      if (per_step)
        prefetch<complex, groups>(s.decay, row * s.decay_stride + first);
    }
    UNROLL for (int g = 0; g < groups; g++) {
      const int64_t column = first + g * width;
      if (per_step) decay[g] = at.load(s.decay, t * s.decay_stride + column);
      state[g] = multiply_add(decay[g], state[g],
                              at.load(s.inputs, t * s.input_stride + column));
      out.store(s.outputs, t * s.output_stride + column, state[g]);
    }
  }
  UNROLL for (int g = 0; g < groups; g++)
    at.store(s.state, first + g * width, state[g]);
}

// All channels from `first` on, in the widest groups that they fill.
template <bool complex, bool per_step, class Output, int groups, class Real,
          class Factor>
void scan_all_columns(const ScanRows<Real, Factor>& s, int64_t first) {
  constexpr int64_t width = groups * AllLanes::width;
  for (; first + width <= s.channels; first += width)
    scan_columns<complex, per_step, groups>(s, first, AllLanes(), Output());
  if constexpr (groups > 1)
    return scan_all_columns<complex, per_step, Output, groups / 2>(s, first);
  for_the_rest(first, s.channels, [&](int64_t channel, auto lanes) {
    scan_columns<complex, per_step, 1>(s, channel, lanes, lanes);
  });
}

template <bool complex, bool per_step, class Output, class Real, class Factor>
void scan_rows_of(const ScanRows<Real, Factor>& s) {
  const int64_t rows = block_rows<Real>(s.channels);
  for (int64_t done = 0; done < s.time; done += rows) {
    ScanRows<Real, Factor> block = s;
    block.time = s.time - done < rows ? s.time - done : rows;
    const int64_t first = s.reverse ? s.time - done - block.time : done;
    for (int part = 0; part <= complex; part++) {
      block.decay[part] += first * s.decay_stride;
      block.inputs[part] += first * s.input_stride;
      block.outputs[part] += first * s.output_stride;
    }
    constexpr int groups = complex ? 4 : 8;
    scan_all_columns<complex, per_step, Output, groups>(block, 0);
  }
}

template <class Output, class Real, class Factor>
void scan_rows_to(const ScanRows<Real, Factor>& s) {
  if constexpr (sizeof(Factor) > sizeof(Real))
    return scan_rows_of<false, true, Output>(s);
  if (s.inputs[1])
    s.per_step ? scan_rows_of<true, true, Output>(s)
               : scan_rows_of<true, false, Output>(s);
  else
    s.per_step ? scan_rows_of<false, true, Output>(s)
               : scan_rows_of<false, false, Output>(s);
}

template <class Real, class Factor>
void scan_rows(const ScanRows<Real, Factor>& s) {
  bool streamed = streams_exist && s.streamed;
  for (int part = 0; part < 2; part++)
    streamed = streamed && aligned(s.outputs[part], s.output_stride);
  if (!streamed) return scan_rows_to<AllLanes>(s);
  scan_rows_to<StreamedLanes>(s);
  finish_streams();
}

// --- the gradient ---------------------------------------------------------

template <bool complex, bool per_step, int groups, class Output, class Real,
          class Factor, class Lanes>
INLINE void scan_columns_backward(const ScanRowsBackward<Real, Factor>& s,
                                  int64_t first, Lanes lanes, Output output) {
  typedef Number<typename Lanes::State, complex> N;
  constexpr int64_t width = Lanes::width;
  const Access<Lanes, complex> at{lanes};
  const Access<Output, complex> out{output};
  N decay[groups], carry[groups], sum[groups];
  UNROLL for (int g = 0; g < groups; g++) {
    carry[g] = at.load(s.carry, first + g * width);
    if (per_step) continue;
    decay[g] = at.load(s.decay, first + g * width);
    sum[g] = at.load(s.d_decay_sum, first + g * width);
  }
  // From the last step of the scan to the first.
  const int64_t step = s.reverse ? 1 : -1;
  const int64_t ahead = step * block_rows<Real>(s.channels);
  int64_t t = s.reverse ? 0 : s.time - 1;
  for (int64_t left = s.time; left > 0; left--, t += step) {
    if (s.read_ahead) {
      const int64_t row = t + ahead;
      prefetch<complex, groups>(s.outputs, row * s.output_stride + first);
      prefetch<complex, groups>(s.d_outputs, row * s.d_output_stride + first);
      if (per_step)
        prefetch<complex, groups>(s.decay, row * s.decay_stride + first);
    }
    UNROLL for (int g = 0; g < groups; g++) {
      const int64_t column = first + g * width;
      N gradient =
          at.load(s.d_outputs, t * s.d_output_stride + column);
      gradient.real += carry[g].real;
      if (complex) gradient.imag += carry[g].imag;
      const N before =
          left > 1 ? at.load(s.outputs, (t + step) * s.output_stride + column)
                   : at.load(s.initial, column);
      const N slope = conjugate_multiply(before, gradient);
      if (per_step) {
        decay[g] = at.load(s.decay, t * s.decay_stride + column);
        out.store(s.d_decay, t * s.d_decay_stride + column, slope);
      } else {
        sum[g].real += slope.real;
        if (complex) sum[g].imag += slope.imag;
      }
      out.store(s.d_inputs, t * s.d_input_stride + column, gradient);
      carry[g] = conjugate_multiply(decay[g], gradient);
    }
  }
  UNROLL for (int g = 0; g < groups; g++) {
    at.store(s.carry, first + g * width, carry[g]);
    if (!per_step) at.store(s.d_decay_sum, first + g * width, sum[g]);
  }
}

template <bool complex, bool per_step, class Output, int groups, class Real,
          class Factor>
void scan_all_columns_backward(const ScanRowsBackward<Real, Factor>& s,
                               int64_t first) {
  constexpr int64_t width = groups * AllLanes::width;
  for (; first + width <= s.channels; first += width)
    scan_columns_backward<complex, per_step, groups>(s, first, AllLanes(),
                                                     Output());
  if constexpr (groups > 1)
    return scan_all_columns_backward<complex, per_step, Output, groups / 2>(
        s, first);
  for_the_rest(first, s.channels, [&](int64_t channel, auto lanes) {
    scan_columns_backward<complex, per_step, 1>(s, channel, lanes, lanes);
  });
}

template <bool complex, bool per_step, class Output, class Real, class Factor>
void scan_rows_backward_of(const ScanRowsBackward<Real, Factor>& s) {
  const int64_t rows = block_rows<Real>(s.channels);
  for (int64_t done = 0; done < s.time; done += rows) {
    ScanRowsBackward<Real, Factor> block = s;
    block.time = s.time - done < rows ? s.time - done : rows;
    const int64_t first = s.reverse ? done : s.time - done - block.time;
    // The state before the block is the output of the step before it.
    const int64_t before = s.reverse ? first + block.time : first - 1;
    for (int part = 0; part <= complex; part++) {
      if (done + block.time < s.time)
        block.initial[part] = s.outputs[part] + before * s.output_stride;
      block.decay[part] += first * s.decay_stride;
      if (per_step) block.d_decay[part] += first * s.d_decay_stride;
      block.outputs[part] += first * s.output_stride;
      block.d_outputs[part] += first * s.d_output_stride;
      block.d_inputs[part] += first * s.d_input_stride;
    }
    constexpr int groups = complex ? 2 : 4;
    scan_all_columns_backward<complex, per_step, Output, groups>(block, 0);
  }
}

template <class Output, class Real, class Factor>
void scan_rows_backward_to(const ScanRowsBackward<Real, Factor>& s) {
  if constexpr (sizeof(Factor) > sizeof(Real))
    return scan_rows_backward_of<false, true, Output>(s);
  if (s.outputs[1])
    s.per_step ? scan_rows_backward_of<true, true, Output>(s)
               : scan_rows_backward_of<true, false, Output>(s);
  else
    s.per_step ? scan_rows_backward_of<false, true, Output>(s)
               : scan_rows_backward_of<false, false, Output>(s);
}

template <class Real, class Factor>
void scan_rows_backward(const ScanRowsBackward<Real, Factor>& s) {
  bool streamed = streams_exist && s.streamed;
  for (int part = 0; part < 2; part++)
    streamed = streamed && aligned(s.d_inputs[part], s.d_input_stride) &&
               (!s.per_step || aligned(s.d_decay[part], s.d_decay_stride));
  if (!streamed) return scan_rows_backward_to<AllLanes>(s);
  scan_rows_backward_to<StreamedLanes>(s);
  finish_streams();
}

}  // namespace
}  // namespace keras_linrec
