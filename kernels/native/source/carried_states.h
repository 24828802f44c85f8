// States that pass through a sequence: the free response of the states before
// it, and the states after it. Both go through time in blocks of S steps, one
// feature at a time, with powers of the transition as products:
//
//   free response  C Abar^(j S + i + 1) x = (C Abar^i) (Abar^(j S) Abar x)
//   final state    sum over j of Abar^(j S) sum over i < S of Abar^i Bbar u,
//
// u from the last step back, plus Abar^length x. Matrices are stored as in
// blocked_response.h.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "blocked_response.h"

namespace keras_linrec {

struct CarriedSizes {
  int64_t groups, batch, time, features, channels, state;
  double alpha;
  explicit CarriedSizes(const int64_t* sizes)
      : groups(sizes[0]),
        batch(sizes[1]),
        time(sizes[2]),
        features(sizes[3]),
        channels(sizes[4]),
        state(sizes[5]) {
    std::memcpy(&alpha, sizes + 6, sizeof alpha);
  }
  bool valid() const {
    return groups >= 0 && batch >= 0 && time >= 1 && features >= 0 &&
           channels >= 0 && state >= 1;
  }

  // Of a feature, in multiply-adds.
  double work(int64_t doublings) const {
    const double n = state, rows = batch, blocks = (time >> doublings) + 1.0;
    return doublings * n * n * n + (int64_t{1} << doublings) * n * n +
           blocks * std::max(rows, 4.0) * n * n + rows * time * n;
  }
  // The doublings of a step to a block that cost least.
  int64_t doublings() const {
    int64_t best = 0;
    for (int64_t k = 1; (int64_t{1} << k) < 2 * time; k++)
      if (work(k) < work(best)) best = k;
    return best;
  }
};

// (Abar^(2^k) - I)^T for k up to `doublings`, and their cotangents.
class Powers {
 public:
  Powers(const CarriedSizes& s, const Parameters& parameters, bool backward)
      : discretisation_(parameters, s.alpha),
        doublings_(s.doublings()),
        powers_(doublings_ + 1, Panels<double>(s.state, s.state)),
        slopes_(backward ? doublings_ + 1 : 0,
                Panels<double>(s.state, s.state)),
        transposed_(s.state, s.state) {}

  int64_t doublings() const { return doublings_; }
  int64_t block() const { return int64_t{1} << doublings_; }
  Panels<double>& at(int64_t k) { return powers_[k]; }
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

// Calls use(number, row, column) for all numbers of a matrix.
template <class Use>
void for_each_number(Panels<double>& matrix, Use use) {
  matrix.for_each_panel([&](int64_t p, int64_t column, int64_t count) {
    for (int64_t row = 0; row < matrix.rows; row++)
      for (int64_t i = 0; i < count; i++)
        use(matrix.at(p, row)[i], row, column + i);
  });
}

inline void clear(Panels<double>& matrix) {
  std::fill(matrix.numbers.begin(), matrix.numbers.end(), 0.0);
}

// The arrays of a group, and the gradients, of which a job writes its feature's
// numbers. Sequences are feature by feature: (features, batch, time).
template <class Real>
struct CarriedArrays {
  const Real *timescale, *output_matrix, *lengths, *inputs, *state;
};
template <class Real>
struct CarriedSlopes {
  Real *timescale, *output_matrix, *inputs, *state;
};

// --- the free response ------------------------------------------------------

class FreeResponse {
 public:
  FreeResponse(const CarriedSizes& s, const Parameters& parameters,
               bool backward)
      : s_(s),
        powers_(s, parameters, backward),
        size_(powers_.block()),
        blocks_((s.time + size_ - 1) / size_),
        start_(s.batch, s.state),
        states_(blocks_ * s.batch, s.state),
        rows_(size_ * s.channels, s.state),
        rows_transposed_(s.state, size_ * s.channels),
        result_(blocks_ * s.batch, size_ * s.channels),
        d_states_(backward ? states_.rows : 0, s.state),
        d_rows_(backward ? rows_.rows : 0, s.state),
        d_start_(backward ? s.batch : 0, s.state),
        d_input_(1, s.state),
        scratch_(backward ? std::max(s.batch, rows_.rows) : 0, s.state) {}

