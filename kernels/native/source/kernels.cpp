// Compiled once for each instruction set, with its flags and
// KERAS_LINREC_SET set to its name. Nothing here may be visible outside but
// that one object; see kernels.h.
#include "kernels.h"

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#define PRODUCT_ROWS 12
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#define PRODUCT_ROWS 6
#elif defined(__aarch64__)
#define VECTOR_BYTES 16
#define PRODUCT_ROWS 12
#else
#define VECTOR_BYTES 16
#define PRODUCT_ROWS 6
#endif

#define INLINE inline __attribute__((always_inline))

namespace keras_linrec {
namespace {

// `Vector` fills a register; `Narrow` becomes one when widened to float64. As
// they lie in memory these need no alignment.
typedef double Doubles __attribute__((vector_size(VECTOR_BYTES)));
typedef Doubles DoublesInMemory __attribute__((aligned(8), may_alias));

template <class Real>
struct Types;
template <>
struct Types<float> {
  static constexpr int width = VECTOR_BYTES / 4;
  typedef float Vector __attribute__((vector_size(VECTOR_BYTES)));
  typedef float Narrow __attribute__((vector_size(VECTOR_BYTES / 2)));
  typedef Vector VectorInMemory __attribute__((aligned(4), may_alias));
  typedef int32_t Bits __attribute__((vector_size(VECTOR_BYTES)));
  static constexpr int fraction_bits = 23, exponent_bias = 127;
  // Of the series of exp(r) - 1, |r| < 0.35; and where exp is still a number.
  static constexpr int exp_terms = 7;
  static constexpr float least_exponent = -80;
  typedef Narrow NarrowInMemory __attribute__((aligned(4), may_alias));
};
template <>
struct Types<double> {
  static constexpr int width = VECTOR_BYTES / 8;
  typedef Doubles Vector;
  typedef Doubles Narrow;
  typedef DoublesInMemory VectorInMemory;
  typedef DoublesInMemory NarrowInMemory;
  typedef int64_t Bits __attribute__((vector_size(VECTOR_BYTES)));
  static constexpr int fraction_bits = 52, exponent_bias = 1023;
  static constexpr int exp_terms = 13;
  static constexpr double least_exponent = -700;
};

// A lane group of the scans: as many numbers as fill a register in float64.
// `Lanes<Real, true>` is one number, for the channels that are left over.
template <class Real, bool scalar>
struct Lanes {
  static constexpr int64_t width = VECTOR_BYTES / 8;
  typedef Doubles State;
  static INLINE State load(const Real* from) {
    return __builtin_convertvector(
        *reinterpret_cast<const typename Types<Real>::NarrowInMemory*>(from),
        Doubles);
  }
  static INLINE State state(const double* from) {
    return *reinterpret_cast<const DoublesInMemory*>(from);
  }
  static INLINE void store(Real* to, State value) {
    *reinterpret_cast<typename Types<Real>::NarrowInMemory*>(to) =
        __builtin_convertvector(value, typename Types<Real>::Narrow);
  }
  static INLINE void keep(double* to, State value) {
    *reinterpret_cast<DoublesInMemory*>(to) = value;
  }
};
template <class Real>
struct Lanes<Real, true> {
  static constexpr int64_t width = 1;
  typedef double State;
  static INLINE State load(const Real* from) { return *from; }
  static INLINE State state(const double* from) { return *from; }
  static INLINE void store(Real* to, State value) {
    *to = static_cast<Real>(value);
  }
  static INLINE void keep(double* to, State value) { *to = value; }
};

// One or two numbers, and the three operations the scans need.
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

template <class Real, bool scalar, bool complex>
struct Access {
  typedef Lanes<Real, scalar> L;
  typedef Number<typename L::State, complex> N;
  template <class Pointer>
  static INLINE N load(Pointer const* parts, int64_t at) {
    typename L::State none = {};
    return {L::load(parts[0] + at), complex ? L::load(parts[1] + at) : none};
  }
  static INLINE N state(double* const* parts, int64_t at) {
    typename L::State none = {};
    return {L::state(parts[0] + at), complex ? L::state(parts[1] + at) : none};
  }
  static INLINE void store(Real* const* parts, int64_t at, N value) {
    L::store(parts[0] + at, value.real);
    if (complex) L::store(parts[1] + at, value.imag);
  }
  static INLINE void keep(double* const* parts, int64_t at, N value) {
    L::keep(parts[0] + at, value.real);
    if (complex) L::keep(parts[1] + at, value.imag);
  }
};

// --- the scan of rows in memory -------------------------------------------

// `groups` lane groups from channel `first` on, all steps, state in registers.
template <class Real, bool scalar, bool complex, bool per_step, int groups>
INLINE void scan_columns(const ScanRows<Real>& s, int64_t first) {
  typedef Access<Real, scalar, complex> A;
  constexpr int64_t width = A::L::width;
  typename A::N decay[groups], state[groups];
  for (int g = 0; g < groups; g++) {
    state[g] = A::state(s.state, first + g * width);
    if (!per_step) decay[g] = A::load(s.decay, first + g * width);
  }
  const int64_t step = s.reverse ? -1 : 1;
  int64_t t = s.reverse ? s.time - 1 : 0;
  for (int64_t count = 0; count < s.time; count++, t += step) {
#pragma GCC unroll 8
    for (int g = 0; g < groups; g++) {
      const int64_t column = first + g * width;
      if (per_step) decay[g] = A::load(s.decay, t * s.decay_stride + column);
      state[g] = multiply_add(decay[g], state[g],
                              A::load(s.inputs, t * s.input_stride + column));
      A::store(s.outputs, t * s.output_stride + column, state[g]);
    }
  }
  for (int g = 0; g < groups; g++)
    A::keep(s.state, first + g * width, state[g]);
}

template <class Real, bool complex, bool per_step>
void scan_all_columns(const ScanRows<Real>& s) {
  constexpr int64_t width = Lanes<Real, false>::width;
  constexpr int groups = complex ? 4 : 8;
  int64_t c = 0;
  for (; c + groups * width <= s.channels; c += groups * width)
    scan_columns<Real, false, complex, per_step, groups>(s, c);
  for (; c + width <= s.channels; c += width)
    scan_columns<Real, false, complex, per_step, 1>(s, c);
  for (; c < s.channels; c++)
    scan_columns<Real, true, complex, per_step, 1>(s, c);
}

// Rows of one block of time, small enough that the column groups' later
// passes over it find it in the cache.
constexpr int64_t block_bytes = 1 << 16;

template <class Real>
int64_t block_rows(int64_t channels) {
  int64_t rows = block_bytes / (channels * static_cast<int64_t>(sizeof(Real)));
  return rows < 8 ? 8 : rows;
}

template <class Real, bool complex, bool per_step>
void scan_rows_of(const ScanRows<Real>& s) {
  const int64_t rows = block_rows<Real>(s.channels);
  for (int64_t done = 0; done < s.time; done += rows) {
    ScanRows<Real> block = s;
    block.time = s.time - done < rows ? s.time - done : rows;
    const int64_t first = s.reverse ? s.time - done - block.time : done;
    for (int part = 0; part <= complex; part++) {
      block.decay[part] += first * s.decay_stride;
      block.inputs[part] += first * s.input_stride;
      block.outputs[part] += first * s.output_stride;
    }
    scan_all_columns<Real, complex, per_step>(block);
  }
}

template <class Real>
void scan_rows(const ScanRows<Real>& s) {
  if (s.inputs[1])
    s.per_step ? scan_rows_of<Real, true, true>(s)
               : scan_rows_of<Real, true, false>(s);
  else
    s.per_step ? scan_rows_of<Real, false, true>(s)
               : scan_rows_of<Real, false, false>(s);
}

// --- its gradient ---------------------------------------------------------

template <class Real, bool scalar, bool complex, bool per_step, int groups>
INLINE void scan_columns_backward(const ScanRowsBackward<Real>& s,
                                  int64_t first) {
  typedef Access<Real, scalar, complex> A;
  constexpr int64_t width = A::L::width;
  typename A::N decay[groups], carry[groups], sum[groups];
  for (int g = 0; g < groups; g++) {
    carry[g] = A::state(s.carry, first + g * width);
    if (per_step) continue;
    decay[g] = A::load(s.decay, first + g * width);
    sum[g] = A::state(s.d_decay_sum, first + g * width);
  }
  // From the step taken last to the first.
  const int64_t step = s.reverse ? 1 : -1;
  int64_t t = s.reverse ? 0 : s.time - 1;
  for (int64_t left = s.time; left > 0; left--, t += step) {
#pragma GCC unroll 8
    for (int g = 0; g < groups; g++) {
      const int64_t column = first + g * width;
      typename A::N gradient =
          A::load(s.d_outputs, t * s.d_output_stride + column);
      gradient.real += carry[g].real;
      if (complex) gradient.imag += carry[g].imag;
      const typename A::N before =
          left > 1 ? A::load(s.outputs, (t + step) * s.output_stride + column)
                   : A::load(s.initial, column);
      const typename A::N slope = conjugate_multiply(before, gradient);
      if (per_step) {
        decay[g] = A::load(s.decay, t * s.decay_stride + column);
        A::store(s.d_decay, t * s.d_decay_stride + column, slope);
      } else {
        sum[g].real += slope.real;
        if (complex) sum[g].imag += slope.imag;
      }
      A::store(s.d_inputs, t * s.d_input_stride + column, gradient);
      carry[g] = conjugate_multiply(decay[g], gradient);
    }
  }
  for (int g = 0; g < groups; g++) {
    A::keep(s.carry, first + g * width, carry[g]);
    if (!per_step) A::keep(s.d_decay_sum, first + g * width, sum[g]);
  }
}

template <class Real, bool complex, bool per_step>
void scan_all_columns_backward(const ScanRowsBackward<Real>& s) {
  constexpr int64_t width = Lanes<Real, false>::width;
  constexpr int groups = complex ? 2 : 4;
  int64_t c = 0;
  for (; c + groups * width <= s.channels; c += groups * width)
    scan_columns_backward<Real, false, complex, per_step, groups>(s, c);
  for (; c + width <= s.channels; c += width)
    scan_columns_backward<Real, false, complex, per_step, 1>(s, c);
  for (; c < s.channels; c++)
    scan_columns_backward<Real, true, complex, per_step, 1>(s, c);
}

template <class Real, bool complex, bool per_step>
void scan_rows_backward_of(const ScanRowsBackward<Real>& s) {
  const int64_t rows = block_rows<Real>(s.channels);
  for (int64_t done = 0; done < s.time; done += rows) {
    ScanRowsBackward<Real> block = s;
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
    scan_all_columns_backward<Real, complex, per_step>(block);
  }
}

template <class Real>
void scan_rows_backward(const ScanRowsBackward<Real>& s) {
  if (s.outputs[1])
    s.per_step ? scan_rows_backward_of<Real, true, true>(s)
               : scan_rows_backward_of<Real, true, false>(s);
  else
    s.per_step ? scan_rows_backward_of<Real, false, true>(s)
               : scan_rows_backward_of<Real, false, false>(s);
}

// --- products -------------------------------------------------------------

// `rows` by two vectors of c in registers. A row stride known to the compiler
// spares it the addresses.
template <class Real, int rows, int known_row>
void product_block(const Product<Real>& p, int64_t first) {
  typedef typename Types<Real>::Vector Vector;
  typedef typename Types<Real>::VectorInMemory InMemory;
  constexpr int width = Types<Real>::width;
  const int64_t a_row = known_row ? known_row : p.a_row;
  Real* c = p.c + first * p.c_row;
  Vector sum[rows][2];
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < 2; j++)
      sum[i][j] = p.add ? *reinterpret_cast<const InMemory*>(
                              c + i * p.c_row + j * width)
                        : Vector{};
  const Real* outer = p.a + first * a_row;
  const Real* b = p.b;
  for (int64_t o = 0; o < p.outer; o++, outer += p.a_outer) {
    const Real* a = outer;
    for (int64_t k = 0; k < p.inner; k++, a += p.a_inner, b += p.b_row) {
      const Vector left = *reinterpret_cast<const InMemory*>(b);
      const Vector right = *reinterpret_cast<const InMemory*>(b + width);
#pragma GCC unroll 16
      for (int i = 0; i < rows; i++) {
        const Real weight = a[i * a_row];
        sum[i][0] += weight * left;
        sum[i][1] += weight * right;
      }
    }
  }
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < 2; j++)
      *reinterpret_cast<InMemory*>(c + i * p.c_row + j * width) = sum[i][j];
}

