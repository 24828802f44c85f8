// Projection, scan and read-out, one block of time after another. Neither the
// projected inputs nor the states are written to memory: a block of them is a
// tile in the cache, made of panels (panels.h). Only the states that enter a
// block are stored for the backward pass, which recomputes the others.
#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "base/parallel.h"
#include "scan/projected_weights.h"
#include "base/resets.h"
#include "base/systems.h"

namespace keras_linrec {
namespace projected {
namespace {

// rows = tile @ right, where `rows` is row-major and `edge` is scratch for a
// last panel that is not full.
template <class Tile, class Real>
void out_of_tile(const Matrix<Tile>& tile, const Panels<Real>& right,
                 const Matrix<Real>& rows, Real* edge) {
  const int64_t panel = right.panel, whole = rows.columns / panel;
  const int64_t rest = rows.columns - whole * panel;
  multiply(tile, right.all().panels_from(0, whole * panel), rows);
  if (rest == 0) return;
  multiply(tile, right.all().panels_from(whole, rest),
           row_major(edge, tile.rows, panel));
  for (int64_t t = 0; t < tile.rows; t++)
    std::copy_n(edge + t * panel, rest, rows.at(whole, t));
}

// Keeps jobs on the same thing in their order, on whatever threads they are:
// blocks of a row, which hand on its state, and blocks that are added to a sum.
// Jobs begin in their order, so the one that a thread waits for is always done
// or being computed.
class Turns {
 public:
  explicit Turns(int64_t things) : done_(things) {}
  // Runs `job` as the thing's number `turn`, counted from 0.
  template <class Job>
  void take(int64_t thing, int64_t turn, const Job& job) {
    for (int tries = 0; done_[thing].load(std::memory_order_acquire) < turn;
         tries++)
      if (tries > 200) std::this_thread::yield();
    job();
    done_[thing].store(turn + 1, std::memory_order_release);
  }

 private:
  std::vector<std::atomic<int64_t>> done_;
};

// A block of a row: the `turn`-th in the order of the scan, from step `first`.
struct Block {
  int64_t row, turn, place, first, time;
  Block(const Sizes& s, int64_t index, bool from_the_end) {
    row = index % s.batch;
    turn = index / s.batch;
    place = from_the_end ? s.blocks() - 1 - turn : turn;
    first = place * s.block;
    time = std::min(s.block, s.time - first);
  }
  int64_t at(const Sizes& s) const { return row * s.time + first; }
  int64_t checkpoint(const Sizes& s) const {
    return row * s.kept() + place * s.parts() * s.channels;
  }
};

template <class Real>
class Forward {
 public:
  Forward(const Sizes& s, const In<Real>& decay, const Real* inputs,
          const Real* resets, const Weights<Real>& weights)
      : s_(s),
        layout_(s),
        decay_(decay),
        inputs_(inputs),
        resets_(resets),
        input_(weights.input()),
        fixed_decay_(s.per_step ? 0 : layout_.columns),
        zeros_(layout_.panel) {
    if (!s.per_step) layout_.into(decay, fixed_decay_.data());
  }

  const Layout<Real>& layout() const { return layout_; }
  // Room for the longest block.
  Panels<Real> tile() const { return {s_.longest(), layout_.columns}; }
  // The rows of the inputs in a block.
  Matrix<const Real> inputs(const Block& block) const {
    return row_major(inputs_ + block.at(s_) * s_.features, block.time,
                     s_.features);
  }

  void project(const Block& block, Panels<Real>& tile) const {
    multiply(inputs(block), input_.all(), tile.all());
  }

  // Calls use(pointer into the tile, pointer into `decay`, count) for each run
  // of a block's decays; never if they are time-invariant.
  template <class Tile, class Pointer, class Use>
  void for_each_decay(const Block& block, Tile& tile,
                      const Parts<Pointer>& decay, Use use) const {
    if (!s_.per_step) return;
    layout_.for_each_run([&](int64_t column, int64_t part, int64_t channel,
                             int64_t count) {
      auto* place = tile.at(column / tile.panel) + column % tile.panel;
      Pointer row = decay[part] + block.at(s_) * s_.channels + channel;
      for (int64_t t = 0; t < block.time; t++)
        use(place + t * tile.panel, row + t * s_.channels, count);
    });
  }

