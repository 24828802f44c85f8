// Projection, scan and read-out, block by block of time. Neither the projected
// inputs nor the states are ever written to memory: a block of them is a tile
// in the cache, made of panels (kernels.h), and of the states only those that
// enter a block are kept for the backward pass, which computes the others anew.
#include <algorithm>
#include <atomic>
#include <thread>

#include "arrays.h"
#include "parallel.h"

namespace keras_linrec {
namespace {

// Multiplications and additions below which one thread is as fast.
constexpr int64_t least_work_a_thread = 1 << 20;
// Rows of a right factor that a product takes at once: with 32 columns in
// float32 they are 64 KiB.
constexpr int64_t inner_at_once = 512;

struct Sizes {
  int64_t groups, batch, time, features, channels, units, block;
  bool complex, per_step, reverse;
  Sizes(int flags, const int64_t* sizes)
      : groups(sizes[0]),
        batch(sizes[1]),
        time(sizes[2]),
        features(sizes[3]),
        channels(sizes[4]),
        units(sizes[5]),
        block(sizes[6]),
        complex(flags & kKerasLinrecComplex),
        per_step(flags & kKerasLinrecPerStep),
        reverse(flags & kKerasLinrecReverse) {}
  bool valid() const {
    return groups >= 0 && batch >= 0 && time >= 1 && features >= 0 &&
           channels >= 0 && units >= 0 && block >= 1;
  }
  int64_t parts() const { return complex ? 2 : 1; }
  int64_t blocks() const { return (time + block - 1) / block; }
  // Numbers that a row's checkpoints take: see core.h.
  int64_t kept() const { return (time / block + 2) * parts() * channels; }
  int64_t longest() const { return std::min(block, time); }
  int64_t work() const {
    return batch * time * parts() * channels * (features + units);
  }
  int threads() const {
    const int64_t most =
        std::min<int64_t>(keras_linrec::threads(), batch * blocks());
    return static_cast<int>(std::clamp<int64_t>(work() / least_work_a_thread, 1,
                                                std::max<int64_t>(most, 1)));
  }
};

// How channels lie in a tile: panels, whose first half in a complex system is
// real parts and whose second half is the same channels' imaginary parts.
template <class Real>
struct Layout {
  int64_t panel, share, panels, columns, channels;
  bool complex;
  explicit Layout(const Sizes& s)
      : panel(kernels<Real>().panel),
        share(s.complex ? panel / 2 : panel),
        panels((s.channels + share - 1) / share),
        columns(panels * panel),
        channels(s.channels),
        complex(s.complex) {}
  int64_t part_of(int64_t column) const {
    return complex && column % panel >= share;
  }
  int64_t channel_of(int64_t column) const {
    return column / panel * share + column % share;
  }
  // Calls use(column, part, channel, count) for each run of channels.
  template <class Use>
  void for_each_run(Use use) const {
    for (int64_t p = 0; p < panels; p++)
      for (int64_t part = 0; part <= complex; part++) {
        const int64_t channel = p * share;
        use(p * panel + part * share, part, channel,
            std::min(share, channels - channel));
      }
  }
  template <class From, class To>
  void into(const Parts<From>& from, To* to) const {
    std::fill_n(to, columns, To{0});
    for_each_run([&](int64_t column, int64_t part, int64_t channel,
                     int64_t count) {
      std::copy_n(from[part] + channel, count, to + column);
    });
  }
  template <class From, class To>
  void out_of(const From* from, const Parts<To*>& to) const {
    for_each_run([&](int64_t column, int64_t part, int64_t channel,
                     int64_t count) {
      for (int64_t i = 0; i < count; i++)
        to[part][channel + i] = static_cast<To>(from[column + i]);
    });
  }
};

int64_t rounded_up(int64_t count, int64_t unit) {
  return (count + unit - 1) / unit * unit;
}

// A right factor of products, its columns in panels: panel by panel, row by
// row. What it lacks of a whole panel is zero.
template <class Real>
struct Packed {
  int64_t rows, panel, panels;
  std::vector<Real> numbers;
  Packed(int64_t rows, int64_t columns, int64_t panel)
      : rows(rows),
        panel(panel),
        panels((columns + panel - 1) / panel),
        numbers(rows * panels * panel) {}
  Real* at(int64_t p, int64_t row) {
    return numbers.data() + (p * rows + row) * panel;
  }
  const Real* at(int64_t p, int64_t row) const {
    return numbers.data() + (p * rows + row) * panel;
  }
};

// The four right factors. Each is laid out anew in every call, so it pays that
// the loops are plain: a streaming step does little else.
template <class Real>
struct Weights {
  Layout<Real> layout;
  In<Real> input_kernel, output_kernel;
  int64_t features, units;

