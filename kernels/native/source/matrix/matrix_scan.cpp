// The scan of matrix states, block by block, with the state in the cache. A job
// takes one head through all steps, or some columns of its values: they need
// nothing of each other. The backward pass starts from the last checkpoint,
// computes the blocks of a stretch again, and goes back through them.
#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "base/core.h"
#include "base/parallel.h"
#include "base/systems.h"
#include "matrix/matrix_gradient.h"

namespace keras_linrec {
namespace matrix {
namespace {

// Jobs below which heads are cut into columns.
constexpr int64_t least_jobs = 8;
// Parts that a thread takes through each stretch one after another. The steps
// of one head are so far apart that nearly every one is on another page; those
// of its neighbours are on the same pages.
constexpr int64_t most_parts = 8;

// Some columns of a head in one row of the batch.
struct Part {
  int64_t batch, head, column, width;
};

// The parts of all heads. How many there are depends on sizes alone, because
// sums over columns differ with their order.
class Division {
 public:
  Division(const Sizes& s, int64_t panel) : sizes_(s), panel_(panel) {
    const int64_t panels = (s.value_dim + panel - 1) / panel;
    const int64_t heads = std::max<int64_t>(s.batch * s.heads, 1);
    slices = std::clamp<int64_t>((least_jobs + heads - 1) / heads, 1, panels);
  }
  int64_t count() const { return sizes_.batch * sizes_.heads * slices; }
  Part part(int64_t job) const {
    const int64_t slice = job % slices, head = job / slices;
    const int64_t panels = (sizes_.value_dim + panel_ - 1) / panel_;
    const int64_t first = slice * panels / slices * panel_;
    const int64_t last = std::min((slice + 1) * panels / slices * panel_,
                                  sizes_.value_dim);
    return {head / sizes_.heads, head % sizes_.heads, first, last - first};
  }
  // Calls use(first, last) for groups of neighbouring parts, with as many jobs
  // as threads can have. Each part has the same bits in any group.
  template <class Use>
  void for_each_group(const Use& use) const {
    const int64_t size =
        std::clamp<int64_t>(count() / threads(), 1, most_parts);
    for_each_job(wanted(), (count() + size - 1) / size,
                 [&](int, int64_t group) {
                   use(group * size, std::min((group + 1) * size, count()));
                 });
  }
  int wanted() const {
    return static_cast<int>(std::min<int64_t>(threads(), count()));
  }

  int64_t slices;

 private:
  const Sizes& sizes_;
  int64_t panel_;
};

// A block, or the blocks of a stretch, for parts that follow each other: most
// are equally wide, and need no new memory.
template <class Workspace>
class ForParts {
 public:
  Workspace& of_width(const Sizes& s, int64_t width) {
    if (!made_ || width != width_) made_.emplace(s, width);
    width_ = width;
    return *made_;
  }

 private:
  std::optional<Workspace> made_;
  int64_t width_ = 0;
};

// The forward pass of some parts.
template <class Real>
class Forward {
 public:
  // `from` and `to` have the arrays of the call.
  Forward(const Sizes& s, const void* const* from, void* const* to)
      : sizes_(s),
        from_(from),
        outputs_(static_cast<Real*>(to[0])),
        final_state_(static_cast<Real*>(to[1])),
        checkpoints_(static_cast<Real*>(to[2])) {}

  void run(const Division& division, int64_t first, int64_t last) const {
    std::vector<Panels<Real>> states;
    ForParts<Block<Real>> blocks;
    for (int64_t job = first; job < last; job++) {
      const Part part = division.part(job);
      states.emplace_back(sizes_.key_dim, part.width);
      read_rows(head_of(part).initial_state + part.column, sizes_.value_dim,
                sizes_.key_dim, states.back());
    }
    for (int64_t n = 0; n < sizes_.stretches(); n++)
      for (int64_t job = first; job < last; job++) {
        const Part part = division.part(job);
        run_stretch(part, n, blocks.of_width(sizes_, part.width),
                    states[job - first]);
      }
    for (int64_t job = first; job < last; job++) {
      const Part part = division.part(job);
      write_rows(states[job - first], 0, sizes_.key_dim,
                 final_state_ + head_of(part).state_offset() + part.column,
                 sizes_.value_dim);
    }
  }

 private:
  Head<Real> head_of(const Part& part) const {
    return Head<Real>(sizes_, part.batch, part.head, from_);
  }

