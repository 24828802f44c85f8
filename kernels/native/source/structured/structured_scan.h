// The response of systems with a state before their inputs and one after them,
// in which resets may drop the state. Time is cut into blocks of S steps, and
// the steps of a row in a block into pieces between which the state is dropped.
// Each piece is a row of products:
//
//   outputs      y = u K + x R,    K the first S taps of the impulse response,
//                                  R the columns of C Abar^(t + 1),
//   states       x' = x Abar^S + u Z,   Z the rows of Abar^(S - 1 - t) Bbar,
//
// u the inputs of the piece within its block, and zeros; x the state before the
// block if the piece begins with it. Only the states take one block after
// another. The powers are float64; the products with inputs and states are of
// the inputs' type, and sums over many rows are float64 again. Matrices are
// stored as in impulse_by_blocks.h.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/panel_rows.h"
#include "structured/impulse_by_blocks.h"
#include "structured/structured_scan_pieces.h"

namespace keras_linrec {

// (Abar^(2^k) - I)^T for k up to `doublings`, and their cotangents.
class Powers {
 public:
  Powers(const StructuredScanSizes& s, const Parameters& parameters,
         bool backward)
      : discretisation_(parameters, s.alpha),
        doublings_(s.doublings()),
        powers_(doublings_ + 1, Panels<double>(s.state, s.state)),
        slopes_(backward ? doublings_ + 1 : 0,
                Panels<double>(s.state, s.state)),
        transposed_(s.state, s.state) {}

  int64_t doublings() const { return doublings_; }
  int64_t block() const { return int64_t{1} << doublings_; }
  Panels<double>& at(int64_t k) { return powers_[k]; }
  Panels<double>& slopes(int64_t k) { return slopes_[k]; }
  const Discretisation& discretisation() const { return discretisation_; }
  Panels<double>& transposed(int64_t k) {
    transpose(powers_[k], transposed_);
    return transposed_;
  }

  void begin(double timescale) {
    discretisation_.begin(timescale);
    discretisation_.give_transition(powers_[0]);
    for (int64_t k = 1; k <= doublings_; k++) {
      multiply(powers_[k - 1].all(), powers_[k - 1].all(), powers_[k].all());
      add_rows(powers_[k - 1].all(), powers_[k].all(), 2.0);
    }
    for (Panels<double>& slopes : slopes_)
      std::fill(slopes.numbers.begin(), slopes.numbers.end(), 0.0);
  }

  // to = from Abar^(2^k)^T, the states of rows after 2^k steps.
  void advance(const Rows& from, int64_t k, const Rows& to) {
    keras_linrec::advance(from, powers_[k], to);
  }

  // d_from += the cotangent of `from` in `advance`. `scratch` has as many rows.
  void advance_backward(const Rows& from, int64_t k, const Rows& d_to,
                        const Rows& d_from, const Rows& scratch) {
    multiply_transposed(from, d_to, slopes_[k].all(), true);
    keras_linrec::advance(d_to, transposed(k), scratch);
    add_rows(scratch, d_from);
  }

  // The same for rows that multiply from the left: to = from Abar^(2^k).
  void advance_left(const Rows& from, int64_t k, const Rows& to) {
    keras_linrec::advance(from, transposed(k), to);
  }
  void advance_left_backward(const Rows& from, int64_t k, const Rows& d_to,
                             const Rows& d_from, const Rows& scratch) {
    multiply_transposed(d_to, from, slopes_[k].all(), true);
    keras_linrec::advance(d_to, powers_[k], scratch);
    add_rows(scratch, d_from);
  }

  // Adds to `gradient` and returns the gradient of the timescale. Only the
  // first row of `d_input`, the cotangent of Bbar, is read.
  double backward(const Panels<double>& d_input, Parameters& gradient) {
    for (int64_t k = doublings_; k > 0; k--) {
      const Rows slopes = slopes_[k].all(), before = slopes_[k - 1].all();
      multiply_transposed(powers_[k - 1].all(), slopes, before, true);
      multiply(slopes, transposed(k - 1).all(), before, true);
      add_rows(slopes, before, 2.0);
    }
    return discretisation_.backward(&slopes_[0], d_input, gradient);
  }

