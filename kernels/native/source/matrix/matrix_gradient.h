// The gradient of a block of rows (matrix_block.h).
//
// With the cotangents dy of outputs, and G of the state behind the rows,
//
//   du_j = D_nj (G^T k_j) + sum_{i>=j} (q_i^T D_ij k_j) dy_i
//          - sum_{i>j} e_i (k_i^T D_ij k_j) du_i,
//
// c_i = -e_i du_i is the cotangent of z_i, and that of the state before the
// rows is D_n0 G + sum_i D_i0 (q_i dy_i^T + k_i c_i^T). The cotangents of
// queries, keys and decays follow from S dy, S c, G u and the products dy^T u
// and c^T u.
#pragma once
#include "matrix/matrix_block.h"

namespace keras_linrec {
namespace matrix {

// Where the cotangents of one head go: numbers of a step, or of a row, are
// `..._stride` apart, and those of `first_step` come first. None is null.
template <class Real>
struct Cotangents {
  int64_t first_step;
  Real* queries;
  Real* keys;
  Real* decay;
  Real* erase;
  Real* write;
  int64_t query_stride, key_stride, decay_stride, strength_stride;
};

template <class Real>
class BlockGradient {
 public:
  BlockGradient(const Sizes& s, int64_t width)
      : sizes_(s),
        d_outputs_(most_rows, width),
        d_changes_(d_outputs_),
        d_found_(d_outputs_),
        d_values_(d_outputs_),
        output_columns_(width, most_rows),
        found_columns_(output_columns_),
        change_columns_(output_columns_),
        product_(s.key_dim, most_rows),
        by_outputs_(most_rows, s.key_dim),
        by_found_(by_outputs_),
        by_changes_(by_outputs_),
        d_queries_(by_outputs_),
        d_keys_(by_outputs_),
        sums_(by_outputs_),
        between_(by_outputs_),
        total_(by_outputs_),
        of_channels_(s.key_dim) {}

  // From the state before the rows, and the cotangent of that behind them to
  // that of the former. `d_outputs` and `d_values` begin at the head's first
  // step, with the columns of the block.
  void run(Block<Real>& block, const Head<Real>& head, Panels<Real>& state,
           Panels<Real>& d_state, const Real* d_outputs, Real* d_values,
           const Cotangents<Real>& to) {
    const int64_t rows = block.rows, query_rows = block.query_rows;
    const int64_t step_size = sizes_.heads * sizes_.value_dim;
    if (query_rows)
      read_rows(d_outputs + block.step_of(0) * step_size, step_size,
                query_rows, d_outputs_, 0, -query_rows);
    find_d_changes(block, d_state);
    write_strengths(block, d_values, to);
    const auto times_columns = [&](Panels<Real>& left, Panels<Real>& right,
                                   int64_t count, Panels<Real>& found) {
      Matrix<Real> columns = right.all();
      columns.columns = count;
      multiply(left.all(), columns, product_.all());
      transpose(product_, sizes_.key_dim, found);
    };
    transpose(d_outputs_, query_rows, output_columns_);
    transpose(block.changes, rows, change_columns_);
    times_columns(state, output_columns_, query_rows, by_outputs_);
    times_columns(d_state, change_columns_, rows, by_changes_);
    Matrix<Real> changes = change_columns_.all();
    changes.columns = rows;
    multiply(d_outputs_.rows_from(0, query_rows), changes,
             outputs_changes_.part(query_rows, rows));
    if (sizes_.erased) {
      transpose(d_found_, rows, found_columns_);
      times_columns(state, found_columns_, rows, by_found_);
      multiply(d_found_.rows_from(0, rows), changes,
               found_changes_.part(rows, rows));
    }
    if (sizes_.decays) find_d_decay(block, head, state, d_state, to);
    find_d_vectors(block);
    write_vectors(block, to);
    multiply_transposed(block.early_queries_.rows_from(0, query_rows),
                        d_outputs_.rows_from(0, query_rows), d_state.all(),
                        false, block.decays.of(d_state));
    if (sizes_.erased)
      multiply_transposed(block.early_keys_.rows_from(0, rows),
                          d_found_.rows_from(0, rows), d_state.all(), true);
  }

