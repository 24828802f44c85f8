// Fourier transforms of sequences that lie side by side in the lanes of
// vectors: no number ever leaves its lane.
#pragma once
#include <cstdint>

#include "base/activation_kernels-inl.h"
#include "convolution/fourier_kernels.h"
#include "base/vectors-inl.h"

namespace keras_linrec {
namespace {

#define FOR_EACH_POINT(q) UNROLL for (int q = 0; q < radix; q++)

template <class Real>
struct Complex {
  typedef typename Types<Real>::Vector Vector;
  Vector real, imag;
};

template <class Real>
INLINE Complex<Real> operator+(const Complex<Real>& a, const Complex<Real>& b) {
  return {a.real + b.real, a.imag + b.imag};
}
template <class Real>
INLINE Complex<Real> operator-(const Complex<Real>& a, const Complex<Real>& b) {
  return {a.real - b.real, a.imag - b.imag};
}
template <class Real>
INLINE Complex<Real> operator*(const Complex<Real>& a, const Complex<Real>& b) {
  return {a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real};
}
// a times the conjugate of b
template <class Real>
INLINE Complex<Real> times_conjugate(const Complex<Real>& a,
                                     const Complex<Real>& b) {
  return {a.real * b.real + a.imag * b.imag, a.imag * b.real - a.real * b.imag};
}
template <class Real>
INLINE Complex<Real> scaled(const Complex<Real>& a, Real by) {
  return {a.real * by, a.imag * by};
}
// a plus scale * b
template <class Real>
INLINE Complex<Real> plus(const Complex<Real>& a, Real scale,
                          const Complex<Real>& b) {
  return {a.real + scale * b.real, a.imag + scale * b.imag};
}

// Forward transforms multiply by -i and by twiddles, backward ones by i and by
// their conjugates.
template <bool forward, class Real>
INLINE Complex<Real> plus_turned(const Complex<Real>& a,
                                 const Complex<Real>& b) {
  if (forward) return {a.real + b.imag, a.imag - b.real};
  return {a.real - b.imag, a.imag + b.real};
}
template <bool forward, class Real>
INLINE Complex<Real> twiddled(const Complex<Real>& a, const Real* twiddle) {
  const Real real = twiddle[0], imag = twiddle[1];
  if (forward)
    return {a.real * real - a.imag * imag, a.real * imag + a.imag * real};
  return {a.real * real + a.imag * imag, a.imag * real - a.real * imag};
}

// Transforms of `radix` points.

template <bool forward, class Real>
INLINE void transform_four(Complex<Real>& a, Complex<Real>& b, Complex<Real>& c,
                           Complex<Real>& d) {
  const auto even = a + c, even_difference = a - c;
  const auto odd = b + d, odd_difference = b - d;
  a = even + odd;
  b = plus_turned<forward>(even_difference, odd_difference);
  c = even - odd;
  d = plus_turned<!forward>(even_difference, odd_difference);
}

template <int radix, bool forward, class Real>
INLINE void transform(Complex<Real>* x) {
  if constexpr (radix == 2) {
    const auto difference = x[0] - x[1];
    x[0] = x[0] + x[1];
    x[1] = difference;
  }
  if constexpr (radix == 3) {
    const Real sine = Real(0.86602540378443864676);
    const auto sum = x[1] + x[2], difference = scaled(x[1] - x[2], sine);
    const auto middle = plus(x[0], Real(-0.5), sum);
    x[0] = x[0] + sum;
    x[1] = plus_turned<forward>(middle, difference);
    x[2] = plus_turned<!forward>(middle, difference);
  }
  if constexpr (radix == 4) transform_four<forward>(x[0], x[1], x[2], x[3]);
  if constexpr (radix == 5) {
    const Real cosine[] = {Real(0.30901699437494742410),
                           Real(-0.80901699437494742410)};
    const Real sine[] = {Real(0.95105651629515357212),
                         Real(0.58778525229247312917)};
    const auto outer = x[1] + x[4], outer_difference = x[1] - x[4];
    const auto inner = x[2] + x[3], inner_difference = x[2] - x[3];
    const auto a = plus(plus(x[0], cosine[0], outer), cosine[1], inner);
    const auto b = plus(plus(x[0], cosine[1], outer), cosine[0], inner);
    const auto c =
        plus(scaled(outer_difference, sine[0]), sine[1], inner_difference);
    const auto d =
        plus(scaled(outer_difference, sine[1]), -sine[0], inner_difference);
    x[0] = x[0] + outer + inner;
    x[1] = plus_turned<forward>(a, c);
    x[2] = plus_turned<forward>(b, d);
    x[3] = plus_turned<!forward>(b, d);
    x[4] = plus_turned<!forward>(a, c);
  }
  if constexpr (radix == 8) {
    const Real half = Real(0.70710678118654752440);
    transform_four<forward>(x[0], x[2], x[4], x[6]);
    transform_four<forward>(x[1], x[3], x[5], x[7]);
    // The odd ones turn by an eighth each; of the second and the fourth,
    // sqrt(2) times as much.
    const auto second = plus_turned<forward>(x[3], x[3]);
    const Complex<Real> none{};
    const auto fourth = plus_turned<forward>(none - x[7], x[7]);
    const Complex<Real> even[] = {x[0], x[2], x[4], x[6]};
    const Complex<Real> odd[] = {x[1], x[5]};
    x[0] = even[0] + odd[0];
    x[4] = even[0] - odd[0];
    x[1] = plus(even[1], half, second);
    x[5] = plus(even[1], -half, second);
    x[2] = plus_turned<forward>(even[2], odd[1]);
    x[6] = plus_turned<!forward>(even[2], odd[1]);
    x[3] = plus(even[3], half, fourth);
    x[7] = plus(even[3], -half, fourth);
  }
}

// Calls use(constant of the radix), which the compiler unrolls.
template <class Use>
INLINE void with_radix(int64_t radix, const Use& use) {
  switch (radix) {
    case 2: return use(Constant<2>());
    case 3: return use(Constant<3>());
    case 4: return use(Constant<4>());
    case 5: return use(Constant<5>());
    default: return use(Constant<8>());
  }
}

// A stage in place, over `points` numbers in blocks of radix * below.
template <bool forward, class Real>
void run_stage(const FourierStage<Real>& stage, int64_t points,
               Complex<Real>* x) {
  with_radix(stage.radix, [&](auto constant) {
    constexpr int radix = decltype(constant)::value;
    const int64_t below = stage.below;
    for (const Complex<Real>* end = x + points; x < end; x += radix * below)
      for (int64_t j = 0; j < below; j++) {
        const Real* twiddles = stage.twiddles + 2 * radix * j;
        Complex<Real> v[radix];
        FOR_EACH_POINT(q) v[q] = x[j + q * below];
        if (!forward) {
          FOR_EACH_POINT(q)
          v[q] = q ? twiddled<false>(v[q], twiddles + 2 * q) : v[q];
        }
        transform<radix, forward>(v);
        if (forward) {
          FOR_EACH_POINT(q)
          v[q] = q ? twiddled<true>(v[q], twiddles + 2 * q) : v[q];
        }
        FOR_EACH_POINT(q) x[j + q * below] = v[q];
      }
  });
}

// Sequences in and out of rows of width + 1 vectors. Columns taken out of the
// sequences themselves would fall into few sets of the cache: it would take
// twice as long.

// How many steps ahead of its use memory is asked for.
constexpr int64_t steps_ahead = 48;

// As many steps as there are lanes, of sequences whose steps lie side by side:
// from lines of memory to vectors, and back. Number by number, sequences that
// are a power of two apart would all be read through one set of the cache.
template <class Real>
struct Lines {
  static constexpr int width = Types<Real>::width;
  alignas(64) Real numbers[width][width] = {};  // steps, lanes