 private:
  Discretisation discretisation_;
  int64_t doublings_;
  std::vector<Panels<double>> powers_, slopes_;
  Panels<double> transposed_;
};

// The arrays of a group, and the gradients, of which a job writes its feature's
// numbers. Sequences are feature by feature: (features, batch, time).
template <class Real>
struct StructuredScanArrays {
  const Real *timescale, *output_matrix, *inputs, *state;
};
template <class Real>
struct StructuredScanSlopes {
  Real *timescale, *output_matrix, *inputs, *state;
};

// --- the response of one feature --------------------------------------------

template <class Real>
class StructuredScan {
 public:
  StructuredScan(const StructuredScanSizes& s, const Pieces& pieces,
                 const Parameters& parameters, bool backward)
      : s_(s),
        pieces_(pieces),
        powers_(s, parameters, backward),
        size_(powers_.block()),
        width_(size_ * s.channels),
        columns_(size_, s.state),
        start_(s.channels, s.state),
        rows_(width_, s.state),
        taps_(s.channels * size_),
        block_(s.state, s.state),
        inputs_to_state_(size_, s.state),
        inputs_to_outputs_(size_, width_),
        state_to_outputs_(s.state, width_),
        inputs_(pieces.capacity(), size_),
        outputs_(pieces.capacity(), width_),
        added_(pieces.capacity(), s.state),
        states_(backward ? pieces.count() : pieces.capacity(), s.state),
        carried_(s.batch, s.state),
        moved_(s.batch, s.state),
        rests_(pieces.any_end() ? s.batch : 0, size_),
        joining_((powers_.doublings() + 1) * rests_.rows, s.state),
        last_(rests_.rows, s.state),
        d_inputs_(backward ? inputs_.rows : 0, size_),
        d_states_(backward ? inputs_.rows : 0, s.state),
        outputs_to_inputs_(backward ? width_ : 0, size_),
        outputs_to_state_(backward ? width_ : 0, s.state),
        state_to_inputs_(backward ? s.state : 0, size_),
        block_transposed_(backward ? s.state : 0, s.state),
        sums_(backward ? std::max({size_, width_, s.state}) : 0, s.state),
        d_taps_(backward ? size_ : 0, width_),
        d_columns_(backward ? size_ : 0, s.state),
        d_rows_(backward ? width_ : 0, s.state),
        d_start_(backward ? s.channels : 0, s.state),
        columns_transposed_(backward ? s.state : 0, size_),
        d_rests_(backward ? rests_.rows : 0, size_),
        d_joining_(backward ? rests_.rows : 0, s.state),
        masked_(d_joining_.rows, s.state),
        scratch_(
            backward ? std::max({rows_.rows, size_, s.batch, s.channels}) : 0,
            s.state) {}

  void forward(const StructuredScanArrays<Real>& given, int64_t feature,
               Real* outputs, Real* final_state) {
    begin(given, feature);
    for (int64_t block = 0; block < pieces_.blocks();) {
      const int64_t end = pieces_.chunk_end(block);
      load_inputs(given, feature, block, end);
      pass_states(block, end, 0);
      const int64_t first = pieces_.first(block), count = rows(block, end);
      multiply_from(inputs_.rows_from(0, count), inputs_to_outputs_,
                    outputs_.rows_from(0, count));
      multiply(states_.rows_from(0, count), state_to_outputs_.all(),
               outputs_.rows_from(0, count), true);
      for (int64_t i = 0; i < count; i++) {
        const Piece& piece = pieces_[first + i];
        Real* to = outputs + of_outputs(feature, piece);
        for_each_run(outputs_, i, piece.place * s_.channels,
                     piece.count * s_.channels,
                     [&](const Real* from, int64_t done, int64_t run) {
                       std::copy_n(from, run, to + done);
                     });
      }
      finish_rests(given, feature, block, end, 0);
      block = end;
    }
    clear_behind(outputs, feature, s_.channels);
    if (pieces_.any_end()) advance_rests();
    for (int64_t row = 0; row < s_.batch; row++)
      for (int64_t n = 0; n < s_.state; n++)
        final_state[of_state(row, feature) + n] =
            pieces_.end(row) < 0
                ? number_of(carried_, row, n)
                : static_cast<Real>(number_of(last_, row, n));
  }