template <class Real, int known_row>
void product_of(const Product<Real>& p) {
  int64_t i = 0;
  // Two blocks of 8 rather than one of 12 and one of 4, which would wait for
  // its few sums.
  for (; i + PRODUCT_ROWS <= p.rows && !(PRODUCT_ROWS == 12 && i + 16 == p.rows);
       i += PRODUCT_ROWS)
    product_block<Real, PRODUCT_ROWS, known_row>(p, i);
  if (PRODUCT_ROWS > 8)
    for (; i + 8 <= p.rows; i += 8) product_block<Real, 8, known_row>(p, i);
  for (; i + 4 <= p.rows; i += 4) product_block<Real, 4, known_row>(p, i);
  for (; i < p.rows; i++) product_block<Real, 1, known_row>(p, i);
}

template <class Real>
void product(const Product<Real>& p) {
  if (p.a_row == 1) return product_of<Real, 1>(p);
  if (p.a_row == 2 * Types<Real>::width)
    return product_of<Real, 2 * Types<Real>::width>(p);
  product_of<Real, 0>(p);
}

// --- the scan of a tile in the cache --------------------------------------

// A panel holds two vectors of `Real`; as float64 numbers, `registers` of
// them. In a complex panel the first half of these are real parts.
template <class Real, bool complex>
struct Panel {
  typedef Lanes<Real, false> L;
  static constexpr int64_t width = L::width;
  static constexpr int64_t columns = 2 * Types<Real>::width;
  static constexpr int registers = columns / width;
  static constexpr int numbers = complex ? registers / 2 : registers;
  typedef Number<Doubles, complex> N;
  template <class Load, class From>
  static INLINE N get(Load load, const From* from, int number) {
    Doubles none = {};
    return {load(from + number * width),
            complex ? load(from + (number + numbers) * width) : none};
  }
  static INLINE N load(const Real* from, int number) {
    return get(L::load, from, number);
  }
  static INLINE N state(const double* from, int number) {
    return get(L::state, from, number);
  }
  static INLINE void store(Real* to, int number, N value) {
    L::store(to + number * width, value.real);
    if (complex) L::store(to + (number + numbers) * width, value.imag);
  }
  static INLINE void keep(double* to, int number, N value) {
    L::keep(to + number * width, value.real);
    if (complex) L::keep(to + (number + numbers) * width, value.imag);
  }
};

