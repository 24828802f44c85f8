// The impulse response of structured systems on a GPU, and its gradient: the
// work of one block of threads.
//
// A block processes one feature, step after step. With y = Q x, as
// structured_state.h defines it, a step is
//
//   y += dt M^-1 (T D + I) y,
//
// and the inverse is two sweeps along the state, one from its first entry and
// one from its last. A sweep is a recurrence with fixed factors, so the state
// is cut into pieces, one for each thread: a thread goes over its piece from
// zero, and what enters the piece is a sum of the ends of the others, with
// fixed weights.
//
// All numbers are float64, whatever the arrays are.
#pragma once
#include "cuda/cuda_block.h"

namespace keras_linrec {
namespace cuda {

struct ResponseSizes {
  int64_t groups, features, channels, time;
  int state;
  double alpha;

  KERAS_LINREC_DEVICE int64_t systems() const { return groups * features; }
};

// Where the entries of a state are in an array: at `entry * pieces + piece`, so
// that threads read neighbouring numbers.
struct Pieces {
  static constexpr int count = 16;
  // Entries whose numbers are read before the first of them is used.
  static constexpr int together = 4;

  int state, length;

  explicit Pieces(int state)
      : state(state),
        length((state + count * together - 1) / (count * together) * together) {
  }
  KERAS_LINREC_DEVICE int size() const { return length * count; }
  // The entry at a place; `state` or more at a spare place, which holds zeros.
  KERAS_LINREC_DEVICE int entry(int place) const {
    return place % count * length + place / count;
  }
  KERAS_LINREC_DEVICE int place(int entry) const {
    return entry % length * count + entry / length;
  }
  // The places of the entries before and after. The first entry has none
  // before it, and the last none after it: any place, which counts for nothing.
  KERAS_LINREC_DEVICE int before(int place) const {
    if (place >= count) return place - count;
    return place ? size() - count + place - 1 : 0;
  }
  KERAS_LINREC_DEVICE int after(int place) const {
    if (place + count < size()) return place + count;
    return place + 1 < size() ? place - size() + count + 1 : place;
  }
};

// The parameters that all features of a group share, entry by entry. Outside
// the matrix its bands are zero.
template <class Real>
struct SystemParameters {
  const Real *p_, *d_, *q_, *t_, *b_;
  int state;
  double shift;  // alpha dt

  KERAS_LINREC_DEVICE double p(int n) const { return p_[n]; }
  KERAS_LINREC_DEVICE double d(int n) const { return d_[n]; }
  KERAS_LINREC_DEVICE double q(int n) const { return q_[n]; }
  KERAS_LINREC_DEVICE double diagonal(int n) const { return t_[state + n]; }
  // In column n, but `above(n)` in column n + 1.
  KERAS_LINREC_DEVICE double above(int n) const {
    return n >= 0 && n + 1 < state ? double(t_[n]) : 0.0;
  }
  KERAS_LINREC_DEVICE double below(int n) const {
    return n >= 0 && n + 1 < state ? double(t_[2 * state + n]) : 0.0;
  }
  // P^-1 B
  KERAS_LINREC_DEVICE double input(int n) const { return b_[n] / p(n); }
  // M = T diag(scale) - shift I
  KERAS_LINREC_DEVICE double scale(int n) const {
    return 1.0 / (p(n) * q(n)) - shift * d(n);
  }
};

// A sweep in one direction, x_n = value_n - factor_n x_(n-1).
struct Sweep {
  double *factors, *products, *weights, *ends;