  // d outputs / d imaginary part = -imaginary part of the output kernel.
  static Real sign(int64_t part) { return part ? -1 : 1; }

  // inputs @ this = a tile
  Packed<Real> input() const {
    Packed<Real> packed(features, layout.columns, layout.panel);
    layout.for_each_run([&](int64_t column, int64_t part, int64_t channel,
                            int64_t count) {
      const Real* from = input_kernel[part] + channel;
      Real* to = packed.at(column / layout.panel, 0) + column % layout.panel;
      for (int64_t f = 0; f < features; f++)
        for (int64_t i = 0; i < count; i++)
          to[f * layout.panel + i] = from[f * layout.channels + i];
    });
    return packed;
  }

  // a tile @ this = outputs
  Packed<Real> output() const {
    Packed<Real> packed(layout.columns, units, layout.panel);
    layout.for_each_run([&](int64_t column, int64_t part, int64_t channel,
                            int64_t count) {
      const Real* from = output_kernel[part] + channel * units;
      for (int64_t p = 0; p < packed.panels; p++) {
        const int64_t first = p * layout.panel;
        const int64_t width = std::min(layout.panel, units - first);
        Real* to = packed.at(p, column);
        for (int64_t i = 0; i < count; i++)
          for (int64_t u = 0; u < width; u++)
            to[i * layout.panel + u] =
                sign(part) * from[i * units + first + u];
      }
    });
    return packed;
  }

  // cotangents of a tile @ this = those of the inputs
  Packed<Real> input_transposed() const {
    Packed<Real> packed(layout.columns, features, layout.panel);
    layout.for_each_run([&](int64_t column, int64_t part, int64_t channel,
                            int64_t count) {
      const Real* from = input_kernel[part] + channel;
      for (int64_t p = 0; p < packed.panels; p++) {
        const int64_t first = p * layout.panel;
        const int64_t width = std::min(layout.panel, features - first);
        Real* to = packed.at(p, column);
        for (int64_t f = 0; f < width; f++)
          for (int64_t i = 0; i < count; i++)
            to[i * layout.panel + f] =
                from[(first + f) * layout.channels + i];
      }
    });
    return packed;
  }