  void run_stretch(const Part& part, int64_t n, Block<Real>& block,
                   Panels<Real>& state) const {
    const Sizes& s = sizes_;
    const Head<Real> head = head_of(part);
    if (checkpoints_)
      write_rows(state, 0, s.key_dim,
                 checkpoints_ + head.checkpoint_offset(n) + part.column,
                 s.value_dim);
    const int64_t end = std::min((n + 1) * s.stretch, s.time) * s.products;
    for (int64_t row = n * s.stretch * s.products; row < end;
         row += block.rows) {
      if (head.starts_step(row) && head.is_reset(row / s.products))
        clear(state);
      const int64_t rows = Block<Real>::rows_from(head, row, end);
      block.read(head, row, rows, part.column, row + rows);
      block.find_changes(state);
      write_outputs(block, head, part, block.find_outputs(state));
      block.advance(state, state);
    }
  }

  void write_outputs(const Block<Real>& block, const Head<Real>& head,
                     const Part& part, const Panels<Real>& outputs) const {
    if (block.query_rows == 0) return;
    write_rows(outputs, 0, block.query_rows,
               outputs_ + head.output_offset(block.step_of(0)) + part.column,
               sizes_.heads * sizes_.value_dim, block.query_rows);
  }

  const Sizes& sizes_;
  const void* const* from_;
  Real* outputs_;
  Real* final_state_;
  Real* checkpoints_;
};

template <class Real>
int forward(const Sizes& s, const void* const* from, void* const* to) {
  const Division division(s, kernels<Real>().panel);
  const int64_t states = s.batch * s.heads * s.state();
  prepare_to_write(to[0], s.batch * s.time * s.heads * s.value_dim *
                              sizeof(Real));
  if (to[2])
    prepare_to_write(to[2], (s.time / s.stretch + 2) * states * sizeof(Real));
  const Forward<Real> pass(s, from, to);
  division.for_each_group([&](int64_t first, int64_t last) {
    pass.run(division, first, last);
  });
  return kKerasLinrecDone;
}

// The blocks of a stretch, with the states before them.
template <class Real>
class Stretch {
 public:
  Stretch(const Sizes& s, int64_t width)
      : sizes_(s), width_(width), gradient_(s, width) {}

  // Takes `d_state` from behind the steps of a stretch to before them.
  void run(const Head<Real>& head, const Part& part, int64_t stretch,
           const Real* checkpoints, const Real* d_outputs, Real* d_values,
           Panels<Real>& d_state, const Cotangents<Real>& to) {
    const int64_t first = stretch * sizes_.stretch;
    const int64_t end = std::min(first + sizes_.stretch, sizes_.time);
    read_rows(checkpoints + head.checkpoint_offset(stretch) + part.column,
              sizes_.value_dim, sizes_.key_dim, state(0));
    size_t count = 0;
    for (int64_t row = first * sizes_.products;
         row < end * sizes_.products; count++) {
      Panels<Real>& before = state(count);
      if (is_reset(head, row)) clear(before);
      Block<Real>& block = block_at(count);
      const int64_t rows =
          Block<Real>::rows_from(head, row, end * sizes_.products);
      const bool is_last = row + rows == end * sizes_.products;
      block.read(head, row, rows, part.column,
                 is_last ? (first - sizes_.stretch) * sizes_.products
                         : row + rows);
      block.find_changes(before);
      block.advance(before, state(count + 1));
      row += rows;
    }
    while (count-- > 0) {
      Block<Real>& block = block_at(count);
      gradient_.run(block, head, state(count), d_state, d_outputs, d_values,
                    to);
      if (is_reset(head, block.first())) clear(d_state);
    }
  }

 private:
  bool is_reset(const Head<Real>& head, int64_t row) const {
    return head.starts_step(row) && head.is_reset(row / sizes_.products);
  }
  Panels<Real>& state(size_t which) {
    while (states_.size() <= which)
      states_.push_back(std::make_unique<Panels<Real>>(sizes_.key_dim, width_));
    return *states_[which];
  }
  Block<Real>& block_at(size_t which) {
    while (blocks_.size() <= which)
      blocks_.push_back(std::make_unique<Block<Real>>(sizes_, width_));
    return *blocks_[which];
  }

