// Compiled once for each instruction set, with its flags and with
// KERAS_LINREC_SET set to its name. It may export nothing but that one object:
// see kernels.h.
#include "base/kernels.h"

#include "base/activation_kernels-inl.h"
#include "base/lane_kernels-inl.h"
#include "base/product_kernels-inl.h"
#include "convolution/fourier_kernels-inl.h"
#include "matrix/matrix_kernels-inl.h"
#include "scan/diagonal_kernels-inl.h"
#include "scan/gate_kernels-inl.h"
#include "scan/scan_kernels-inl.h"
#include "structured/band_kernels-inl.h"
#include "structured/irregular_kernels-inl.h"

namespace keras_linrec {
namespace {

template <class Real>
constexpr Kernels<Real> table() {
  return {2 * Types<Real>::width,
          scan_rows<Real, Real>,
          scan_rows_backward<Real, Real>,
          scan_rows<Real, double>,
          scan_rows_backward<Real, double>,
          open_gates<Real>,
          close_gates<Real>,
          product<Real>,
          product_of_few_rows<Real>,
          respond<Real>,
          respond_backward<Real>,
          add_scaled<Real>,
          dot_rows<Real>,
          measure_squares<Real>,
          spectrum_of<Real>,
          convolve<Real>,
          convolve_backward<Real>,
          sequences_of<Real>,
          read_rows<Real>,
          write_rows<Real>,
          scale_rows<Real>,
          dot_each<Real>,
          solve_rows<Real>,
          transpose_panels<Real>,
          pair_of_rows<Real>,
          carried_sum<Real>,
          decayed_sum<Real>};
}

}  // namespace

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
extern const InstructionSet KERAS_LINREC_SET;
const InstructionSet KERAS_LINREC_SET = {TEXT(KERAS_LINREC_SET),
                                         lanes,
                                         table<float>(),
                                         table<double>(),
                                         solve_bands,
                                         multiply_bands,
                                         add_bands,
                                         step_lanes,
                                         step_lanes_backward,
                                         add_lanes,
                                         irregular_step,
                                         irregular_step_backward,
                                         add_irregular,
                                         step_diagonals,
                                         step_diagonals_backward};

}  // namespace keras_linrec