  template <class Real>
  void forward(const CarriedArrays<Real>& given, int64_t feature,
               Real* outputs) {
    begin(given, feature);
    transpose(rows_, rows_transposed_);
    multiply(states_.all(), rows_transposed_.all(), result_.all());
    for_each_run([&](const double* from, int64_t at, int64_t count) {
      Real* to = outputs + feature * s_.batch * s_.time * s_.channels + at;
      for (int64_t i = 0; i < count; i++) to[i] = static_cast<Real>(from[i]);
    });
  }

  template <class Real>
  void backward(const CarriedArrays<Real>& given, int64_t feature,
                const Real* d_outputs, const CarriedSlopes<Real>& to,
                Parameters& gradient) {
    begin(given, feature);
    clear(result_);
    for_each_run([&](double* to, int64_t at, int64_t count) {
      const int64_t first = feature * s_.batch * s_.time * s_.channels;
      std::copy_n(d_outputs + first + at, count, to);
    });
    multiply(result_.all(), rows_.all(), d_states_.all());
    multiply_transposed(result_.all(), states_.all(), d_rows_.all());
    for (int64_t j = blocks_ - 1; j > 0; j--)
      powers_.advance_backward(block_of(states_, j - 1), powers_.doublings(),
                               block_of(d_states_, j),
                               block_of(d_states_, j - 1), scratch(s_.batch));
    clear(d_start_);
    powers_.advance_backward(start_.all(), 0, block_of(d_states_, 0),
                             d_start_.all(), scratch(s_.batch));
    for (int64_t k = powers_.doublings() - 1; k >= 0; k--) {
      const int64_t half = s_.channels << k;
      powers_.advance_left_backward(rows_.rows_from(0, half), k,
                                    d_rows_.rows_from(half, half),
                                    d_rows_.rows_from(0, half), scratch(half));
    }
    const int64_t first = feature * s_.channels;
    for_each_number(d_rows_, [&](double number, int64_t row, int64_t n) {
      if (row < s_.channels)
        to.output_matrix[(first + row) * s_.state + n] =
            static_cast<Real>(number);
    });
    for_each_number(d_start_, [&](double number, int64_t row, int64_t n) {
      to.state[(row * s_.features + feature) * s_.state + n] =
          static_cast<Real>(number);
    });
    to.timescale[feature] =
        static_cast<Real>(powers_.backward(d_input_, gradient));
  }

 private:
  Rows block_of(Panels<double>& states, int64_t block) const {
    return states.rows_from(block * s_.batch, s_.batch);
  }
  Rows scratch(int64_t rows) { return scratch_.rows_from(0, rows); }

  template <class Real>
  void begin(const CarriedArrays<Real>& given, int64_t feature) {
    powers_.begin(given.timescale[feature]);
    for_each_number(start_, [&](double& number, int64_t row, int64_t n) {
      number = given.state[(row * s_.features + feature) * s_.state + n];
    });
    powers_.advance(start_.all(), 0, block_of(states_, 0));
    for (int64_t j = 1; j < blocks_; j++)
      powers_.advance(block_of(states_, j - 1), powers_.doublings(),
                      block_of(states_, j));
    const int64_t first = feature * s_.channels;
    for_each_number(rows_, [&](double& number, int64_t row, int64_t n) {
      if (row < s_.channels)
        number = given.output_matrix[(first + row) * s_.state + n];
    });
    for (int64_t k = 0; k < powers_.doublings(); k++) {
      const int64_t half = s_.channels << k;
      powers_.advance_left(rows_.rows_from(0, half), k,
                           rows_.rows_from(half, half));
    }
  }

  // Calls use(numbers, index in the feature's outputs, count) for each run of
  // the outputs in result_.
  template <class Use>
  void for_each_run(Use use) {
    result_.for_each_panel([&](int64_t p, int64_t column, int64_t width) {
      for (int64_t row = 0; row < result_.rows; row++) {
        const int64_t j = row / s_.batch, b = row % s_.batch;
        const int64_t first = j * size_ * s_.channels + column;
        const int64_t count = std::min(width, s_.time * s_.channels - first);
        if (count > 0)
          use(result_.at(p, row), b * s_.time * s_.channels + first, count);
      }
    });
  }

