// The kernels of the CUDA core: for each, its name and the work of one block.
//
// `cuda_kernels.cu` makes kernels of this list, and `cuda_calls.cpp` finds them
// by name.
#pragma once
#include "cuda/cuda_contour.h"
#include "cuda/cuda_nonlinear.h"
#include "cuda/cuda_response.h"
#include "cuda/cuda_scan.h"

// KERNEL(name, type)
#define KERAS_LINREC_SCANS(KERNEL, pass, Pass)                      \
  KERNEL(pass##_float_real, Pass<float, 1, false>)                  \
  KERNEL(pass##_float_real_per_step, Pass<float, 1, true>)          \
  KERNEL(pass##_float_complex, Pass<float, 2, false>)               \
  KERNEL(pass##_float_complex_per_step, Pass<float, 2, true>)       \
  KERNEL(pass##_double_real, Pass<double, 1, false>)                \
  KERNEL(pass##_double_real_per_step, Pass<double, 1, true>)        \
  KERNEL(pass##_double_complex, Pass<double, 2, false>)             \
  KERNEL(pass##_double_complex_per_step, Pass<double, 2, true>)

// By type and number: of parts, or of rows in a block.
#define KERAS_LINREC_PAIRS(KERNEL, pass, Pass, one, many)  \
  KERNEL(pass##_float_##one, Pass<float, one>)             \
  KERNEL(pass##_float_##many, Pass<float, many>)           \
  KERNEL(pass##_double_##one, Pass<double, one>)           \
  KERNEL(pass##_double_##many, Pass<double, many>)

#define KERAS_LINREC_TYPES(KERNEL, pass, Pass) \
  KERNEL(pass##_float, Pass<float>)            \
  KERNEL(pass##_double, Pass<double>)

// A macro cannot take the commas of a type as part of one argument.
#define KERAS_LINREC_KERNELS(KERNEL)                                     \
  KERAS_LINREC_SCANS(KERNEL, scan, Scan)                                 \
  KERAS_LINREC_SCANS(KERNEL, scan_backward, ScanBackward)                \
  KERAS_LINREC_PAIRS(KERNEL, add_decays, AddDecays, 1, 2)                \
  KERAS_LINREC_PAIRS(KERNEL, nonlinear_scan, NonlinearScan, 1, 4)        \
  KERAS_LINREC_PAIRS(KERNEL, nonlinear_scan_backward,                    \
                     NonlinearScanBackward, 1, 4)                        \
  KERAS_LINREC_TYPES(KERNEL, impulse_response, ImpulseResponse)          \
  KERAS_LINREC_TYPES(KERNEL, impulse_response_backward,                  \
                     ImpulseResponseBackward)                            \
  KERAS_LINREC_TYPES(KERNEL, add_features, AddFeatures)                  \
  KERAS_LINREC_TYPES(KERNEL, contour_values, ContourValues)              \
  KERAS_LINREC_TYPES(KERNEL, contour_response, ContourResponse)          \
  KERAS_LINREC_TYPES(KERNEL, contour_cotangents, ContourCotangents)      \
  KERAS_LINREC_TYPES(KERNEL, contour_sums, ContourSums)                  \
  KERAS_LINREC_TYPES(KERNEL, contour_gradients, ContourGradients)
