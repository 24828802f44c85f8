// Moves and sums of the rows of panels.
#pragma once
#include "base/vectors-inl.h"
#include "matrix/matrix_kernels.h"

namespace keras_linrec {
namespace {

// The numbers of a line of the cache.
template <class Real>
constexpr int64_t line_of = 64 / sizeof(Real);

template <class Real>
void read_rows(const MoveRows<Real>& s) {
  typedef Pair<Real> P;
  constexpr int64_t panel = 2 * P::width;
  for (int64_t i = 0; i < s.rows; i++) {
    const Real* from = s.from + i * s.row;
    for (int64_t c = 0; c < s.columns && s.ahead; c += line_of<Real>)
      __builtin_prefetch(from + s.ahead * s.row + c);
    Real* to = s.to + i * panel;
    int64_t column = 0;
    for (; column + panel <= s.columns; column += panel, to += s.panel)
      P::load(from + column).store(to);
    if (column == s.columns) continue;
    for (int64_t c = 0; c < panel; c++)
      to[c] = column + c < s.columns ? from[column + c] : Real{0};
  }
}

template <class Real>
void write_rows(const MoveRows<Real>& s) {
  typedef Pair<Real> P;
  constexpr int64_t panel = 2 * P::width;
  for (int64_t i = 0; i < s.rows; i++) {
    const Real* from = s.from + i * panel;
    Real* to = s.to + i * s.row;
    for (int64_t c = 0; c < s.columns && s.ahead; c += line_of<Real>)
      __builtin_prefetch(to + s.ahead * s.row + c, 1);
    int64_t column = 0;
    for (; column + panel <= s.columns; column += panel, from += s.panel)
      P::load(from).store(to + column);
    for (; column < s.columns; column++) to[column] = *from++;
  }
}

template <class Real>
void scale_rows(const ScaleRows<Real>& s) {
  typedef Pair<Real> P;
  constexpr int64_t panel = 2 * P::width;
  for (int64_t p = 0; p < s.panels; p++)
    for (int64_t i = 0; i < s.rows; i++) {
      const int64_t place = p * s.panel + i * panel;
      const P scaled = s.factors[i] * P::load(s.from + place);
      if (s.add)
        (P::load(s.to + place) + scaled).store(s.to + place);
      else
        scaled.store(s.to + place);
    }
}

// The sum of a vector's numbers, in float64.
INLINE double total_of_doubles(Doubles numbers) {
  constexpr int width = Types<double>::width;
  double sums[width];
  store_doubles(sums, numbers);
  UNROLL for (int step = width / 2; step > 0; step /= 2)
    UNROLL for (int j = 0; j < step; j++) sums[j] += sums[j + step];
  return sums[0];
}
template <class Real>
INLINE double total_of(typename Types<Real>::Vector numbers);
template <>
INLINE double total_of<double>(Doubles numbers) {
  return total_of_doubles(numbers);
}
template <>
INLINE double total_of<float>(Types<float>::Vector numbers) {
  float stored[Types<float>::width];
  *reinterpret_cast<Types<float>::VectorInMemory*>(stored) = numbers;
  const auto half = [&](int which) {
    return __builtin_convertvector(
        *reinterpret_cast<const Types<float>::NarrowInMemory*>(
            stored + which * Types<double>::width),
        Doubles);
  };
  return total_of_doubles(half(0) + half(1));
}

template <class Real>
void dot_each(const DotEach<Real>& s) {
  typedef Pair<Real> P;
  constexpr int64_t panel = 2 * P::width;
  for (int64_t i = 0; i < s.rows; i++) {
    P sum{};
    for (int64_t p = 0; p < s.panels; p++)
      sum = sum + P::load(s.a + p * s.a_panel + i * panel) *
                      P::load(s.b + p * s.b_panel + i * panel);
    s.to[i] = total_of<Real>(sum.part[0] + sum.part[1]);
  }
}

// `count` rows from `first` on, to which those before them are added, and then
// each to the next.
template <class Real, int count>
INLINE void solve_few_rows(const SolveRows<Real>& s, Real* x, int64_t first) {
  typedef Pair<Real> P;
  const Real* weights = s.weights + first * s.of_row;
  P sum[count];
  UNROLL for (int i = 0; i < count; i++)
    sum[i] = P::load(x + (first + i) * s.row);
  for (int64_t j = 0; j < first; j++) {
    const P other = P::load(x + j * s.row);
    UNROLL for (int i = 0; i < count; i++)
      sum[i] = sum[i] + weights[i * s.of_row + j * s.of_other] * other;
  }
  UNROLL for (int j = 0; j < count; j++) {
    sum[j].store(x + (first + j) * s.row);
    UNROLL for (int i = j + 1; i < count; i++)
      sum[i] = sum[i] +
               weights[i * s.of_row + (first + j) * s.of_other] * sum[j];
  }
}

template <class Real>
void solve_rows(const SolveRows<Real>& s) {
  for (int64_t p = 0; p < s.panels; p++) {
    Real* x = s.x + p * s.panel;
    int64_t i = 0;
    for (; i + 4 <= s.rows; i += 4) solve_few_rows<Real, 4>(s, x, i);
    for (; i < s.rows; i++) solve_few_rows<Real, 1>(s, x, i);
  }
}

template <int... numbers>
struct Places {};
template <int count, int... numbers>
struct FirstPlaces : FirstPlaces<count - 1, count - 1, numbers...> {};
template <int... numbers>
struct FirstPlaces<0, numbers...> {
  typedef Places<numbers...> Type;
};

// Of two rows `step` apart, seen as blocks of `step` columns in pairs: the
// first blocks of both, or with `later` the second ones.
template <class Real, int step, bool later, int... k>
INLINE typename Types<Real>::Vector blocks_of(
    typename Types<Real>::Vector a, typename Types<Real>::Vector b,
    Places<k...>) {
  constexpr int width = Types<Real>::width;
#ifdef __clang__
  return __builtin_shufflevector(
      a, b,
      (k & step ? width + k - (later ? 0 : step) : k + (later ? step : 0))...);
#else
  typedef typename Types<Real>::Bits Bits;
  return __builtin_shuffle(
      a, b,
      Bits{(k & step ? width + k - (later ? 0 : step)
                     : k + (later ? step : 0))...});
#endif
}

template <class Real, int step>
INLINE void turn_blocks(typename Types<Real>::Vector* rows) {
  typedef typename FirstPlaces<Types<Real>::width>::Type All;
  UNROLL for (int i = 0; i < Types<Real>::width; i++) {
    if (i & step) continue;
    const auto a = rows[i], b = rows[i + step];
    rows[i] = blocks_of<Real, step, false>(a, b, All());
    rows[i + step] = blocks_of<Real, step, true>(a, b, All());
  }
}

// Transposes a square of as many rows as a vector has numbers.
template <class Real>
INLINE void turn(typename Types<Real>::Vector* rows) {
  constexpr int width = Types<Real>::width;
  if constexpr (width > 8) turn_blocks<Real, 8>(rows);
  if constexpr (width > 4) turn_blocks<Real, 4>(rows);
  if constexpr (width > 2) turn_blocks<Real, 2>(rows);
  turn_blocks<Real, 1>(rows);
}

template <class Real>
void transpose_panels(const Transpose<Real>& s) {
  typedef typename Types<Real>::Vector Vector;
  typedef typename Types<Real>::VectorInMemory InMemory;
  constexpr int width = Types<Real>::width;
  constexpr int64_t panel = 2 * width;
  // Rows of `to` are padded; what is there is nobody's.
  for (int64_t j = 0; j < s.columns; j += width) {
    const Real* columns = s.from + j / panel * s.from_panel + j % panel;
    const int64_t count = s.columns - j < width ? s.columns - j : width;
    for (int64_t i = 0; i < s.rows; i += width) {
      const int64_t length = s.rows - i < width ? s.rows - i : width;
      const Real* from = columns + i * panel;
      Real* to = s.to + i / panel * s.to_panel + j * panel + i % panel;
      if (count < width || length < width) {
        for (int64_t c = 0; c < count; c++)
          for (int64_t k = 0; k < length; k++)
            to[c * panel + k] = from[k * panel + c];
        continue;
      }
      Vector rows[width];
      UNROLL for (int k = 0; k < width; k++)
        rows[k] = *reinterpret_cast<const InMemory*>(from + k * panel);
      turn<Real>(rows);
      UNROLL for (int c = 0; c < width; c++)
        *reinterpret_cast<InMemory*>(to + c * panel) = rows[c];
    }
  }
}

template <class Real>
INLINE Pair<Real> decayed(const Real* decay, Real* between, int64_t place) {
  typedef Pair<Real> P;
  P here = P::load(between + place);
  if (!decay) return here;
  here = here * P::load(decay + place);
  here.store(between + place);
  return here;
}

template <class Real>
void pair_of_rows(const PairOfRows<Real>& s) {
  typedef Pair<Real> P;
  for (int64_t p = 0; p < s.panels; p++) {
    const int64_t place = p * s.panel;
    const P between = decayed(s.decay, s.between, place);
    const P first = between * P::load(s.first_key + place);
    P both = s.found * P::load(s.key + place);
    if (s.query) {
      both = both + s.output * P::load(s.query + place);
      (P::load(s.d_query + place) + s.output * first).store(s.d_query + place);
    }
    (P::load(s.d_key + place) + s.found * first).store(s.d_key + place);
    (P::load(s.d_first_key + place) + between * both)
        .store(s.d_first_key + place);
  }
}

template <class Real>
void carried_sum(const CarriedSum<Real>& s) {
  typedef Pair<Real> P;
  for (int64_t p = 0; p < s.panels; p++) {
    const int64_t place = p * s.panel;
    P both = s.found * P::load(s.key + place);
    if (s.query) both = both + s.output * P::load(s.query + place);
    (P::load(s.decay + place) * P::load(s.sum + place) +
     P::load(s.first_key + place) * both)
        .store(s.sum + place);
  }
}

template <class Real>
void decayed_sum(const DecayedSum<Real>& s) {
  typedef Pair<Real> P;
  for (int64_t p = 0; p < s.panels; p++) {
    const int64_t place = p * s.panel;
    const P between = decayed(s.decay, s.between, place);
    (P::load(s.total + place) + between * P::load(s.sum + place))
        .store(s.total + place);
  }
}

}  // namespace
}  // namespace keras_linrec
