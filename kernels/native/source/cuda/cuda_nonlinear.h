// The nonlinear scan on a GPU: the work of one block of threads.
//
// A block processes a few rows of the batch over all steps.
//
// Whatever does not depend on the previous step is computed in large products
// before and after: the inputs' part is an argument, and of the gradient only
// the cotangents of the slopes are computed here.
#pragma once
#include <cmath>
#include <cstdint>

#include "base/activation_kernels.h"
#include "cuda/cuda_block.h"
#include "nonlinear/runge_kutta.h"

namespace keras_linrec {
namespace cuda {

// One number for each row of a block, read together.
template <class Real, int rows>
struct alignas(rows * sizeof(Real) < 16 ? rows * sizeof(Real) : 16) Row {
  Real of[rows];
};

struct NonlinearSizes {
  int64_t groups, batch, time;
  int units;
  bool kept, per_step, linear, gated, resets, solved;
  Activation activation;
  double leak;
  Method method;

  // Columns of the matrix: those of A, if there is one, then those of R.
  KERAS_LINREC_DEVICE int columns() const { return (1 + linear) * units; }
  KERAS_LINREC_DEVICE int driven() const { return (1 + gated) * units; }
};

// vectors (rows, count) @ matrix (count, columns), the sum over `count` split
// among threads.
template <class Real, int rows>
struct SplitProduct {
  // `inverse` is 2^32 over the columns, rounded up: GPUs have no division.
  int count, columns, splits, length;
  uint32_t inverse;

  SplitProduct(int count, int columns) : count(count), columns(columns) {
    const int room = 1024 / columns, wanted = count / 8;
    splits = room < wanted ? room : wanted;
    if (splits < 1) splits = 1;
    length = (count + splits - 1) / splits;
    inverse = static_cast<uint32_t>(((uint64_t{1} << 32) - 1) / columns + 1);
  }
  KERAS_LINREC_DEVICE int sums() const { return splits * columns; }
  // item / columns, where that is below `splits`.
  KERAS_LINREC_DEVICE int split_of(int item) const {
    if (splits == 1) return 0;
    return static_cast<int>(static_cast<uint64_t>(item) * inverse >> 32);
  }

  template <int later>
  KERAS_LINREC_DEVICE void run(const Block& block,
                                      const Row<Real, rows>* vectors,
                                      const Real* matrix,
                                      Row<Real, rows>* sums) const {
    block.template each_and_receive<later>(this->sums(), [&](int item) {
      const int split = split_of(item);
      const int column = item - split * columns, first = split * length;
      const int last = first + length < count ? first + length : count;
      Row<Real, rows> sum{};
      KERAS_LINREC_UNROLL_BY_8
      for (int i = first; i < last; i++) {
        const Row<Real, rows> vector = vectors[i];
        const Real weight = matrix[i * columns + column];
        for (int r = 0; r < rows; r++) sum.of[r] += vector.of[r] * weight;
      }
      sums[item] = sum;
    });
  }
  KERAS_LINREC_DEVICE Real total(const Row<Real, rows>* sums, int column,
                                 int row) const {
    Real total = 0;
    for (int split = 0; split < splits; split++)
      total += sums[split * columns + column].of[row];
    return total;
  }
};

// Common to both passes: the rows of the batch that belong to a block, and a
// matrix that is read from shared memory if it fits.
template <class Real, int rows>
struct NonlinearPass {
  // The compiler limits the registers of each thread accordingly.
  static constexpr int most_threads = 1024;
  // What a step reads is fetched so many steps before: a step takes less time
  // than an answer of the GPU's memory. It has one of
  // `places` places.
  static constexpr int ahead = 3, places = 4;

  NonlinearSizes sizes;
  SplitProduct<Real, rows> product;
  bool resident = true;

  // The rows of a block. The spare rows of the last block repeat its last row.
  struct Rows {
    int64_t before, first, last;