  // cotangents of the outputs @ this = those of a tile
  Packed<Real> output_transposed() const {
    Packed<Real> packed(units, layout.columns, layout.panel);
    layout.for_each_run([&](int64_t column, int64_t part, int64_t channel,
                            int64_t count) {
      const Real* from = output_kernel[part] + channel * units;
      Real* to = packed.at(column / layout.panel, 0) + column % layout.panel;
      for (int64_t i = 0; i < count; i++)
        for (int64_t u = 0; u < units; u++)
          to[u * layout.panel + i] = sign(part) * from[i * units + u];
    });
    return packed;
  }
};

// tile = rows @ right, where `rows` are in memory, `right.rows` numbers each.
template <class Real>
void into_tile(const Real* rows, int64_t time, const Packed<Real>& right,
               Real* tile, int64_t panel_stride) {
  for (int64_t p = 0; p < right.panels; p++) {
    for (int64_t k = 0; k < right.rows; k += inner_at_once) {
      Product<Real> product{};
      product.rows = time;
      product.outer = 1;
      product.inner = std::min(inner_at_once, right.rows - k);
      product.a = rows + k;
      product.a_row = right.rows;
      product.a_inner = 1;
      product.b = right.at(p, k);
      product.b_row = right.panel;
      product.c = tile + p * panel_stride;
      product.c_row = right.panel;
      product.add = k > 0;
      kernels<Real>().product(product);
    }
    if (right.rows == 0)
      std::fill_n(tile + p * panel_stride, time * right.panel, Real{0});
  }
}

// rows = tile @ right, where `rows` are in memory, `columns` numbers each.
template <class Real>
void out_of_tile(const Real* tile, int64_t panel_stride, int64_t time,
                 const Packed<Real>& right, Real* rows, int64_t columns,
                 Real* edge) {
  const int64_t panel = right.panel, panels_at_once = inner_at_once / panel;
  const int64_t panels = right.rows / panel;
  for (int64_t q = 0; q < right.panels; q++) {
    const bool whole = (q + 1) * panel <= columns;
    Product<Real> product{};
    product.rows = time;
    product.inner = panel;
    product.a_row = panel;
    product.a_outer = panel_stride;
    product.a_inner = 1;
    product.b_row = panel;
    product.c = whole ? rows + q * panel : edge;
    product.c_row = whole ? columns : panel;
    for (int64_t p = 0; p < panels; p += panels_at_once) {
      product.outer = std::min(panels_at_once, panels - p);
      product.a = tile + p * panel_stride;
      product.b = right.at(q, p * panel);
      product.add = p > 0;
      kernels<Real>().product(product);
    }
    if (whole) continue;
    for (int64_t t = 0; t < time; t++)
      std::copy_n(edge + t * panel, panels ? columns - q * panel : 0,
                  rows + t * columns + q * panel);
  }
  if (panels == 0) std::fill_n(rows, time * columns, Real{0});
}

// Hands each row's state from block to block, though different threads have
// them: blocks are dealt out in the order of time, so the one waited for is
// always done or being done.
class Turns {
 public:
  explicit Turns(int64_t rows) : done_(rows) {}
  void wait_for(int64_t row, int64_t blocks) {
    for (int tries = 0; done_[row].load(std::memory_order_acquire) < blocks;
         tries++)
      if (tries > 200) std::this_thread::yield();
  }
  void finish(int64_t row, int64_t blocks) {
    done_[row].store(blocks, std::memory_order_release);
  }

 private:
  std::vector<std::atomic<int64_t>> done_;
};

// A block of a row: the `turn`-th that is taken, from step `first` on.
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
          const Weights<Real>& weights)
      : s_(s),
        layout_(s),
        decay_(decay),
        inputs_(inputs),
        input_(weights.input()),
        fixed_decay_(s.per_step ? 0 : layout_.columns) {
    if (!s.per_step) layout_.into(decay, fixed_decay_.data());
  }

  int64_t tile_size() const { return s_.longest() * layout_.columns; }
  int64_t panel_stride() const { return s_.longest() * layout_.panel; }
  const Layout<Real>& layout() const { return layout_; }
  const double* fixed_decay() const {
    return s_.per_step ? nullptr : fixed_decay_.data();
  }

  void project(const Block& block, Real* tile) const {
    into_tile(inputs_ + block.at(s_) * s_.features, block.time, input_, tile,
              panel_stride());
  }

  // A block's decays, laid out like the tile; nothing where they are fixed.
  void lay_out_decay(const Block& block, Real* tile) const {
    if (!s_.per_step) return;
    layout_.for_each_run([&](int64_t column, int64_t part, int64_t channel,
                             int64_t count) {
      const int64_t panel = column / layout_.panel;
      Real* to = tile + panel * panel_stride() + column % layout_.panel;
      const Real* from = decay_[part] + block.at(s_) * s_.channels + channel;
      for (int64_t t = 0; t < block.time; t++)
        std::copy_n(from + t * s_.channels, count, to + t * layout_.panel);
    });
  }

