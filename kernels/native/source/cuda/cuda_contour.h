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
KERAS_LINREC_DEVICE Complex turned(int part, int whole) {
  const double turns = 2.0 * part / whole;
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
  int inner = 2, outer;
  double log_radius;

  Circle(int64_t time, bool is_double) {
    // Few points would make a small circle.
    const int least =
        (is_double ? 4 : 2) * (time < 4 ? 4 : static_cast<int>(time));
    while (inner * inner < 4 * least) inner += 2;
    outer = (least + inner - 1) / inner;
    log_radius = std::log(is_double ? 1e-14 : 1e-12) / count();
  }
  KERAS_LINREC_DEVICE int count() const { return inner * outer; }
  KERAS_LINREC_DEVICE int points() const { return count() / 2 + 1; }
  // And z = 0, whose value the test for poles needs.
  KERAS_LINREC_DEVICE int all_points() const { return points() + 1; }
  KERAS_LINREC_DEVICE int half() const { return inner / 2 + 1; }
  KERAS_LINREC_DEVICE Complex at(int point) const {
    if (point >= points()) return {0.0, 0.0};
    return turned(point, count()).conjugate() * std::exp(log_radius);
  }
  // How often a point stands for itself and its conjugate.
  KERAS_LINREC_DEVICE double weight(int point) const {
    return point == 0 || 2 * point == count() ? 1.0 : 2.0;
  }
  // r^-step
  KERAS_LINREC_DEVICE double growth(int step) const {
    return std::exp(-log_radius * step);
  }
};

// How the gradient is shared among blocks. An item is some tiles of a feature's
// points; a block takes one item after another.
struct ContourItems {
  static constexpr int tile = 64;
  static constexpr int64_t most_blocks = 1024, most_items = 4096;

  int tiles, groups;
  int64_t count;

