// Activations.
#pragma once
#include "base/activation_kernels.h"
#include "base/vectors-inl.h"

namespace keras_linrec {
namespace {

// exp(x + rest) for x <= 0, or up to the largest whose exponential is a number,
// and a rest that is much smaller; or that minus 1, which is accurate for small
// x too.
template <class Real, bool minus_1>
INLINE typename Types<Real>::Vector exponential(
    typename Types<Real>::Vector x,
    typename Types<Real>::Vector rest = typename Types<Real>::Vector{}) {
  typedef Types<Real> T;
  typedef typename T::Vector Vector;
  typedef typename T::Bits Bits;
  // Adding this to a number leaves its integer part in the last bits.
  constexpr Real shifter = Real(3) * (int64_t{1} << (T::fraction_bits - 1));
  // Few bits, so that its product with `whole` is exact.
  constexpr Real log2_high = 0.693145751953125;
  constexpr Real log2_low = 1.42860682030941723212e-6;
  const Vector least = Vector{} + T::least_exponent;
  x = x < least ? least : x;
  const Vector shifted = x * Real(1.44269504088896340736) + shifter;
  const Vector whole = shifted - shifter;
  const Vector r = (x - whole * log2_high) - (whole * log2_low - rest);
  double coefficient = 1;
  for (int k = 2; k <= T::exp_terms; k++) coefficient /= k;
  Vector series = Vector{} + static_cast<Real>(coefficient);
  for (int k = T::exp_terms; k > 2; k--) {
    coefficient *= k;
    series = series * r + static_cast<Real>(coefficient);
  }
  series = series * r * r + r;
  // 2^whole, assembled from its bits.
  Bits bits;
  __builtin_memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + T::exponent_bias) << T::fraction_bits;
  Vector power;
  __builtin_memcpy(&power, &bits, sizeof power);
  return power * series + (minus_1 ? power - 1 : power);
}

template <class Real>
INLINE typename Types<Real>::Vector hyperbolic_tangent(
    typename Types<Real>::Vector x) {
  const auto negative = x < 0;
  const auto e = exponential<Real, true>(negative ? x + x : -(x + x));
  const auto t = e / (e + 2);
  return negative ? t : -t;
}

template <class Real>
INLINE typename Types<Real>::Vector logistic(typename Types<Real>::Vector x) {
  const auto negative = x < 0;
  const auto e = exponential<Real, false>(negative ? x : -x);
  const typename Types<Real>::Vector one = typename Types<Real>::Vector{} + 1;
  return (negative ? e : one) / (1 + e);
}

// The normal distribution below -x, for x >= 0, is exp(-x^2 / 2) 4 / (4 + x)
// times a polynomial of (4 - x) / (4 + x), here from its highest power on: a
// Chebyshev series over all x, with a relative error of 1.6e-9 and 1.1e-16.
template <class Real>
struct NormalTail;
template <>
struct NormalTail<float> {
  static constexpr int terms = 12;
  static constexpr float coefficients[terms] = {
      -5.295746064e-6f, -4.327705754e-7f, 5.389344407e-5f, 3.341334677e-5f,
      -4.055100264e-4f, -8.699886594e-4f, 1.88442929e-3f,  1.509916207e-2f,
      4.663053996e-2f,  9.678434846e-2f,  1.519741578e-1f, 1.888212826e-1f};
};
template <>
struct NormalTail<double> {
  static constexpr int terms = 24;
  static constexpr double coefficients[terms] = {
      2.99944550765790381e-11,  -4.22164424168873459e-10,
      1.46840669133207389e-10,  4.01684673932818567e-9,
      -4.46123194326566183e-9,  -1.96959008567246933e-8,
      3.99434903556255545e-8,   6.61834320494847337e-8,
      -2.56196275413842664e-7,  -1.56238776939120022e-7,
      1.48040276148100720e-6,   1.78650538281681789e-7,
      -8.78627797570941746e-6,  -4.76919007679773002e-7,
      5.77737543406935656e-5,   3.33360522900369479e-5,
      -4.07704616852477115e-4,  -8.69923089162875655e-4,
      1.88504724184657814e-3,   1.50991437225902296e-2,
      4.66304644899091530e-2,   9.67843501855566505e-2,
      1.51974160492973075e-1,   1.88821282603937863e-1};
};

// x times the normal distribution below x, to the last digits also where that
// is small; and the slope.
template <class Real>
INLINE typename Types<Real>::Vector gelu(typename Types<Real>::Vector x,
                                         typename Types<Real>::Vector* slope) {
  typedef Types<Real> T;
  typedef typename T::Vector Vector;
  typedef NormalTail<Real> Tail;
  const auto negative = x < 0;
  const Vector size = negative ? -x : x;
  // Its upper half has an exact square. A rounded square would cost exp as many
  // digits as the square has before the point.
  constexpr int lower_bits = (T::fraction_bits + 2) / 2;
  typename T::Bits bits;
  __builtin_memcpy(&bits, &size, sizeof bits);
  bits = bits >> lower_bits << lower_bits;
  Vector upper;
  __builtin_memcpy(&upper, &bits, sizeof upper);
  const Vector curve = exponential<Real, false>(
      Real(-0.5) * upper * upper, Real(-0.5) * (size - upper) * (size + upper));
  // Beyond the least exponent, where the second part may be of any size. False
  // for NaN, which propagates.
  const auto vanishes = Real(-0.5) * size * size < T::least_exponent;
  const Vector bell = vanishes ? Vector{} : curve;
  const Vector share = 4 / (4 + size), centred = 2 * share - 1;
  Vector series = Vector{} + Tail::coefficients[0];
  UNROLL for (int k = 1; k < Tail::terms; k++)
    series = series * centred + Tail::coefficients[k];
  const Vector tail = bell * share * series;
  const Vector below = negative ? tail : 1 - tail;
  *slope = below + x * bell * Real(0.39894228040143267794);
  return x * below;
}

INLINE float root(float x) { return __builtin_sqrtf(x); }
INLINE double root(double x) { return __builtin_sqrt(x); }

// The factor by which modReLU scales complex numbers: 1 + bias / modulus, or 0;
// and the inverse of the modulus, or 0.
template <class Real>
struct Moduli {
  typename Types<Real>::Vector scale, inverse;
  INLINE Moduli(const Pair<Real>& z, const Real* bias) {
    const auto square = z.part[0] * z.part[0] + z.part[1] * z.part[1];
    for (int i = 0; i < Types<Real>::width; i++) {
      const Real modulus = root(square[i]);
      inverse[i] = modulus > 0 ? 1 / modulus : 0;
      const Real factor = 1 + bias[i] * inverse[i];
      scale[i] = modulus > 0 && factor > 0 ? factor : 0;
      // NaN propagates.
      if (modulus != modulus) scale[i] = modulus;
    }
  }
};

// An activation that acts on single numbers, and its slope.
template <class Real, int activation>
INLINE typename Types<Real>::Vector activated(
    typename Types<Real>::Vector x, Real leak_below,
    typename Types<Real>::Vector* slope) {
  typedef typename Types<Real>::Vector Vector;
  const Vector one = Vector{} + 1, none = Vector{};
  *slope = one;
  if (activation == kRelu || activation == kLeakyRelu) {
    const Real leak = activation == kRelu ? 0 : leak_below;
    *slope = x > 0 ? one : none + leak;
    // False for NaN, which propagates.
    const auto below = x <= 0;
    return below ? leak * x : x;
  }
  if (activation == kTanh) {
    const Vector y = hyperbolic_tangent<Real>(x);
    *slope = 1 - y * y;
    return y;
  }
  if (activation == kSigmoid) {
    const Vector y = logistic<Real>(x);
    *slope = y * (1 - y);
    return y;
  }
  if (activation == kGelu) return gelu<Real>(x, slope);
  return x;
}

// Calls use(constant of the activation), which is not one of pairs.
template <int candidate = 0, class Use>
INLINE void with_activation(Activation activation, const Use& use) {
  if constexpr (candidate < kActivations) {
    if (activation != candidate)
      return with_activation<candidate + 1>(activation, use);
    if constexpr (!is_of_pairs(candidate)) use(Constant<candidate>());
  }
}

template <class Real, int activation>
INLINE Pair<Real> activated(const Pair<Real>& x, const Respond<Real>& s,
                            Pair<Real>* slope) {
  Pair<Real> y = x;
  *slope = x;
  if (activation == kOplu) {
    const auto swapped = x.part[0] < x.part[1];
    y.part[0] = swapped ? x.part[1] : x.part[0];
    y.part[1] = swapped ? x.part[0] : x.part[1];
  }
  if (activation == kModrelu) {
    const Moduli<Real> moduli(x, s.modulus_bias);
    for (int p = 0; p < 2; p++) y.part[p] = x.part[p] * moduli.scale;
  }
  if (!is_of_pairs(activation))
    for (int p = 0; p < 2; p++)
      y.part[p] =
          activated<Real, activation>(x.part[p], s.leak, &slope->part[p]);
  return y;
}

// Not inlined into the choice of one, which would save registers for all.
template <class Real, int activation>
__attribute__((noinline)) void respond_with(const Respond<Real>& s) {
  typedef Pair<Real> P;
  constexpr int64_t panel = 2 * P::width;
  const P bias = P::load(s.bias);
  for (int64_t at = 0; at < s.rows * panel; at += panel) {
    P x = P::load(s.argument + at), slope, product{};
    x = x + bias;
    if (s.product) {
      product = P::load(s.product + at);
      x = x + product;
    }
    P y = activated<Real, activation>(x, s, &slope);
    if (s.memory) slope.store(s.memory + at);
    if (s.linear) y = y + P::load(s.linear + at);
    if (s.gate) {
      P gate = P::load(s.gate + at) + P::load(s.gate_bias) + product;
      for (auto& part : gate.part) part = logistic<Real>(part);
      gate.store(s.gate + at);
      if (s.change) y.store(s.change + at);
      y = y * gate;
    }
    if (s.response) y.store(s.response + at);
  }
}

template <class Real, int activation>
void respond_backward_with(const RespondBackward<Real>& s) {
  typedef Pair<Real> P;
  constexpr int64_t panel = 2 * P::width;
  for (int64_t at = 0; at < s.rows * panel; at += panel) {
    P d = P::load(s.d_response + at);
    if (s.gate) {
      const P gate = P::load(s.gate + at), change = P::load(s.change + at);
      P d_gate;
      for (int p = 0; p < 2; p++) {
        d_gate.part[p] = d.part[p] * change.part[p] * gate.part[p] *
                         (1 - gate.part[p]);
      }
      d = d * gate;
      d_gate.store(s.d_gate + at);
    }
    if (s.d_linear) d.store(s.d_linear + at);
    const P memory = P::load(s.memory + at);
    P result{};
    if (!is_of_pairs(activation)) result = d * memory;
    if (activation == kOplu) {
      const auto swapped = memory.part[0] < memory.part[1];
      result.part[0] = swapped ? d.part[1] : d.part[0];
      result.part[1] = swapped ? d.part[0] : d.part[1];
    }
    if (activation == kModrelu) {
      const Moduli<Real> moduli(memory, s.modulus_bias);
      const auto along = d.part[0] * memory.part[0] +
                         d.part[1] * memory.part[1];
      for (int i = 0; i < P::width; i++) {
        if (moduli.scale[i] == 0) {
          result.part[0][i] = result.part[1][i] = 0;
          continue;
        }
        const Real inverse = moduli.inverse[i];
        const Real turn = s.modulus_bias[i] * inverse * inverse * inverse;
        for (int p = 0; p < 2; p++)
          result.part[p][i] = moduli.scale[i] * d.part[p][i] -
                              turn * along[i] * memory.part[p][i];
        s.d_modulus_bias[i] += along[i] * inverse;
      }
    }
    result.store(s.d_argument + at);
  }
}

template <class Real>
void respond(const Respond<Real>& s) {
  if (s.activation == kOplu) return respond_with<Real, kOplu>(s);
  if (s.activation == kModrelu) return respond_with<Real, kModrelu>(s);
  with_activation(s.activation, [&](auto constant) {
    respond_with<Real, decltype(constant)::value>(s);
  });
}

template <class Real>
void respond_backward(const RespondBackward<Real>& s) {
  // Except for pairs, `memory` holds slopes, whatever the activation.
  if (s.activation == kOplu) return respond_backward_with<Real, kOplu>(s);
  if (s.activation == kModrelu)
    return respond_backward_with<Real, kModrelu>(s);
  respond_backward_with<Real, kLinear>(s);
}

}  // namespace
}  // namespace keras_linrec