template <class Real, bool complex, bool per_step>
INLINE void scan_panel(const ScanTile<Real>& s, int64_t panel) {
  typedef Panel<Real, complex> P;
  const int64_t column = panel * P::columns;
  Real* tile = s.tile + panel * s.panel_stride;
  const Real* decays = per_step ? s.decay_tile + panel * s.panel_stride : tile;
  typename P::N decay[P::numbers], state[P::numbers];
  for (int n = 0; n < P::numbers; n++) {
    state[n] = P::state(s.state + column, n);
    if (!per_step) decay[n] = P::state(s.decay + column, n);
  }
  const int64_t step = s.reverse ? -1 : 1;
  int64_t t = s.reverse ? s.time - 1 : 0;
  for (int64_t count = 0; count < s.time; count++, t += step) {
#pragma GCC unroll 8
    for (int n = 0; n < P::numbers; n++) {
      if (per_step) decay[n] = P::load(decays + t * s.row, n);
      state[n] = multiply_add(decay[n], state[n], P::load(tile + t * s.row, n));
      P::store(tile + t * s.row, n, state[n]);
    }
  }
  for (int n = 0; n < P::numbers; n++) P::keep(s.state + column, n, state[n]);
}

template <class Real>
void scan_tile(const ScanTile<Real>& s) {
  for (int64_t p = 0; p < s.panels; p++) {
    if (s.complex)
      s.decay ? scan_panel<Real, true, false>(s, p)
              : scan_panel<Real, true, true>(s, p);
    else
      s.decay ? scan_panel<Real, false, false>(s, p)
              : scan_panel<Real, false, true>(s, p);
  }
}

