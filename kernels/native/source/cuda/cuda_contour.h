// The impulse response of structured systems on a GPU, and its gradient, with
// no chain of steps: its generating function on a circle, and a transform.
//
// For any complex z,
//
//   K(z) = sum_k C Abar^k Bbar z^k = dt (C Q^-1) M(z)^-1 (T P^-1 B)
//   M(z) = T diag(u / (P Q) - v D) - v I
//   u    = 1 - z,    v = dt w,    w = alpha + z (1 - alpha)
//
// and M is tridiagonal, so that one K(z) is one elimination, by one thread. It
// needs no substitution, because the vector on the left is eliminated beside
// the one on the right. See `Circle` for the transform.
//
// All of this holds if the circle encloses no pole, that is no 1 / lambda of an
// eigenvalue of Abar. If it does, the numbers are wrong, not large. A flag of
// each output tells (`ContourTransform::is_right`), and where it does not hold,
// the kernels of cuda_response.h, launched afterwards, go step by step; their
// blocks for other features return at once. So nothing waits for the GPU.
//
// All numbers are float64, whatever the arrays are: in float32 the growth of
// roundings on the circle would leave no digits.
#pragma once
#include <cmath>
#include <cstring>

#include "cuda/cuda_response.h"

namespace keras_linrec {
namespace cuda {

struct Complex {
  double real, imag;

  KERAS_LINREC_DEVICE Complex conjugate() const { return {real, -imag}; }
  KERAS_LINREC_DEVICE double square() const {
    return real * real + imag * imag;
  }
};
KERAS_LINREC_DEVICE Complex operator+(Complex a, Complex b) {
  return {a.real + b.real, a.imag + b.imag};
}
KERAS_LINREC_DEVICE Complex operator-(Complex a, Complex b) {
  return {a.real - b.real, a.imag - b.imag};
}
KERAS_LINREC_DEVICE Complex operator*(Complex a, double b) {
  return {a.real * b, a.imag * b};
}
KERAS_LINREC_DEVICE Complex operator*(Complex a, Complex b) {
  return {a.real * b.real - a.imag * b.imag,
          a.real * b.imag + a.imag * b.real};
}

// exp(2 pi i part / whole)
KERAS_LINREC_DEVICE Complex turned(int64_t part, int64_t whole) {
  const double turns = 2.0 * static_cast<double>(part) / whole;
  Complex turn;
#ifdef __CUDA_ARCH__
  sincospi(turns, &turn.imag, &turn.real);
#else
  const double pi = 3.14159265358979323846;
  turn = {std::cos(pi * turns), std::sin(pi * turns)};
#endif
  return turn;
}

// Where the generating function is evaluated: z_j = r exp(-2 pi i j / n).
//
// With n = 2 time points and r^n = 1e-12, what wraps around is below 1e-12 of
// the response, and roundings grow by up to 1e6: for float32. Twice as many
// points with 1e-14 are for float64. Half of the points suffice.
//
// n is a product, so that the transform is two short sums.
struct Circle {
  int64_t inner = 2, outer;
  double log_radius;

  Circle(int64_t time, bool is_double) {
    // Few points would make a small circle.
    const int64_t least = (is_double ? 4 : 2) * (time < 4 ? 4 : time);
    while (inner * inner < 4 * least) inner += 2;
    outer = (least + inner - 1) / inner;
    log_radius = std::log(is_double ? 1e-14 : 1e-12) / count();
  }
  KERAS_LINREC_DEVICE int64_t count() const { return inner * outer; }
  KERAS_LINREC_DEVICE int64_t points() const { return count() / 2 + 1; }
  // And z = 0, whose value the test for poles needs.
  KERAS_LINREC_DEVICE int64_t all_points() const { return points() + 1; }
  KERAS_LINREC_DEVICE int64_t half() const { return inner / 2 + 1; }
  KERAS_LINREC_DEVICE Complex at(int64_t point) const {
    if (point >= points()) return {0.0, 0.0};
    return turned(point, count()).conjugate() * std::exp(log_radius);
  }
  // How often a point stands for itself and its conjugate.
  KERAS_LINREC_DEVICE double weight(int64_t point) const {
    return point == 0 || 2 * point == count() ? 1.0 : 2.0;
  }
  // r^-step
  KERAS_LINREC_DEVICE double growth(int64_t step) const {
    return std::exp(-log_radius * step);
  }
};

// How the gradient is shared among blocks. An item is some tiles of a feature's
// points; a block takes one item after another.
struct ContourItems {
  static constexpr int tile = 64;
  static constexpr int64_t most_blocks = 1024, most_items = 4096;

