// Diagonal systems whose steps differ in length, in float64.
#pragma once
#include "base/activation_kernels-inl.h"
#include "base/vectors-inl.h"
#include "scan/diagonal_kernels.h"

namespace keras_linrec {
namespace {

// Complex numbers, a vector of them.
struct Complexes {
  Doubles real, imag;
  template <class Pointer>
  static INLINE Complexes load(Pointer const (&from)[2], int64_t at) {
    return {load_doubles(from[0] + at), load_doubles(from[1] + at)};
  }
  template <class Pointer>
  INLINE void store(Pointer const (&to)[2], int64_t at) const {
    store_doubles(to[0] + at, real);
    store_doubles(to[1] + at, imag);
  }
  INLINE Complexes conjugate() const { return {real, -imag}; }
};
INLINE Complexes operator+(Complexes a, Complexes b) {
  return {a.real + b.real, a.imag + b.imag};
}
INLINE Complexes operator*(Complexes a, Complexes b) {
  return {a.real * b.real - a.imag * b.imag,
          a.real * b.imag + a.imag * b.real};
}
INLINE Complexes operator*(Doubles a, Complexes b) {
  return {a * b.real, a * b.imag};
}
INLINE Complexes operator*(double a, Complexes b) {
  return {a * b.real, a * b.imag};
}

struct SineAndCosine {
  Doubles sine, cosine;
};

// Of any finite angle; an angle's own rounding is in its last digit.
INLINE SineAndCosine sine_and_cosine(Doubles angle) {
  typedef Types<double>::Bits Bits;
  // Below it, the products of quarters with the first two parts of pi / 2 are
  // exact.
  const Doubles most = Doubles{} + double(1 << 20);
  const Bits is_large = (angle > most) | (angle < -most);
  bool any = false;
  for (int i = 0; i < Types<double>::width; i++) any |= is_large[i] != 0;
  if (__builtin_expect(any, 0)) {
    SineAndCosine found;
    for (int i = 0; i < Types<double>::width; i++) {
      found.sine[i] = __builtin_sin(angle[i]);
      found.cosine[i] = __builtin_cos(angle[i]);
    }
    return found;
  }
  constexpr double shifter = 3.0 * (int64_t{1} << 51);
  constexpr double high = 0x1.921fb544p0, middle = 0x1.0b4611a6p-34;
  constexpr double low = 0x1.3198a2e037073p-69;
  const Doubles shifted = angle * 0.63661977236758134308 + shifter;
  const Doubles quarters = shifted - shifter;
  const Doubles r = ((angle - quarters * high) - quarters * middle) -
                    quarters * low;
  const Doubles square = r * r;
  // The series of sine and cosine up to r^17 and r^16, for |r| < pi / 4.
  Doubles sine{}, cosine{};
  double odd = 1, even = 1;
  for (int k = 2; k <= 16; k += 2) {
    even /= -(k - 1) * k;
    odd /= -k * (k + 1);
  }
  sine += odd;
  cosine += even;
  for (int k = 16; k > 0; k -= 2) {
    even *= -(k - 1) * k;
    odd *= -k * (k + 1);
    sine = sine * square + odd;
    cosine = cosine * square + even;
  }
  sine *= r;
  Bits bits;
  __builtin_memcpy(&bits, &shifted, sizeof bits);
  const Bits is_odd = (bits & 1) != 0;
  const Bits minus_sine = (bits & 2) != 0, minus_cosine = ((bits + 1) & 2) != 0;
  const Doubles first = is_odd ? cosine : sine;
  const Doubles second = is_odd ? sine : cosine;
  return {minus_sine ? -first : first, minus_cosine ? -second : second};
}

// A step of the length dt takes z to decay z + gain e.
template <bool bilinear>
struct StepFactors;

// decay = exp(lambda dt), gain = (exp(lambda dt) - 1) / lambda, by half of the
// angle, as the plain form has them: no part loses digits where lambda dt is
// small.
template <>
struct StepFactors<false> {
  Complexes decay, gain;
  INLINE StepFactors(Complexes lambda, Complexes inverse, Doubles dt) {
    const Doubles most = Doubles{} + 709.0, one = Doubles{} + 1.0;
    const Doubles growth = lambda.real * dt, angle = lambda.imag * dt;
    Doubles grown = exponential<double, true>(growth > most ? most : growth);
    grown = growth > most ? Doubles{} + __builtin_inf() : grown;
    const SineAndCosine turn = sine_and_cosine(0.5 * angle);
    const Complexes half = {turn.cosine, turn.sine};
    decay = (grown + one) * (half * half);
    const Complexes change = {grown * turn.cosine, (grown + 2.0) * turn.sine};
    const Complexes divided = half * change * inverse;
    // Also where the product underflows.
    const auto is_zero = (growth == 0) & (angle == 0);
    gain = {is_zero ? dt : divided.real, is_zero ? Doubles{} : divided.imag};
  }
  // What the scratch keeps beside the decay.
  INLINE Complexes kept() const { return gain; }