  KERAS_LINREC_DEVICE static Sweep place(const Pieces& pieces, Memory& memory) {
    return {memory.take<double>(pieces.size()),
            memory.take<double>(pieces.size()),
            memory.take<double>(Pieces::count * Pieces::count),
            memory.take<double>(Pieces::count)};
  }
  // From the factors: the products of them from the start of a piece on, with
  // their signs, and how the end of a piece enters the later ones.
  KERAS_LINREC_DEVICE void prepare(const Block& block, const Pieces& pieces,
                                   bool backwards) const {
    block.each_by_itself(Pieces::count, [&](int piece) {
      double product = 1.0;
      KERAS_LINREC_NO_UNROLL
      for (int i = 0; i < pieces.length; i++) {
        const int at = place_of(pieces, piece, i, backwards);
        products[at] = product = -factors[at] * product;
      }
    });
    block.each_by_itself(Pieces::count, [&](int piece) {
      double weight = 1.0;
      KERAS_LINREC_NO_UNROLL
      for (int step = 1; step < Pieces::count; step++) {
        const int from = backwards ? piece + step : piece - step;
        const bool exists = from >= 0 && from < Pieces::count;
        weights[from_row(from) + piece] = exists ? weight : 0.0;
        if (exists)
          weight *= products[place_of(pieces, from, pieces.length - 1,
                                      backwards)];
      }
      weights[piece * Pieces::count + piece] = 0.0;
    });
  }
  // One thread's piece, from zero: x from values, which `value(place)` reads.
  template <class Value>
  KERAS_LINREC_DEVICE void run(const Pieces& pieces, int piece, bool backwards,
                               double* x, const Value& value) const {
    constexpr int together = Pieces::together;
    double carry = 0.0;
    KERAS_LINREC_NO_UNROLL
    for (int first = 0; first < pieces.length; first += together) {
      double numbers[together], factor[together];
      KERAS_LINREC_UNROLL_BY_8
      for (int i = 0; i < together; i++) {
        const int at = place_of(pieces, piece, first + i, backwards);
        numbers[i] = value(at);
        factor[i] = factors[at];
      }
      KERAS_LINREC_UNROLL_BY_8
      for (int i = 0; i < together; i++) {
        carry = numbers[i] - factor[i] * carry;
        x[place_of(pieces, piece, first + i, backwards)] = carry;
      }
    }
    ends[piece] = carry;
  }
  // What enters a piece, after `run` of all.
  KERAS_LINREC_DEVICE double entering(int piece) const {
    double sums[2] = {0.0, 0.0};
    KERAS_LINREC_UNROLL_BY_8
    for (int from = 0; from < Pieces::count; from += 2)
      for (int i = 0; i < 2; i++)
        sums[i] += weights[(from + i) * Pieces::count + piece] * ends[from + i];
    return sums[0] + sums[1];
  }

 private:
  KERAS_LINREC_DEVICE static int place_of(const Pieces& pieces, int piece,
                                          int step, bool backwards) {
    const int entry = backwards ? pieces.length - 1 - step : step;
    return entry * Pieces::count + piece;
  }
  // A piece that does not exist stands for the one on the other side.
  KERAS_LINREC_DEVICE static int from_row(int from) {
    return (from + Pieces::count) % Pieces::count * Pieces::count;
  }
};

// Solves M x = right side, or M^T x = right side.
struct Solver {
  Sweep down, up;
  double* inverses;  // of the pivots, which M^T has too

  // Calls finish(place, x) for each entry, one thread for each piece.
  template <class RightSide, class Finish>
  KERAS_LINREC_DEVICE void operator()(const Block& block, const Pieces& pieces,
                                      double* x, const RightSide& right_side,
                                      const Finish& finish) const {
    block.each_by_itself(Pieces::count, [&](int piece) {
      down.run(pieces, piece, false, x, right_side);
    });
    block.each_by_itself(Pieces::count, [&](int piece) {
      const double entering = down.entering(piece);
      up.run(pieces, piece, true, x, [&](int at) {
        return inverses[at] * (x[at] + down.products[at] * entering);
      });
    });
    block.each_by_itself(Pieces::count, [&](int piece) {
      const double entering = up.entering(piece);
      KERAS_LINREC_UNROLL_BY_8
      for (int i = 0; i < pieces.length; i++) {
        const int at = i * Pieces::count + piece;
        finish(at, x[at] + up.products[at] * entering);
      }
    });
  }
  KERAS_LINREC_DEVICE void prepare(const Block& block,
                                   const Pieces& pieces) const {
    down.prepare(block, pieces, false);
    up.prepare(block, pieces, true);
  }
};

// Common to the response and its gradient.
template <class Real>
struct ResponsePass {
  static constexpr int most_threads = 32;
  // Outputs that are added up together, each in one thread.
  static constexpr int rows = 32;

