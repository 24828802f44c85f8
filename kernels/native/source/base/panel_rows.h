// Rows and single numbers of matrices in panels (panels.h).
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/panels.h"

namespace keras_linrec {

// Calls use(number, row, column) for all numbers of a matrix.
template <class Real, class Use>
void for_each_number(Panels<Real>& matrix, Use use) {
  matrix.for_each_panel([&](int64_t p, int64_t column, int64_t count) {
    for (int64_t row = 0; row < matrix.rows; row++)
      for (int64_t i = 0; i < count; i++)
        use(matrix.at(p, row)[i], row, column + i);
  });
}

template <class Real>
Real& number_of(Panels<Real>& matrix, int64_t row, int64_t n) {
  return matrix.at(n / matrix.panel, row)[n % matrix.panel];
}

template <class Real>
void clear(Panels<Real>& matrix) {
  std::fill(matrix.numbers.begin(), matrix.numbers.end(), Real{0});
}

template <class Real>
void clear_row(Panels<Real>& matrix, int64_t row) {
  for (int64_t p = 0; p < matrix.panels; p++)
    std::fill_n(matrix.at(p, row), matrix.panel, Real{0});
}

// Not std::copy_n: a call of memmove costs more than so few numbers.
template <class Real>
void copy_row(const Panels<Real>& from, int64_t row, Panels<Real>& to,
              int64_t to_row) {
  for (int64_t p = 0; p < to.panels; p++)
    for (int64_t i = 0; i < to.panel; i++)
      to.at(p, to_row)[i] = from.at(p, row)[i];
}

template <class Real>
void add_row(const Panels<Real>& from, int64_t row, Panels<Real>& to,
             int64_t to_row) {
  for (int64_t p = 0; p < to.panels; p++)
    for (int64_t i = 0; i < to.panel; i++)
      to.at(p, to_row)[i] += from.at(p, row)[i];
}

// Calls use(numbers, done, count) for the numbers of a row from `column` on,
// `count` of which are contiguous.
template <class Real, class Use>
void for_each_run(Panels<Real>& matrix, int64_t row, int64_t column,
                  int64_t count, Use use) {
  for (int64_t done = 0; done < count;) {
    const int64_t place = (column + done) % matrix.panel;
    const int64_t run = std::min(matrix.panel - place, count - done);
    use(matrix.at((column + done) / matrix.panel, row) + place, done, run);
    done += run;
  }
}

// Calls use(number, other) for each number of a row and that of another matrix
// in the same column.
template <class Real, class Other, class Use>
void for_each_pair(Panels<Real>& matrix, int64_t row, Panels<Other>& others,
                   int64_t other_row, Use use) {
  matrix.for_each_panel([&](int64_t p, int64_t column, int64_t count) {
    Real* numbers = matrix.at(p, row);
    for_each_run(others, other_row, column, count,
                 [&](Other* other, int64_t done, int64_t run) {
                   for (int64_t i = 0; i < run; i++)
                     use(numbers[done + i], other[i]);
                 });
  });
}

// A row of `to` = a row of `from`, in another type.
template <class Real>
void round_row(Panels<double>& from, int64_t row, Panels<Real>& to,
               int64_t to_row) {
  for_each_pair(from, row, to, to_row, [](double number, Real& other) {
    other = static_cast<Real>(number);
  });
}
template <class Real>
void round_to(Panels<double>& from, Panels<Real>& to) {
  for (int64_t row = 0; row < from.rows; row++) round_row(from, row, to, row);
}
// A column of `to` = a row of `from`.
template <class Real>
void round_to_column(const Panels<double>& from, int64_t row,
                     Panels<Real>& to, int64_t to_column) {
  Real* target = to.at(to_column / to.panel) + to_column % to.panel;
  from.for_each_panel([&](int64_t p, int64_t column, int64_t count) {
    for (int64_t i = 0; i < count; i++)
      target[(column + i) * to.panel] = static_cast<Real>(from.at(p, row)[i]);
  });
}
template <class Real>
void round_transposed(const Panels<double>& from, Panels<Real>& to) {
  for (int64_t row = 0; row < from.rows; row++)
    round_to_column(from, row, to, row);
}

}  // namespace keras_linrec