  struct Slopes {
    // The slopes of gain by lambda, of decay by lambda and of both by dt, as
    // multiples of e, z and lambda z + e.
    Complexes gain, of_state, of_length;
    INLINE Slopes(Complexes lambda, Complexes inverse, Doubles dt,
                  Complexes decay, Complexes kept)
        : of_state(dt * decay), of_length(decay) {
      // dt^2 f(w) with f(w) = (exp(w) (w - 1) + 1) / w^2 and w = lambda dt, by
      // its series where the quotient would lose digits.
      const Complexes w = dt * lambda;
      const Complexes less = {-kept.real, -kept.imag};
      const Complexes quotient = (of_state + less) * inverse;
      const auto is_small = w.real * w.real + w.imag * w.imag < 1e-4;
      Complexes series = {Doubles{} + 1.0 / 840, Doubles{}};
      constexpr double terms[] = {144, 30, 8, 3, 2};
      UNROLL for (int i = 0; i < 5; i++) {
        series = series * w;
        series.real += 1.0 / terms[i];
      }
      series = dt * dt * series;
      gain = {is_small ? series.real : quotient.real,
              is_small ? series.imag : quotient.imag};
    }
  };
};

// With r = 1 / (1 - lambda dt / 2): decay = (1 + lambda dt / 2) r, gain = dt r.
template <>
struct StepFactors<true> {
  Complexes decay, gain, inverse;
  INLINE StepFactors(Complexes lambda, Complexes, Doubles dt) {
    const Complexes half = 0.5 * dt * lambda;
    // Divided by its larger part, whose square might overflow.
    const Doubles left = 1.0 - half.real, none{};
    const Doubles real = left < none ? -left : left;
    const Doubles imag = half.imag < none ? -half.imag : half.imag;
    const Doubles most = real > imag ? real : imag;
    const Doubles a = left / most, b = half.imag / most;
    const Doubles scale = 1.0 / ((a * a + b * b) * most);
    inverse = {a * scale, b * scale};
    const Complexes right = {1.0 + half.real, half.imag};
    decay = right * inverse;
    gain = dt * inverse;
  }
  INLINE Complexes kept() const { return inverse; }

  struct Slopes {
    Complexes gain, of_state, of_length;
    INLINE Slopes(Complexes, Complexes, Doubles dt, Complexes,
                  Complexes kept)
        : of_length(kept * kept) {
      of_state = dt * of_length;
      gain = 0.5 * dt * of_state;
    }
  };
};

template <bool bilinear, int drives>
struct DiagonalLoops {
  typedef StepFactors<bilinear> Factors;
  static constexpr int64_t row = features_at_once;

  static INLINE Complexes input(const double* inputs, int64_t step,
                                int64_t lane) {
    const double* const from = inputs + step * drives * row + lane;
    return {load_doubles(from),
            drives == 2 ? load_doubles(from + row) : Doubles{}};
  }
  static INLINE void add(double* to, Doubles value) {
    store_doubles(to, load_doubles(to) + value);
  }

  // Calls use(number, lane, place) for each vector of a state.
  template <class Use>
  static INLINE void for_each_vector_of(const DiagonalSystem& system,
                                        const Use& use) {
    for (int64_t n = 0; n < system.size; n++)
      for (int64_t lane = 0; lane < row; lane += Types<double>::width)
        use(n, lane, n * row + lane);
  }

  static void run(const DiagonalSteps& s) {
    const DiagonalSystem& system = *s.system;
    for (int64_t i = 0; i < s.steps * system.channels * row; i++)
      s.outputs[i] = 0.0;
    for_each_vector_of(system, [&](int64_t n, int64_t lane, int64_t place) {
      const Complexes lambda = Complexes::load(system.eigenvalue, place);
      const Complexes inverse = Complexes::load(system.inverse, place);
      Complexes state = Complexes::load(s.state, place);
      for (int64_t t = 0; t < s.steps; t++) {
        if (s.drops[t]) state = Complexes{};
        const Factors step(lambda, inverse, Doubles{} + s.lengths[t]);
        state = step.decay * state + step.gain * input(s.inputs, t, lane);
        for (int64_t c = 0; c < system.channels; c++) {
          const Complexes read = Complexes::load(
              system.read_out, (c * system.size + n) * row + lane);
          add(s.outputs + (t * system.channels + c) * row + lane,
              read.real * state.real - read.imag * state.imag);
        }
      }
      state.store(s.state, place);
    });
  }