  ResponseSizes sizes;
  Pieces pieces;
  const Real* shared[5];  // p, d, q, t, b
  const Real *timescale, *output_matrix;

  ResponsePass(const ResponseSizes& sizes, const void* const* from)
      : sizes(sizes), pieces(sizes.state) {
    for (int i = 0; i < 5; i++) shared[i] = static_cast<const Real*>(from[i]);
    timescale = static_cast<const Real*>(from[5]);
    output_matrix = static_cast<const Real*>(from[6]);
  }

  // In shared memory.
  struct System {
    Solver solver;
    double *left, *middle, *right;  // the rows of T D + I
    double *inverse_q, *state, *x, *partial;
  };

  int64_t blocks() const { return sizes.systems(); }
  int threads() const { return most_threads; }

  KERAS_LINREC_DEVICE System place_system(Memory& memory) const {
    const auto take = [&] { return memory.take<double>(pieces.size()); };
    return {{Sweep::place(pieces, memory), Sweep::place(pieces, memory),
             take()},
            take(),
            take(),
            take(),
            take(),
            take(),
            take(),
            memory.take<double>(rows * (Pieces::count + 1))};
  }
  KERAS_LINREC_DEVICE SystemParameters<Real> parameters(int64_t feature) const {
    const int64_t at = feature / sizes.features * sizes.state;
    return {shared[0] + at, shared[1] + at,
            shared[2] + at, shared[3] + 3 * at,
            shared[4] + at, sizes.state,
            sizes.alpha * timescale[feature]};
  }
  // Row `channel` of C.
  KERAS_LINREC_DEVICE const Real* read_out(int64_t feature,
                                           int64_t channel) const {
    return output_matrix + (feature * sizes.channels + channel) * sizes.state;
  }

  // Factorises M, and M^T if `both`, and computes the state after the impulse.
  KERAS_LINREC_DEVICE void begin(const Block& block, const System& s,
                                 const Solver& transposed, bool both) const {
    const auto w = parameters(block.index);
    const int state = sizes.state;
    block.each_by_itself(pieces.size(), [&](int at) {
      const int n = pieces.entry(at);
      s.x[at] = n < state ? w.scale(n) : 0.0;
      s.inverse_q[at] = n < state ? 1.0 / w.q(n) : 0.0;
    });
    block.each_by_itself(pieces.size(), [&](int at) {
      const int n = pieces.entry(at);
      const bool live = n < state, has_next = n + 1 < state;
      const double below = live ? w.below(n - 1) : 0.0, above = w.above(n);
      const double diagonal = live ? w.diagonal(n) : 0.0;
      s.left[at] = live && n > 0 ? below * w.d(n - 1) : 0.0;
      s.middle[at] = live ? diagonal * w.d(n) + 1.0 : 0.0;
      s.right[at] = has_next ? above * w.d(n + 1) : 0.0;
      s.solver.down.factors[at] = below * s.x[pieces.before(at)];
      s.solver.inverses[at] = live ? diagonal * s.x[at] - w.shift : 0.0;
      s.solver.up.factors[at] = above * s.x[pieces.after(at)];
    });
    block.each_by_itself(1, [&](int) {
      double inverse = 0.0;
      for (int n = 0; n < state; n++) {
        const int at = pieces.place(n);
        const double above =
            n ? s.solver.up.factors[pieces.place(n - 1)] : 0.0;
        const double factor = s.solver.down.factors[at] * inverse;
        if (both) transposed.down.factors[at] = above * inverse;
        inverse = 1.0 / (s.solver.inverses[at] - factor * above);
        s.solver.inverses[at] = inverse;
      }
    });
    block.each_by_itself(pieces.size(), [&](int at) {
      const int n = pieces.entry(at);
      if (both) {
        transposed.up.factors[at] =
            w.below(n) * s.x[at] * s.solver.inverses[at];
        if (n >= state) transposed.down.factors[at] = 0.0;
      }
      s.solver.up.factors[at] *= s.solver.inverses[at];
      // Below the diagonal is the pivot of the entry before.
      if (n > 0 && n < state)
        s.solver.down.factors[at] *= s.solver.inverses[pieces.before(at)];
    });
    s.solver.prepare(block, pieces);
    if (both) transposed.prepare(block, pieces);
    const double step = timescale[block.index];
    solve_for_input(block, s,
                    [&](int at, double x) { s.state[at] = step * x; });
  }
  template <class Finish>
  KERAS_LINREC_DEVICE void solve_for_input(const Block& block, const System& s,
                                           const Finish& finish) const {
    const auto w = parameters(block.index);
    block.each_by_itself(pieces.size(), [&](int at) {
      const int n = pieces.entry(at);
      s.x[at] = n < sizes.state ? w.input(n) : 0.0;
    });
    block.each_by_itself(pieces.size(), [&](int at) {
      const int n = pieces.entry(at);
      s.state[at] = 0.0;
      if (n >= sizes.state) return;
      s.state[at] = w.below(n - 1) * s.x[pieces.before(at)] +
                    w.diagonal(n) * s.x[at] +
                    w.above(n) * s.x[pieces.after(at)];
    });
    s.solver(
        block, pieces, s.x, [&](int at) { return s.state[at]; }, finish);
  }
  KERAS_LINREC_DEVICE void step(const Block& block, const System& s) const {
    const double length = timescale[block.index];
    s.solver(
        block, pieces, s.x,
        [&](int at) {
          return s.left[at] * s.state[pieces.before(at)] +
                 s.middle[at] * s.state[at] +
                 s.right[at] * s.state[pieces.after(at)];
        },
        [&](int at, double x) { s.state[at] += length * x; });
  }
};

// Whether all outputs of a feature have a flag.
KERAS_LINREC_DEVICE bool is_right_everywhere(const unsigned* right,
                                             int64_t feature,
                                             int64_t channels) {
  for (int64_t m = 0; m < channels; m++)
    if (!right[feature * channels + m]) return false;
  return true;
}

template <class Real>
struct ImpulseResponse : ResponsePass<Real> {
  Real* response;
  // By feature and channel, what is there already: see cuda_contour.h. Or null.
  const unsigned* right;