  const Sizes& sizes_;
  int64_t width_;
  BlockGradient<Real> gradient_;
  std::vector<std::unique_ptr<Panels<Real>>> states_;
  std::vector<std::unique_ptr<Block<Real>>> blocks_;
};

// The backward pass of a call.
template <class Real>
class Backward {
 public:
  // `from` has the arguments of the call, checkpoints, d_outputs and
  // d_final_state; `to` the cotangents of queries, keys, values, decay, erase,
  // write and initial state.
  Backward(const Sizes& s, const void* const* from, void* const* to)
      : sizes_(s), from_(from), to_(to), division_(s, kernels<Real>().panel) {}

  void run() {
    const bool is_shared = division_.slices > 1 ||
                           sizes_.query_heads < sizes_.heads ||
                           sizes_.key_heads < sizes_.heads;
    prepare_results();
    if (is_shared) return run_shared();
    division_.for_each_group(
        [&](int64_t first, int64_t last) { run_group(first, last); });
  }

 private:
  // Parts that are heads which share nothing.
  void run_group(int64_t first, int64_t last) const {
    Stretch<Real> stretch(sizes_, sizes_.value_dim);
    std::vector<Panels<Real>> d_states;
    for (int64_t job = first; job < last; job++) {
      const Part part = division_.part(job);
      d_states.emplace_back(sizes_.key_dim, part.width);
      read_d_state(head_of(part), part, d_states.back());
    }
    for (int64_t n = sizes_.stretches() - 1; n >= 0; n--)
      for (int64_t job = first; job < last; job++) {
        const Part part = division_.part(job);
        const Head<Real> head = head_of(part);
        run_stretch(head, part, n, stretch, d_states[job - first],
                    results_of(head));
      }
    for (int64_t job = first; job < last; job++) {
      const Part part = division_.part(job);
      write_d_state(head_of(part), part, d_states[job - first]);
    }
  }

  void prepare_results() const {
    const int64_t steps = sizes_.batch * sizes_.time;
    const int64_t rows = sizes_.batch * sizes_.rows();
    const auto prepare = [&](int which, int64_t numbers) {
      prepare_to_write(to_[which], numbers * sizeof(Real));
    };
    prepare(0, steps * sizes_.query_heads * sizes_.key_dim);
    prepare(1, rows * sizes_.key_heads * sizes_.key_dim);
    prepare(2, rows * sizes_.heads * sizes_.value_dim);
    prepare(3, steps * sizes_.heads * sizes_.decays);
  }

  Head<Real> head_of(const Part& part) const {
    return Head<Real>(sizes_, part.batch, part.head, from_);
  }
  const Real* argument(int which) const {
    return static_cast<const Real*>(from_[which]);
  }
  Real* result(int which) const { return static_cast<Real*>(to_[which]); }

  void read_d_state(const Head<Real>& head, const Part& part,
                    Panels<Real>& d_state) const {
    read_rows(argument(10) + head.state_offset() + part.column,
              sizes_.value_dim, sizes_.key_dim, d_state);
  }
  void write_d_state(const Head<Real>& head, const Part& part,
                     Panels<Real>& d_state) const {
    write_rows(d_state, 0, sizes_.key_dim,
               result(6) + head.state_offset() + part.column,
               sizes_.value_dim);
  }

  void run_stretch(const Head<Real>& head, const Part& part, int64_t n,
                   Stretch<Real>& stretch, Panels<Real>& d_state,
                   const Cotangents<Real>& to) const {
    stretch.run(head, part, n, argument(8),
                argument(9) + head.output_offset(0) + part.column,
                result(2) + head.value_offset(0) + part.column, d_state, to);
  }

  // The results themselves.
  Cotangents<Real> results_of(const Head<Real>& head) const {
    return {0,
            result(0) + head.query_offset(0),
            result(1) + head.key_offset(0),
            result(3) + head.decay_offset(0),
            result(4) + (sizes_.erased ? head.strength_offset(0) : 0),
            result(5) + (sizes_.written ? head.strength_offset(0) : 0),
            sizes_.query_heads * sizes_.key_dim,
            sizes_.key_heads * sizes_.key_dim,
            sizes_.heads * sizes_.decays,
            sizes_.heads};
  }