    KERAS_LINREC_DEVICE int64_t operator[](int row) const {
      return before + (first + row < last ? first + row : last);
    }
    KERAS_LINREC_DEVICE bool live(int row) const { return first + row <= last; }
  };
  KERAS_LINREC_DEVICE Rows rows_of(const Block& block) const {
    return {group(block) * sizes.batch,
            block.index % blocks_a_group() * rows, sizes.batch - 1};
  }
  KERAS_LINREC_DEVICE int64_t blocks_a_group() const {
    return (sizes.batch + rows - 1) / rows;
  }
  KERAS_LINREC_DEVICE int64_t group(const Block& block) const {
    return block.index / blocks_a_group();
  }
  KERAS_LINREC_DEVICE int matrix_size() const {
    return product.count * product.columns;
  }
  int64_t matrix_bytes() const { return matrix_size() * sizeof(Real); }
  KERAS_LINREC_DEVICE const Real* place_matrix(const Block& block,
                                               const Real* matrix,
                                               Memory& memory) const {
    const Real* from = matrix + group(block) * matrix_size();
    if (!resident) return from;
    Real* to = memory.take<Real>(matrix_size());
    block.each(matrix_size(), [&](int item) { to[item] = from[item]; });
    return to;
  }
  int threads() const {
    const int items = rows * sizes.units;
    const int wanted = product.sums() > items ? product.sums() : items;
    return wanted > 1024 ? 1024 : (wanted + 31) / 32 * 32;
  }
};

template <class Real>
KERAS_LINREC_DEVICE Real sigmoid(Real x) {
  return 1 / (1 + std::exp(-x));
}

// The comparisons propagate NaN.
template <class Real>
KERAS_LINREC_DEVICE Real respond(Activation activation, double leak, Real x) {
  switch (activation) {
    case kRelu:
      return x < 0 ? Real(0) : x;
    case kLeakyRelu:
      return x < 0 ? static_cast<Real>(leak) * x : x;
    case kTanh:
      return std::tanh(x);
    case kSigmoid:
      return sigmoid(x);
    case kGelu:
      // sqrt(1/2)
      return Real(0.5) * x * std::erfc(Real(-0.70710678118654752440) * x);
    default:
      return x;
  }
}

template <class Real, int rows>
struct NonlinearScan : NonlinearPass<Real, rows> {
  using Numbers = Row<Real, rows>;
  const Real *drive, *matrix, *steps, *resets, *initial;
  Real *outputs, *final_state;

  NonlinearScan(const NonlinearSizes& sizes, const void* const* from,
                void* const* to)
      : NonlinearPass<Real, rows>{sizes, {sizes.units, sizes.columns()}},
        drive(static_cast<const Real*>(from[0])),
        matrix(static_cast<const Real*>(from[1])),
        steps(static_cast<const Real*>(from[2])),
        resets(static_cast<const Real*>(from[3])),
        initial(static_cast<const Real*>(from[4])),
        outputs(static_cast<Real*>(to[0])),
        final_state(static_cast<Real*>(to[1])) {}

  struct Shared {
    // Drive and step sizes of this step and of those after it, and the resets
    // of the next one and of those after it.
    Numbers *state, *start, *total, *sums, *drive, *steps, *resets;
  };
  KERAS_LINREC_DEVICE Shared place(Memory& memory) const {
    const auto take = [&](int count) {
      return memory.template take<Numbers>(count);
    };
    const int units = this->sizes.units;
    return {take(units), take(units), take(units), take(this->product.sums()),
            take(this->places * this->sizes.driven()), take(this->places),
            take(this->places)};
  }