  ImpulseResponse(const ResponseSizes& sizes, const void* const* from,
                  void* const* to, const unsigned* right)
      : ResponsePass<Real>(sizes, from),
        response(static_cast<Real*>(to[0])),
        right(right) {}

  int64_t shared_bytes() const {
    Memory memory{nullptr};
    this->place_system(memory);
    return memory.used;
  }

  KERAS_LINREC_DEVICE void operator()(const Block& block) const {
    constexpr int rows = ResponsePass<Real>::rows;
    if (right && is_right_everywhere(right, block.index, this->sizes.channels))
      return;
    Memory memory{block.memory};
    const auto s = this->place_system(memory);
    this->begin(block, s, {}, false);
    // Outputs are counted step by step, and channel by channel.
    const int64_t channels = this->sizes.channels, time = this->sizes.time;
    for (int64_t output = 0; output < time * channels; output++) {
      const int64_t channel = output % channels;
      if (output && channel == 0) this->step(block, s);
      const int row = static_cast<int>(output % rows);
      add_up(block, s, channel, row);
      if (row + 1 < rows && output + 1 < time * channels) continue;
      block.each_by_itself(row + 1, [&](int part) {
        const int64_t which = output - row + part;
        double sum = 0.0;
        for (int piece = 0; piece < Pieces::count; piece++)
          sum += s.partial[part * (Pieces::count + 1) + piece];
        response[(block.index * channels + which % channels) * time +
                 which / channels] = static_cast<Real>(sum);
      });
    }
  }