  void backward(const StructuredScanArrays<Real>& given, int64_t feature,
                const Real* d_outputs, const Real* d_final_state,
                const StructuredScanSlopes<Real>& to, Parameters& gradient) {
    begin(given, feature);
    for (int64_t block = 0; block < pieces_.blocks();) {
      const int64_t end = pieces_.chunk_end(block);
      load_inputs(given, feature, block, end);
      pass_states(block, end, pieces_.first(block));
      finish_rests(given, feature, block, end, pieces_.first(block));
      block = end;
    }
    begin_backward();
    // From here on, carried_ is the cotangent of the states after a block.
    for_each_number(carried_, [&](Real& number, int64_t row, int64_t n) {
      number = pieces_.end(row) < 0 ? d_final_state[of_state(row, feature) + n]
                                    : Real{0};
    });
    if (pieces_.any_end()) {
      advance_rests();
      for_each_number(last_, [&](double& number, int64_t row, int64_t n) {
        number = pieces_.end(row) < 0
                     ? 0.0
                     : d_final_state[of_state(row, feature) + n];
      });
      backward_rests();
    }
    for (int64_t end = pieces_.blocks(); end > 0;) {
      const int64_t block = pieces_.chunk_start(end);
      load_inputs(given, feature, block, end);
      load_cotangents(d_outputs, feature, block, end);
      backward_chunk(block, end);
      give_inputs(to.inputs, feature, block, end);
      end = block;
    }
    clear_behind(to.inputs, feature, 1);
    for (int64_t row = 0; row < s_.batch; row++)
      for (int64_t n = 0; n < s_.state; n++)
        to.state[of_state(row, feature) + n] = number_of(carried_, row, n);
    backward_taps();
    backward_rows();
    for_each_number(d_start_, [&](double number, int64_t row, int64_t n) {
      to.output_matrix[(feature * s_.channels + row) * s_.state + n] =
          static_cast<Real>(number);
    });
    backward_columns();
    to.timescale[feature] =
        static_cast<Real>(powers_.backward(d_columns_, gradient));
  }

 private:
  typedef Matrix<Real> View;

  int64_t rows(int64_t block, int64_t end) const {
    return pieces_.first(end) - pieces_.first(block);
  }
  int64_t of_state(int64_t row, int64_t feature) const {
    return (row * s_.features + feature) * s_.state;
  }
  int64_t of_inputs(int64_t feature, const Piece& piece) const {
    return (feature * s_.batch + piece.row) * s_.time + piece.first;
  }
  int64_t of_outputs(int64_t feature, const Piece& piece) const {
    return of_inputs(feature, piece) * s_.channels;
  }

  // Sets what belongs to steps behind the rows' ends to zero, in an array of
  // `width` numbers a step.
  void clear_behind(Real* numbers, int64_t feature, int64_t width) const {
    for (int64_t row = 0; row < s_.batch; row++) {
      const int64_t length = pieces_.length(row);
      const int64_t first = (feature * s_.batch + row) * s_.time + length;
      std::fill_n(numbers + first * width, (s_.time - length) * width, Real{0});
    }
  }