template <class Real, bool complex, bool per_step>
INLINE void scan_panel_backward(const ScanTileBackward<Real>& s,
                                int64_t panel) {
  typedef Panel<Real, complex> P;
  const int64_t column = panel * P::columns, offset = panel * s.panel_stride;
  const Real* states = s.states + offset;
  Real* d_tile = s.d_tile + offset;
  typename P::N decay[P::numbers], carry[P::numbers], sum[P::numbers];
  for (int n = 0; n < P::numbers; n++) {
    carry[n] = P::state(s.carry + column, n);
    if (per_step) continue;
    decay[n] = P::state(s.decay + column, n);
    sum[n] = P::state(s.d_decay + column, n);
  }
  const int64_t step = s.reverse ? 1 : -1;
  int64_t t = s.reverse ? 0 : s.time - 1;
  for (int64_t left = s.time; left > 0; left--, t += step) {
    const int64_t row = t * s.row;
#pragma GCC unroll 8
    for (int n = 0; n < P::numbers; n++) {
      typename P::N gradient = P::load(d_tile + row, n);
      gradient.real += carry[n].real;
      if (complex) gradient.imag += carry[n].imag;
      const typename P::N before =
          left > 1 ? P::load(states + row + step * s.row, n)
                   : P::state(s.initial + column, n);
      const typename P::N slope = conjugate_multiply(before, gradient);
      if (per_step) {
        decay[n] = P::load(s.decay_tile + offset + row, n);
        P::store(s.d_decay_tile + offset + row, n, slope);
      } else {
        sum[n].real += slope.real;
        if (complex) sum[n].imag += slope.imag;
      }
      P::store(d_tile + row, n, gradient);
      carry[n] = conjugate_multiply(decay[n], gradient);
    }
  }
  for (int n = 0; n < P::numbers; n++) {
    P::keep(s.carry + column, n, carry[n]);
    if (!per_step) P::keep(s.d_decay + column, n, sum[n]);
  }
}