 private:
  // The shares of the pieces in an output.
  KERAS_LINREC_DEVICE void add_up(const Block& block,
                                  const typename ResponsePass<Real>::System& s,
                                  int64_t channel, int row) const {
    const Pieces& pieces = this->pieces;
    const Real* weights = this->read_out(block.index, channel);
    block.each_by_itself(Pieces::count, [&](int piece) {
      double sum = 0.0;
      KERAS_LINREC_UNROLL_BY_8
      for (int i = 0; i < pieces.length; i++) {
        const int at = i * Pieces::count + piece, n = pieces.entry(at);
        if (n < this->sizes.state)
          sum += weights[n] * (s.inverse_q[at] * s.state[at]);
      }
      s.partial[row * (Pieces::count + 1) + piece] = sum;
    });
  }
};

// Steps in a run, whose states are kept at the same time. The gradient computes
// them again from the first one, which is kept of every run.
struct Runs {
  int64_t length, count;

  explicit Runs(int64_t time) : length(8) {
    while (2 * length * length < time) length++;
    count = (time + length - 1) / length;
  }
};

// What the gradient of a feature keeps on the GPU: arrays of entries.
struct ResponseMemory {
  double *kept, *states, *slopes, *d_read_out, *gradients;

  static ResponseMemory place(const ResponseSizes& sizes, Memory& memory) {
    const Pieces pieces(sizes.state);
    const Runs runs(sizes.time);
    const auto take = [&](int64_t arrays) {
      return memory.take<double>(sizes.systems() * arrays * pieces.size());
    };
    double* kept = take(runs.count);
    double* states = take(runs.length + 1);
    double* slopes = take(runs.length);
    double* d_read_out = take(sizes.channels);
    return {kept, states, slopes, d_read_out, take(7)};
  }
};

// The gradients of p, d, q, the bands of T and b, before the sum over features,
// are left in `memory.gradients`, by entry; `AddFeatures` adds them up.
template <class Real>
struct ImpulseResponseBackward : ResponsePass<Real> {
  using Base = ResponsePass<Real>;
  const Real* d_response;
  // Null if only the gradient of C is needed.
  Real* d_timescale;
  Real* d_output_matrix;
  ResponseMemory memory;
  // See `ImpulseResponse`.
  const unsigned* right;
  Runs runs;

  ImpulseResponseBackward(const ResponseSizes& sizes, const void* const* from,
                          void* const* to, const ResponseMemory& memory,
                          const unsigned* right)
      : Base(sizes, from),
        d_response(static_cast<const Real*>(from[7])),
        d_timescale(static_cast<Real*>(to[5])),
        d_output_matrix(static_cast<Real*>(to[6])),
        memory(memory),
        right(right),
        runs(sizes.time) {}

  struct Shared {
    typename Base::System system;
    Solver transposed;
    double *left, *right;  // the rows of the transpose of T D + I
    double* d_state;
    // For each band, one after another, the sums over steps of slopes times
    // states before them, and after them.
    double *before, *after;
  };
  KERAS_LINREC_DEVICE Shared place(Memory& memory) const {
    const auto take = [&](int arrays) {
      return memory.take<double>(arrays * this->pieces.size());
    };
    Shared shared{this->place_system(memory), {}, take(1), take(1), take(1),
                  take(3), take(3)};
    shared.transposed = {Sweep::place(this->pieces, memory),
                         Sweep::place(this->pieces, memory),
                         shared.system.solver.inverses};
    return shared;
  }
  int64_t shared_bytes() const {
    Memory memory{nullptr};
    place(memory);
    return memory.used;
  }

  KERAS_LINREC_DEVICE void operator()(const Block& block) const {
    if (right && is_right_everywhere(right, block.index, this->sizes.channels))
      return;
    Memory taken{block.memory};
    const Shared s = place(taken);
    const Pieces& pieces = this->pieces;
    this->begin(block, s.system, s.transposed, d_timescale != nullptr);
    begin_sums(block, s);
    // To the last run, and with the cotangent of the state back to the first.
    const int64_t last = runs.count - 1, visits = d_timescale ? 2 * last : last;
    KERAS_LINREC_NO_UNROLL
    for (int64_t visit = 0; visit <= visits; visit++) {
      const int64_t run = visit <= last ? visit : 2 * last - visit;
      const bool back = d_timescale && visit >= last;
      double* kept = mine(block, memory.kept, runs.count, run);
      block.each_by_itself(pieces.size(), [&](int at) {
        double& state = s.system.state[at];
        visit <= last ? kept[at] = state : state = kept[at];
      });
      const int64_t steps = steps_of(run);
      go_over(block, s, steps);
      if (back || !d_timescale) add_read_outs(block, run, steps);
      if (!back) continue;
      go_back(block, s, run, steps);
      add_bands(block, s, steps);
    }
    if (d_timescale) give(block, s);
    give_read_out(block, s);
  }