  // Makes the factors, and carried_ the initial state.
  void begin(const StructuredScanArrays<Real>& given, int64_t feature) {
    powers_.begin(given.timescale[feature]);
    powers_.discretisation().give_input_vector(columns_);
    for_each_number(start_, [&](double& number, int64_t row, int64_t n) {
      const int64_t read_out = feature * s_.channels + row;
      number = given.output_matrix[read_out * s_.state + n];
    });
    powers_.advance_left(start_.all(), 0, rows_.rows_from(0, s_.channels));
    for (int64_t k = 0; k < powers_.doublings(); k++) {
      const int64_t half = int64_t{1} << k, read = half * s_.channels;
      powers_.advance(columns_.rows_from(0, half), k,
                      columns_.rows_from(half, half));
      powers_.advance_left(rows_.rows_from(0, read), k,
                           rows_.rows_from(read, read));
    }
    make_taps();
    round_to(powers_.at(powers_.doublings()), block_);
    for (int64_t i = 0; i < size_; i++)
      round_row(columns_, size_ - 1 - i, inputs_to_state_, i);
    round_transposed(rows_, state_to_outputs_);
    for_each_input(inputs_to_outputs_, [](Real& number, double& tap) {
      number = static_cast<Real>(tap);
    });
    for_each_number(carried_, [&](Real& number, int64_t row, int64_t n) {
      number = given.state[of_state(row, feature) + n];
    });
  }

  // taps_ = C Abar^k Bbar, all channels of a step side by side
  void make_taps() {
    std::fill(taps_.begin(), taps_.end(), 0.0);
    columns_.for_each_panel([&](int64_t p, int64_t, int64_t count) {
      for (int64_t m = 0; m < s_.channels; m++)
        for (int64_t k = 0; k < size_; k++)
          for (int64_t i = 0; i < count; i++)
            taps_[k * s_.channels + m] +=
                start_.at(p, m)[i] * columns_.at(p, k)[i];
    });
  }

  // Calls use(number, tap) for the numbers of a matrix from each input of a
  // block, its row, to the outputs that it has an effect on.
  template <class Use>
  void for_each_input(Panels<Real>& matrix, Use use) {
    for (int64_t row = 0; row < size_; row++) {
      const int64_t first = row * s_.channels;
      for_each_run(matrix, row, first, width_ - first,
                   [&](Real* numbers, int64_t done, int64_t run) {
                     for (int64_t i = 0; i < run; i++)
                       use(numbers[i], taps_[done + i]);
                   });
    }
  }

  void load_inputs(const StructuredScanArrays<Real>& given, int64_t feature,
                   int64_t block, int64_t end) {
    for (int64_t i = 0; i < rows(block, end); i++) {
      const Piece& piece = pieces_[pieces_.first(block) + i];
      const Real* from = given.inputs + of_inputs(feature, piece);
      if (piece.count < size_) clear_row(inputs_, i);
      for_each_run(inputs_, i, piece.place, piece.count,
                   [&](Real* to, int64_t done, int64_t run) {
                     std::copy_n(from + done, run, to);
                   });
    }
  }

  void load_cotangents(const Real* d_outputs, int64_t feature, int64_t block,
                       int64_t end) {
    for (int64_t i = 0; i < rows(block, end); i++) {
      const Piece& piece = pieces_[pieces_.first(block) + i];
      const Real* from = d_outputs + of_outputs(feature, piece);
      if (piece.count < size_) clear_row(outputs_, i);
      for_each_run(outputs_, i, piece.place * s_.channels,
                   piece.count * s_.channels,
                   [&](Real* to, int64_t done, int64_t run) {
                     std::copy_n(from + done, run, to);
                   });
    }
  }

  // Passes carried_ through the blocks of a chunk; states_, from the row
  // `first` on, are what enters the pieces.
  void pass_states(int64_t block, int64_t end, int64_t first) {
    const int64_t base = pieces_.first(block);
    multiply(inputs_.rows_from(0, rows(block, end)), inputs_to_state_.all(),
             added_.rows_from(0, rows(block, end)));
    for (; block < end; block++) {
      advance(carried_.all(), block_, moved_.all());
      for (int64_t r = pieces_.first(block); r < pieces_.first(block + 1);
           r++) {
        const Piece& piece = pieces_[r];
        if (piece.enters)
          copy_row(carried_, piece.row, states_, first + r - base);
        else
          clear_row(states_, first + r - base);
        if (!piece.fills) continue;
        copy_row(added_, r - base, carried_, piece.row);
        if (piece.enters) add_row(moved_, piece.row, carried_, piece.row);
      }
    }
  }