 private:
  void find_d_changes(Block<Real>& block, Panels<Real>& d_state) {
    const int64_t rows = block.rows, query_rows = block.query_rows;
    multiply(block.late_keys_.rows_from(0, rows), d_state.all(),
             d_changes_.rows_from(0, rows));
    if (query_rows)
      multiply_transposed(block.read_.part(query_rows, rows),
                          d_outputs_.rows_from(0, query_rows),
                          d_changes_.rows_from(0, rows), true);
    if (!sizes_.erased) return;
    // From the last row to the first.
    const int64_t last = rows - 1;
    kernels<Real>().solve_rows({rows, d_changes_.panels, -d_changes_.panel,
                                d_changes_.stride(), -1, -block.erased_.row,
                                &block.erased_.at(last, last),
                                d_changes_.at(0, last)});
    // What was found for the keys, with that of the rows before them.
    multiply(block.linked_.part(rows, rows), block.changes.rows_from(0, rows),
             block.found_.rows_from(0, rows), true);
    scale_rows(block.negative_erase, rows, d_changes_, d_found_);
  }

  // The cotangents of values, and of what multiplies them.
  void write_strengths(Block<Real>& block, Real* d_values,
                       const Cotangents<Real>& to) {
    const int64_t row_size = sizes_.heads * sizes_.value_dim;
    const int64_t first = block.first() - to.first_step * sizes_.products;
    double products[most_rows];
    const auto write = [&](Real sign, const Panels<Real>& other, Real* target) {
      dot_each(block.rows, d_changes_, other, products);
      for (int64_t i = 0; i < block.rows; i++)
        target[(first + i) * to.strength_stride] =
            static_cast<Real>(sign * products[i]);
    };
    if (sizes_.written) write(1, block.values, to.write);
    if (sizes_.erased) write(-1, block.found_, to.erase);
    scale_rows(block.write, block.rows, d_changes_, d_values_);
    write_rows(d_values_, 0, block.rows, d_values + block.first() * row_size,
               row_size, -block.rows);
  }

  // dy_i^T u_j and c_i^T u_j; the former is zero where a row has no query.
  double of_output(int64_t query_row, int64_t j) {
    return outputs_changes_.at(query_row, j);
  }
  double of_found(int64_t i, int64_t j) {
    return sizes_.erased ? found_changes_.at(i, j) : 0;
  }

  void find_d_vectors(Block<Real>& block) {
    const int64_t* rows = block.all_rows;
    Decays<Real>& decays = block.decays;
    decays.scale_up_to(by_outputs_, block.ends, block.query_rows, d_queries_);
    decays.scale_behind(by_changes_, rows, block.rows, d_keys_);
    if (sizes_.erased)
      decays.scale_up_to(by_found_, rows, block.rows, d_keys_, true);
    if (sizes_.of_channels())
      add_pairs_of_channels(block);
    else
      add_pairs(block);
  }

  void add_pairs(Block<Real>& block) {
    const int64_t rows = block.rows, query_rows = block.query_rows;
    for (int64_t q = 0; q < query_rows; q++)
      for (int64_t j = 0; j < rows; j++)
        pairs_.at(q, j) =
            j > block.ends[q]
                ? 0
                : static_cast<Real>(block.decays.between(block.ends[q], j) *
                                    of_output(q, j));
    multiply(pairs_.part(query_rows, rows), block.keys.rows_from(0, rows),
             d_queries_.rows_from(0, query_rows), true);
    if (query_rows)
      multiply_transposed(pairs_.part(query_rows, rows),
                          block.queries.rows_from(0, query_rows),
                          d_keys_.rows_from(0, rows), true);
    if (!sizes_.erased) return;
    for (int64_t i = 0; i < rows; i++) {
      pairs_.at(i, i) = 0;
      for (int64_t j = 0; j < i; j++)
        pairs_.at(i, j) = pairs_.at(j, i) = static_cast<Real>(
            block.decays.between(i, j) * of_found(i, j));
    }
    multiply(pairs_.part(rows, rows), block.keys.rows_from(0, rows),
             d_keys_.rows_from(0, rows), true);
  }