 private:
  // Array `index` of the `count` that this feature has of a kind.
  KERAS_LINREC_DEVICE double* mine(const Block& block, double* numbers,
                                   int64_t count, int64_t index) const {
    return numbers + (block.index * count + index) * this->pieces.size();
  }
  KERAS_LINREC_DEVICE int64_t steps_of(int64_t run) const {
    const int64_t left = this->sizes.time - run * runs.length;
    return left < runs.length ? left : runs.length;
  }
  // d_response of the first step of a run.
  KERAS_LINREC_DEVICE const Real* d_outputs(const Block& block,
                                            int64_t run,
                                            int64_t channel) const {
    const int64_t row = block.index * this->sizes.channels + channel;
    return d_response + row * this->sizes.time + run * runs.length;
  }

  KERAS_LINREC_DEVICE void begin_sums(const Block& block,
                                      const Shared& s) const {
    const auto w = this->parameters(block.index);
    const int size = this->pieces.size();
    block.each_by_itself(size, [&](int at) {
      const int n = this->pieces.entry(at);
      const bool live = n < this->sizes.state;
      s.left[at] = live ? w.above(n - 1) * w.d(n) : 0.0;
      s.right[at] = live ? w.below(n) * w.d(n) : 0.0;
      s.d_state[at] = 0.0;
      for (int band = 0; band < 3; band++)
        s.before[band * size + at] = s.after[band * size + at] = 0.0;
      for (int64_t m = 0; m < this->sizes.channels; m++)
        mine(block, memory.d_read_out, this->sizes.channels, m)[at] = 0.0;
    });
  }
  // Stores the states of a run, and the one after it.
  KERAS_LINREC_DEVICE void go_over(const Block& block, const Shared& s,
                                   int64_t steps) const {
    for (int64_t step = 0; step <= steps; step++) {
      if (step) this->step(block, s.system);
      double* state = mine(block, memory.states, runs.length + 1, step);
      block.each_by_itself(this->pieces.size(),
                 [&](int at) { state[at] = s.system.state[at]; });
    }
  }
  KERAS_LINREC_DEVICE void add_read_outs(const Block& block, int64_t run,
                                         int64_t steps) const {
    const int size = this->pieces.size();
    for (int64_t m = 0; m < this->sizes.channels; m++) {
      const Real* given = d_outputs(block, run, m);
      const double* states = mine(block, memory.states, runs.length + 1, 0);
      double* sums = mine(block, memory.d_read_out, this->sizes.channels, m);
      block.each_by_itself(size, [&](int at) {
        double sum = 0.0;
        KERAS_LINREC_UNROLL_BY_8
        for (int64_t step = 0; step < steps; step++)
          sum += states[step * size + at] * given[step];
        sums[at] += sum;
      });
    }
  }
  // The cotangent of the state, from the end of a run to its start.
  KERAS_LINREC_DEVICE void go_back(const Block& block, const Shared& s,
                                   int64_t run,
                                   int64_t steps) const {
    const Pieces& pieces = this->pieces;
    const double length = this->timescale[block.index];
    double* x = s.system.x;
    for (int64_t step = steps - 1; step >= 0; step--) {
      double* slopes = mine(block, memory.slopes, runs.length, step);
      s.transposed(
          block, pieces, x, [&](int at) { return s.d_state[at]; },
          [&](int at, double slope) { slopes[at] = x[at] = length * slope; });
      block.each_by_itself(pieces.size(), [&](int at) {
        const int n = pieces.entry(at);
        if (n >= this->sizes.state) return;
        double sum = 0.0;
        for (int64_t m = 0; m < this->sizes.channels; m++)
          sum += double(this->read_out(block.index, m)[n]) *
                 d_outputs(block, run, m)[step];
        s.d_state[at] += s.left[at] * x[pieces.before(at)] +
                         s.system.middle[at] * x[at] +
                         s.right[at] * x[pieces.after(at)] +
                         s.system.inverse_q[at] * sum;
      });
    }
  }
  KERAS_LINREC_DEVICE void add_bands(const Block& block, const Shared& s,
                                     int64_t steps) const {
    const int size = this->pieces.size();
    const double* states = mine(block, memory.states, runs.length + 1, 0);
    const double* slopes = mine(block, memory.slopes, runs.length, 0);
    block.each_by_itself(size, [&](int at) {
      const int places[] = {this->pieces.before(at), at,
                            this->pieces.after(at)};
      double before[3] = {}, after[3] = {}, here[3];
      for (int band = 0; band < 3; band++) here[band] = states[places[band]];
      for (int64_t step = 0; step < steps; step++) {
        const double slope = slopes[step * size + at];
        for (int band = 0; band < 3; band++) {
          const double next = states[(step + 1) * size + places[band]];
          before[band] += slope * here[band];
          after[band] += slope * next;
          here[band] = next;
        }
      }
      for (int band = 0; band < 3; band++) {
        s.before[band * size + at] += before[band];
        s.after[band * size + at] += after[band];
      }
    });
  }

