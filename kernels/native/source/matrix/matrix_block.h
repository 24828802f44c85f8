// Rows of a head of a matrix scan that are computed together.
//
// A row is one product of a step: S <- D S + k_i (w_i v_i - e_i (D S)^T k_i)^T.
// With D_ij the product of the decays behind row j up to row i, and z_i what is
// found for a key, rows from a state S on have
//
//   z_i = D_i0 k_i^T S + sum_{j<i} (k_i^T D_ij k_j) u_j,
//   u_i = w_i v_i - e_i z_i,
//   y_i = D_i0 q_i^T S + sum_{j<=i} (q_i^T D_ij k_j) u_j,
//
// and the state behind them is D_n0 S + sum_j D_nj k_j u_j^T: products of small
// matrices, which read S once for all rows. A block ends before a step that is
// reset.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/panel_rows.h"
#include "matrix/matrix_arguments.h"

namespace keras_linrec {
namespace matrix {

// Rows in a block. What a row costs beside the state grows with them.
constexpr int64_t most_rows = 16;
// With a decay for each key channel, where pairs of rows cost more.
constexpr int64_t rows_of_channels = 8;

// Numbers for pairs of rows, in rows of at least a panel.
template <class Real>
struct Square {
  int64_t row = std::max(most_rows, kernels<Real>().panel);
  std::vector<Real> numbers = std::vector<Real>(most_rows * row);
  Real& at(int64_t i, int64_t j) { return numbers[i * row + j]; }
  // The first rows and columns.
  Matrix<Real> part(int64_t rows, int64_t columns, int64_t first = 0) {
    return {numbers.data() + first * row, rows, columns, row,
            kernels<Real>().panel};
  }
};

// Row j of `to` = column j of the first rows of `from`.
template <class Real>
void transpose(const Panels<Real>& from, int64_t rows, Panels<Real>& to) {
  kernels<Real>().transpose(
      {rows, from.columns, from.stride(), to.stride(), from.at(0), to.at(0)});
}

// Rows of `to`, `row` apart in memory; `ahead`: see MoveRows.
template <class Real>
void read_rows(const Real* from, int64_t row, int64_t rows, Panels<Real>& to,
               int64_t first = 0, int64_t ahead = 0) {
  kernels<Real>().read_rows(
      {rows, to.columns, row, to.stride(), from, to.at(0, first), ahead});
}
template <class Real>
void write_rows(const Panels<Real>& from, int64_t first, int64_t rows,
                Real* to, int64_t row, int64_t ahead = 0) {
  kernels<Real>().write_rows(
      {rows, from.columns, row, from.stride(), from.at(0, first), to, ahead});
}

// to (+)= factor * from on the first rows, with a factor for each.
template <class Real>
void scale_rows(const Real* factors, int64_t rows, const Panels<Real>& from,
                Panels<Real>& to, bool add = false) {
  kernels<Real>().scale_rows({rows, from.panels, from.stride(), factors,
                              from.at(0), to.at(0), add});
}

// The products of the first rows of two matrices, row by row.
template <class Real>
void dot_each(int64_t rows, const Panels<Real>& a, const Panels<Real>& b,
              double* to) {
  kernels<Real>().dot_each({rows, a.panels, a.stride(), b.stride(), a.at(0),
                            b.at(0), to});
}
template <class Real>
double dot(const Panels<Real>& a, int64_t row, const Panels<Real>& b,
           int64_t other_row) {
  double product;
  kernels<Real>().dot_each({1, a.panels, a.stride(), b.stride(),
                            a.at(0, row), b.at(0, other_row), &product});
  return product;
}

// The decays of a block, and products of them.
template <class Real>
class Decays {
 public:
  explicit Decays(const Sizes& s)
      : sizes_(s),
        of_rows_(s.of_channels() ? most_rows : 0, s.key_dim),
        up_to_(of_rows_),
        behind_(of_rows_),
        factors_(s.key_dim, 1) {
    sums_.resize(of_rows_.panels * of_rows_.panel);
    totals_.resize(sums_.size());
  }

  // Reads those of `rows` rows from `first` on.
  void read(const Head<Real>& head, int64_t first, int64_t rows) {
    rows_ = rows;
    if (sizes_.decays == 0) return;
    if (sizes_.of_channels())
      read_channels(head, first);
    else
      read_numbers(head, first);
  }

  // D_ij, if there is one number a step.
  double between(int64_t i, int64_t j) const {
    if (sizes_.decays != 1) return 1;
    return between_[i * most_rows + j];
  }
  double of_row(int64_t i) const { return sizes_.decays == 1 ? decay_[i] : 1; }
  Panels<Real>& of_rows() { return of_rows_; }