  void lay_out_decay(const Block& block, Panels<Real>& tile) const {
    for_each_decay(block, tile, decay_,
                   [](Real* to, const Real* from, int64_t count) {
                     std::copy_n(from, count, to);
                   });
  }

  // Calls use(first, time, is_reset) for each run of a block's steps between
  // resets, in the order of the scan or of its gradient. Steps are counted from
  // the block's first.
  template <class Use>
  void for_each_run(const Block& block, bool gradient, Use use) const {
    const int64_t row = block.at(s_);
    Resets<Real>{s_.resets ? resets_ + row : nullptr}.for_each_run(
        0, block.time, s_.reverse != gradient, use);
  }

  // Sets the arguments that the scan of a run of a panel's steps and its
  // gradient share; returns the panel's first column.
  template <class Call>
  int64_t describe(int64_t p, int64_t first, int64_t time, bool is_reset,
                   const Panels<Real>& decay, Call& call) const {
    call.time = time;
    call.channels = layout_.share;
    call.per_step = s_.per_step;
    call.reverse = s_.reverse;
    call.decay_stride = s_.per_step ? layout_.panel : 0;
    const int64_t column = p * layout_.panel;
    assign(layout_.parts(is_reset        ? zeros_.data()
                         : s_.per_step ? decay.at(p, first)
                                       : &fixed_decay_[column]),
           call.decay);
    return column;
  }

  void scan(const Block& block, const Panels<Real>& decay, Panels<Real>& tile,
            double* state) const {
    for_each_run(block, false, [&](int64_t first, int64_t time, bool is_reset) {
      if (is_reset) std::fill_n(state, layout_.columns, 0.0);
      for (int64_t p = 0; p < layout_.panels; p++) {
        ScanRows<Real> call{};
        const int64_t column = describe(p, first, time, is_reset, decay, call);
        call.input_stride = call.output_stride = tile.panel;
        assign(layout_.parts(tile.at(p, first)), call.inputs);
        assign(layout_.parts(tile.at(p, first)), call.outputs);
        assign(layout_.parts(state + column), call.state);
        kernels<Real>().scan_rows(call);
      }
    });
  }

  const Real* zeros() const { return zeros_.data(); }