  KERAS_LINREC_DEVICE void operator()(const Block& block) const {
    const NonlinearSizes& s = this->sizes;
    const Method& method = s.method;
    const int units = s.units, driven = s.driven();
    Memory memory{block.memory};
    const Shared shared = place(memory);
    const Real* weights = this->place_matrix(block, matrix, memory);
    const Real fixed_step = s.per_step ? 0 : steps[this->group(block)];
    const auto all_rows = this->rows_of(block);
    constexpr int ahead = this->ahead, mask = this->places - 1;

    const auto fetch = [&](int64_t t, int unit, int row) {
      if (t >= s.time) return;
      const int64_t place = all_rows[row] * s.time + t;
      for (int column = unit; column < driven; column += units)
        block.fetch(drive + place * driven + column,
                    shared.drive[(t & mask) * driven + column].of[row]);
      if (s.per_step && unit == 0)
        block.fetch(steps + place, shared.steps[t & mask].of[row]);
      if (s.resets && unit == 0 && t + 1 < s.time)
        block.fetch(resets + place + 1,
                    shared.resets[(t + 1) & mask].of[row]);
    };
    block.each_and_receive(rows * units, [&](int item) {
      const int unit = item / rows, row = item % rows;
      const int64_t place = all_rows[row];
      const bool is_reset = s.resets && resets[place * s.time] != 0;
      shared.state[unit].of[row] = shared.start[unit].of[row] =
          is_reset ? 0 : initial[place * units + unit];
      for (int t = 0; t < ahead; t++) fetch(t, unit, row);
    });
    for (int64_t t = 0; t < s.time; t++)
      for (int stage = 0; stage < method.stages; stage++) {
        this->product.template run<ahead - 1>(block, shared.start, weights,
                                              shared.sums);
        block.each(rows * units, [&](int item) {
          const int unit = item / rows, row = item % rows;
          const Numbers* now = shared.drive + (t & mask) * driven;
          const Real moved = this->product.total(
              shared.sums, this->product.columns - units + unit, row);
          Real slope =
              respond(s.activation, s.leak, moved + now[unit].of[row]);
          if (s.linear) slope += this->product.total(shared.sums, unit, row);
          if (s.gated) slope *= sigmoid(moved + now[units + unit].of[row]);
          if (stage == 0) fetch(t + ahead, unit, row);

          Real& state = shared.state[unit].of[row];
          Real& start = shared.start[unit].of[row];
          Real& total = shared.total[unit].of[row];
          const Real step =
              s.per_step ? shared.steps[t & mask].of[row] : fixed_step;
          total = (stage ? total : 0) +
                  static_cast<Real>(method.shares[stage]) * slope;
          if (stage + 1 < method.stages) {
            start = state +
                    static_cast<Real>(method.shifts[stage + 1]) * step * slope;
            return;
          }
          const Real next = s.solved ? state + step * total : slope;
          const bool is_reset = s.resets && t + 1 < s.time &&
                                shared.resets[(t + 1) & mask].of[row] != 0;
          state = start = is_reset ? 0 : next;
          if (!all_rows.live(row)) return;
          const int64_t place = all_rows[row];
          if (s.kept) outputs[(place * s.time + t) * units + unit] = next;
          if (t + 1 == s.time) final_state[place * units + unit] = next;
        });
      }
  }
};

// With d the cotangent of the state after a step of length dt, dt e_i that of
// the slope of stage i, and s_i the state from which the stage starts:
//   d_s_i = (e_i, e_i) * factors_i @ (A, R)^T,
//   e_{i-1} = share_{i-1} d + shift_i d_s_i,
// where factors_i are dt times the derivatives of the slope by h A and by h R.
// Before a reset d is zero, whatever it was behind.
template <class Real, int rows>
struct NonlinearScanBackward : NonlinearPass<Real, rows> {
  using Numbers = Row<Real, rows>;
  const Real *factors, *transposed, *resets, *d_outputs, *d_final_state;
  Real *d_slopes, *d_initial;

  NonlinearScanBackward(const NonlinearSizes& sizes, const void* const* from,
                        void* const* to)
      : NonlinearPass<Real, rows>{sizes, {sizes.columns(), sizes.units}},
        factors(static_cast<const Real*>(from[0])),
        transposed(static_cast<const Real*>(from[1])),
        resets(static_cast<const Real*>(from[2])),
        d_outputs(static_cast<const Real*>(from[3])),
        d_final_state(static_cast<const Real*>(from[4])),
        d_slopes(static_cast<Real*>(to[0])),
        d_initial(static_cast<Real*>(to[1])) {}

  struct Shared {
    // The cotangents of the state after the step, of the state before it as far
    // as they are known, and of the products; and the numbers that are read for
    // this stage or step and for those after it.
    Numbers *after, *before, *d_products, *sums, *factors, *d_outputs, *resets;
  };
  KERAS_LINREC_DEVICE Shared place(Memory& memory) const {
    const auto take = [&](int count) {
      return memory.template take<Numbers>(count);
    };
    const int units = this->sizes.units, columns = this->sizes.columns();
    return {take(units), take(units),       take(columns),
            take(this->product.sums()), take(this->places * columns),
            take(this->places * units), take(this->places)};
  }

