// The scan on a GPU: the work of one thread.
//
// Plain functions of the thread's index, without shared memory, so that they
// can be tested without a GPU, in a loop that any C++ compiler compiles.
//
// Time is cut into chunks, so that a long sequence fills the GPU even if it has
// few rows and channels. There are three passes, one after another: every chunk
// from zero, for its last state and the product of its decays; the states
// carried from chunk to chunk; every chunk again, from the right state. With
// one chunk only the third pass runs. The gradient has the same passes.
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#define KERAS_LINREC_DEVICE __host__ __device__ __forceinline__
#define KERAS_LINREC_UNROLL _Pragma("unroll")
#define KERAS_LINREC_UNROLL_BY_8 _Pragma("unroll 8")
#else
#define KERAS_LINREC_DEVICE inline
#define KERAS_LINREC_UNROLL
#define KERAS_LINREC_UNROLL_BY_8
#endif

namespace keras_linrec {
namespace cuda {

// Steps that a thread reads before it computes the first of them. A read takes
// hundreds of cycles, and only reads that are in flight together overlap.
constexpr int steps_ahead = 8;

// Numbers have the type of their arrays, sums too: float64 units are scarce on
// most GPUs, and the chunks keep the sums short.
template <class Real, int parts>
struct Number {
  Real part[parts];
};

template <class Real, int parts>
KERAS_LINREC_DEVICE Number<Real, parts> conjugate(Number<Real, parts> a) {
  if constexpr (parts == 2) a.part[1] = -a.part[1];
  return a;
}

template <class Real, int parts>
KERAS_LINREC_DEVICE Number<Real, parts> add(Number<Real, parts> a,
                                            Number<Real, parts> b) {
  for (int p = 0; p < parts; p++) a.part[p] += b.part[p];
  return a;
}

template <class Real, int parts>
KERAS_LINREC_DEVICE bool is_zero(Number<Real, parts> a) {
  bool zero = true;
  for (int p = 0; p < parts; p++) zero = zero && a.part[p] == Real(0);
  return zero;
}

// a * b + c
template <class Real, int parts>
KERAS_LINREC_DEVICE Number<Real, parts> multiply_add(Number<Real, parts> a,
                                                     Number<Real, parts> b,
                                                     Number<Real, parts> c) {
  if constexpr (parts == 1) {
    return {{a.part[0] * b.part[0] + c.part[0]}};
  } else {
    return {{a.part[0] * b.part[0] - a.part[1] * b.part[1] + c.part[0],
             a.part[0] * b.part[1] + a.part[1] * b.part[0] + c.part[1]}};
  }
}

template <class Real, int parts>
struct In {
  const Real* part[parts];

  KERAS_LINREC_DEVICE Number<Real, parts> load(int64_t element) const {
    Number<Real, parts> number;
    for (int p = 0; p < parts; p++) number.part[p] = part[p][element];
    return number;
  }
};

template <class Real, int parts>
struct Out {
  Real* part[parts];

  KERAS_LINREC_DEVICE operator In<Real, parts>() const {
    In<Real, parts> same;
    for (int p = 0; p < parts; p++) same.part[p] = part[p];
    return same;
  }
  KERAS_LINREC_DEVICE void store(int64_t element,
                                 Number<Real, parts> number) const {
    for (int p = 0; p < parts; p++) part[p][element] = number.part[p];
  }
};

// Chunks and steps are counted in the order of the scan, in either direction.
struct Sizes {
  int64_t groups, batch, time, channels, chunks;
  bool reverse;

  KERAS_LINREC_DEVICE int64_t states() const {
    return groups * batch * channels;
  }
};

// A thread's share of the work: a row, a chunk and a channel. The channel
// varies fastest, so that neighbouring threads read neighbouring numbers. In an
// array of shape (row, chunk, channel) the thread's number is at its index.
struct Place {
  int64_t channel, chunk, row, count, first, stride;