template <class Real>
void scan_tile_backward(const ScanTileBackward<Real>& s) {
  for (int64_t p = 0; p < s.panels; p++) {
    if (s.complex)
      s.decay ? scan_panel_backward<Real, true, false>(s, p)
              : scan_panel_backward<Real, true, true>(s, p);
    else
      s.decay ? scan_panel_backward<Real, false, false>(s, p)
              : scan_panel_backward<Real, false, true>(s, p);
  }
}

// --- tridiagonal matrices -------------------------------------------------

constexpr int64_t band_width = VECTOR_BYTES / 8;

INLINE Doubles band(const double* from, int64_t row, int64_t column) {
  return *reinterpret_cast<const DoublesInMemory*>(from + row * band_columns +
                                                   column);
}

INLINE void keep_band(double* to, int64_t row, int64_t column, Doubles value) {
  *reinterpret_cast<DoublesInMemory*>(to + row * band_columns + column) = value;
}

void solve_bands(const BandSolve& s) {
  for (int64_t n = s.first + 1; n < s.size; n++)
    for (int64_t c = 0; c < band_columns; c += band_width)
      keep_band(s.right, n, c,
                band(s.right, n, c) -
                    s.factors[n] * band(s.right, n - 1, c));
  for (int64_t n = s.size - 1; n >= 0; n--)
    for (int64_t c = 0; c < band_columns; c += band_width) {
      Doubles value = band(s.right, n, c);
      if (n + 1 < s.size) value -= s.above[n] * band(s.right, n + 1, c);
      keep_band(s.right, n, c, s.inverses[n] * value);
    }
}

void multiply_bands(const BandProduct& s) {
  for (int64_t n = 0; n < s.size; n++)
    for (int64_t c = 0; c < band_columns; c += band_width) {
      Doubles value = s.middle[n] * band(s.from, n, c);
      if (n > 0) value += s.left[n] * band(s.from, n - 1, c);
      if (n + 1 < s.size) value += s.right[n] * band(s.from, n + 1, c);
      keep_band(s.to, n, c, value);
    }
}

INLINE double row_product(const double* a, const double* b) {
  Doubles sum = {};
  for (int64_t c = 0; c < band_columns; c += band_width)
    sum += band(a, 0, c) * band(b, 0, c);
  double total = 0.0;
  for (int64_t i = 0; i < band_width; i++) total += sum[i];
  return total;
}

void add_bands(const BandSums& s) {
  for (int64_t n = 0; n < s.size; n++) {
    const double* a = s.a + n * band_columns;
    const double* b = s.b + n * band_columns;
    s.middle[n] += row_product(a, b);
    if (n > 0) s.left[n] += row_product(a, b - band_columns);
    if (n + 1 < s.size) s.right[n] += row_product(a, b + band_columns);
  }
}

// --- structured systems step by step --------------------------------------

// Lanes are taken in groups of two vectors, so that one's sums are under way
// while the other's are awaited.
constexpr int64_t group_lanes = 2 * band_width;

struct Group {
  Doubles part[2];
  static INLINE Group load(const double* from) {
    return {{*reinterpret_cast<const DoublesInMemory*>(from),
             *reinterpret_cast<const DoublesInMemory*>(from + band_width)}};
  }
  INLINE void keep(double* to) const {
    *reinterpret_cast<DoublesInMemory*>(to) = part[0];
    *reinterpret_cast<DoublesInMemory*>(to + band_width) = part[1];
  }
};

INLINE Group operator+(Group a, Group b) {
  return {{a.part[0] + b.part[0], a.part[1] + b.part[1]}};
}
INLINE Group operator-(Group a, Group b) {
  return {{a.part[0] - b.part[0], a.part[1] - b.part[1]}};
}
INLINE Group operator*(Group a, Group b) {
  return {{a.part[0] * b.part[0], a.part[1] * b.part[1]}};
}
INLINE Group operator*(double a, Group b) {
  return {{a * b.part[0], a * b.part[1]}};
}