  int64_t tiles, groups, count;

  ContourItems(const ResponseSizes& sizes, const Circle& circle) {
    tiles = (circle.points() + tile - 1) / tile;
    const int64_t systems = sizes.systems();
    groups = systems ? (most_items + systems - 1) / systems : 1;
    if (groups > tiles) groups = tiles;
    count = systems * groups;
  }
  KERAS_LINREC_DEVICE int64_t blocks() const {
    return count < most_blocks ? count : most_blocks;
  }
};

// What both directions keep on the GPU.
struct ContourMemory {
  // By system, channel and point: K(z), and then its cotangent.
  Complex* values;
  // By system, channel, and the terms of a transform's sums.
  Complex* terms;
  // Of |det M(z)|, by system and point.
  double* logarithms;
  // The gradient's: see `ContourSums`.
  double *kept, *sums;
  // By system and channel: whether `values` are right.
  unsigned* right;

  // Rows of the state whose elimination is kept at the same time.
  static constexpr int together = 8;

  KERAS_LINREC_DEVICE static int chunks(int state) {
    return (state + together - 1) / together;
  }
  static ContourMemory place(const ResponseSizes& sizes, const Circle& circle,
                             bool backward, Memory& memory) {
    const int64_t systems = sizes.systems(), rows = systems * sizes.channels;
    ContourMemory taken{};
    taken.values = memory.take<Complex>(rows * circle.all_points());
    taken.terms = memory.take<Complex>(rows * circle.half() * circle.outer);
    taken.logarithms = memory.take<double>(systems * circle.all_points());
    if (backward) {
      const ContourItems items(sizes, circle);
      taken.kept = memory.take<double>(items.blocks() * chunks(sizes.state) *
                                       6 * ContourItems::tile);
      taken.sums = memory.take<double>(
          items.count * (7 + sizes.channels) * sizes.state);
    }
    // An even number: what comes next may be of doubles.
    taken.right = memory.take<unsigned>((rows + 1) / 2 * 2);
    return taken;
  }
};

// A row of the matrix M, and of the vectors on both sides.
struct ContourRow {
  double c, d;                    // s = u c - v d
  double diagonal, below, above;  // of T; the latter with the row before
  double right;                   // T P^-1 B
  double left;                    // Q^-1, or C Q^-1
};

// The elimination of M with a vector on its right and one on its left.
struct Elimination {
  Complex u, v;
  // Of the last row.
  Complex s{}, inverse{}, right{}, left{};
  double square = 0.0;  // of its pivot

  KERAS_LINREC_DEVICE Elimination(Complex z, double alpha, double timescale)
      : u{1.0 - z.real, -z.imag},
        v{timescale * (alpha + z.real * (1.0 - alpha)),
          timescale * (z.imag * (1.0 - alpha))} {}
  KERAS_LINREC_DEVICE Complex scale(const ContourRow& row) const {
    return u * row.c - v * row.d;
  }
  KERAS_LINREC_DEVICE void next(const ContourRow& row, Complex left_of_row) {
    const Complex now = scale(row);
    const Complex low = s * inverse * row.below;
    const Complex up = now * row.above;
    const Complex pivot = now * row.diagonal - v - low * up;
    left = left_of_row - up * (inverse * left);
    right = Complex{row.right, 0.0} - low * right;
    square = pivot.square();
    inverse = pivot.conjugate() * (1.0 / square);
    s = now;
  }
};

// A product of many numbers, which does not overflow.
struct LongProduct {
  double mantissa = 1.0;
  int64_t exponent = 0;

  KERAS_LINREC_DEVICE void multiply(double factor) {
    mantissa *= factor;
    int64_t bits;
    std::memcpy(&bits, &mantissa, sizeof(bits));
    exponent += (bits >> 52 & 2047) - 1023;
    bits = (bits & ~(int64_t{2047} << 52)) | int64_t{1023} << 52;
    std::memcpy(&mantissa, &bits, sizeof(bits));
  }
  KERAS_LINREC_DEVICE double logarithm() const {
    return std::log(mantissa) + exponent * 0.69314718055994530942;
  }
};

template <class Real>
struct ContourPass : ResponsePass<Real> {
  Circle circle;
  ContourMemory memory;

  ContourPass(const ResponseSizes& sizes, const void* const* from,
              const Circle& circle, const ContourMemory& memory)
      : ResponsePass<Real>(sizes, from), circle(circle), memory(memory) {}