  void scan(const Block& block, const Real* decay_tile, Real* tile,
            double* state) const {
    ScanTile<Real> call{};
    call.time = block.time;
    call.panels = layout_.panels;
    call.row = layout_.panel;
    call.panel_stride = panel_stride();
    call.complex = s_.complex;
    call.reverse = s_.reverse;
    call.decay = fixed_decay();
    call.decay_tile = decay_tile;
    call.tile = tile;
    call.state = state;
    kernels<Real>().scan_tile(call);
  }

 private:
  Sizes s_;
  Layout<Real> layout_;
  In<Real> decay_;
  const Real* inputs_;
  Packed<Real> input_;
  std::vector<double> fixed_decay_;
};

template <class Real>
In<Real> checkpoint_at(const Real* checkpoints, const Sizes& s,
                       const Block& block) {
  In<Real> parts;
  for (int64_t p = 0; p < s.parts(); p++)
    parts.part[p] = checkpoints + block.checkpoint(s) + p * s.channels;
  return parts;
}

// A thread's tiles. They are allocated before the threads start: one that
// failed to would leave the others waiting for its turn.
template <class Real>
struct Workspace {
  std::vector<Real> states, decay, edge, d_states, padded;
  std::vector<double> entering, state;
  Workspace(const Sizes& s, const Forward<Real>& pass)
      : states(pass.tile_size()),
        decay(s.per_step ? pass.tile_size() : 0),
        edge(pass.panel_stride()) {}
};

template <class Real>
void forward(const Sizes& s, const In<Real>& decay, const Real* inputs,
             const Weights<Real>& weights, const In<Real>& initial,
             Real* outputs, const Out<Real>& final_state, Real* checkpoints) {
  const Forward<Real> pass(s, decay, inputs, weights);
  const Layout<Real>& layout = pass.layout();
  const Packed<Real> read_out = weights.output();
  std::vector<double> states(s.batch * layout.columns);
  for (int64_t b = 0; b < s.batch; b++)
    layout.into(initial.at(b * s.channels), &states[b * layout.columns]);
  Turns turns(s.batch);
  const int threads = s.threads();
  std::vector<Workspace<Real>> spaces(threads, Workspace<Real>(s, pass));

  parallel(threads, [&](int index, int count) {
    Workspace<Real>& space = spaces[index];
    Real* tile = space.states.data();
    for (int64_t j = index; j < s.batch * s.blocks(); j += count) {
      const Block block(s, j, s.reverse);
      double* state = &states[block.row * layout.columns];
      pass.project(block, tile);
      pass.lay_out_decay(block, space.decay.data());
      turns.wait_for(block.row, block.turn);
      if (checkpoints) {
        Out<Real> to;
        for (int64_t p = 0; p < s.parts(); p++)
          to.part[p] = checkpoints + block.checkpoint(s) + p * s.channels;
        layout.out_of(state, to);
      }
      pass.scan(block, space.decay.data(), tile, state);
      turns.finish(block.row, block.turn + 1);
      out_of_tile(tile, pass.panel_stride(), block.time, read_out,
                  outputs + block.at(s) * s.units, s.units, space.edge.data());
    }
  });
  for (int64_t b = 0; b < s.batch; b++)
    layout.out_of(&states[b * layout.columns],
                  final_state.at(b * s.channels));
}

// And what it adds up: cotangents of the weights and of a fixed decay.
template <class Real>
struct Sums : Workspace<Real> {
  std::vector<Real> input, output;
  std::vector<double> d_decay;
  Sums(const Sizes& s, const Forward<Real>& pass, int64_t unit_columns)
      : Workspace<Real>(s, pass),
        input(s.features * pass.layout().columns),
        output(pass.layout().columns * unit_columns),
        d_decay(pass.layout().columns) {
    this->d_states.resize(pass.tile_size());
    this->padded.resize(unit_columns == s.units ? 0
                                                : s.longest() * unit_columns);
    this->entering.resize(pass.layout().columns);
    this->state.resize(pass.layout().columns);
  }
};