 private:
  Sizes s_;
  Layout<Real> layout_;
  In<Real> decay_;
  const Real* inputs_;
  const Real* resets_;
  Panels<Real> input_;
  std::vector<Real> fixed_decay_, zeros_;
};

template <class Pointer>
Parts<Pointer> checkpoint_at(Pointer checkpoints, const Sizes& s,
                             const Block& block) {
  Parts<Pointer> parts;
  for (int64_t p = 0; p < s.parts(); p++)
    parts.part[p] = checkpoints + block.checkpoint(s) + p * s.channels;
  return parts;
}

// A thread's tiles. They are allocated before the threads start, because a
// thread that failed to allocate them would leave the others waiting.
template <class Real>
struct Workspace {
  Panels<Real> states, decay;
  std::vector<Real> edge;
  Workspace(const Sizes& s, const Forward<Real>& pass)
      : states(pass.tile()),
        decay(s.per_step ? pass.tile() : Panels<Real>()),
        edge(s.longest() * pass.layout().panel) {}
};

template <class Real>
void forward(const Sizes& s, const In<Real>& decay, const Real* inputs,
             const Real* resets, const Weights<Real>& weights,
             const In<Real>& initial,
             Real* outputs, const Out<Real>& final_state, Real* checkpoints) {
  const Forward<Real> pass(s, decay, inputs, resets, weights);
  const Layout<Real>& layout = pass.layout();
  const Panels<Real> read_out = weights.output();
  std::vector<double> states(s.batch * layout.columns);
  for (int64_t b = 0; b < s.batch; b++)
    layout.into(initial.at(b * s.channels), &states[b * layout.columns]);
  Turns turns(s.batch);
  const int threads = s.threads();
  std::vector<Workspace<Real>> spaces(threads, Workspace<Real>(s, pass));

  for_each_job(threads, s.jobs(), [&](int thread, int64_t job) {
    Workspace<Real>& space = spaces[thread];
    const Block block(s, job, s.reverse);
    pass.project(block, space.states);
    pass.lay_out_decay(block, space.decay);
    turns.take(block.row, block.turn, [&] {
      double* state = &states[block.row * layout.columns];
      if (checkpoints)
        layout.out_of(state, checkpoint_at(checkpoints, s, block));
      pass.scan(block, space.decay, space.states, state);
    });
    out_of_tile(
        space.states.rows_from(0, block.time), read_out,
        row_major(outputs + block.at(s) * s.units, block.time, s.units),
        space.edge.data());
  });
  for (int64_t b = 0; b < s.batch; b++)
    layout.out_of(&states[b * layout.columns],
                  final_state.at(b * s.channels));
}

template <class Real>
struct BackwardWorkspace : Workspace<Real> {
  Panels<Real> d_states;
  std::vector<Real> padded, entering;
  std::vector<double> state, d_decay;
  BackwardWorkspace(const Sizes& s, const Forward<Real>& pass,
                    int64_t unit_columns)
      : Workspace<Real>(s, pass),
        d_states(pass.tile()),
        padded(unit_columns == s.units ? 0 : s.longest() * unit_columns),
        entering(pass.layout().columns),
        state(pass.layout().columns),
        d_decay(pass.layout().columns) {}
};

// The cotangents of the weights and of a time-invariant decay, summed over
// every s.sums()-th block.
template <class Real>
struct Sums {
  Panels<Real> input, output;
  std::vector<double> d_decay;
  Settled settled_input, settled_output;
  Sums(const Sizes& s, int64_t columns, int64_t unit_columns)
      : input(s.features, columns),
        output(columns, unit_columns),
        d_decay(columns) {
    // Memory is taken before the threads start: see `Workspace`.
    if (s.jobs() <= (products_a_sum - 1) * s.sums()) return;
    settled_input.reserve(input.numbers.size());
    settled_output.reserve(output.numbers.size());
  }
  void operator+=(Sums& other) {
    settled_input.take(other.input.numbers);
    settled_input.take(other.settled_input);
    settled_output.take(other.output.numbers);
    settled_output.take(other.settled_output);
    for (size_t i = 0; i < d_decay.size(); i++) d_decay[i] += other.d_decay[i];
  }
};

template <class Real>
class Backward {
 public:
  Backward(const Sizes& s, const In<Real>& decay, const Real* inputs,
           const Real* resets, const Weights<Real>& weights,
           const Real* checkpoints, const Real* d_outputs,
           const Out<Real>& d_decay, Real* d_inputs)
      : s_(s),
        pass_(s, decay, inputs, resets, weights),
        layout_(pass_.layout()),
        input_(weights.input_transposed()),
        output_(weights.output_transposed()),
        unit_columns_((s.units + layout_.panel - 1) / layout_.panel *
                      layout_.panel),
        inputs_(inputs),
        checkpoints_(checkpoints),
        d_outputs_(d_outputs),
        d_decay_(d_decay),
        d_inputs_(d_inputs),
        carries_(s.batch * layout_.columns),
        silent_(s.batch),
        turns_(s.batch),
        output_turns_(s.sums()),
        input_turns_(s.sums()),
        sums_(s.sums(), Sums<Real>(s, layout_.columns, unit_columns_)) {}

  void run(const In<Real>& d_final) {
    for (int64_t b = 0; b < s_.batch; b++)
      layout_.into(d_final.at(b * s_.channels),
                   &carries_[b * layout_.columns]);
    const int threads = s_.threads();
    for_each_job(threads, s_.batch, [&](int, int64_t row) {
      if (all_zero(&carries_[row * layout_.columns], layout_.columns))
        silent_[row] = silent_blocks(row);
    });
    std::vector<BackwardWorkspace<Real>> spaces(
        threads, BackwardWorkspace<Real>(s_, pass_, unit_columns_));
    for_each_job(threads, s_.jobs(), [&](int thread, int64_t job) {
      work(job, spaces[thread]);
    });
    Sums<Real>& sum = sums_[0];
    sum.settled_input.take(sum.input.numbers);
    sum.settled_output.take(sum.output.numbers);
    for (size_t i = 1; i < sums_.size(); i++) sum += sums_[i];
    sum.settled_input.give(sum.input.numbers);
    sum.settled_output.give(sum.output.numbers);
  }