  KERAS_LINREC_DEVICE bool is_right(int64_t feature) const {
    return is_right_everywhere(memory.right, feature, this->sizes.channels);
  }
  // Writes the rows of a feature. `read_out` is a row of C, or null for ones.
  KERAS_LINREC_DEVICE void write_rows(const Block& block, int64_t feature,
                                      const Real* read_out,
                                      ContourRow* rows) const {
    const auto w = this->parameters(feature);
    const int state = this->sizes.state;
    block.each_by_itself(state, [&](int n) {
      double right = w.diagonal(n) * w.input(n);
      if (n > 0) right += w.below(n - 1) * w.input(n - 1);
      if (n + 1 < state) right += w.above(n) * w.input(n + 1);
      rows[n] = {1.0 / (w.p(n) * w.q(n)),
                 w.d(n),
                 w.diagonal(n),
                 w.below(n - 1),
                 w.above(n - 1),
                 right,
                 (read_out ? double(read_out[n]) : 1.0) / w.q(n)};
    });
  }
};

// K(z) and log |det M(z)|^2 / 2. A block has one output's tile of points.
template <class Real>
struct ContourValues : ContourPass<Real> {
  static constexpr int most_threads = 64;
  using ContourPass<Real>::ContourPass;

  int threads() const { return most_threads; }
  KERAS_LINREC_DEVICE int64_t tiles() const {
    return (this->circle.all_points() + most_threads - 1) / most_threads;
  }
  int64_t blocks() const {
    return this->sizes.systems() * this->sizes.channels * tiles();
  }
  int64_t shared_bytes() const {
    return this->sizes.state * sizeof(ContourRow);
  }

  KERAS_LINREC_DEVICE void operator()(const Block& block) const {
    const int64_t row = block.index / tiles(), channels = this->sizes.channels;
    const int64_t feature = row / channels, channel = row % channels;
    const int64_t first = block.index % tiles() * most_threads;
    const int64_t all = this->circle.all_points();
    Memory shared{block.memory};
    auto* rows = shared.take<ContourRow>(this->sizes.state);
    this->write_rows(block, feature, this->read_out(feature, channel), rows);
    const double timescale = this->timescale[feature];
    block.each_by_itself(most_threads, [&](int thread) {
      const int64_t point = first + thread;
      if (point >= all) return;
      Elimination last(this->circle.at(point), this->sizes.alpha, timescale);
      Complex sum{};
      LongProduct determinant;
      KERAS_LINREC_NO_UNROLL
      for (int n = 0; n < this->sizes.state; n++) {
        last.next(rows[n], {rows[n].left, 0.0});
        determinant.multiply(last.square);
        sum = sum + last.right * last.inverse * last.left;
      }
      this->memory.values[row * all + point] = sum * timescale;
      if (channel == 0)
        this->memory.logarithms[feature * all + point] =
            0.5 * determinant.logarithm();
    });
  }
};

// Common to the transforms of both directions. A block has one output.
template <class Real>
struct ContourTransform : ContourPass<Real> {
  static constexpr int most_threads = 128;
  using ContourPass<Real>::ContourPass;

  int threads() const { return most_threads; }
  int64_t blocks() const { return this->sizes.systems() * this->sizes.channels; }

  // In shared memory. The turns are exp(2 pi i / inner) and the like, to all
  // their powers.
  struct Tables {
    Complex *inner, *outer;
    double *growths, *sums;
    unsigned* is_right;
  };
  KERAS_LINREC_DEVICE Tables place(Memory& shared) const {
    Tables tables;
    tables.inner = shared.take<Complex>(this->circle.inner);
    tables.outer = shared.take<Complex>(this->circle.outer);
    tables.growths = shared.take<double>(this->circle.inner);
    tables.sums = shared.take<double>(3 * most_threads);
    tables.is_right = shared.take<unsigned>(1);
    return tables;
  }
  int64_t shared_bytes() const {
    Memory shared{nullptr};
    place(shared);
    return shared.used;
  }
  KERAS_LINREC_DEVICE void write(const Block& block,
                                 const Tables& tables) const {
    const Circle& circle = this->circle;
    block.each_by_itself(static_cast<int>(circle.inner), [&](int k) {
      tables.inner[k] = turned(k, circle.inner);
      // Of a step that is a multiple of `outer`.
      tables.growths[k] = circle.growth(k * circle.outer);
    });
    block.each_by_itself(static_cast<int>(circle.outer), [&](int k) {
      tables.outer[k] = turned(k, circle.outer);
    });
  }