  // The gradient of C, and the part of Q's that comes from it.
  KERAS_LINREC_DEVICE void give_read_out(const Block& block,
                                         const Shared& s) const {
    const int64_t channels = this->sizes.channels;
    block.each_by_itself(this->pieces.size(), [&](int at) {
      const int n = this->pieces.entry(at);
      if (n >= this->sizes.state) return;
      double d_q = 0.0;
      for (int64_t m = 0; m < channels; m++) {
        const int64_t row = block.index * channels + m;
        const double slope = mine(block, memory.d_read_out, channels, m)[at] *
                             s.system.inverse_q[at];
        d_output_matrix[row * this->sizes.state + n] =
            static_cast<Real>(slope);
        d_q -= slope * this->read_out(block.index, m)[n] *
               s.system.inverse_q[at];
      }
      if (d_timescale) mine(block, memory.gradients, 7, 2)[at] += d_q;
    });
  }

  // The gradients of what all features share, and of the timescale. Those of M
  // follow from the bands: its inverse gave the differences of the states.
  KERAS_LINREC_DEVICE void give(const Block& block, const Shared& s) const {
    const Pieces& pieces = this->pieces;
    const int state = this->sizes.state;
    const auto w = this->parameters(block.index);
    const double length = this->timescale[block.index];
    // The impulse: M^-1 T P^-1 B, and the cotangent of T P^-1 B.
    double *solution = s.system.state, *d_right_side = s.system.middle;
    this->solve_for_input(block, s.system,
                          [&](int at, double x) { solution[at] = x; });
    s.transposed(
        block, pieces, s.system.x,
        [&](int at) { return length * s.d_state[at]; },
        [&](int at, double x) { d_right_side[at] = x; });
    double *scale = s.left, *input = s.right;
    block.each_by_itself(pieces.size(), [&](int at) {
      const int n = pieces.entry(at);
      scale[at] = n < state ? w.scale(n) : 0.0;
      input[at] = n < state ? w.input(n) : 0.0;
    });
    // The cotangents of M's rows, in place of the sums after the steps.
    const int size = pieces.size();
    double *m_below = s.after, *m_diagonal = m_below + size,
           *m_above = m_diagonal + size;
    const double *sums_below = s.before, *sums = sums_below + size,
                 *sums_above = sums + size;
    block.each_by_itself(pieces.size(), [&](int at) {
      const int n = pieces.entry(at);
      if (n >= state) return;
      const int places[] = {pieces.before(at), at, pieces.after(at)};
      const double entries[] = {w.below(n - 1) * scale[places[0]],
                                w.diagonal(n) * scale[at] - w.shift,
                                w.above(n) * scale[places[2]]};
      double d_length = s.d_state[at] * solution[at];
      for (int band = 0; band < 3; band++) {
        const double slope =
            (s.before[band * size + at] - s.after[band * size + at]) / length;
        d_length -= slope * entries[band] / length;
        s.after[band * size + at] =
            slope - d_right_side[at] * solution[places[band]];
      }
      s.system.left[at] = d_length;
    });
    block.each_by_itself(pieces.size(), [&](int at) {
      const int n = pieces.entry(at);
      s.system.right[at] = 0.0;
      if (n >= state) return;
      const int last = pieces.before(at), next = pieces.after(at);
      const bool has_last = n > 0, has_next = n + 1 < state;
      const double p = w.p(n), q = w.q(n), d = w.d(n);
      const double m_above_of_last = has_last ? m_above[last] : 0.0;
      const double m_below_of_next = has_next ? m_below[next] : 0.0;
      const double d_scale = m_diagonal[at] * w.diagonal(n) +
                             m_above_of_last * w.above(n - 1) +
                             m_below_of_next * w.below(n);
      double d_input = w.diagonal(n) * d_right_side[at];
      double d_d = sums[at] * w.diagonal(n) - w.shift * d_scale;
      double d_above = 0.0, d_below = 0.0;
      if (has_last) {
        d_input += w.above(n - 1) * d_right_side[last];
        d_d += sums_above[last] * w.above(n - 1);
      }
      if (has_next) {
        d_input += w.below(n) * d_right_side[next];
        d_d += sums_below[next] * w.below(n);
        d_above = sums_above[at] * w.d(n + 1) + m_above[at] * scale[next] +
                  d_right_side[at] * input[next];
        d_below = sums_below[next] * d + m_below_of_next * scale[at] +
                  d_right_side[next] * input[at];
      }
      const double all[] = {
          -d_input * input[at] / p - d_scale / (p * p * q),
          d_d,
          -d_scale / (p * q * q),
          d_above,
          sums[at] * d + m_diagonal[at] * scale[at] +
              d_right_side[at] * input[at],
          d_below,
          d_input / p};
      KERAS_LINREC_UNROLL_BY_8
      for (int i = 0; i < 7; i++)
        mine(block, memory.gradients, 7, i)[at] = all[i];
      // Of the shift, which is alpha times the timescale.
      s.system.right[at] = s.system.left[at] -
                           this->sizes.alpha * (m_diagonal[at] + d * d_scale);
    });
    block.each_by_itself(1, [&](int) {
      double sum = 0.0;
      for (int at = 0; at < pieces.size(); at++) sum += s.system.right[at];
      d_timescale[block.index] = static_cast<Real>(sum);
    });
  }
};

// The sums over the features of a group, always in the same order.
template <class Real>
struct AddFeatures {
  static constexpr int most_threads = 128;