// One step of the lanes from `first` on.
INLINE void step_group(const LaneSteps& s, int64_t first, int64_t step) {
  const double* from = s.state + step * s.stride + first;
  double* to = s.state + (step + 1) * s.stride + first;
  double* scratch = s.scratch + first;
  Group before{}, here = Group::load(from), eliminated{};
  for (int64_t n = 0; n < s.size; n++) {
    const int64_t row = n * lanes;
    const Group next = Group::load(from + row + lanes);
    eliminated = s.middle[n] * here + s.left[n] * before + s.right[n] * next -
                 Group::load(s.factors + first + row) * eliminated;
    eliminated.keep(scratch + row);
    before = here;
    here = next;
  }
  for (int64_t m = 0; m < s.channels; m++) {
    const double* read_out = s.read_out + m * s.size * lanes + first;
    Group even{}, odd{};
    int64_t n = 0;
    for (; n + 1 < s.size; n += 2) {
      const int64_t row = n * lanes;
      even = even + Group::load(read_out + row) * Group::load(from + row);
      odd = odd + Group::load(read_out + row + lanes) *
                      Group::load(from + row + lanes);
    }
    if (n < s.size)
      even = even +
             Group::load(read_out + n * lanes) * Group::load(from + n * lanes);
    (even + odd).keep(s.outputs + (step * s.channels + m) * lanes + first);
  }
  Group moved{};
  for (int64_t n = s.size - 1; n >= 0; n--) {
    const int64_t row = n * lanes;
    moved = Group::load(scratch + row) *
                Group::load(s.inverses + first + row) -
            Group::load(s.above + first + row) * moved;
    (Group::load(from + row) + moved).keep(to + row);
  }
}

void step_lanes(const LaneSteps& s) {
  for (int64_t first = 0; first < lanes; first += group_lanes)
    for (int64_t step = 0; step < s.steps; step++) step_group(s, first, step);
}

INLINE void step_group_backward(const LaneStepsBackward& s, int64_t first,
                                int64_t step) {
  double* scratch = s.scratch + first;
  double* slopes = s.slopes + step * s.size * lanes + first;
  Group slope{};
  for (int64_t n = s.size - 1; n >= 0; n--) {
    const int64_t row = n * lanes;
    slope = Group::load(scratch + row) *
                Group::load(s.inverses + first + row) -
            Group::load(s.transposed_above + first + row) * slope;
    slope.keep(slopes + row);
  }
  // The cotangent of the state before the step, and half of what M^-T makes
  // of it.
  const double* d_outputs = s.d_outputs + step * s.channels * lanes + first;
  Group below{}, here = slope, eliminated{};
  for (int64_t n = 0; n < s.size; n++) {
    const int64_t row = n * lanes + first;
    Group next{};
    if (n + 1 < s.size) next = Group::load(slopes + (n + 1) * lanes);
    Group d_state = Group::load(s.d_state + row) +
                    s.transposed_middle[n] * here +
                    s.transposed_left[n] * below +
                    s.transposed_right[n] * next;
    for (int64_t m = 0; m < s.channels; m++)
      d_state = d_state + Group::load(s.read_out + m * s.size * lanes + row) *
                              Group::load(d_outputs + m * lanes);
    d_state.keep(s.d_state + row);
    eliminated = d_state - Group::load(s.transposed_factors + row) * eliminated;
    eliminated.keep(scratch + n * lanes);
    below = here;
    here = next;
  }
}

void step_lanes_backward(const LaneStepsBackward& s) {
  for (int64_t first = 0; first < lanes; first += group_lanes)
    for (int64_t step = s.steps - 1; step >= 0; step--)
      step_group_backward(s, first, step);
}

INLINE void add_group(double* to, Group sum) {
  (Group::load(to) + sum).keep(to);
}

// One row, over all steps: its sums are in registers.
INLINE void add_row(const LaneSums& s, int64_t first, int64_t n) {
  const int64_t row = n * lanes + first;
  // Beyond the first row and the last: something finite, that counts for
  // nothing.
  const int64_t left = n > 0 ? row - lanes : row;
  const double* states = s.states;
  const double* slopes = s.slopes + row;
  Group before[3]{}, after[3]{};
  Group here[3] = {Group::load(states + left), Group::load(states + row),
                   Group::load(states + row + lanes)};
  for (int64_t step = 0; step < s.steps; step++) {
    const Group slope = Group::load(slopes + step * s.size * lanes);
    states += s.stride;
    const Group next[3] = {Group::load(states + left),
                           Group::load(states + row),
                           Group::load(states + row + lanes)};
    for (int band = 0; band < 3; band++) {
      before[band] = before[band] + slope * here[band];
      after[band] = after[band] + slope * next[band];
      here[band] = next[band];
    }
  }
  for (int band = 0; band < 3; band++) {
    add_group(s.before[band] + row, before[band]);
    add_group(s.after[band] + row, after[band]);
  }
  for (int64_t m = 0; m < s.channels; m++) {
    Group sum{};
    for (int64_t step = 0; step < s.steps; step++)
      sum = sum +
            Group::load(s.states + step * s.stride + row) *
                Group::load(s.d_outputs + (step * s.channels + m) * lanes +
                            first);
    add_group(s.d_read_out + m * s.size * lanes + row, sum);
  }
}