  const CarriedSizes& s_;
  Powers powers_;
  int64_t size_, blocks_;
  Panels<double> start_, states_, rows_, rows_transposed_, result_;
  Panels<double> d_states_, d_rows_, d_start_, d_input_, scratch_;
};

// --- the final states -------------------------------------------------------

class FinalStates {
 public:
  FinalStates(const CarriedSizes& s, const Parameters& parameters,
              bool backward)
      : s_(s),
        powers_(s, parameters, backward),
        size_(powers_.block()),
        blocks_(s.time / size_ + 1),
        columns_(size_, s.state),
        inputs_(blocks_ * s.batch, size_),
        additions_(inputs_.rows, s.state),
        states_(inputs_.rows, s.state),
        last_(s.batch, s.state),
        joining_((powers_.doublings() + 1) * s.batch, s.state),
        scratch_(std::max(s.batch, backward ? size_ : 0), s.state),
        columns_transposed_(s.state, backward ? size_ : 0),
        d_inputs_(backward ? inputs_.rows : 0, size_),
        d_additions_(backward ? inputs_.rows : 0, s.state),
        d_columns_(backward ? size_ : 0, s.state),
        d_joining_(backward ? s.batch : 0, s.state),
        masked_(backward ? s.batch : 0, s.state) {}

  template <class Real>
  void forward(const CarriedArrays<Real>& given, int64_t feature,
               Real* final_state) {
    begin(given, feature);
    for_each_number(last_, [&](double number, int64_t row, int64_t n) {
      final_state[(row * s_.features + feature) * s_.state + n] =
          static_cast<Real>(number);
    });
  }

  template <class Real>
  void backward(const CarriedArrays<Real>& given, int64_t feature,
                const Real* d_final_state, const CarriedSlopes<Real>& to,
                Parameters& gradient) {
    begin(given, feature);
    Rows slopes = last_.all();
    for_each_number(last_, [&](double& number, int64_t row, int64_t n) {
      number = d_final_state[(row * s_.features + feature) * s_.state + n];
    });
    // From here on, last_ is the cotangent of the states after block j - 1.
    for (int64_t j = blocks_; j > 0; j--) {
      copy_joining(given, j, last_, d_joining_);
      copy(slopes, block_of(d_additions_, j - 1));
      if (j == 1) break;
      clear(last_);
      powers_.advance_backward(block_of(states_, j - 1), powers_.doublings(),
                               block_of(d_additions_, j - 1), slopes,
                               scratch(s_.batch));
    }
    transpose(columns_, columns_transposed_);
    multiply(d_additions_.all(), columns_transposed_.all(), d_inputs_.all());
    multiply_transposed(inputs_.all(), d_additions_.all(), d_columns_.all());
    for (int64_t k = powers_.doublings() - 1; k >= 0; k--) {
      const int64_t half = int64_t{1} << k;
      powers_.advance_backward(columns_.rows_from(0, half), k,
                               d_columns_.rows_from(half, half),
                               d_columns_.rows_from(0, half), scratch(half));
      // Rows that do not take these steps pass their cotangents on.
      for_each_number(masked_, [&](double& number, int64_t row, int64_t n) {
        number = takes(given, row, k) ? number_of(d_joining_, row, n) : 0.0;
      });
      for_each_number(d_joining_, [&](double& number, int64_t row, int64_t) {
        if (takes(given, row, k)) number = 0.0;
      });
      powers_.advance_backward(joining_.rows_from(k * s_.batch, s_.batch), k,
                               masked_.all(), d_joining_.all(),
                               scratch(s_.batch));
    }
    for_each_run(given, d_inputs_, [&](const double* from, int64_t at,
                                       int64_t count) {
      Real* last = to.inputs + feature * s_.batch * s_.time + at;
      for (int64_t i = 0; i < count; i++)
        last[-i] = static_cast<Real>(from[i]);
    });
    for_each_number(d_joining_, [&](double number, int64_t row, int64_t n) {
      to.state[(row * s_.features + feature) * s_.state + n] =
          static_cast<Real>(number);
    });
    to.timescale[feature] =
        static_cast<Real>(powers_.backward(d_columns_, gradient));
  }

 private:
  Rows block_of(Panels<double>& states, int64_t block) const {
    return states.rows_from(block * s_.batch, s_.batch);
  }
  Rows scratch(int64_t rows) { return scratch_.rows_from(0, rows); }