  ContourItems(const ResponseSizes& sizes, const Circle& circle) {
    tiles = (circle.points() + tile - 1) / tile;
    const int64_t systems = sizes.systems();
    groups = tiles;
    if (systems * tiles > most_items)
      groups = static_cast<int>((most_items + systems - 1) / systems);
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
  KERAS_LINREC_DEVICE int tiles() const {
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
    const int first = static_cast<int>(block.index % tiles()) * most_threads;
    const int all = this->circle.all_points();
    Memory shared{block.memory};
    auto* rows = shared.take<ContourRow>(this->sizes.state);
    this->write_rows(block, feature, this->read_out(feature, channel), rows);
    const double timescale = this->timescale[feature];
    block.each_by_itself(most_threads, [&](int thread) {
      const int point = first + thread;
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
  int64_t blocks() const {
    return this->sizes.systems() * this->sizes.channels;
  }

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
    block.each_by_itself(circle.inner, [&](int k) {
      tables.inner[k] = turned(k, circle.inner);
      // Of a step that is a multiple of `outer`.
      tables.growths[k] = circle.growth(k * circle.outer);
    });
    block.each_by_itself(circle.outer, [&](int k) {
      tables.outer[k] = turned(k, circle.outer);
    });
  }

  // Fills the tables, unless the steps are to run.
  KERAS_LINREC_DEVICE bool begin(const Block& block, Tables& tables) const {
    Memory shared{block.memory};
    tables = place(shared);
    if (!is_right(block, tables)) return false;
    write(block, tables);
    return true;
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
    const int all = circle.all_points();
    const Complex* values = this->memory.values + block.index * all;
    const double* logarithms =
        this->memory.logarithms + block.index / this->sizes.channels * all;
    block.each_by_itself(most_threads, [&](int thread) {
      double sums[3] = {};
      for (int j = thread; j < circle.points(); j += most_threads) {
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
    typename ContourTransform<Real>::Tables tables;
    if (!this->begin(block, tables)) return;
    const int inner = circle.inner, outer = circle.outer;
    const Complex* values =
        this->memory.values + block.index * circle.all_points();
    Complex* terms = this->memory.terms + block.index * circle.half() * outer;
    block.each_by_itself(circle.half() * outer, [&](int at) {
      const int j_2 = at / outer, k_1 = at % outer;
      Complex sum{};
      int turn = 0;
      KERAS_LINREC_UNROLL_BY_8
      for (int j_1 = 0; j_1 < outer; j_1++) {
        const int j = j_1 * inner + j_2;
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
    const int time = static_cast<int>(this->sizes.time);
    block.each_by_itself(time, [&](int k) {
      const int k_1 = k % outer, k_2 = k / outer;
      double sum = 0.0;
      int turn = 0;
      KERAS_LINREC_UNROLL_BY_8
      for (int j_2 = 0; j_2 < circle.half(); j_2++) {
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

// The cotangents of K(z_j), in place of `values`: G_j, so that the sum of
// Re(G_j K(z_j)) is that of d_response times the response. By the names above,
//
//   G_j = weight_j / n sum_k d_response_k r^-k exp(2 pi i j k / n)
template <class Real>
struct ContourCotangents : ContourTransform<Real> {
  const Real* d_response;

  ContourCotangents(const ResponseSizes& sizes, const void* const* from,
                    const Circle& circle, const ContourMemory& memory)
      : ContourTransform<Real>(sizes, from, circle, memory),
        d_response(static_cast<const Real*>(from[7])) {}

  KERAS_LINREC_DEVICE void operator()(const Block& block) const {
    const Circle& circle = this->circle;
    typename ContourTransform<Real>::Tables tables;
    if (!this->begin(block, tables)) return;
    const int inner = circle.inner, outer = circle.outer;
    const int time = static_cast<int>(this->sizes.time);
    const Real* given = d_response + block.index * time;
    Complex* values = this->memory.values + block.index * circle.all_points();
    Complex* terms = this->memory.terms + block.index * circle.half() * outer;
    block.each_by_itself(circle.half() * outer, [&](int at) {
      const int j_2 = at / outer, k_1 = at % outer;
      Complex sum{};
      int turn = 0;
      KERAS_LINREC_UNROLL_BY_8
      for (int k_2 = 0; k_1 + outer * k_2 < time; k_2++) {
        sum = sum + tables.inner[turn] *
                        (given[k_1 + outer * k_2] * tables.growths[k_2]);
        turn += j_2;
        if (turn >= inner) turn -= inner;
      }
      terms[at] =
          sum * turned(j_2 * k_1, circle.count()) * circle.growth(k_1);
    });
    block.each_by_itself(circle.points(), [&](int point) {
      // Terms of the other half are conjugates of those of n - j.
      const bool mirrored = 2 * (point % inner) > inner;
      const int j = mirrored ? circle.count() - point : point;
      const Complex* mine = terms + j % inner * outer;
      Complex sum{};
      int turn = 0;
      KERAS_LINREC_UNROLL_BY_8
      for (int k_1 = 0; k_1 < outer; k_1++) {
        sum = sum + mine[k_1] * tables.outer[turn];
        turn += j / inner;
        if (turn >= outer) turn -= outer;
      }
      values[point] = (mirrored ? sum.conjugate() : sum) *
                      (circle.weight(point) / circle.count());
    });
  }
};

// With M y = right side, and M^T a = the sum over channels of G times C Q^-1,
// the sums over the points of an item. For each state n they are Re(u a y) in
// three bands: of a_n and y_(n+1), of both with the same n, of a_(n+1) and y_n;
// Re(w a y) likewise; Re(a_n); and for each channel Re(G y_n).
//
// A thread eliminates downwards and keeps what it needs to go on from every
// eighth row. From the last rows to the first, it eliminates eight of them
// again and substitutes backwards; then the threads share the sums.
template <class Real>
struct ContourSums : ContourPass<Real> {
  static constexpr int most_threads = ContourItems::tile;
  static constexpr int together = ContourMemory::together;
  // Odd, so that threads that read different rows read different banks.
  static constexpr int width = most_threads + 1;

  ContourItems items;

  ContourSums(const ResponseSizes& sizes, const void* const* from,
              const Circle& circle, const ContourMemory& memory)
      : ContourPass<Real>(sizes, from, circle, memory), items(sizes, circle) {}

  int threads() const { return most_threads; }
  int64_t blocks() const { return items.blocks(); }

  // In shared memory: numbers by row, of which one more is the next to the
  // last, and by point. First those of the elimination, then the solutions.
  struct Numbers {
    double *real, *imag;

    KERAS_LINREC_DEVICE Complex get(int row, int point) const {
      return {real[row * width + point], imag[row * width + point]};
    }
    KERAS_LINREC_DEVICE void set(int row, int point, Complex number) const {
      real[row * width + point] = number.real;
      imag[row * width + point] = number.imag;
    }
  };
  struct Shared {
    ContourRow* rows;
    Numbers inverse, right, left;
    Numbers z;  // in one row
  };
  KERAS_LINREC_DEVICE Shared place(Memory& memory) const {
    const auto take = [&](int rows) {
      double* real = memory.take<double>(rows * width);
      return Numbers{real, memory.take<double>(rows * width)};
    };
    Shared shared;
    shared.rows = memory.take<ContourRow>(this->sizes.state);
    shared.inverse = take(together);
    shared.right = take(together + 1);
    shared.left = take(together + 1);
    shared.z = take(1);
    return shared;
  }
  int64_t shared_bytes() const {
    Memory memory{nullptr};
    place(memory);
    return memory.used;
  }

  KERAS_LINREC_DEVICE void operator()(const Block& block) const {
    Memory memory{block.memory};
    const Shared shared = place(memory);
    for (int64_t item = block.index; item < items.count;
         item += items.blocks()) {
      const int64_t feature = item / items.groups;
      if (!this->is_right(feature)) continue;
      this->write_rows(block, feature, nullptr, shared.rows);
      const int group = static_cast<int>(item % items.groups);
      for (int tile = group; tile < items.tiles; tile += items.groups)
        add_tile(block, shared, item, tile, tile == group);
    }
  }

 private:
  KERAS_LINREC_DEVICE int64_t feature_of(int64_t item) const {
    return item / items.groups;
  }
  // The cotangent of an output at a point; zero beyond the last.
  KERAS_LINREC_DEVICE Complex cotangent(int64_t feature, int64_t channel,
                                        int point) const {
    if (point >= this->circle.points()) return {0.0, 0.0};
    const int64_t row = feature * this->sizes.channels + channel;
    return this->memory.values[row * this->circle.all_points() + point];
  }
  KERAS_LINREC_DEVICE Complex left_of(const Shared& shared, int64_t feature,
                                      int point, int n) const {
    Complex sum{};
    for (int64_t m = 0; m < this->sizes.channels; m++)
      sum = sum + cotangent(feature, m, point) *
                      double(this->read_out(feature, m)[n]);
    return sum * shared.rows[n].left;
  }
  KERAS_LINREC_DEVICE Elimination elimination(const Shared& shared,
                                              int64_t feature,
                                              int thread) const {
    return {shared.z.get(0, thread), this->sizes.alpha,
            this->timescale[feature]};
  }
  // What a thread keeps before the first row of a chunk, number by number.
  KERAS_LINREC_DEVICE double* kept(const Block& block, int chunk,
                                   int thread) const {
    const int64_t chunks = ContourMemory::chunks(this->sizes.state);
    return this->memory.kept +
           (block.index * chunks + chunk) * 6 * most_threads + thread;
  }

  KERAS_LINREC_DEVICE void add_tile(const Block& block, const Shared& shared,
                                    int64_t item, int tile,
                                    bool is_first) const {
    const int first = tile * most_threads;
    const int64_t feature = feature_of(item);
    const int state = this->sizes.state;
    block.each_by_itself(most_threads, [&](int thread) {
      const int point = first + thread;
      shared.z.set(0, thread, this->circle.at(point));
      Elimination last = elimination(shared, feature, thread);
      KERAS_LINREC_NO_UNROLL
      for (int n = 0; n < state; n++) {
        if (n % together == 0) keep(kept(block, n / together, thread), last);
        last.next(shared.rows[n], left_of(shared, feature, point, n));
      }
    });
    const int last_chunk = ContourMemory::chunks(state) - 1;
    KERAS_LINREC_NO_UNROLL
    for (int chunk = last_chunk; chunk >= 0; chunk--) {
      const int from = chunk * together;
      const int count = state - from < together ? state - from : together;
      block.each_by_itself(most_threads, [&](int thread) {
        solve(block, shared, feature, first + thread, thread, chunk, count,
              chunk == last_chunk);
      });
      const int kinds = 4 + static_cast<int>(this->sizes.channels);
      block.each_by_itself(kinds * count, [&](int at) {
        add(shared, item, first, at / count, at % count, from, is_first);
      });
    }
  }
  KERAS_LINREC_DEVICE static void keep(double* to, const Elimination& last) {
    const Complex numbers[] = {last.inverse, last.right, last.left};
    KERAS_LINREC_UNROLL_BY_8
    for (int i = 0; i < 3; i++) {
      to[2 * i * most_threads] = numbers[i].real;
      to[(2 * i + 1) * most_threads] = numbers[i].imag;
    }
  }
  KERAS_LINREC_DEVICE static Complex kept_number(const double* from, int i) {
    return {from[2 * i * most_threads], from[(2 * i + 1) * most_threads]};
  }

  // A chunk's rows of y and a, in place of `right` and `left`.
  KERAS_LINREC_DEVICE void solve(const Block& block, const Shared& shared,
                                 int64_t feature, int point, int thread,
                                 int chunk, int count, bool is_last) const {
    const Numbers &y = shared.right, &a = shared.left;
    const ContourRow* rows = shared.rows + chunk * together;
    Complex next_y{}, next_a{};
    if (!is_last) {
      next_y = y.get(0, thread);
      next_a = a.get(0, thread);
    }
    y.set(count, thread, next_y);
    a.set(count, thread, next_a);
    Elimination last = elimination(shared, feature, thread);
    const double* start = kept(block, chunk, thread);
    if (chunk > 0) last.s = last.scale(rows[-1]);
    last.inverse = kept_number(start, 0);
    last.right = kept_number(start, 1);
    last.left = kept_number(start, 2);
    KERAS_LINREC_NO_UNROLL
    for (int i = 0; i < count; i++) {
      last.next(rows[i],
                left_of(shared, feature, point, chunk * together + i));
      shared.inverse.set(i, thread, last.inverse);
      shared.right.set(i, thread, last.right);
      shared.left.set(i, thread, last.left);
    }
    // The bands' numbers next to a row are those of the row below.
    KERAS_LINREC_NO_UNROLL
    for (int i = count - 1; i >= 0; i--) {
      const Complex inverse = shared.inverse.get(i, thread);
      Complex right = shared.right.get(i, thread);
      Complex left = shared.left.get(i, thread);
      if (!is_last || i + 1 < count) {
        const ContourRow& below = rows[i + 1];
        right = right - last.scale(below) * next_y * below.above;
        left = left - last.scale(rows[i]) * next_a * below.below;
      }
      next_y = right * inverse;
      next_a = left * inverse;
      y.set(i, thread, next_y);
      a.set(i, thread, next_a);
    }
  }
  // One sum over a tile's points, or for a band two.
  KERAS_LINREC_DEVICE void add(const Shared& shared, int64_t item,
                               int first, int kind, int row, int from,
                               bool is_first) const {
    const Numbers &y = shared.right, &a = shared.left;
    double sums[2] = {};
    if (kind < 3) {
      const int of_a = row + (kind == 2), of_y = row + (kind == 0);
      Complex ones{}, points{};  // the sums of a y and of z a y
      for (int i = 0; i < most_threads; i++) {
        const Complex product = a.get(of_a, i) * y.get(of_y, i);
        ones = ones + product;
        points = points + product * shared.z.get(0, i);
      }
      const double alpha = this->sizes.alpha;
      sums[0] = ones.real - points.real;
      sums[1] = alpha * ones.real + (1.0 - alpha) * points.real;
    } else if (kind == 3) {
      for (int i = 0; i < most_threads; i++) sums[0] += a.get(row, i).real;
    } else {
      for (int i = 0; i < most_threads; i++) {
        const Complex given = cotangent(feature_of(item), kind - 4, first + i);
        const Complex solution = y.get(row, i);
        sums[0] += given.real * solution.real - given.imag * solution.imag;
      }
    }
    give(item, kind < 4 ? (kind == 3 ? 6 : kind) : kind + 3, from + row,
         sums[0], is_first);
    if (kind < 3) give(item, 3 + kind, from + row, sums[1], is_first);
  }
  KERAS_LINREC_DEVICE void give(int64_t item, int kind, int n, double sum,
                                bool is_first) const {
    const int64_t kinds = 7 + this->sizes.channels;
    double& to =
        this->memory.sums[(item * kinds + kind) * this->sizes.state + n];
    to = is_first ? sum : to + sum;
  }
};

// The gradients of a feature, from its sums.
template <class Real>
struct ContourGradients : ContourPass<Real> {
  static constexpr int most_threads = 128;

  ContourItems items;
  // See `ImpulseResponseBackward`.
  double* gradients;
  Real* d_timescale;
  Real* d_output_matrix;

  ContourGradients(const ResponseSizes& sizes, const void* const* from,
                   void* const* to, const Circle& circle,
                   const ContourMemory& memory, double* gradients)
      : ContourPass<Real>(sizes, from, circle, memory),
        items(sizes, circle),
        gradients(gradients),
        d_timescale(static_cast<Real*>(to[5])),
        d_output_matrix(static_cast<Real*>(to[6])) {}

  int threads() const { return most_threads; }
  int64_t blocks() const { return this->sizes.systems(); }
  // All but those of the channels, and the timescale's terms.
  int64_t shared_bytes() const {
    return this->sizes.state * (sizeof(ContourRow) + 8 * sizeof(double));
  }

  KERAS_LINREC_DEVICE void operator()(const Block& block) const {
    if (!this->is_right(block.index)) return;
    const int state = this->sizes.state;
    Memory memory{block.memory};
    auto* rows = memory.take<ContourRow>(state);
    double* sums = memory.take<double>(7 * state);
    double* terms = memory.take<double>(state);
    this->write_rows(block, block.index, nullptr, rows);
    block.each_by_itself(7 * state, [&](int at) {
      sums[at] = sum_of(block.index, at / state, at % state);
    });
    block.each_by_itself(state, [&](int n) {
      const double d_q = give_read_out(block, n, rows[n].left);
      if (d_timescale) terms[n] = give(block, rows, sums, n, d_q);
    });
    if (!d_timescale) return;
    block.each_by_itself(1, [&](int) {
      double sum = 0.0;
      for (int n = 0; n < state; n++) sum += terms[n];
      d_timescale[block.index] = static_cast<Real>(sum);
    });
  }

 private:
  KERAS_LINREC_DEVICE double sum_of(int64_t feature, int64_t kind,
                                    int n) const {
    const int64_t kinds = 7 + this->sizes.channels;
    double sum = 0.0;
    KERAS_LINREC_UNROLL_BY_8
    for (int group = 0; group < items.groups; group++)
      sum += this->memory.sums[((feature * items.groups + group) * kinds +
                                kind) * this->sizes.state + n];
    return sum;
  }
  // The gradient of C; returns the part of Q's that comes from it.
  KERAS_LINREC_DEVICE double give_read_out(const Block& block, int n,
                                           double inverse_q) const {
    const int64_t channels = this->sizes.channels;
    const double scale = this->timescale[block.index] * inverse_q;
    double d_q = 0.0;
    for (int64_t m = 0; m < channels; m++) {
      const double slope = scale * sum_of(block.index, 7 + m, n);
      d_output_matrix[(block.index * channels + m) * this->sizes.state + n] =
          static_cast<Real>(slope);
      d_q -= slope * this->read_out(block.index, m)[n] * inverse_q;
    }
    return d_q;
  }
  // The gradients of what features share; returns a term of the timescale's.
  KERAS_LINREC_DEVICE double give(const Block& block, const ContourRow* rows,
                                  const double* sums, int n,
                                  double d_q) const {
    const int state = this->sizes.state;
    const auto w = this->parameters(block.index);
    const double length = this->timescale[block.index];
    const ContourRow& row = rows[n];
    // The sums by band and row: of the outer bands, those of row n and column
    // n + 1, and transposed.
    const auto of_u = [&](int band, int n) { return sums[band * state + n]; };
    const auto of_v = [&](int band, int n) {
      return length * sums[(3 + band) * state + n];
    };
    const double* of_right = sums + 6 * state;
    // P^-1, and P^-1 B.
    const auto inverse_p = [&](int n) { return rows[n].c * w.q(n); };
    const auto input = [&](int n) { return w.b_[n] * inverse_p(n); };
    double d_c = -row.diagonal * of_u(1, n);
    double d_d = row.diagonal * of_v(1, n);
    double d_input = row.diagonal * of_right[n];
    double d_above = 0.0, d_below = 0.0;
    if (n > 0) {
      d_c -= row.above * of_u(0, n - 1);
      d_d += row.above * of_v(0, n - 1);
      d_input += row.above * of_right[n - 1];
    }
    if (n + 1 < state) {
      const ContourRow& next = rows[n + 1];
      d_c -= next.below * of_u(2, n);
      d_d += next.below * of_v(2, n);
      d_input += next.below * of_right[n + 1];
      d_above = of_right[n] * input(n + 1) - next.c * of_u(0, n) +
                next.d * of_v(0, n);
      d_below = of_right[n + 1] * input(n) - row.c * of_u(2, n) +
                row.d * of_v(2, n);
    }
    const double all[] = {
        -length * inverse_p(n) * (d_c * row.c + d_input * input(n)),
        length * d_d,
        d_q - length * d_c * row.c * row.left,
        length * d_above,
        length * (of_right[n] * input(n) - row.c * of_u(1, n) +
                  row.d * of_v(1, n)),
        length * d_below,
        length * d_input * inverse_p(n)};
    const int size = this->pieces.size();
    KERAS_LINREC_UNROLL_BY_8
    for (int i = 0; i < 7; i++)
      gradients[(block.index * 7 + i) * size + this->pieces.place(n)] = all[i];
    return row.right * of_right[n] + row.d * d_d + of_v(1, n);
  }
};

}  // namespace cuda
}  // namespace keras_linrec