  KERAS_LINREC_DEVICE void operator()(const Block& block) const {
    const NonlinearSizes& s = this->sizes;
    const Method& method = s.method;
    const int units = s.units, columns = s.columns(), stages = method.stages;
    const auto all_rows = this->rows_of(block);
    constexpr int ahead = this->ahead, mask = this->places - 1;
    Memory memory{block.memory};
    const Shared shared = place(memory);
    const Real* weights = this->place_matrix(block, transposed, memory);

    // A turn is one stage of one step, counted from the last.
    const auto fetch = [&](int64_t turn, int unit, int row) {
      if (turn >= s.time * stages) return;
      const int64_t step = stages == 1 ? turn : turn / stages;
      const int64_t t = s.time - 1 - step;
      const int64_t stage = stages - 1 - (turn - step * stages);
      const int64_t place = all_rows[row];
      for (int column = unit; column < columns; column += units)
        block.fetch(factors +
                        ((place * stages + stage) * s.time + t) * columns +
                        column,
                    shared.factors[(turn & mask) * columns + column].of[row]);
      if (stage + 1 < stages) return;
      if (s.kept)
        block.fetch(d_outputs + (place * s.time + t) * units + unit,
                    shared.d_outputs[(t & mask) * units + unit].of[row]);
      // Those before the step that follows.
      if (s.resets && unit == 0 && t + 1 < s.time)
        block.fetch(resets + place * s.time + t + 1,
                    shared.resets[t & mask].of[row]);
    };
    block.each(this->product.sums(), [&](int item) {
      shared.sums[item] = Numbers{};
    });
    block.each_and_receive(rows * units, [&](int item) {
      const int unit = item / rows, row = item % rows;
      shared.before[unit].of[row] =
          d_final_state[all_rows[row] * units + unit];
      for (int turn = 0; turn < ahead; turn++) fetch(turn, unit, row);
    });
    for (int64_t turn = 0; turn < s.time * stages; turn++) {
      const int64_t step = stages == 1 ? turn : turn / stages;
      const int64_t t = s.time - 1 - step;
      const int stage = stages - 1 - static_cast<int>(turn - step * stages);
      block.each(rows * units, [&](int item) {
        const int unit = item / rows, row = item % rows;
        Real& after = shared.after[unit].of[row];
        Real& before = shared.before[unit].of[row];
        const Real d_start = this->product.total(shared.sums, unit, row);
        before += d_start;
        if (stage + 1 == stages) {
          const bool is_reset = s.resets && t + 1 < s.time &&
                                shared.resets[t & mask].of[row] != 0;
          after = is_reset ? 0 : before;
          if (s.kept)
            after += shared.d_outputs[(t & mask) * units + unit].of[row];
          before = s.solved ? after : 0;
        }
        Real d_slope = static_cast<Real>(method.shares[stage]) * after;
        if (stage + 1 < stages)
          d_slope += static_cast<Real>(method.shifts[stage + 1]) * d_start;
        for (int column = unit; column < columns; column += units)
          shared.d_products[column].of[row] =
              d_slope *
              shared.factors[(turn & mask) * columns + column].of[row];
        fetch(turn + ahead, unit, row);
        if (!all_rows.live(row)) return;
        const int64_t place = all_rows[row] * stages + stage;
        d_slopes[(place * s.time + t) * units + unit] = d_slope;
      });
      this->product.template run<ahead - 1>(block, shared.d_products, weights,
                                            shared.sums);
    }
    block.each(rows * units, [&](int item) {
      const int unit = item / rows, row = item % rows;
      if (!all_rows.live(row)) return;
      const int64_t place = all_rows[row];
      const Real d_first = shared.before[unit].of[row] +
                           this->product.total(shared.sums, unit, row);
      const bool is_reset = s.resets && resets[place * s.time] != 0;
      d_initial[place * units + unit] = is_reset ? 0 : d_first;
    });
  }
};

}  // namespace cuda
}  // namespace keras_linrec