  KERAS_LINREC_DEVICE Place(const Sizes& sizes, int64_t thread)
      : channel(thread % sizes.channels),
        chunk(thread / sizes.channels % sizes.chunks),
        row(thread / sizes.channels / sizes.chunks) {
    const int64_t most = (sizes.time + sizes.chunks - 1) / sizes.chunks;
    const int64_t taken = chunk * most;
    const int64_t left = sizes.time - taken;
    // If the division leaves a remainder, the last chunks may be empty.
    count = left < 0 ? 0 : left < most ? left : most;
    const int64_t step = sizes.reverse ? sizes.time - 1 - taken : taken;
    first = (row * sizes.time + step) * sizes.channels + channel;
    stride = sizes.reverse ? -sizes.channels : sizes.channels;
  }

  // The element of a step, counted from the chunk's first.
  KERAS_LINREC_DEVICE int64_t at(int64_t step) const {
    return first + step * stride;
  }
  KERAS_LINREC_DEVICE int64_t state(const Sizes& sizes) const {
    return row * sizes.channels + channel;
  }
};

// The decay of a channel, read once if it is time-invariant.
template <class Real, int parts, bool per_step>
struct Decay {
  In<Real, parts> decay;
  Number<Real, parts> fixed;

  KERAS_LINREC_DEVICE Decay(const In<Real, parts>& decay, const Sizes& sizes,
                            const Place& place)
      : decay(decay), fixed{} {
    if constexpr (!per_step)
      fixed = decay.load(place.row / sizes.batch * sizes.channels +
                         place.channel);
  }
  KERAS_LINREC_DEVICE Number<Real, parts> load(int64_t element) const {
    if constexpr (per_step) return decay.load(element);
    return fixed;
  }
};

// take(step, load(step)) for each step in order, loading ahead.
template <class Load, class Take>
KERAS_LINREC_DEVICE void for_each(int64_t count, Load load, Take take) {
  int64_t step = 0;
  for (; step + steps_ahead <= count; step += steps_ahead) {
    decltype(load(step)) loaded[steps_ahead];
    KERAS_LINREC_UNROLL
    for (int k = 0; k < steps_ahead; k++) loaded[k] = load(step + k);
    KERAS_LINREC_UNROLL
    for (int k = 0; k < steps_ahead; k++) take(step + k, loaded[k]);
  }
  for (; step < count; step++) take(step, load(step));
}

// The numbers that a step reads: two, or three for the gradient.
template <class Real, int parts>
struct Step {
  Number<Real, parts> decay, input;
};
template <class Real, int parts>
struct StepBackward {
  Number<Real, parts> decay, d_output, before;
};

// The first pass of the scan. The last chunk passes nothing on.
template <class Real, int parts, bool per_step>
struct ScanEnds {
  Sizes sizes;
  In<Real, parts> decay, inputs;
  Out<Real, parts> products, ends;

  KERAS_LINREC_DEVICE void operator()(int64_t thread) const {
    const Place place(sizes, thread);
    if (place.chunk == sizes.chunks - 1) return;
    const Decay<Real, parts, per_step> decays(decay, sizes, place);
    Number<Real, parts> state{}, product{{1}};
    for_each(
        place.count,
        [&](int64_t step) {
          const int64_t element = place.at(step);
          return Step<Real, parts>{decays.load(element), inputs.load(element)};
        },
        [&](int64_t, const Step<Real, parts>& now) {
          state = multiply_add(now.decay, state, now.input);
          product = multiply_add(now.decay, product, {});
        });
    products.store(thread, product);
    ends.store(thread, state);
  }
};

// The first pass of the gradient, which goes from the last step to the first.
// The first chunk passes nothing on. Every line that computes differs from
// ScanEnds; only their frame is the same.
template <class Real, int parts, bool per_step>
struct ScanBackwardEnds {
  Sizes sizes;
  In<Real, parts> decay, d_outputs;
  Out<Real, parts> products, ends;