  // Parts that share queries or keys, or a head, write to memory of their own,
  // which is added up after each stretch.
  void run_shared() {
    const int64_t parts = division_.count(), steps = sizes_.stretch;
    const int64_t rows = steps * sizes_.products;
    numbers_ = steps * (sizes_.key_dim + sizes_.decays) +
               rows * (sizes_.key_dim + 2);
    scratch_.resize(parts * numbers_);
    std::vector<std::unique_ptr<Panels<Real>>> d_states(parts);
    std::vector<ForParts<Stretch<Real>>> stretches(division_.wanted());
    for (int64_t n = sizes_.stretches() - 1; n >= 0; n--) {
      for_each_job(division_.wanted(), parts, [&](int thread, int64_t job) {
        const Part part = division_.part(job);
        const Head<Real> head = head_of(part);
        auto& d_state = d_states[job];
        if (!d_state) {
          d_state =
              std::make_unique<Panels<Real>>(sizes_.key_dim, part.width);
          read_d_state(head, part, *d_state);
        }
        run_stretch(head, part, n,
                    stretches[thread].of_width(sizes_, part.width), *d_state,
                    scratch_of(job, n));
        if (n == 0) write_d_state(head, part, *d_state);
      });
      for_each_job(division_.wanted(), sizes_.batch,
                   [&](int, int64_t batch) { add_up(batch, n); });
    }
  }

  Cotangents<Real> scratch_of(int64_t job, int64_t n) {
    const int64_t steps = sizes_.stretch, rows = steps * sizes_.products;
    Real* queries = scratch_.data() + job * numbers_;
    Real* keys = queries + steps * sizes_.key_dim;
    Real* decay = keys + rows * sizes_.key_dim;
    Real* erase = decay + steps * sizes_.decays;
    return {n * steps, queries, keys, decay, erase, erase + rows,
            sizes_.key_dim, sizes_.key_dim, sizes_.decays, 1};
  }

  void add_up(int64_t batch, int64_t n) {
    const int64_t first = n * sizes_.stretch;
    const int64_t steps = std::min(sizes_.stretch, sizes_.time - first);
    const int64_t rows = steps * sizes_.products;
    for (int64_t head = 0; head < sizes_.heads; head++) {
      const Head<Real> place(sizes_, batch, head, from_);
      const Cotangents<Real> to = results_of(place);
      const bool new_query =
          head % (sizes_.heads / sizes_.query_heads) == 0;
      const bool new_key = head % (sizes_.heads / sizes_.key_heads) == 0;
      for (int64_t slice = 0; slice < division_.slices; slice++) {
        const Cotangents<Real> own = scratch_of(
            (batch * sizes_.heads + head) * division_.slices + slice, n);
        const int64_t first_row = first * sizes_.products;
        const bool is_new = slice == 0;
        add(own.queries, own.query_stride, steps, sizes_.key_dim,
            to.queries + first * to.query_stride, to.query_stride,
            is_new && new_query);
        add(own.keys, own.key_stride, rows, sizes_.key_dim,
            to.keys + first_row * to.key_stride, to.key_stride,
            is_new && new_key);
        add(own.decay, own.decay_stride, steps, sizes_.decays,
            to.decay + first * to.decay_stride, to.decay_stride, is_new);
        if (sizes_.erased)
          add(own.erase, 1, rows, 1,
              to.erase + first_row * to.strength_stride, to.strength_stride,
              is_new);
        if (sizes_.written)
          add(own.write, 1, rows, 1,
              to.write + first_row * to.strength_stride, to.strength_stride,
              is_new);
      }
    }
  }

  static void add(const Real* from, int64_t from_stride, int64_t count,
                  int64_t size, Real* to, int64_t to_stride, bool is_new) {
    for (int64_t i = 0; i < count; i++, from += from_stride, to += to_stride)
      for (int64_t c = 0; c < size; c++)
        to[c] = is_new ? from[c] : to[c] + from[c];
  }

  const Sizes& sizes_;
  const void* const* from_;
  void* const* to_;
  Division division_;
  int64_t numbers_ = 0;
  std::vector<Real> scratch_;
};

}  // namespace
}  // namespace matrix
}  // namespace keras_linrec

int keras_linrec_matrix_scan(int flags, const int64_t* sizes,
                             const void* const* from, void* const* to) {
  using namespace keras_linrec;
  const matrix::Sizes s(flags, sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    return matrix::forward<decltype(real)>(s, from, to);
  });
}

int keras_linrec_matrix_scan_backward(int flags, const int64_t* sizes,
                                      const void* const* from,
                                      void* const* to) {
  using namespace keras_linrec;
  const matrix::Sizes s(flags, sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    matrix::Backward<decltype(real)>(s, from, to).run();
    return kKerasLinrecDone;
  });
}