  // to (+)= D_i0 times row r of `from`, for each i = rows[r].
  void scale_up_to(const Panels<Real>& from, const int64_t* rows,
                   int64_t count, Panels<Real>& to, bool add = false) {
    const auto number = [&](int64_t i) { return up_to(i); };
    scale(from, up_to_, number, rows, count, to, add);
  }
  // to = D_ni times row i of `from`.
  void scale_behind(const Panels<Real>& from, const int64_t* rows,
                    int64_t count, Panels<Real>& to) {
    const auto number = [&](int64_t i) { return behind(i); };
    scale(from, behind_, number, rows, count, to, false);
  }
  double up_to(int64_t i) const { return sizes_.decays == 1 ? up_[i] : 1; }
  double behind(int64_t j) const { return between(rows_ - 1, j); }

  // D_n0 times a state, to add a product to.
  Decayed<Real> of(const Panels<Real>& state) const {
    return {factors_.data(), state.at(0), is_near_one_};
  }

 private:
  // The decay of a step, or what stands for 0: one of NaN is dropped too.
  Real at_reset_or(const Head<Real>& head, int64_t step, Real decay) const {
    if (!head.is_reset(step)) return decay;
    return sizes_.logarithmic ? -std::numeric_limits<Real>::infinity()
                              : Real{0};
  }

  void read_numbers(const Head<Real>& head, int64_t first) {
    double logarithm = 0, product = 1;
    for (int64_t i = 0; i < rows_; i++) {
      decay_[i] = 1;
      if (head.starts_step(first + i)) {
        const int64_t step = (first + i) / sizes_.products;
        decay_[i] = at_reset_or(head, step, head.decay[step * sizes_.heads]);
        logarithm += decay_[i];
        if (sizes_.logarithmic) decay_[i] = std::exp(decay_[i]);
      }
      up_[i] = product *= decay_[i];
      double* row = between_ + i * most_rows;
      for (int64_t j = 0; j < i; j++) row[j] = decay_[i] * row[j - most_rows];
      row[i] = 1;
    }
    is_near_one_ = product >= 0.5;
    std::fill(factors_.begin(), factors_.end(),
              factor_of(product, logarithm));
  }

  void read_channels(const Head<Real>& head, int64_t first) {
    std::fill(sums_.begin(), sums_.end(), 0.0);
    std::fill(totals_.begin(), totals_.end(), 1.0);
    for (int64_t i = 0; i < rows_; i++) {
      const bool has_decay = head.starts_step(first + i);
      if (has_decay) {
        const int64_t step = (first + i) / sizes_.products;
        read_rows(head.decay + step * sizes_.heads * sizes_.decays,
                  sizes_.heads * sizes_.decays, 1, of_rows_, i);
        for (int64_t p = 0; p < of_rows_.panels && head.is_reset(step); p++)
          std::fill_n(of_rows_.at(p, i), of_rows_.panel,
                      at_reset_or(head, step, Real{0}));
      }
      for (int64_t p = 0; p < of_rows_.panels; p++) {
        Real* row = of_rows_.at(p, i);
        double* sums = sums_.data() + p * of_rows_.panel;
        double* totals = totals_.data() + p * of_rows_.panel;
        for (int64_t c = 0; c < of_rows_.panel; c++) {
          if (!has_decay) row[c] = 1;
          if (has_decay && sizes_.logarithmic) {
            sums[c] += row[c];
            row[c] = std::exp(row[c]);
          }
          totals[c] *= row[c];
          up_to_.at(p, i)[c] = (i ? up_to_.at(p, i - 1)[c] : 1) * row[c];
        }
      }
    }
    for (int64_t i = rows_ - 1; i >= 0; i--)
      for (int64_t p = 0; p < of_rows_.panels; p++)
        for (int64_t c = 0; c < of_rows_.panel; c++)
          behind_.at(p, i)[c] = i + 1 == rows_
                                    ? Real{1}
                                    : behind_.at(p, i + 1)[c] *
                                          of_rows_.at(p, i + 1)[c];
    is_near_one_ = std::all_of(totals_.begin(),
                               totals_.begin() + sizes_.key_dim,
                               [](double total) { return total >= 0.5; });
    for (int64_t k = 0; k < sizes_.key_dim; k++)
      factors_[k] = factor_of(totals_[k], sums_[k]);
  }