  // c = a b, of which b has only zeros below the diagonal of its blocks: row i
  // has an effect on the columns from i * channels on.
  void multiply_from(const View& a, Panels<Real>& b, const View& c) {
    b.for_each_panel([&](int64_t p, int64_t column, int64_t count) {
      View left = a, part = b.all().panels_from(p, count);
      left.columns = std::min((column + count - 1) / s_.channels + 1, size_);
      multiply(left, part, c.panels_from(p, count));
    });
  }

  // --- rows that end within a block ---

  // Whether 2^k steps are among those of a row that fill no block.
  bool takes(int64_t row, int64_t k) const {
    return pieces_.rest(row, size_) >> k & 1;
  }

  // Whether any does: if all rows are of one length, few powers are needed.
  bool any_takes(int64_t k) const {
    for (int64_t row = 0; row < s_.batch; row++)
      if (takes(row, k)) return true;
    return false;
  }

  // Keeps the last inputs of the rows that end in a chunk, and the states that
  // enter their last blocks.
  void finish_rests(const StructuredScanArrays<Real>& given, int64_t feature,
                    int64_t block, int64_t end, int64_t first) {
    for (int64_t row = 0; row < s_.batch; row++) {
      const int64_t r = pieces_.end(row);
      if (r < pieces_.first(block) || r >= pieces_.first(end)) continue;
      const Piece& piece = pieces_[r];
      const Real* last =
          given.inputs + of_inputs(feature, piece) + piece.count - 1;
      clear_row(rests_, row);
      for (int64_t i = 0; i < piece.count; i++)
        number_of(rests_, row, i) = last[-i];
      for (int64_t n = 0; n < s_.state; n++)
        number_of(joining_, row, n) =
            number_of(states_, first + r - pieces_.first(block), n);
    }
  }

  // last_ = the states after rows that end within a block; joining_ holds the
  // states that enter their last blocks after none, then more and more of
  // their steps.
  void advance_rests() {
    const int64_t batch = s_.batch;
    for (int64_t k = 0; k < powers_.doublings(); k++) {
      const Rows from = joining_.rows_from(k * batch, batch);
      if (any_takes(k))
        powers_.advance(from, k, joining_.rows_from((k + 1) * batch, batch));
      for (int64_t row = 0; row < batch; row++)
        if (!takes(row, k))
          copy_row(joining_, k * batch + row, joining_, (k + 1) * batch + row);
    }
    multiply(rests_.all(), columns_.all(), last_.all());
    add_rows(joining_.rows_from(powers_.doublings() * batch, batch),
             last_.all());
  }

  // last_ is the cotangent of what it was. d_joining_ becomes that of the
  // states that enter the last blocks.
  void backward_rests() {
    const int64_t batch = s_.batch;
    transpose(columns_, columns_transposed_);
    multiply(last_.all(), columns_transposed_.all(), d_rests_.all());
    multiply_transposed(rests_.all(), last_.all(), d_columns_.all(), true);
    std::copy(last_.numbers.begin(), last_.numbers.end(),
              d_joining_.numbers.begin());
    for (int64_t k = powers_.doublings() - 1; k >= 0; k--) {
      if (!any_takes(k)) continue;
      // Rows that do not take these steps pass their cotangents on.
      for (int64_t row = 0; row < batch; row++) {
        clear_row(masked_, row);
        if (!takes(row, k)) continue;
        copy_row(d_joining_, row, masked_, row);
        clear_row(d_joining_, row);
      }
      powers_.advance_backward(joining_.rows_from(k * batch, batch), k,
                               masked_.all(), d_joining_.all(),
                               scratch_.rows_from(0, batch));
    }
  }