  void give(const Out<Real>& d_input_kernel, const Out<Real>& d_output_kernel,
            const Out<Real>& d_initial) {
    Sums<Real>& sum = sums_[0];
    layout_.for_each_run([&](int64_t column, int64_t part, int64_t channel,
                             int64_t count) {
      const int64_t p = column / layout_.panel, first = column % layout_.panel;
      for (int64_t f = 0; f < s_.features; f++)
        std::copy_n(sum.input.at(p, f) + first, count,
                    d_input_kernel[part] + f * s_.channels + channel);
      const Real sign = Weights<Real>::sign(part);
      sum.output.for_each_panel([&](int64_t q, int64_t unit, int64_t width) {
        const int64_t shown = std::min(width, s_.units - unit);
        for (int64_t i = 0; i < count; i++)
          for (int64_t u = 0; u < shown; u++)
            d_output_kernel[part][(channel + i) * s_.units + unit + u] =
                sign * sum.output.at(q, column + i)[u];
      });
    });
    if (!s_.per_step) layout_.out_of(sum.d_decay.data(), d_decay_);
    for (int64_t b = 0; b < s_.batch; b++)
      layout_.out_of(&carries_[b * layout_.columns],
                     d_initial.at(b * s_.channels));
  }

 private:
  // A block of a row, in the order of the gradient.
  Block block_of(int64_t job) const { return {s_, job, !s_.reverse}; }

  Matrix<const Real> d_rows_of(const Block& block) const {
    return row_major(d_outputs_ + block.at(s_) * s_.units, block.time,
                     s_.units);
  }

  // How many blocks of a row come before the first one with a cotangent.
  int64_t silent_blocks(int64_t row) const {
    int64_t count = 0;
    for (; count < s_.blocks(); count++) {
      const Block block = block_of(row + count * s_.batch);
      if (!all_zero(d_rows_of(block).at(0, 0), block.time * s_.units)) break;
    }
    return count;
  }

  // Gives the cotangents of a block on which nothing depends, such as the
  // padding of a row: zeros, which need not be added to the weights'.
  void give_zeros(const Block& block) {
    const auto clear = [&](Real* to, int64_t columns) {
      std::fill_n(to + block.at(s_) * columns, block.time * columns, Real{0});
    };
    clear(d_inputs_, s_.features);
    for (int64_t p = 0; s_.per_step && p < s_.parts(); p++)
      clear(d_decay_[p], s_.channels);
  }

  void work(int64_t job, BackwardWorkspace<Real>& space) {
    const Block block = block_of(job);
    const bool silent = block.turn < silent_[block.row];
    if (silent)
      give_zeros(block);
    else
      prepare(block, space);
    // Sums have the same order on any number of threads.
    Sums<Real>& sums = sums_[job % s_.sums()];
    const int64_t turn = job / s_.sums();
    const bool settle = turn % products_a_sum == products_a_sum - 1;
    output_turns_.take(job % s_.sums(), turn, [&] {
      if (!silent) add_output(d_rows_of(block), space, sums.output);
      if (settle) sums.settled_output.take(sums.output.numbers);
    });

    turns_.take(block.row, block.turn, [&] {
      if (!silent) scan(block, space);
    });

    if (!silent) give_inputs(block, space);
    input_turns_.take(job % s_.sums(), turn, [&] {
      if (!silent) add_input(block, space, sums);
      if (settle) sums.settled_input.take(sums.input.numbers);
    });
  }

  // Computes a block's states again, and their cotangents through its outputs
  // alone.
  void prepare(const Block& block, BackwardWorkspace<Real>& space) const {
    const In<Real> entering = checkpoint_at(checkpoints_, s_, block);
    layout_.into(entering, space.entering.data());
    layout_.into(entering, space.state.data());
    pass_.project(block, space.states);
    pass_.lay_out_decay(block, space.decay);
    pass_.scan(block, space.decay, space.states, space.state.data());

    multiply(d_rows_of(block), output_.all(), space.d_states.all());
  }

