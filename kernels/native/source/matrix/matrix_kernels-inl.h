// Moves and sums of the rows of panels.
#pragma once
#include "base/vectors-inl.h"
#include "matrix/matrix_kernels.h"

namespace keras_linrec {
namespace {

template <class Real>
void read_rows(const MoveRows<Real>& s) {
  typedef Pair<Real> P;
  constexpr int64_t panel = 2 * P::width;
  constexpr int64_t line = 64 / sizeof(Real);
  for (int64_t i = 0; i < s.rows; i++) {
    const Real* from = s.from + i * s.row;
    // As many rows follow in the next call, too far apart for the processor to
    // expect them.
    for (int64_t c = 0; c < s.columns; c += line)
      __builtin_prefetch(from + s.rows * s.row + c);
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

template <class Real>
void dot_each(const DotEach<Real>& s) {
  typedef Pair<Real> P;
  constexpr int64_t panel = 2 * P::width;
  for (int64_t i = 0; i < s.rows; i++) {
    P sum{};
    for (int64_t p = 0; p < s.panels; p++)
      sum = sum + P::load(s.a + p * s.a_panel + i * panel) *
                      P::load(s.b + p * s.b_panel + i * panel);
    const auto both = sum.part[0] + sum.part[1];
    double total = 0;
    for (int j = 0; j < P::width; j++) total += both[j];
    s.to[i] = total;
  }
}

template <class Real>
void transpose_panels(const Transpose<Real>& s) {
  typedef typename Types<Real>::Vector Vector;
  typedef typename Types<Real>::VectorInMemory InMemory;
  constexpr int width = Types<Real>::width;
  constexpr int64_t panel = 2 * width;
  // Rows of `to` are padded; what is there is nobody's.
  for (int64_t j = 0; j < s.columns; j++) {
    const Real* column = s.from + j / panel * s.from_panel + j % panel;
    for (int64_t i = 0; i < s.rows; i += width) {
      Real* to = s.to + i / panel * s.to_panel + j * panel + i % panel;
      if (i + width <= s.rows) {
        Vector numbers{};
        UNROLL for (int k = 0; k < width; k++)
          numbers[k] = column[(i + k) * panel];
        *reinterpret_cast<InMemory*>(to) = numbers;
      } else {
        for (int64_t k = 0; i + k < s.rows; k++)
          to[k] = column[(i + k) * panel];
      }
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