  // By which a state is multiplied: the product, or what it lacks to one, which
  // a rounded product would not have if it is close to one.
  Real factor_of(double product, double logarithm) const {
    if (!is_near_one_) return static_cast<Real>(product);
    return static_cast<Real>(sizes_.logarithmic ? std::expm1(logarithm)
                                                : product - 1);
  }

  template <class Number>
  void scale(const Panels<Real>& from, const Panels<Real>& channels,
             const Number& number, const int64_t* rows, int64_t count,
             Panels<Real>& to, bool add) {
    if (!sizes_.of_channels()) {
      Real factors[most_rows];
      for (int64_t r = 0; r < count; r++)
        factors[r] = static_cast<Real>(number(rows[r]));
      return scale_rows(factors, count, from, to, add);
    }
    for (int64_t p = 0; p < from.panels; p++)
      for (int64_t r = 0; r < count; r++) {
        const Real* factors = channels.at(p, rows[r]);
        const Real* numbers = from.at(p, r);
        Real* target = to.at(p, r);
        for (int64_t c = 0; c < from.panel; c++)
          target[c] = (add ? target[c] : 0) + factors[c] * numbers[c];
      }
  }

  const Sizes& sizes_;
  int64_t rows_ = 0;
  // With one number a step.
  double decay_[most_rows], up_[most_rows], between_[most_rows * most_rows];
  // With one for each channel.
  Panels<Real> of_rows_, up_to_, behind_;
  std::vector<double> sums_, totals_;
  std::vector<Real> factors_;
  bool is_near_one_ = false;
};

// The rows of a block and its matrices, for `width` columns of values.
template <class Real>
class Block {
 public:
  Block(const Sizes& s, int64_t width)
      : keys(most_rows, s.key_dim),
        queries(keys),
        values(most_rows, width),
        changes(values),
        decays(s),
        sizes_(s),
        early_keys_(keys),
        early_queries_(keys),
        late_keys_(keys),
        columns_(s.key_dim, most_rows),
        found_(values),
        outputs_(values) {}

  // How many rows from `first` on, of those before `end`, a block has.
  static int64_t rows_from(const Head<Real>& head, int64_t first,
                           int64_t end) {
    int64_t rows = 1;
    const int64_t most =
        head.sizes->of_channels() ? rows_of_channels : most_rows;
    while (rows < most && first + rows < end &&
           !(head.starts_step(first + rows) &&
             head.is_reset((first + rows) / head.sizes->products)))
      rows++;
    return rows;
  }

  // Reads `rows` rows from `first` on, and the columns of values from `column`.
  // The rows from `next` on are read by a block soon.
  void read(const Head<Real>& head, int64_t first, int64_t rows,
            int64_t column, int64_t next) {
    first_ = first;
    this->rows = rows;
    query_rows = 0;
    decays.read(head, first, rows);
    const int64_t key_row = sizes_.key_heads * sizes_.key_dim;
    const int64_t value_row = sizes_.heads * sizes_.value_dim;
    const int64_t query_step = sizes_.query_heads * sizes_.key_dim;
    const int64_t ahead = next - first;
    read_rows(head.keys + first * key_row, key_row, rows, keys, 0, ahead);
    read_rows(head.values + first * value_row + column, value_row, rows,
              values, 0, ahead);
    for (int64_t i = 0; i < rows; i++) {
      all_rows[i] = i;
      write[i] = static_cast<Real>(head.strength(head.write, first + i, 1));
      negative_erase[i] =
          static_cast<Real>(-head.strength(head.erase, first + i, 0));
      if (head.ends_step(first + i)) ends[query_rows++] = i;
    }
    if (query_rows)
      read_rows(head.queries + step_of(0) * query_step, query_step, query_rows,
                queries, 0, ahead / sizes_.products);
    find_overlaps();
  }

  // The changes u of the rows, from the state before them.
  void find_changes(Panels<Real>& state) {
    scale_rows(write, rows, values, changes);
    if (!sizes_.erased) return;
    multiply(early_keys_.rows_from(0, rows), state.all(),
             found_.rows_from(0, rows));
    scale_rows(negative_erase, rows, found_, changes, true);
    kernels<Real>().solve_rows({rows, changes.panels, changes.panel,
                                changes.stride(), erased_.row, 1,
                                erased_.numbers.data(), changes.at(0)});
  }