  // --- gradients ---

  void begin_backward() {
    round_to(rows_, outputs_to_state_);
    for (int64_t row = 0; row < width_; row++) {
      const double* tap = taps_.data() + row;
      for_each_run(outputs_to_inputs_, row, 0, row / s_.channels + 1,
                   [&](Real* to, int64_t, int64_t run) {
                     for (int64_t i = 0; i < run; i++, tap -= s_.channels)
                       to[i] = static_cast<Real>(*tap);
                   });
    }
    for (int64_t i = 0; i < size_; i++)
      round_to_column(columns_, size_ - 1 - i, state_to_inputs_, i);
    round_transposed(powers_.at(powers_.doublings()), block_transposed_);
    std::fill(taps_.begin(), taps_.end(), 0.0);
    clear(d_columns_);
    clear(d_rows_);
    clear(d_start_);
  }

  // From the cotangents of a chunk's outputs, in outputs_, and of the states
  // after it, in carried_.
  void backward_chunk(int64_t block, int64_t end) {
    const int64_t base = pieces_.first(block), count = rows(block, end);
    const View d_outputs = outputs_.rows_from(0, count);
    const View d_states = d_states_.rows_from(0, count);
    multiply(d_outputs, outputs_to_state_.all(), d_states);
    for (int64_t b = end - 1; b >= block; b--) {
      advance(carried_.all(), block_transposed_, moved_.all());
      for (int64_t r = pieces_.first(b + 1) - 1; r >= pieces_.first(b); r--)
        pass_back(pieces_[r], r, r - base);
    }
    // added_ holds the cotangents of the states after the pieces.
    const View d_added = added_.rows_from(0, count);
    const View inputs = inputs_.rows_from(0, count);
    const View states = states_.rows_from(base, count);
    const View d_inputs = d_inputs_.rows_from(0, count);
    multiply(d_added, state_to_inputs_.all(), d_inputs);
    outputs_to_inputs_.for_each_panel([&](int64_t p, int64_t column,
                                          int64_t width) {
      // The outputs from these inputs on.
      const int64_t skipped = column * s_.channels / outputs_.panel;
      const int64_t first = skipped * outputs_.panel;
      const View part{outputs_to_inputs_.at(p, first), width_ - first, width,
                      outputs_.panel, outputs_to_inputs_.stride()};
      multiply(d_outputs.panels_from(skipped, width_ - first), part,
               d_inputs.panels_from(p, width), true);
    });
    multiply_transposed(inputs, d_added, sums_.rows_from(0, size_));
    for (int64_t i = 0; i < size_; i++) settle(i, d_columns_, size_ - 1 - i);
    multiply_transposed(d_outputs, states, sums_.rows_from(0, width_));
    for (int64_t i = 0; i < width_; i++) settle(i, d_rows_, i);
    multiply_transposed(states, d_added, sums_.rows_from(0, s_.state));
    Panels<double>& d_power = powers_.slopes(powers_.doublings());
    for (int64_t n = 0; n < s_.state; n++) settle(n, d_power, n);
    d_taps_.for_each_panel([&](int64_t p, int64_t column, int64_t width) {
      View left = inputs;
      left.columns =
          std::min((column + width - 1) / s_.channels + 1, size_);
      multiply_transposed(left, d_outputs.panels_from(p, width),
                          d_taps_.all().panels_from(p, width));
    });
    for_each_input(d_taps_, [](Real number, double& tap) { tap += number; });
  }

  // Adds a row of sums_.
  void settle(int64_t row, Panels<double>& to, int64_t to_row) {
    for_each_pair(to, to_row, sums_, row,
                  [](double& sum, Real number) { sum += number; });
  }