  static void run_backward(const DiagonalStepsBackward& s) {
    const DiagonalSystem& system = *s.system;
    double* kept[numbers_a_step];
    for (int64_t i = 0; i < numbers_a_step; i++)
      kept[i] = s.scratch + i * s.steps * row;
    double* const after[] = {kept[0], kept[1]};
    double* const decays[] = {kept[2], kept[3]};
    double* const factors[] = {kept[4], kept[5]};
    for_each_vector_of(system, [&](int64_t n, int64_t lane, int64_t place) {
      const Complexes lambda = Complexes::load(system.eigenvalue, place);
      const Complexes inverse = Complexes::load(system.inverse, place);
      const Complexes first = Complexes::load(s.state, place);
      Complexes state = first;
      for (int64_t t = 0; t < s.steps; t++) {
        if (s.drops[t]) state = Complexes{};
        const Factors step(lambda, inverse, Doubles{} + s.lengths[t]);
        state = step.decay * state + step.gain * input(s.inputs, t, lane);
        state.store(after, t * row + lane);
        step.decay.store(decays, t * row + lane);
        step.kept().store(factors, t * row + lane);
      }
      Complexes d_state = Complexes::load(s.d_state, place), d_lambda{};
      for (int64_t t = s.steps - 1; t >= 0; t--) {
        const int64_t here = t * row + lane;
        state = Complexes::load(after, here);
        for (int64_t c = 0; c < system.channels; c++) {
          const int64_t at = (c * system.size + n) * row + lane;
          const Doubles d_output =
              load_doubles(s.d_outputs + (t * system.channels + c) * row +
                           lane);
          const Complexes read = Complexes::load(system.read_out, at);
          d_state = d_state + d_output * read.conjugate();
          add(s.d_read_out[0] + at, d_output * state.real);
          add(s.d_read_out[1] + at, -d_output * state.imag);
        }
        Complexes before = first;
        if (s.drops[t]) before = Complexes{};
        else if (t > 0) before = Complexes::load(after, here - row);
        const Complexes decay = Complexes::load(decays, here);
        const Complexes factor = Complexes::load(factors, here);
        const Doubles dt = Doubles{} + s.lengths[t];
        const Complexes entering = input(s.inputs, t, lane);
        const typename Factors::Slopes slopes(lambda, inverse, dt, decay,
                                              factor);
        const Complexes by_lambda =
            slopes.of_state * before + slopes.gain * entering;
        d_lambda = d_lambda + by_lambda.conjugate() * d_state;
        const Complexes by_length =
            slopes.of_length * (lambda * before + entering);
        add(s.d_lengths + here, by_length.real * d_state.real +
                                    by_length.imag * d_state.imag);
        const Complexes gain = bilinear ? dt * factor : factor;
        const Complexes d_entering = gain.conjugate() * d_state;
        double* const to = s.d_inputs + t * drives * row + lane;
        add(to, d_entering.real);
        if (drives == 2) add(to + row, d_entering.imag);
        d_state = decay.conjugate() * d_state;
        if (s.drops[t]) d_state = Complexes{};
      }
      d_state.store(s.d_state, place);
      add(s.d_eigenvalue[0] + place, d_lambda.real);
      add(s.d_eigenvalue[1] + place, d_lambda.imag);
    });
  }
};

// Calls use(loops) with the loops of a system.
template <class Use>
INLINE void with_loops(const DiagonalSystem& system, const Use& use) {
  if (system.drives == 2)
    return system.bilinear ? use(DiagonalLoops<true, 2>())
                           : use(DiagonalLoops<false, 2>());
  system.bilinear ? use(DiagonalLoops<true, 1>())
                  : use(DiagonalLoops<false, 1>());
}

void step_diagonals(const DiagonalSteps& s) {
  with_loops(*s.system, [&](auto loops) { loops.run(s); });
}

void step_diagonals_backward(const DiagonalStepsBackward& s) {
  with_loops(*s.system, [&](auto loops) { loops.run_backward(s); });
}

}  // namespace
}  // namespace keras_linrec