  void give_inputs(const Block& block, BackwardWorkspace<Real>& space) const {
    pass_.for_each_decay(block, space.states, d_decay_,
                         [](const Real* from, Real* to, int64_t count) {
                           std::copy_n(from, count, to);
                         });
    out_of_tile(space.d_states.rows_from(0, block.time), input_,
                row_major(d_inputs_ + block.at(s_) * s_.features, block.time,
                          s_.features),
                space.edge.data());
  }

  void add_input(const Block& block, BackwardWorkspace<Real>& space,
                 Sums<Real>& sums) const {
    multiply_transposed(pass_.inputs(block),
                        space.d_states.rows_from(0, block.time),
                        sums.input.all(), true);
    for (size_t i = 0; i < sums.d_decay.size(); i++)
      sums.d_decay[i] += std::exchange(space.d_decay[i], 0.0);
  }

  // to += states^T @ d_rows
  void add_output(Matrix<const Real> d_rows, BackwardWorkspace<Real>& space,
                  Panels<Real>& to) {
    if (unit_columns_ != s_.units) {
      for (int64_t t = 0; t < d_rows.rows; t++)
        std::copy_n(d_rows.at(0, t), s_.units,
                    &space.padded[t * unit_columns_]);
      d_rows = row_major<const Real>(space.padded.data(), d_rows.rows,
                                     unit_columns_);
    }
    multiply_transposed(space.states.rows_from(0, d_rows.rows), d_rows,
                        to.all(), true);
  }

  void scan(const Block& block, BackwardWorkspace<Real>& space) {
    double* carry = &carries_[block.row * layout_.columns];
    const auto run = [&](int64_t first, int64_t time, bool is_reset) {
      const int64_t before = s_.reverse ? first + time : first - 1;
      const bool enters = before < 0 || before == block.time;
      for (int64_t p = 0; p < layout_.panels; p++) {
        ScanRowsBackward<Real> call{};
        const int64_t column =
            pass_.describe(p, first, time, is_reset, space.decay, call);
        call.output_stride = call.d_output_stride = call.d_input_stride =
            call.d_decay_stride = layout_.panel;
        Real* states = space.states.at(p, first);
        Real* d_states = space.d_states.at(p, first);
        assign(layout_.parts(states), call.outputs);
        assign(layout_.parts(is_reset ? pass_.zeros()
                             : enters ? &space.entering[column]
                                      : space.states.at(p, before)),
               call.initial);
        assign(layout_.parts(d_states), call.d_outputs);
        assign(layout_.parts(d_states), call.d_inputs);
        // Each state is read one step before its memory is overwritten.
        if (s_.per_step) assign(layout_.parts(states), call.d_decay);
        assign(layout_.parts(&space.d_decay[column]), call.d_decay_sum);
        assign(layout_.parts(carry + column), call.carry);
        kernels<Real>().scan_rows_backward(call);
        if (is_reset && s_.per_step)
          std::fill_n(states, layout_.panel, Real{0});
      }
      if (is_reset) std::fill_n(carry, layout_.columns, 0.0);
    };
    pass_.for_each_run(block, true, run);
  }