  // Takes the cotangent of the state after the piece r, number i of its chunk,
  // from carried_, and gives that of the state before it.
  void pass_back(const Piece& piece, int64_t r, int64_t i) {
    if (piece.fills)
      copy_row(carried_, piece.row, added_, i);
    else
      clear_row(added_, i);
    if (piece.place > 0) return;
    if (!piece.enters) return clear_row(carried_, piece.row);
    copy_row(d_states_, i, carried_, piece.row);
    if (piece.fills) add_row(moved_, piece.row, carried_, piece.row);
    if (pieces_.end(piece.row) == r)
      for (int64_t n = 0; n < s_.state; n++)
        number_of(carried_, piece.row, n) +=
            static_cast<Real>(number_of(d_joining_, piece.row, n));
  }

  void give_inputs(Real* to, int64_t feature, int64_t block, int64_t end) {
    for (int64_t i = 0; i < rows(block, end); i++) {
      const int64_t r = pieces_.first(block) + i;
      const Piece& piece = pieces_[r];
      Real* given = to + of_inputs(feature, piece);
      for_each_run(d_inputs_, i, piece.place, piece.count,
                   [&](const Real* from, int64_t done, int64_t run) {
                     std::copy_n(from, run, given + done);
                   });
      if (pieces_.end(piece.row) == r)
        for (int64_t j = 0; j < piece.count; j++)
          given[piece.count - 1 - j] +=
              static_cast<Real>(number_of(d_rests_, piece.row, j));
    }
  }

  // Pulls back the taps' cotangents, which taps_ holds.
  void backward_taps() {
    columns_.for_each_panel([&](int64_t p, int64_t, int64_t count) {
      for (int64_t m = 0; m < s_.channels; m++)
        for (int64_t k = 0; k < size_; k++) {
          const double slope = taps_[k * s_.channels + m];
          for (int64_t i = 0; i < count; i++) {
            d_start_.at(p, m)[i] += slope * columns_.at(p, k)[i];
            d_columns_.at(p, k)[i] += slope * start_.at(p, m)[i];
          }
        }
    });
  }

  void backward_rows() {
    for (int64_t k = powers_.doublings() - 1; k >= 0; k--) {
      const int64_t half = s_.channels << k;
      powers_.advance_left_backward(
          rows_.rows_from(0, half), k, d_rows_.rows_from(half, half),
          d_rows_.rows_from(0, half), scratch_.rows_from(0, half));
    }
    powers_.advance_left_backward(
        start_.all(), 0, d_rows_.rows_from(0, s_.channels), d_start_.all(),
        scratch_.rows_from(0, s_.channels));
  }

  void backward_columns() {
    for (int64_t k = powers_.doublings() - 1; k >= 0; k--) {
      const int64_t half = int64_t{1} << k;
      powers_.advance_backward(
          columns_.rows_from(0, half), k, d_columns_.rows_from(half, half),
          d_columns_.rows_from(0, half), scratch_.rows_from(0, half));
    }
  }

  const StructuredScanSizes& s_;
  const Pieces& pieces_;
  Powers powers_;
  int64_t size_, width_;
  // Abar^i Bbar, C, C Abar^(t + 1) and C Abar^k Bbar, or the last's cotangent.
  Panels<double> columns_, start_, rows_;
  Numbers taps_;
  // The factors of the products: see above.
  Panels<Real> block_, inputs_to_state_, inputs_to_outputs_, state_to_outputs_;
  // A row for each piece: of a chunk, but for the backward pass' states_.
  Panels<Real> inputs_, outputs_, added_, states_;
  // A row for each row.
  Panels<Real> carried_, moved_;
  // For rows that end within a block; their inputs go back in time.
  Panels<double> rests_, joining_, last_;
  Panels<Real> d_inputs_, d_states_;
  Panels<Real> outputs_to_inputs_, outputs_to_state_, state_to_inputs_;
  Panels<Real> block_transposed_, sums_, d_taps_;
  Panels<double> d_columns_, d_rows_, d_start_, columns_transposed_;
  Panels<double> d_rests_, d_joining_, masked_, scratch_;
};

}  // namespace keras_linrec