void add_lanes(const LaneSums& s) {
  for (int64_t first = 0; first < lanes; first += group_lanes)
    for (int64_t n = 0; n < s.size; n++) add_row(s, first, n);
}

// --- nonlinear recurrences ------------------------------------------------

// exp(x) for x <= 0, or exp(x) - 1, to the last digits also where it is small.
template <class Real, bool minus_1>
INLINE typename Types<Real>::Vector exponential(
    typename Types<Real>::Vector x) {
  typedef Types<Real> T;
  typedef typename T::Vector Vector;
  typedef typename T::Bits Bits;
  // Added to a number, this leaves its whole part in the last bits.
  constexpr Real shifter = Real(3) * (int64_t{1} << (T::fraction_bits - 1));
  constexpr Real log2_high = 0.693145751953125;  // few bits: n times it is exact
  constexpr Real log2_low = 1.42860682030941723212e-6;
  const Vector least = Vector{} + T::least_exponent;
  x = x < least ? least : x;
  const Vector shifted = x * Real(1.44269504088896340736) + shifter;
  const Vector whole = shifted - shifter;
  const Vector r = (x - whole * log2_high) - whole * log2_low;
  double coefficient = 1;
  for (int k = 2; k <= T::exp_terms; k++) coefficient /= k;
  Vector series = Vector{} + static_cast<Real>(coefficient);
  for (int k = T::exp_terms; k > 2; k--) {
    coefficient *= k;
    series = series * r + static_cast<Real>(coefficient);
  }
  series = series * r * r + r;
  const Bits exponent = (reinterpret_cast<const Bits&>(shifted) +
                         T::exponent_bias)
                        << T::fraction_bits;
  const Vector power = reinterpret_cast<const Vector&>(exponent);
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

INLINE float root(float x) { return __builtin_sqrtf(x); }
INLINE double root(double x) { return __builtin_sqrt(x); }

// Two vectors: a row of a panel.
template <class Real>
struct Pair {
  typedef typename Types<Real>::Vector Vector;
  typedef typename Types<Real>::VectorInMemory InMemory;
  static constexpr int width = Types<Real>::width;
  Vector part[2];
  static INLINE Pair load(const Real* from) {
    return {{*reinterpret_cast<const InMemory*>(from),
             *reinterpret_cast<const InMemory*>(from + width)}};
  }
  INLINE void store(Real* to) const {
    *reinterpret_cast<InMemory*>(to) = part[0];
    *reinterpret_cast<InMemory*>(to + width) = part[1];
  }
};

// Complex numbers, and what modReLU does to them: scale = 1 + bias / modulus,
// or 0. `inverse` is that of the modulus, or 0.
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
      // A modulus that is NaN is to be seen.
      if (modulus != modulus) scale[i] = modulus;
    }
  }
};

// Whether an activation has a slope for each number by itself.
constexpr bool is_of_pairs(int activation) {
  return activation == kOplu || activation == kModrelu;
}

template <class Real, int activation>
INLINE Pair<Real> activated(const Pair<Real>& x, const Respond<Real>& s,
                            Pair<Real>* slope) {
  typedef typename Types<Real>::Vector Vector;
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
  for (int p = 0; p < 2; p++) {
    const Vector one = Vector{} + 1, none = Vector{};
    if (activation == kLinear) slope->part[p] = one;
    if (activation == kRelu || activation == kLeakyRelu) {
      const Real leak = activation == kRelu ? 0 : s.leak;
      // Not so for NaN, which is to be seen.
      const auto below = x.part[p] <= 0;
      y.part[p] = below ? leak * x.part[p] : x.part[p];
      slope->part[p] = x.part[p] > 0 ? one : none + leak;
    }
    if (activation == kTanh) {
      y.part[p] = hyperbolic_tangent<Real>(x.part[p]);
      slope->part[p] = 1 - y.part[p] * y.part[p];
    }
    if (activation == kSigmoid) {
      y.part[p] = logistic<Real>(x.part[p]);
      slope->part[p] = y.part[p] * (1 - y.part[p]);
    }
  }
  return y;
}

