// Compiled once for each instruction set, with its flags and with
// KERAS_LINREC_SET set to its name. It may export nothing but that one object:
// see kernels.h.
#include "base/kernels.h"

#include "base/activation_kernels-inl.h"
#include "structured/band_kernels-inl.h"
#include "convolution/fourier_kernels-inl.h"
#include "base/lane_kernels-inl.h"
#include "base/product_kernels-inl.h"
#include "scan/scan_kernels-inl.h"
#include "structured/varying_kernels-inl.h"

namespace keras_linrec {
namespace {

template <class Real>
constexpr Kernels<Real> table() {
  return {2 * Types<Real>::width,
          scan_rows<Real>,
          scan_rows_backward<Real>,
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
          sequences_of<Real>};
}

}  // namespace

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
extern const InstructionSet KERAS_LINREC_SET;
const InstructionSet KERAS_LINREC_SET = {TEXT(KERAS_LINREC_SET),
                                         table<float>(),
                                         table<double>(),
                                         solve_bands,
                                         multiply_bands,
                                         add_bands,
                                         step_lanes,
                                         step_lanes_backward,
                                         add_lanes,
                                         varying_step,
                                         varying_step_backward,
                                         add_varying};

}  // namespace keras_linrec