  // The outputs of the query rows.
  Panels<Real>& find_outputs(Panels<Real>& state) {
    const auto outputs = outputs_.rows_from(0, query_rows);
    multiply(early_queries_.rows_from(0, query_rows), state.all(), outputs);
    if (are_finite(changes)) {
      multiply(read_.part(query_rows, rows), changes.rows_from(0, rows),
               outputs, true);
      return outputs_;
    }
    // The zeros for later rows would make NaN of them.
    for (int64_t q = 0; q < query_rows; q++)
      multiply(read_.part(1, ends[q] + 1, q), changes.rows_from(0, ends[q] + 1),
               outputs_.rows_from(q, 1), true);
    return outputs_;
  }

  // The state behind the rows, from that before them, which may be the same.
  void advance(const Panels<Real>& before, Panels<Real>& state) {
    multiply_transposed(late_keys_.rows_from(0, rows),
                        changes.rows_from(0, rows), state.all(), false,
                        decays.of(before));
  }

  int64_t first() const { return first_; }
  int64_t step_of(int64_t query_row) const {
    return (first_ + ends[query_row]) / sizes_.products;
  }

  int64_t rows = 0, query_rows = 0;
  int64_t ends[most_rows];      // the rows of the queries
  int64_t all_rows[most_rows];  // 0, 1, 2, ...
  Real negative_erase[most_rows], write[most_rows];
  Panels<Real> keys, queries, values, changes;
  Decays<Real> decays;

 private:
  template <class>
  friend class BlockGradient;

  // False for some large numbers too, whose squares are not finite.
  bool are_finite(const Panels<Real>& numbers) const {
    double squares[most_rows];
    dot_each(rows, numbers, numbers, squares);
    return std::all_of(squares, squares + rows,
                       [](double square) { return std::isfinite(square); });
  }

  void find_overlaps() {
    decays.scale_up_to(keys, all_rows, rows, early_keys_);
    decays.scale_behind(keys, all_rows, rows, late_keys_);
    decays.scale_up_to(queries, ends, query_rows, early_queries_);
    if (sizes_.of_channels()) return find_overlaps_of_channels();
    transpose(keys, rows, columns_);
    if (sizes_.erased)
      multiply(keys.rows_from(0, rows), columns_.all(),
               overlaps_.part(rows, rows));
    multiply(queries.rows_from(0, query_rows), columns_.all(),
             query_overlaps_.part(query_rows, rows));
    for (int64_t i = 0; i < rows && sizes_.erased; i++)
      for (int64_t j = 0; j < i; j++)
        set_overlap(i, j,
                    decays.between(i, j) * overlaps_.at(i, j));
    for (int64_t q = 0; q < query_rows; q++)
      for (int64_t j = 0; j < rows; j++)
        read_.at(q, j) =
            j > ends[q] ? 0
                        : static_cast<Real>(decays.between(ends[q], j) *
                                            query_overlaps_.at(q, j));
  }

  void find_overlaps_of_channels() {
    for (int64_t j = 0; j < rows; j++) {
      copy_row(keys, j, moved_, 0);
      int64_t q = std::lower_bound(ends, ends + query_rows, j) - ends;
      for (int64_t before = 0; before < q; before++) read_.at(before, j) = 0;
      for (int64_t i = j; i < rows; i++) {
        if (i > j) {
          Panels<Real>& of_rows = decays.of_rows();
          for (int64_t p = 0; p < moved_.panels; p++)
            for (int64_t c = 0; c < moved_.panel; c++)
              moved_.at(p)[c] *= of_rows.at(p, i)[c];
          if (sizes_.erased) set_overlap(i, j, dot(keys, i, moved_, 0));
        }
        if (q < query_rows && ends[q] == i) {
          read_.at(q, j) = static_cast<Real>(dot(queries, q, moved_, 0));
          q++;
        }
      }
    }
  }

  void set_overlap(int64_t i, int64_t j, double overlap) {
    linked_.at(i, j) = static_cast<Real>(overlap);
    erased_.at(i, j) = static_cast<Real>(negative_erase[i] * overlap);
  }

  const Sizes& sizes_;
  int64_t first_ = 0;
  // Keys and queries with the decays up to their row, and behind it.
  Panels<Real> early_keys_, early_queries_, late_keys_;
  Panels<Real> columns_;                    // the keys, transposed
  Panels<Real> found_, outputs_;
  Panels<Real> moved_{1, sizes_.key_dim};
  // k_i^T k_j and q_i^T k_j, and with decays: k_i^T D_ij k_j, the same times
  // -e_i, and q_i^T D_ij k_j.
  Square<Real> overlaps_, query_overlaps_, linked_, erased_, read_;
};

}  // namespace matrix
}  // namespace keras_linrec