  ResponseSizes sizes;
  Pieces pieces;
  const double* gradients;
  Real* to[5];  // p, d, q, t, b

  AddFeatures(const ResponseSizes& sizes, const double* gradients,
              void* const* results)
      : sizes(sizes), pieces(sizes.state), gradients(gradients) {
    for (int i = 0; i < 5; i++) to[i] = static_cast<Real*>(results[i]);
  }

  int threads() const { return most_threads; }
  int64_t blocks() const { return sizes.groups * 7; }
  int64_t shared_bytes() const { return 0; }

  KERAS_LINREC_DEVICE void operator()(const Block& block) const {
    const int64_t group = block.index / 7;
    const int row = static_cast<int>(block.index % 7);
    const int64_t state = sizes.state, size = pieces.size();
    // The three bands of T are one array.
    const int array = row < 3 ? row : row < 6 ? 3 : 4;
    const int64_t first =
        array == 3 ? (group * 3 + row - 3) * state : group * state;
    block.each_by_itself(static_cast<int>(size), [&](int at) {
      const int n = pieces.entry(at);
      if (n >= state) return;
      double sum = 0.0;
      KERAS_LINREC_UNROLL_BY_8
      for (int64_t feature = 0; feature < sizes.features; feature++)
        sum += gradients[((group * sizes.features + feature) * 7 + row) * size +
                         at];
      to[array][first + n] = static_cast<Real>(sum);
    });
  }
};

}  // namespace cuda
}  // namespace keras_linrec
