// The inner loops, compiled once for each instruction set (kernels.cpp) and
// selected at run time (dispatch.cpp). They use only plain data and function
// pointers: templates and inline functions of the standard library would have
// the same symbol in each set, and the linker might keep a copy that an older
// processor cannot run. Each X_kernels-inl.h holds one family of loops, and
// X_kernels.h the structs with their arguments.
#pragma once
#include <cstdint>

#include "base/activation_kernels.h"
#include "base/lane_kernels.h"
#include "base/product_kernels.h"
#include "convolution/fourier_kernels.h"
#include "matrix/matrix_kernels.h"
#include "scan/diagonal_kernels.h"
#include "scan/gate_kernels.h"
#include "scan/scan_kernels.h"
#include "structured/band_kernels.h"
#include "structured/irregular_kernels.h"

namespace keras_linrec {

template <class Real>
struct Kernels {
  int64_t panel;  // columns in a panel: two vectors
  void (*scan_rows)(const ScanRows<Real>&);
  void (*scan_rows_backward)(const ScanRowsBackward<Real>&);
  void (*scan_gated_rows)(const ScanRows<Real, double>&);
  void (*scan_gated_rows_backward)(const ScanRowsBackward<Real, double>&);
  void (*open_gates)(const OpenGates<Real>&);
  void (*close_gates)(const CloseGates<Real>&);
  void (*product)(const Product<Real>&);
  void (*product_of_few_rows)(const Product<Real>&);
  void (*respond)(const Respond<Real>&);
  void (*respond_backward)(const RespondBackward<Real>&);
  void (*add_scaled)(const AddScaled<Real>&);
  void (*dot_rows)(const DotRows<Real>&);
  void (*measure_squares)(const FourierSquares<Real>&);
  void (*spectrum_of)(const FourierSpectrum<Real>&);
  void (*convolve)(const FourierConvolution<Real>&);
  void (*convolve_backward)(const FourierGradient<Real>&);
  void (*sequences_of)(const FourierInverse<Real>&);
  void (*read_rows)(const MoveRows<Real>&);
  void (*write_rows)(const MoveRows<Real>&);
  void (*scale_rows)(const ScaleRows<Real>&);
  void (*dot_each)(const DotEach<Real>&);
  void (*solve_rows)(const SolveRows<Real>&);
  void (*transpose)(const Transpose<Real>&);
  void (*pair_of_rows)(const PairOfRows<Real>&);
  void (*carried_sum)(const CarriedSum<Real>&);
  void (*decayed_sum)(const DecayedSum<Real>&);
};

struct InstructionSet {
  const char* name;
  int64_t lanes;  // systems that take steps side by side: two vectors
  Kernels<float> single_precision;
  Kernels<double> double_precision;
  void (*solve_bands)(const BandSolve&);
  void (*multiply_bands)(const BandProduct&);
  void (*add_bands)(const BandSums&);
  void (*step_lanes)(const LaneSteps&);
  void (*step_lanes_backward)(const LaneStepsBackward&);
  void (*add_lanes)(const LaneSums&);
  void (*irregular_step)(const IrregularStep&);
  void (*irregular_step_backward)(const IrregularStepBackward&);
  void (*add_irregular)(const IrregularSums&);
  void (*step_diagonals)(const DiagonalSteps&);
  void (*step_diagonals_backward)(const DiagonalStepsBackward&);
};

// The best instruction set that this processor supports.
const InstructionSet& instruction_set();

}  // namespace keras_linrec