  void add_pairs_of_channels(Block<Real>& block) {
    for (int64_t j = 0; j < block.rows; j++) {
      int64_t q = first_query(block, j);
      fill_with_ones(between_);
      for (int64_t i = j; i < block.rows; i++) {
        const bool is_query = q < block.query_rows && block.ends[q] == i;
        kernels<Real>().pair_of_rows(
            {between_.panels, between_.stride(),
             i > j ? block.decays.of_rows().at(0, i) : nullptr, between_.at(0),
             block.keys.at(0, j), block.keys.at(0, i),
             is_query ? block.queries.at(0, q) : nullptr,
             is_query ? static_cast<Real>(of_output(q, j)) : 0,
             i > j ? static_cast<Real>(of_found(i, j)) : 0,
             is_query ? d_queries_.at(0, q) : nullptr, d_keys_.at(0, i),
             d_keys_.at(0, j)});
        q += is_query;
      }
    }
  }

  void write_vectors(Block<Real>& block, const Cotangents<Real>& to) {
    if (block.query_rows)
      write_rows(d_queries_, 0, block.query_rows,
                 to.queries +
                     (block.step_of(0) - to.first_step) * to.query_stride,
                 to.query_stride, -block.query_rows);
    const int64_t first = block.first() - to.first_step * sizes_.products;
    write_rows(d_keys_, 0, block.rows, to.keys + first * to.key_stride,
               to.key_stride, -block.rows);
  }

  static int64_t first_query(Block<Real>& block, int64_t row) {
    return std::lower_bound(block.ends, block.ends + block.query_rows, row) -
           block.ends;
  }

  // The cotangent of decay s is the sum over pairs i >= s > j of D_is W_ij
  // D_(s-1)j, where W_ij is what D_ij is multiplied by in the loss, and row 0
  // is the state before the block, row n + 1 that behind it. Sums over j are
  // carried from one s to the next, so that no decay is divided by.
  void find_d_decay(Block<Real>& block, const Head<Real>& head,
                    Panels<Real>& state, Panels<Real>& d_state,
                    const Cotangents<Real>& to) {
    if (sizes_.of_channels())
      find_d_decay_of_channels(block, head, state, d_state, to);
    else
      find_d_decay_of_numbers(block, head, state, d_state, to);
  }

  Real* place_of(Block<Real>& block, int64_t row, const Cotangents<Real>& to) {
    const int64_t step = (block.first() + row) / sizes_.products;
    return to.decay + (step - to.first_step) * to.decay_stride;
  }

  void find_d_decay_of_numbers(Block<Real>& block, const Head<Real>& head,
                               Panels<Real>& state, Panels<Real>& d_state,
                               const Cotangents<Real>& to) {
    const int64_t rows = block.rows;
    double sums[most_rows + 1] = {};
    double products[most_rows];
    dot_each(block.query_rows, block.queries, by_outputs_, products);
    for (int64_t q = 0; q < block.query_rows; q++)
      sums[block.ends[q]] += products[q];
    if (sizes_.erased) {
      dot_each(rows, block.keys, by_found_, products);
      for (int64_t i = 0; i < rows; i++) sums[i] += products[i];
    }
    dot_each(sizes_.key_dim, d_state, state, of_channels_.data());
    for (double product : of_channels_) sums[rows] += product;
    dot_each(rows, block.keys, by_changes_, products);
    for (int64_t s = 0; s < rows; s++) {
      const int64_t row = block.first() + s;
      if (head.starts_step(row)) {
        double total = block.decays.behind(s) * sums[rows];
        for (int64_t i = s; i < rows; i++)
          total += block.decays.between(i, s) * sums[i];
        if (sizes_.logarithmic) total *= block.decays.of_row(s);
        const bool is_reset = head.is_reset(row / sizes_.products);
        *place_of(block, s, to) = is_reset ? 0 : static_cast<Real>(total);
      }
      int64_t q = first_query(block, s + 1);
      for (int64_t i = s + 1; i < rows; i++) {
        sums[i] *= block.decays.of_row(s);
        if (sizes_.erased)
          sums[i] += of_found(i, s) * block.overlaps_.at(i, s);
        if (q < block.query_rows && block.ends[q] == i) {
          sums[i] += of_output(q, s) * block.query_overlaps_.at(q, s);
          q++;
        }
      }
      sums[rows] = block.decays.of_row(s) * sums[rows] +
                   products[s];
    }
  }