  static double number_of(const Panels<double>& matrix, int64_t row,
                          int64_t column) {
    return matrix.at(column / matrix.panel, row)[column % matrix.panel];
  }
  static void copy(const Rows& from, const Rows& to) {
    for (int64_t p = 0; p * to.row < to.columns; p++)
      std::copy_n(from.at(p), to.rows * to.row, to.at(p));
  }

  template <class Real>
  int64_t length(const CarriedArrays<Real>& given, int64_t row) const {
    return std::clamp<int64_t>(static_cast<int64_t>(given.lengths[row]), 0,
                               s_.time);
  }
  // Whether 2^k steps are among those of a row that fill no block.
  template <class Real>
  bool takes(const CarriedArrays<Real>& given, int64_t row, int64_t k) const {
    return length(given, row) >> k & 1;
  }
  // to = the rows of `from` whose initial states join before block j.
  template <class Real>
  void copy_joining(const CarriedArrays<Real>& given, int64_t j,
                    Panels<double>& from, Panels<double>& to) const {
    for_each_number(to, [&](double& number, int64_t row, int64_t n) {
      if (blocks_ - length(given, row) / size_ == j)
        number = number_of(from, row, n);
    });
  }

  // Calls use(numbers, index in the feature's inputs, count) for each run of
  // the inputs in the blocks, which go back in time from the last one of each
  // row.
  template <class Real, class Use>
  void for_each_run(const CarriedArrays<Real>& given, Panels<double>& matrix,
                    Use use) const {
    matrix.for_each_panel([&](int64_t p, int64_t column, int64_t width) {
      for (int64_t row = 0; row < matrix.rows; row++) {
        const int64_t b = row % s_.batch, j = row / s_.batch;
        const int64_t last = length(given, b) -
                             (blocks_ - 1 - j) * size_ - 1 - column;
        const int64_t count = std::min(width, last + 1);
        if (count > 0) use(matrix.at(p, row), b * s_.time + last, count);
      }
    });
  }

  // Computes the states before each block, and the last ones.
  template <class Real>
  void begin(const CarriedArrays<Real>& given, int64_t feature) {
    powers_.begin(given.timescale[feature]);
    powers_.discretisation().give_input_vector(columns_);
    clear(inputs_);
    for_each_run(given, inputs_, [&](double* to, int64_t at, int64_t count) {
      const Real* last = given.inputs + feature * s_.batch * s_.time + at;
      for (int64_t i = 0; i < count; i++) to[i] = last[-i];
    });
    for_each_number(joining_, [&](double& number, int64_t row, int64_t n) {
      if (row < s_.batch)
        number = given.state[(row * s_.features + feature) * s_.state + n];
    });
    for (int64_t k = 0; k < powers_.doublings(); k++) {
      const int64_t half = int64_t{1} << k;
      powers_.advance(columns_.rows_from(0, half), k,
                      columns_.rows_from(half, half));
      const Rows from = joining_.rows_from(k * s_.batch, s_.batch);
      const Rows to = joining_.rows_from((k + 1) * s_.batch, s_.batch);
      powers_.advance(from, k, to);
      for (int64_t row = 0; row < s_.batch; row++)
        if (!takes(given, row, k))
          copy(from.rows_from(row, 1), to.rows_from(row, 1));
    }
    multiply(inputs_.all(), columns_.all(), additions_.all());
    copy(block_of(additions_, 0), last_.all());
    for (int64_t j = 1;; j++) {
      const int64_t joined = powers_.doublings() * s_.batch;
      for_each_number(last_, [&](double& number, int64_t row, int64_t n) {
        if (blocks_ - length(given, row) / size_ == j)
          number += number_of(joining_, joined + row, n);
      });
      if (j == blocks_) break;
      copy(last_.all(), block_of(states_, j));
      powers_.advance(block_of(states_, j), powers_.doublings(), last_.all());
      add_rows(block_of(additions_, j), last_.all());
    }
  }

  const CarriedSizes& s_;
  Powers powers_;
  int64_t size_, blocks_;
  // `joining_` holds the initial states after none, then more and more of the
  // steps that fill no block.
  Panels<double> columns_, inputs_, additions_, states_, last_, joining_;
  Panels<double> scratch_, columns_transposed_;
  Panels<double> d_inputs_, d_additions_, d_columns_, d_joining_, masked_;
};

}  // namespace keras_linrec