  Sizes s_;
  Forward<Real> pass_;
  const Layout<Real>& layout_;
  Panels<Real> input_, output_;
  int64_t unit_columns_;
  const Real* inputs_;
  const Real* checkpoints_;
  const Real* d_outputs_;
  Out<Real> d_decay_;
  Real* d_inputs_;
  std::vector<double> carries_;
  std::vector<int64_t> silent_;
  Turns turns_, output_turns_, input_turns_;
  std::vector<Sums<Real>> sums_;
};

// The weights, and the start of each array of a group.
template <class Real>
Weights<Real> weights_of(const Sizes& s, int64_t group,
                         const In<Real>& input_kernel,
                         const In<Real>& output_kernel) {
  return {Layout<Real>(s),
          input_kernel.at(group * s.features * s.channels),
          output_kernel.at(group * s.channels * s.units), s.features, s.units};
}

int64_t decays_of(const Sizes& s) {
  return s.per_step ? s.batch * s.time * s.channels : s.channels;
}

template <class Real>
int projected_scan(const Sizes& s, const void* const* from, void* const* to) {
  Reader<Real, const void> read(from, s.complex);
  const In<Real> decay = read.in(), inputs = read.real_in();
  const In<Real> input_kernel = read.in(), output_kernel = read.in();
  const In<Real> resets = read.real_in(), initial = read.in();
  Reader<Real, void> write(to, s.complex);
  const Out<Real> outputs = write.real_out(), final_state = write.out();
  const Out<Real> checkpoints = write.real_out();
  const int64_t rows = s.batch * s.time;
  prepare_to_write(outputs[0], s.groups * rows * s.units * sizeof(Real));
  const int64_t kept = s.batch * s.kept();
  for (int64_t g = 0; g < s.groups; g++)
    forward<Real>(s, decay.at(g * decays_of(s)),
                  inputs[0] + g * rows * s.features,
                  resets[0] + g * (s.resets ? rows : 0),
                  weights_of(s, g, input_kernel, output_kernel),
                  initial.at(g * s.batch * s.channels),
                  outputs[0] + g * rows * s.units,
                  final_state.at(g * s.batch * s.channels),
                  checkpoints[0] ? checkpoints[0] + g * kept : nullptr);
  return kKerasLinrecDone;
}

template <class Real>
int projected_scan_backward(const Sizes& s, const void* const* from,
                            void* const* to) {
  Reader<Real, const void> read(from, s.complex);
  const In<Real> decay = read.in(), inputs = read.real_in();
  const In<Real> input_kernel = read.in(), output_kernel = read.in();
  const In<Real> resets = read.real_in();
  const In<Real> checkpoints = read.real_in(), d_outputs = read.real_in();
  const In<Real> d_final = read.in();
  Reader<Real, void> write(to, s.complex);
  const Out<Real> d_decay = write.out(), d_inputs = write.real_out();
  const Out<Real> d_input_kernel = write.out(), d_output_kernel = write.out();
  const Out<Real> d_initial = write.out();
  const int64_t rows = s.batch * s.time;
  prepare_to_write(d_inputs[0], s.groups * rows * s.features * sizeof(Real));
  if (s.per_step)
    for (int64_t p = 0; p < s.parts(); p++)
      prepare_to_write(d_decay[p], s.groups * decays_of(s) * sizeof(Real));
  const int64_t kept = s.batch * s.kept();
  for (int64_t g = 0; g < s.groups; g++) {
    Backward<Real> pass(s, decay.at(g * decays_of(s)),
                        inputs[0] + g * rows * s.features,
                        resets[0] + g * (s.resets ? rows : 0),
                        weights_of(s, g, input_kernel, output_kernel),
                        checkpoints[0] + g * kept,
                        d_outputs[0] + g * rows * s.units,
                        d_decay.at(g * decays_of(s)),
                        d_inputs[0] + g * rows * s.features);
    pass.run(d_final.at(g * s.batch * s.channels));
    pass.give(d_input_kernel.at(g * s.features * s.channels),
              d_output_kernel.at(g * s.channels * s.units),
              d_initial.at(g * s.batch * s.channels));
  }
  return kKerasLinrecDone;
}

}  // namespace
}  // namespace projected
}  // namespace keras_linrec

int keras_linrec_projected_scan(int flags, const int64_t* sizes,
                                const void* const* from, void* const* to) {
  using namespace keras_linrec::projected;
  const Sizes s(flags, sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return keras_linrec::status_of(flags, [&](auto real) {
    return projected_scan<decltype(real)>(s, from, to);
  });
}

int keras_linrec_projected_scan_backward(int flags, const int64_t* sizes,
                                         const void* const* from,
                                         void* const* to) {
  using namespace keras_linrec::projected;
  const Sizes s(flags, sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return keras_linrec::status_of(flags, [&](auto real) {
    return projected_scan_backward<decltype(real)>(s, from, to);
  });
}