  void find_d_decay_of_channels(Block<Real>& block, const Head<Real>& head,
                                Panels<Real>& state, Panels<Real>& d_state,
                                const Cotangents<Real>& to) {
    const int64_t rows = block.rows;
    find_first_sums(block, state, d_state);
    for (int64_t s = 0; s < rows; s++) {
      const int64_t row = block.first() + s;
      if (head.starts_step(row))
        write_d_decay(block, s, head.is_reset(row / sizes_.products),
                      place_of(block, s, to));
      int64_t q = first_query(block, s + 1);
      for (int64_t i = s + 1; i <= rows; i++) {
        const bool is_query = q < block.query_rows && block.ends[q] == i;
        kernels<Real>().carried_sum(
            {sums_.panels, sums_.stride(), block.decays.of_rows().at(0, s),
             sums_.at(0, i), block.keys.at(0, s),
             i < rows ? block.keys.at(0, i) : by_changes_.at(0, s),
             is_query ? block.queries.at(0, q) : nullptr,
             is_query ? static_cast<Real>(of_output(q, s)) : 0,
             i < rows ? static_cast<Real>(of_found(i, s)) : 1});
        q += is_query;
      }
    }
  }

  // The sums over the state before the block alone.
  void find_first_sums(Block<Real>& block, Panels<Real>& state,
                       Panels<Real>& d_state) {
    // Without decays, `between` is only read.
    const auto add = [&](int64_t row, const Real* key, const Real* by_key) {
      kernels<Real>().decayed_sum({sums_.panels, sums_.stride(), nullptr,
                                   const_cast<Real*>(key), by_key,
                                   sums_.at(0, row)});
    };
    clear(sums_);
    for (int64_t q = 0; q < block.query_rows; q++)
      add(block.ends[q], block.queries.at(0, q), by_outputs_.at(0, q));
    for (int64_t i = 0; i < block.rows && sizes_.erased; i++)
      add(i, block.keys.at(0, i), by_found_.at(0, i));
    dot_each(sizes_.key_dim, d_state, state, of_channels_.data());
    for (int64_t k = 0; k < sizes_.key_dim; k++)
      number_of(sums_, block.rows, k) = static_cast<Real>(of_channels_[k]);
  }

  void write_d_decay(Block<Real>& block, int64_t s, bool is_reset, Real* to) {
    Panels<Real>& decay = block.decays.of_rows();
    fill_with_ones(between_);
    clear(total_);
    for (int64_t i = s; i <= block.rows && !is_reset; i++)
      kernels<Real>().decayed_sum(
          {total_.panels, total_.stride(),
           i > s && i < block.rows ? decay.at(0, i) : nullptr, between_.at(0),
           sums_.at(0, i), total_.at(0)});
    if (sizes_.logarithmic)
      for (int64_t p = 0; p < total_.panels; p++)
        for (int64_t c = 0; c < total_.panel; c++)
          total_.at(p)[c] *= decay.at(p, s)[c];
    write_rows(total_, 0, 1, to, 0);
  }

  static void fill_with_ones(Panels<Real>& row) {
    for (int64_t p = 0; p < row.panels; p++)
      std::fill_n(row.at(p), row.panel, Real{1});
  }

  const Sizes& sizes_;
  Panels<Real> d_outputs_, d_changes_, d_found_, d_values_;
  Panels<Real> output_columns_, found_columns_, change_columns_;  // transposed
  Panels<Real> product_;
  // S dy, S c and G u of the rows.
  Panels<Real> by_outputs_, by_found_, by_changes_;
  Panels<Real> d_queries_, d_keys_;
  // With a decay for each key channel, whose blocks have fewer rows.
  Panels<Real> sums_, between_, total_;
  std::vector<double> of_channels_;
  Square<Real> pairs_, outputs_changes_, found_changes_;
};

}  // namespace matrix
}  // namespace keras_linrec