  // Whether the circle encloses no pole.
  //
  // - By Jensen's formula a pole p within adds n log(r / |p|) to the difference
  //   of the logarithms of |det M|, summed on the circle, and at its centre.
  //   One just outside adds (r / |p|)^n, which is what wraps around.
  // - The first tap, which nothing has made grow, is K(0). Unlike the other
  //   test, it sees all that was computed.
  KERAS_LINREC_DEVICE bool is_right(const Block& block,
                                    const Tables& tables) const {
    const Circle& circle = this->circle;
    const int64_t all = circle.all_points();
    const Complex* values = this->memory.values + block.index * all;
    const double* logarithms =
        this->memory.logarithms + block.index / this->sizes.channels * all;
    block.each_by_itself(most_threads, [&](int thread) {
      double sums[3] = {};
      for (int64_t j = thread; j < circle.points(); j += most_threads) {
        const double weight = circle.weight(j);
        sums[0] += weight * (logarithms[j] - logarithms[circle.points()]);
        sums[1] += weight * values[j].real;
        sums[2] += weight * values[j].square();
      }
      for (int i = 0; i < 3; i++) tables.sums[3 * thread + i] = sums[i];
    });
    block.each_by_itself(1, [&](int) {
      double sums[3] = {};
      for (int i = 0; i < 3 * most_threads; i++)
        sums[i % 3] += tables.sums[i];
      const double count = static_cast<double>(circle.count());
      const double difference = sums[1] / count - values[circle.points()].real;
      const double allowed = sizeof(Real) == sizeof(double) ? 1e-11 : 1e-9;
      // What is NaN is not right.
      const bool right =
          std::fabs(sums[0]) < 1e-6 &&
          std::fabs(difference) <= allowed * std::sqrt(sums[2] / count);
      *tables.is_right = this->memory.right[block.index] = right;
    });
    return *tables.is_right;
  }
};

// K_k = r^-k / n sum_j K(z_j) exp(2 pi i j k / n).
//
// With j = inner j_1 + j_2 and k = k_1 + outer k_2, the sum over j_1 depends
// on k_1 alone. Terms of j_2 and of inner - j_2 are conjugates.
template <class Real>
struct ContourResponse : ContourTransform<Real> {
  Real* response;

  ContourResponse(const ResponseSizes& sizes, const void* const* from,
                  const Circle& circle, const ContourMemory& memory,
                  void* response)
      : ContourTransform<Real>(sizes, from, circle, memory),
        response(static_cast<Real*>(response)) {}

  KERAS_LINREC_DEVICE void operator()(const Block& block) const {
    const Circle& circle = this->circle;
    Memory shared{block.memory};
    const auto tables = this->place(shared);
    if (!this->is_right(block, tables)) return;
    this->write(block, tables);
    const int64_t inner = circle.inner, outer = circle.outer;
    const Complex* values =
        this->memory.values + block.index * circle.all_points();
    Complex* terms = this->memory.terms + block.index * circle.half() * outer;
    block.each_by_itself(static_cast<int>(circle.half() * outer), [&](int at) {
      const int64_t j_2 = at / outer, k_1 = at % outer;
      Complex sum{};
      int64_t turn = 0;
      KERAS_LINREC_UNROLL_BY_8
      for (int64_t j_1 = 0; j_1 < outer; j_1++) {
        const int64_t j = j_1 * inner + j_2;
        const Complex value = 2 * j <= circle.count()
                                  ? values[j]
                                  : values[circle.count() - j].conjugate();
        sum = sum + value * tables.outer[turn];
        turn += k_1;
        if (turn >= outer) turn -= outer;
      }
      const double twice = j_2 == 0 || 2 * j_2 == inner ? 1.0 : 2.0;
      terms[at] =
          sum * turned(j_2 * k_1, circle.count()) * (twice / circle.count());
    });
    const int64_t time = this->sizes.time;
    block.each_by_itself(static_cast<int>(time), [&](int k) {
      const int64_t k_1 = k % outer, k_2 = k / outer;
      double sum = 0.0;
      int64_t turn = 0;
      KERAS_LINREC_UNROLL_BY_8
      for (int64_t j_2 = 0; j_2 < circle.half(); j_2++) {
        const Complex term = terms[j_2 * outer + k_1];
        sum += term.real * tables.inner[turn].real -
               term.imag * tables.inner[turn].imag;
        turn += k_2;
        if (turn >= inner) turn -= inner;
      }
      response[block.index * time + k] =
          static_cast<Real>(sum * circle.growth(k));
    });
  }
};

}  // namespace cuda
}  // namespace keras_linrec
