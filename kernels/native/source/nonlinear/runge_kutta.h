// Explicit Runge-Kutta methods in which stage i starts from
// h + shifts[i] dt k_{i-1} and has the weight shares[i], indexed by the
// solver's number in the flags (core.h). The portable kernels have the same
// table in kernels/operations/nonlinear_recurrence.py.
#pragma once

namespace keras_linrec {

struct Method {
  int stages;
  double shifts[4], shares[4];
};

constexpr Method methods[] = {
    {1, {0}, {1}},  // none: a map, which is one stage
    {1, {0}, {1}},
    {2, {0, 0.5}, {0, 1}},
    {4, {0, 0.5, 0.5, 1}, {1 / 6., 1 / 3., 1 / 3., 1 / 6.}},
};

}  // namespace keras_linrec