template <class Real>
class Backward {
 public:
  Backward(const Sizes& s, const In<Real>& decay, const Real* inputs,
           const Weights<Real>& weights, const Real* checkpoints,
           const Real* d_outputs, const Out<Real>& d_decay, Real* d_inputs)
      : s_(s),
        pass_(s, decay, inputs, weights),
        layout_(pass_.layout()),
        input_(weights.input_transposed()),
        output_(weights.output_transposed()),
        unit_columns_(rounded_up(s.units, layout_.panel)),
        inputs_(inputs),
        checkpoints_(checkpoints),
        d_outputs_(d_outputs),
        d_decay_(d_decay),
        d_inputs_(d_inputs),
        carries_(s.batch * layout_.columns),
        turns_(s.batch),
        sums_(s.threads(), Sums<Real>(s, pass_, unit_columns_)) {}

  void run(const In<Real>& d_final) {
    for (int64_t b = 0; b < s_.batch; b++)
      layout_.into(d_final.at(b * s_.channels),
                   &carries_[b * layout_.columns]);
    parallel(static_cast<int>(sums_.size()),
             [&](int index, int count) { work(index, count); });
    for (size_t t = 1; t < sums_.size(); t++) {
      add(sums_[0].input, sums_[t].input);
      add(sums_[0].output, sums_[t].output);
      add(sums_[0].d_decay, sums_[t].d_decay);
    }
  }

  void give(const Out<Real>& d_input_kernel, const Out<Real>& d_output_kernel,
            const Out<Real>& d_initial) {
    Sums<Real>& sum = sums_[0];
    for (int64_t f = 0; f < s_.features; f++)
      layout_.out_of(&sum.input[f * layout_.columns],
                     d_input_kernel.at(f * s_.channels));
    for (int64_t c = 0; c < layout_.columns; c++) {
      const int64_t channel = layout_.channel_of(c);
      if (channel >= s_.channels) continue;
      const Real sign = layout_.part_of(c) ? -1 : 1;
      for (int64_t u = 0; u < s_.units; u++)
        d_output_kernel[layout_.part_of(c)][channel * s_.units + u] =
            sign * sum.output[c * unit_columns_ + u];
    }
    if (!s_.per_step) layout_.out_of(sum.d_decay.data(), d_decay_);
    for (int64_t b = 0; b < s_.batch; b++)
      layout_.out_of(&carries_[b * layout_.columns],
                     d_initial.at(b * s_.channels));
  }

 private:
  template <class Number>
  static void add(std::vector<Number>& to, const std::vector<Number>& from) {
    for (size_t i = 0; i < from.size(); i++) to[i] += from[i];
  }

  void work(int index, int count) {
    Sums<Real>& space = sums_[index];
    for (int64_t j = index; j < s_.batch * s_.blocks(); j += count) {
      const Block block(s_, j, !s_.reverse);
      Real* states = space.states.data();
      Real* d_states = space.d_states.data();
      layout_.into(checkpoint_at(checkpoints_, s_, block),
                   space.entering.data());
      space.state = space.entering;
      pass_.project(block, states);
      pass_.lay_out_decay(block, space.decay.data());
      pass_.scan(block, space.decay.data(), states, space.state.data());

      const Real* d_rows = d_outputs_ + block.at(s_) * s_.units;
      into_tile(d_rows, block.time, output_, d_states, pass_.panel_stride());
      add_output(block, d_rows, space);

      turns_.wait_for(block.row, block.turn);
      scan(block, space);
      turns_.finish(block.row, block.turn + 1);

      give_decay(block, states);
      out_of_tile(d_states, pass_.panel_stride(), block.time, input_,
                  d_inputs_ + block.at(s_) * s_.features, s_.features,
                  space.edge.data());
      add_input(block, space);
    }
  }

  // space.output += states^T @ d_outputs
  void add_output(const Block& block, const Real* d_rows, Sums<Real>& space) {
    if (unit_columns_ != s_.units) {
      for (int64_t t = 0; t < block.time; t++)
        std::copy_n(d_rows + t * s_.units, s_.units,
                    &space.padded[t * unit_columns_]);
      d_rows = space.padded.data();
    }
    Product<Real> product{};
    product.rows = product.a_inner = layout_.panel;
    product.outer = 1;
    product.inner = block.time;
    product.a_row = 1;
    product.b_row = product.c_row = unit_columns_;
    product.add = true;
    for (int64_t q = 0; q < unit_columns_; q += layout_.panel)
      for (int64_t p = 0; p < layout_.panels; p++) {
        product.a = &space.states[p * pass_.panel_stride()];
        product.b = d_rows + q;
        product.c = &space.output[p * layout_.panel * unit_columns_ + q];
        kernels<Real>().product(product);
      }
  }