  INLINE void read(const Real* at, const FourierLanes<const Real>& from) {
    for (int64_t lane = 0; lane < from.lanes; lane++) {
      const Real* line = at + (from.place ? from.place[lane] : lane);
      for (int t = 0; t < width; t++) numbers[t][lane] = line[t];
    }
  }
  INLINE void write(Real* at, const FourierLanes<Real>& to) const {
    for (int64_t lane = 0; lane < to.lanes; lane++) {
      Real* line = at + (to.place ? to.place[lane] : lane);
      for (int t = 0; t < width; t++) line[t] = numbers[t][lane];
    }
  }
  INLINE typename Types<Real>::Vector& step(int t) {
    return *reinterpret_cast<typename Types<Real>::Vector*>(numbers[t]);
  }
};

// Values become use(numbers of a step, value before), or 0 behind the last
// step.
template <class Real, class Use>
INLINE void gather(const FourierPlan<Real>& plan,
                   const FourierLanes<const Real>& from,
                   typename Types<Real>::Vector* values, const Use& use) {
  typedef typename Types<Real>::Vector Vector;
  typedef typename Types<Real>::VectorInMemory InMemory;
  constexpr int width = Types<Real>::width;
  const bool whole = !from.place && from.lanes == width;
  for (int64_t row = 0; row < plan.rows; row++, values += plan.width + 1) {
    const int64_t first = row * plan.width;
    int64_t count = from.steps - first;
    count = count < 0 ? 0 : count < plan.width ? count : plan.width;
    const Real* at = from.numbers + first * from.step;
    int64_t t = 0;
    for (; from.step == 1 && t + width <= count; t += width, at += width) {
      Lines<Real> lines;
      lines.read(at, from);
      for (int k = 0; k < width; k++)
        values[t + k] = use(lines.step(k), values[t + k]);
    }
    for (; t < count; t++, at += from.step) {
      if (whole) {
        __builtin_prefetch(at + steps_ahead * from.step);
        values[t] = use(*reinterpret_cast<const InMemory*>(at), values[t]);
        continue;
      }
      Vector value{};
      for (int64_t lane = 0; lane < from.lanes; lane++)
        value[lane] = at[from.place ? from.place[lane] : lane];
      values[t] = use(value, values[t]);
    }
    for (; t < plan.width; t++) values[t] = Vector{};
  }
}
// Calls use(numbers of a step) for the steps from one to another.
template <class Real, class Use>
INLINE void for_each_step(const FourierLanes<const Real>& from, int64_t begin,
                          int64_t end, const Use& use) {
  typedef typename Types<Real>::Vector Vector;
  typedef typename Types<Real>::VectorInMemory InMemory;
  const Real* at = from.numbers + begin * from.step;
  if (!from.place && from.lanes == Types<Real>::width) {
    for (int64_t t = begin; t < end; t++, at += from.step) {
      __builtin_prefetch(at + steps_ahead * from.step);
      use(*reinterpret_cast<const InMemory*>(at));
    }
    return;
  }
  for (int64_t t = begin; t < end; t++, at += from.step) {
    Vector value{};
    for (int64_t lane = 0; lane < from.lanes; lane++)
      value[lane] = at[from.place ? from.place[lane] : lane];
    use(value);
  }
}

template <class Real>
void measure_squares(const FourierSquares<Real>& s) {
  typedef typename Types<Real>::Vector Vector;
  typedef typename Types<Real>::VectorInMemory InMemory;
  Vector largest{};
  Real* sums = s.sums;
  for (int64_t t = 0; t < s.from.steps; t += s.window, sums += s.stride) {
    const int64_t next = t + s.window;
    Vector sum{};
    for_each_step(s.from, t, next < s.from.steps ? next : s.from.steps,
                  [&](Vector numbers) {
                    const Vector square = numbers * numbers;
                    sum += square;
                    largest = square > largest ? square : largest;
                  });
    *reinterpret_cast<InMemory*>(sums) = sum;
  }
  *reinterpret_cast<InMemory*>(s.largest) = largest;
}

template <class Real>
void gather(const FourierPlan<Real>& plan, const FourierLanes<const Real>& from,
            typename Types<Real>::Vector* values) {
  typedef typename Types<Real>::Vector Vector;
  gather(plan, from, values, [](Vector given, Vector) { return given; });
}

// Stores use(value) for the values of all steps.
template <class Real, class Use>
INLINE void scatter(const FourierPlan<Real>& plan,
                    const typename Types<Real>::Vector* values,
                    const FourierLanes<Real>& to, const Use& use) {
  typedef typename Types<Real>::VectorInMemory InMemory;
  constexpr int width = Types<Real>::width;
  const bool whole = !to.place && to.lanes == width;
  for (int64_t row = 0; row < plan.rows; row++, values += plan.width + 1) {
    const int64_t first = row * plan.width;
    int64_t count = to.steps - first;
    if (count <= 0) return;
    if (count > plan.width) count = plan.width;
    Real* at = to.numbers + first * to.step;
    int64_t t = 0;
    for (; to.step == 1 && t + width <= count; t += width, at += width) {
      Lines<Real> lines;
      for (int k = 0; k < width; k++) lines.step(k) = use(values[t + k]);
      lines.write(at, to);
    }
    for (; t < count; t++, at += to.step) {
      const auto value = use(values[t]);
      if (whole) {
        __builtin_prefetch(at + steps_ahead * to.step, 1);
        *reinterpret_cast<InMemory*>(at) = value;
        continue;
      }
      for (int64_t lane = 0; lane < to.lanes; lane++)
        at[to.place ? to.place[lane] : lane] = value[lane];
    }
  }
}

template <class Real>
void scatter_activated(const FourierConvolution<Real>& given,
                       const typename Types<Real>::Vector* values,
                       const FourierLanes<Real>& to) {
  typedef typename Types<Real>::Vector Vector;
  with_activation(given.activation, [&](auto constant) {
    scatter(*given.plan, values, to, [&](Vector value) {
      Vector slope;
      return activated<Real, decltype(constant)::value>(value, given.leak,
                                                        &slope);
    });
  });
}

// Values, the arguments of the activation, become the cotangents of these.
template <class Real>
void gather_cotangents(const FourierGradient<Real>& given,
                       const FourierLanes<const Real>& from,
                       typename Types<Real>::Vector* values) {
  typedef typename Types<Real>::Vector Vector;
  with_activation(given.activation, [&](auto constant) {
    gather(*given.plan, from, values, [&](Vector cotangent, Vector value) {
      Vector slope;
      activated<Real, decltype(constant)::value>(value, given.leak, &slope);
      return cotangent * slope;
    });
  });
}

// All columns: real numbers to a spectrum but for the transforms of its rows.
template <class Real>
void transform_columns(const FourierPlan<Real>& plan,
                       const FourierScratch<Real>& scratch, Real* to) {
  typedef typename Types<Real>::Vector Vector;
  const auto* values = reinterpret_cast<const Vector*>(scratch.values);
  auto* x = reinterpret_cast<Complex<Real>*>(scratch.column);
  auto* spectrum = reinterpret_cast<Complex<Real>*>(to);
  const FourierFactor<Real>& factor = plan.column;
  const int last = factor.stages - 1;
  const int64_t values_stride = plan.width + 1;
  for (int64_t t = 0; t < plan.width; t++) {
    with_radix(factor.stage[0].radix, [&](auto constant) {
      constexpr int radix = decltype(constant)::value;
      const int64_t below = factor.stage[0].below;
      for (int64_t j = 0; j < below; j++) {
        Complex<Real> v[radix];
        FOR_EACH_POINT(q) {
          const Vector* at = values + t + (j + q * below) * values_stride;
          __builtin_prefetch(at + 1);
          v[q] = {*at * plan.shift[2 * q], *at * plan.shift[2 * q + 1]};
        }
        transform<radix, true>(v);
        const Real* twiddles = factor.stage[0].twiddles + 2 * radix * j;
        FOR_EACH_POINT(q)
        x[j + q * below] = twiddled<true>(v[q], twiddles + 2 * q);
      }
    });
    for (int i = 1; i < last; i++)
      run_stage<true>(factor.stage[i], factor.points, x);
    const Real* twiddles = plan.twiddles + 2 * t * plan.rows;
    with_radix(factor.stage[last].radix, [&](auto constant) {
      constexpr int radix = decltype(constant)::value;
      for (int64_t i = 0; i < plan.rows; i += radix) {
        Complex<Real> v[radix];
        FOR_EACH_POINT(q) v[q] = x[i + q];
        transform<radix, true>(v);
        FOR_EACH_POINT(q)
        spectrum[(i + q) * plan.stride + t] =
            twiddled<true>(v[q], twiddles + 2 * (i + q));
      }
    });
  }
}

// And back.
template <class Real>
void invert_columns(const FourierPlan<Real>& plan,
                    const FourierScratch<Real>& scratch, const Real* from) {
  typedef typename Types<Real>::Vector Vector;
  auto* values = reinterpret_cast<Vector*>(scratch.values);
  auto* x = reinterpret_cast<Complex<Real>*>(scratch.column);
  const auto* spectrum = reinterpret_cast<const Complex<Real>*>(from);
  const FourierFactor<Real>& factor = plan.column;
  const int last = factor.stages - 1;
  const int64_t values_stride = plan.width + 1;
  for (int64_t t = 0; t < plan.width; t++) {
    const Real* twiddles = plan.twiddles + 2 * t * plan.rows;
    with_radix(factor.stage[last].radix, [&](auto constant) {
      constexpr int radix = decltype(constant)::value;
      for (int64_t i = 0; i < plan.rows; i += radix) {
        Complex<Real> v[radix];
        FOR_EACH_POINT(q) {
          const auto* at = spectrum + (i + q) * plan.stride + t;
          v[q] = twiddled<false>(*at, twiddles + 2 * (i + q));
          __builtin_prefetch(&at[1].real);
          __builtin_prefetch(&at[1].imag);
        }
        transform<radix, false>(v);
        FOR_EACH_POINT(q) x[i + q] = v[q];
      }
    });
    for (int i = last - 1; i > 0; i--)
      run_stage<false>(factor.stage[i], factor.points, x);
    with_radix(factor.stage[0].radix, [&](auto constant) {
      constexpr int radix = decltype(constant)::value;
      const int64_t below = factor.stage[0].below;
      for (int64_t j = 0; j < below; j++) {
        const Real* twiddles = factor.stage[0].twiddles + 2 * radix * j;
        Complex<Real> v[radix];
        FOR_EACH_POINT(q)
        v[q] = twiddled<false>(x[j + q * below], twiddles + 2 * q);
        transform<radix, false>(v);
        // The real part alone, turned back from the shifted frequencies.
        FOR_EACH_POINT(q)
        values[t + (j + q * below) * values_stride] =
            v[q].real * plan.shift[2 * q] + v[q].imag * plan.shift[2 * q + 1];
      }
    });
  }
}

// All stages of a row but the last.
template <class Real>
INLINE void transform_row(const FourierFactor<Real>& factor,
                          Complex<Real>* row) {
  for (int i = 0; i < factor.stages - 1; i++)
    run_stage<true>(factor.stage[i], factor.points, row);
}
template <class Real>
INLINE void invert_row(const FourierFactor<Real>& factor, Complex<Real>* row) {
  for (int i = factor.stages - 2; i >= 0; i--)
    run_stage<false>(factor.stage[i], factor.points, row);
}

// Calls use(row, offset of its first number) for each row of a spectrum.
template <class Real, class Use>
INLINE void for_each_row(const FourierPlan<Real>& plan, Real* spectrum,
                         const Use& use) {
  auto* row = reinterpret_cast<Complex<Real>*>(spectrum);
  for (int64_t i = 0; i < plan.rows; i++)
    use(row + i * plan.stride, i * plan.stride);
}

template <class Real>
void spectrum_of(const FourierSpectrum<Real>& given) {
  const FourierPlan<Real>& plan = *given.plan;
  typedef typename Types<Real>::Vector Vector;
  gather(plan, given.from, reinterpret_cast<Vector*>(given.scratch.values));
  transform_columns(plan, given.scratch, given.spectrum);
  const auto& last = plan.row.stage[plan.row.stages - 1];
  for_each_row(plan, given.spectrum, [&](Complex<Real>* row, int64_t) {
    transform_row(plan.row, row);
    with_radix(last.radix, [&](auto constant) {
      constexpr int radix = decltype(constant)::value;
      for (int64_t i = 0; i < plan.width; i += radix) {
        transform<radix, true>(row + i);
        FOR_EACH_POINT(q) row[i + q] = scaled(row[i + q], given.scale);
      }
    });
  });
}

// The columns' spectrum of a product of two spectra. The rows of the first one
// are transformed on the way, all stages but the last, if they are `new_rows`.
template <class Real>
void multiply_rows(const FourierPlan<Real>& plan, Real* spectrum,
                   bool new_rows, const Real* by, Real* to) {
  const auto* factors = reinterpret_cast<const Complex<Real>*>(by);
  auto* products = reinterpret_cast<Complex<Real>*>(to);
  const auto& last = plan.row.stage[plan.row.stages - 1];
  for_each_row(plan, spectrum, [&](Complex<Real>* row, int64_t offset) {
    const Complex<Real>* factor = factors + offset;
    Complex<Real>* product = products + offset;
    if (new_rows) transform_row(plan.row, row);
    with_radix(last.radix, [&](auto constant) {
      constexpr int radix = decltype(constant)::value;
      for (int64_t i = 0; i < plan.width; i += radix) {
        Complex<Real> v[radix];
        FOR_EACH_POINT(q) v[q] = row[i + q];
        transform<radix, true>(v);
        FOR_EACH_POINT(q) v[q] = v[q] * factor[i + q];
        transform<radix, false>(v);
        FOR_EACH_POINT(q) product[i + q] = v[q];
      }
    });
    invert_row(plan.row, product);
  });
}

template <class Real>
void convolve(const FourierConvolution<Real>& given) {
  const FourierPlan<Real>& plan = *given.plan;
  typedef typename Types<Real>::Vector Vector;
  auto* values = reinterpret_cast<Vector*>(given.scratch.values);
  gather(plan, given.inputs, values);
  transform_columns(plan, given.scratch, given.spectrum);
  for (int64_t channel = 0; channel < given.channels; channel++) {
    multiply_rows(plan, given.spectrum, channel == 0,
                  given.responses + channel * given.spectrum_size,
                  given.product);
    invert_columns(plan, given.scratch, given.product);
    FourierLanes<Real> outputs = given.outputs;
    outputs.numbers += channel;
    scatter_activated(given, values, outputs);
  }
}

template <class Real>
void convolve_backward(const FourierGradient<Real>& given) {
  const FourierPlan<Real>& plan = *given.plan;
  typedef typename Types<Real>::Vector Vector;
  auto* values = reinterpret_cast<Vector*>(given.scratch.values);
  const bool wants_inputs = given.d_inputs.numbers;
  auto* inputs = reinterpret_cast<Complex<Real>*>(given.spectrum);
  const auto& last = plan.row.stage[plan.row.stages - 1];
  const bool is_linear = given.activation == kLinear;
  if (given.d_responses || !is_linear) {
    gather(plan, given.inputs, values);
    transform_columns(plan, given.scratch, given.spectrum);
  }
  for (int64_t channel = 0; channel < given.channels; channel++) {
    FourierLanes<const Real> d_outputs = given.d_outputs;
    d_outputs.numbers += channel;
    const int64_t first = channel * given.spectrum_size;
    if (!is_linear) {
      multiply_rows(plan, given.spectrum, channel == 0,
                    given.responses + first, given.product);
      invert_columns(plan, given.scratch, given.product);
    }
    gather_cotangents(given, d_outputs, values);
    transform_columns(plan, given.scratch, given.product);
    const auto* responses =
        reinterpret_cast<const Complex<Real>*>(given.responses + first);
    auto* d_responses =
        given.d_responses
            ? reinterpret_cast<Complex<Real>*>(given.d_responses + first)
            : nullptr;
    auto* sums = reinterpret_cast<Complex<Real>*>(given.sum);
    const bool new_rows = d_responses && channel == 0 && is_linear;
    for_each_row(plan, given.product, [&](Complex<Real>* row, int64_t offset) {
      transform_row(plan.row, row);
      if (new_rows) transform_row(plan.row, inputs + offset);
      with_radix(last.radix, [&](auto constant) {
        constexpr int radix = decltype(constant)::value;
        for (int64_t i = 0; i < plan.width; i += radix) {
          const int64_t at = offset + i;
          Complex<Real> v[radix];
          FOR_EACH_POINT(q) v[q] = row[i + q];
          transform<radix, true>(v);
          if (d_responses) {
            Complex<Real> u[radix];
            FOR_EACH_POINT(q) u[q] = inputs[at + q];
            transform<radix, true>(u);
            FOR_EACH_POINT(q) u[q] = times_conjugate(v[q], u[q]);
            if (!given.is_first) {
              FOR_EACH_POINT(q) u[q] = d_responses[at + q] + u[q];
            }
            FOR_EACH_POINT(q) d_responses[at + q] = u[q];
          }
          if (!wants_inputs) continue;
          FOR_EACH_POINT(q) v[q] = times_conjugate(v[q], responses[at + q]);
          if (sums) {
            if (channel) {
              FOR_EACH_POINT(q) v[q] = v[q] + sums[at + q];
            }
            FOR_EACH_POINT(q) sums[at + q] = v[q];
            if (channel + 1 < given.channels) continue;
          }
          transform<radix, false>(v);
          FOR_EACH_POINT(q) row[i + q] = v[q];
        }
      });
      if (wants_inputs && channel + 1 == given.channels)
        invert_row(plan.row, row);
    });
  }
  if (!wants_inputs) return;
  invert_columns(plan, given.scratch, given.product);
  scatter(plan, values, given.d_inputs, [](Vector value) { return value; });
}

template <class Real>
void sequences_of(const FourierInverse<Real>& given) {
  const FourierPlan<Real>& plan = *given.plan;
  typedef typename Types<Real>::Vector Vector;
  const auto& last = plan.row.stage[plan.row.stages - 1];
  for_each_row(plan, given.spectrum, [&](Complex<Real>* row, int64_t) {
    with_radix(last.radix, [&](auto constant) {
      constexpr int radix = decltype(constant)::value;
      for (int64_t i = 0; i < plan.width; i += radix)
        transform<radix, false>(row + i);
    });
    invert_row(plan.row, row);
  });
  invert_columns(plan, given.scratch, given.spectrum);
  scatter(plan, reinterpret_cast<const Vector*>(given.scratch.values), given.to,
          [&](Vector value) { return value * given.scale; });
}

#undef FOR_EACH_POINT

}  // namespace
}  // namespace keras_linrec