  KERAS_LINREC_DEVICE void operator()(int64_t thread) const {
    const Place place(sizes, thread);
    if (place.chunk == 0) return;
    const Decay<Real, parts, per_step> decays(decay, sizes, place);
    Number<Real, parts> carry{}, product{{1}};
    for_each(
        place.count,
        [&](int64_t step) {
          const int64_t element = place.at(place.count - 1 - step);
          return Step<Real, parts>{conjugate(decays.load(element)),
                                   d_outputs.load(element)};
        },
        [&](int64_t, const Step<Real, parts>& now) {
          carry = multiply_add(now.decay, add(now.input, carry), {});
          product = multiply_add(now.decay, product, {});
        });
    products.store(thread, product);
    ends.store(thread, carry);
  }
};

// The second pass of both: a thread for each row and channel replaces what
// leaves a chunk with what enters it.
template <class Real, int parts, bool backward>
struct CarryStates {
  Sizes sizes;
  In<Real, parts> products, initial;
  Out<Real, parts> carries;

  KERAS_LINREC_DEVICE void operator()(int64_t thread) const {
    const int64_t row = thread / sizes.channels;
    const int64_t channel = thread % sizes.channels;
    const int64_t last = sizes.chunks - 1;
    auto at = [&](int64_t chunk) {
      return (row * sizes.chunks + (backward ? last - chunk : chunk)) *
                 sizes.channels +
             channel;
    };
    const In<Real, parts> ends = carries;
    Number<Real, parts> state = initial.load(thread);
    for_each(
        last,
        [&](int64_t chunk) {
          return Step<Real, parts>{products.load(at(chunk)),
                                   ends.load(at(chunk))};
        },
        [&](int64_t chunk, const Step<Real, parts>& now) {
          carries.store(at(chunk), state);
          // A zero state stays zero even if the product of decays overflows.
          state = is_zero(state) ? now.input
                                 : multiply_add(now.decay, state, now.input);
        });
    carries.store(at(last), state);
  }
};

// The third pass of the scan. `entering` is (row, chunk, channel).
template <class Real, int parts, bool per_step>
struct Scan {
  Sizes sizes;
  In<Real, parts> decay, inputs, entering;
  Out<Real, parts> outputs, final_state;

  KERAS_LINREC_DEVICE void operator()(int64_t thread) const {
    const Place place(sizes, thread);
    const Decay<Real, parts, per_step> decays(decay, sizes, place);
    Number<Real, parts> state = entering.load(thread);
    for_each(
        place.count,
        [&](int64_t step) {
          const int64_t element = place.at(step);
          return Step<Real, parts>{decays.load(element), inputs.load(element)};
        },
        [&](int64_t step, const Step<Real, parts>& now) {
          state = multiply_add(now.decay, state, now.input);
          outputs.store(place.at(step), state);
        });
    if (place.chunk == sizes.chunks - 1)
      final_state.store(place.state(sizes), state);
  }
};

// The third pass of the gradient. For a time-invariant decay it returns the sum
// over a chunk, (row, chunk, channel).
template <class Real, int parts, bool per_step>
struct ScanBackward {
  Sizes sizes;
  In<Real, parts> decay, outputs, initial, d_outputs, entering;
  Out<Real, parts> d_decay, d_inputs, d_initial;

  KERAS_LINREC_DEVICE void operator()(int64_t thread) const {
    using N = Number<Real, parts>;
    const Place place(sizes, thread);
    const Decay<Real, parts, per_step> decays(decay, sizes, place);
    const int64_t state = place.state(sizes);
    N carry = entering.load(thread), sum{};
    for_each(
        place.count,
        [&](int64_t step) {
          const int64_t back = place.count - 1 - step;
          const int64_t element = place.at(back);
          const bool first = place.chunk == 0 && back == 0;
          return StepBackward<Real, parts>{
              conjugate(decays.load(element)), d_outputs.load(element),
              conjugate(first ? initial.load(state)
                              : outputs.load(element - place.stride))};
        },
        [&](int64_t step, const StepBackward<Real, parts>& now) {
          const int64_t element = place.at(place.count - 1 - step);
          const N d_input = add(now.d_output, carry);
          d_inputs.store(element, d_input);
          if constexpr (per_step)
            d_decay.store(element, multiply_add(d_input, now.before, N{}));
          else
            sum = multiply_add(d_input, now.before, sum);
          carry = multiply_add(now.decay, d_input, N{});
        });
    if constexpr (!per_step) d_decay.store(thread, sum);
    if (place.chunk == 0) d_initial.store(state, carry);
  }
};

}  // namespace cuda
}  // namespace keras_linrec