  // space.input += inputs^T @ d_projected
  void add_input(const Block& block, Sums<Real>& space) {
    Product<Real> product{};
    product.rows = product.a_inner = s_.features;
    product.outer = 1;
    product.inner = block.time;
    product.a = inputs_ + block.at(s_) * s_.features;
    product.a_row = 1;
    product.b_row = layout_.panel;
    product.c_row = layout_.columns;
    product.add = true;
    for (int64_t p = 0; p < layout_.panels; p++) {
      product.b = space.d_states.data() + p * pass_.panel_stride();
      product.c = &space.input[p * layout_.panel];
      kernels<Real>().product(product);
    }
  }

  void scan(const Block& block, Sums<Real>& space) {
    ScanTileBackward<Real> call{};
    call.time = block.time;
    call.panels = layout_.panels;
    call.row = layout_.panel;
    call.panel_stride = pass_.panel_stride();
    call.complex = s_.complex;
    call.reverse = s_.reverse;
    call.decay = pass_.fixed_decay();
    call.decay_tile = space.decay.data();
    call.states = space.states.data();
    call.initial = space.entering.data();
    call.d_tile = space.d_states.data();
    call.carry = &carries_[block.row * layout_.columns];
    call.d_decay = space.d_decay.data();
    // A state is read one step before its place is written.
    call.d_decay_tile = space.states.data();
    kernels<Real>().scan_tile_backward(call);
  }

  void give_decay(const Block& block, const Real* tile) {
    if (!s_.per_step) return;
    layout_.for_each_run([&](int64_t column, int64_t part, int64_t channel,
                             int64_t count) {
      const int64_t panel = column / layout_.panel;
      const Real* from =
          tile + panel * pass_.panel_stride() + column % layout_.panel;
      Real* to = d_decay_[part] + block.at(s_) * s_.channels + channel;
      for (int64_t t = 0; t < block.time; t++)
        std::copy_n(from + t * layout_.panel, count, to + t * s_.channels);
    });
  }

  Sizes s_;
  Forward<Real> pass_;
  const Layout<Real>& layout_;
  Packed<Real> input_, output_;
  int64_t unit_columns_;
  const Real* inputs_;
  const Real* checkpoints_;
  const Real* d_outputs_;
  Out<Real> d_decay_;
  Real* d_inputs_;
  std::vector<double> carries_;
  Turns turns_;
  std::vector<Sums<Real>> sums_;
};

// The weights, and where a group's arrays begin.
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
  const In<Real> initial = read.in();
  Reader<Real, void> write(to, s.complex);
  const Out<Real> outputs = write.real_out(), final_state = write.out();
  const Out<Real> checkpoints = write.real_out();
  const int64_t rows = s.batch * s.time;
  prepare_to_write(outputs[0], s.groups * rows * s.units * sizeof(Real));
  const int64_t kept = s.batch * s.kept();
  for (int64_t g = 0; g < s.groups; g++)
    forward<Real>(s, decay.at(g * decays_of(s)),
                  inputs[0] + g * rows * s.features,
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
}  // namespace keras_linrec

int keras_linrec_projected_scan(int flags, const int64_t* sizes,
                                const void* const* from, void* const* to) {
  using namespace keras_linrec;
  const Sizes s(flags, sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    return projected_scan<decltype(real)>(s, from, to);
  });
}

int keras_linrec_projected_scan_backward(int flags, const int64_t* sizes,
                                         const void* const* from,
                                         void* const* to) {
  using namespace keras_linrec;
  const Sizes s(flags, sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    return projected_scan_backward<decltype(real)>(s, from, to);
  });
}