template <class Real, int activation>
void respond_with(const Respond<Real>& s) {
  typedef Pair<Real> P;
  constexpr int64_t panel = 2 * P::width;
  const P bias = P::load(s.bias);
  for (int64_t at = 0; at < s.rows * panel; at += panel) {
    P x = P::load(s.argument + at), slope, product{};
    for (int p = 0; p < 2; p++) x.part[p] += bias.part[p];
    if (s.product) {
      product = P::load(s.product + at);
      for (int p = 0; p < 2; p++) x.part[p] += product.part[p];
    }
    P y = activated<Real, activation>(x, s, &slope);
    if (s.memory) slope.store(s.memory + at);
    if (s.linear) {
      const P linear = P::load(s.linear + at);
      for (int p = 0; p < 2; p++) y.part[p] += linear.part[p];
    }
    if (s.gate) {
      P gate = P::load(s.gate + at);
      const P gate_bias = P::load(s.gate_bias);
      for (int p = 0; p < 2; p++)
        gate.part[p] = logistic<Real>(gate.part[p] + gate_bias.part[p] +
                                      product.part[p]);
      gate.store(s.gate + at);
      if (s.change) y.store(s.change + at);
      for (int p = 0; p < 2; p++) y.part[p] *= gate.part[p];
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
        d.part[p] *= gate.part[p];
      }
      d_gate.store(s.d_gate + at);
    }
    if (s.d_linear) d.store(s.d_linear + at);
    const P memory = P::load(s.memory + at);
    P result;
    if (!is_of_pairs(activation))
      for (int p = 0; p < 2; p++) result.part[p] = d.part[p] * memory.part[p];
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
  static constexpr void (*with[])(const Respond<Real>&) = {
      respond_with<Real, kLinear>,    respond_with<Real, kRelu>,
      respond_with<Real, kLeakyRelu>, respond_with<Real, kTanh>,
      respond_with<Real, kSigmoid>,   respond_with<Real, kOplu>,
      respond_with<Real, kModrelu>};
  with[s.activation](s);
}

template <class Real>
void respond_backward(const RespondBackward<Real>& s) {
  // What is kept are slopes, whatever the activation, but for pairs.
  if (s.activation == kOplu) return respond_backward_with<Real, kOplu>(s);
  if (s.activation == kModrelu)
    return respond_backward_with<Real, kModrelu>(s);
  respond_backward_with<Real, kLinear>(s);
}

template <class Real>
void dot_rows(const DotRows<Real>& s) {
  typedef Pair<Real> P;
  constexpr int64_t panel = 2 * P::width;
  for (int64_t row = 0; row < s.rows; row++) {
    P sum{};
    for (int64_t q = 0; q < s.panels; q++) {
      const P one = P::load(s.a + q * s.panel_stride + row * panel);
      const P other = P::load(s.b + q * panel);
      for (int p = 0; p < 2; p++) sum.part[p] += one.part[p] * other.part[p];
    }
    const auto both = sum.part[0] + sum.part[1];
    Real total = 0;
    for (int i = 0; i < P::width; i++) total += both[i];
    s.to[row * s.to_row] = s.add ? s.to[row * s.to_row] + total : total;
  }
}

template <class Real>
void add_scaled(const AddScaled<Real>& s) {
  typedef Pair<Real> P;
  constexpr int64_t panel = 2 * P::width;
  for (int64_t row = 0; row < s.rows; row++) {
    P sum = P::load(s.base + row * panel);
    const P from = P::load(s.from + row * panel);
    for (int p = 0; p < 2; p++)
      sum.part[p] += s.factors[row] * from.part[p];
    sum.store(s.to + row * panel);
  }
}

template <class Real>
constexpr Kernels<Real> table() {
  return {2 * Types<Real>::width,
          scan_rows<Real>,
          scan_rows_backward<Real>,
          product<Real>,
          scan_tile<Real>,
          scan_tile_backward<Real>,
          respond<Real>,
          respond_backward<Real>,
          add_scaled<Real>,
          dot_rows<Real>};
}

}  // namespace

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
extern const InstructionSet KERAS_LINREC_SET;
const InstructionSet KERAS_LINREC_SET = {TEXT(KERAS_LINREC_SET),
                                         table<float>(),
                                         table<double>(),
                                         solve_bands,
                                         multiply_bands,
                                         add_bands,
                                         step_lanes,
                                         step_lanes_backward,
                                         add_lanes};

}  // namespace keras_linrec
