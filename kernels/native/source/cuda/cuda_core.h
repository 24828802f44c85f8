// The functions of the CUDA core that the frameworks' adapters call. They queue
// kernels on a stream and do not wait for their end. Arrays are on one GPU,
// contiguous, and otherwise as in core.h; `scratch` is memory on that GPU, of
// as many bytes as the function of the same name says, or null for none.
//
// They return a `KerasLinrecStatus`.
#pragma once
#include "base/core.h"

extern "C" {

// Loads CUDA's driver library from a path, and keeps the kernels: the contents
// of the file that nvcc made of cuda_kernels.cu. Once for a process.
KERAS_LINREC_PUBLIC int keras_linrec_cuda_open(const char* driver,
                                               const void* kernels,
                                               int64_t bytes);

// Why the last call in this thread failed.
KERAS_LINREC_PUBLIC const char* keras_linrec_cuda_message();

// As `keras_linrec_scan`.
KERAS_LINREC_PUBLIC int keras_linrec_cuda_scan(int flags, const int64_t* sizes,
                                               const void* const* from,
                                               void* const* to, void* scratch,
                                               void* stream);
KERAS_LINREC_PUBLIC int64_t
keras_linrec_cuda_scan_scratch(int flags, const int64_t* sizes);

// As `keras_linrec_scan_backward`.
KERAS_LINREC_PUBLIC int keras_linrec_cuda_scan_backward(
    int flags, const int64_t* sizes, const void* const* from, void* const* to,
    void* scratch, void* stream);
KERAS_LINREC_PUBLIC int64_t
keras_linrec_cuda_scan_backward_scratch(int flags, const int64_t* sizes);

// h_t = activation(h_{t-1} R + z_t), or a step of a solver, as in
// `keras_linrec_nonlinear_scan` in core.h, but without activations of pairs.
//   sizes: groups, batch, time, units, whether outputs are needed, the bits of
//     the leak
//   from: z, followed by z' with a gate, (batch, time, units or twice as many);
//     R (units, units), or A and R side by side; step sizes, resets,
//     initial state
//   to: outputs (batch, time, units), final state
KERAS_LINREC_PUBLIC int keras_linrec_cuda_nonlinear_scan(
    int flags, const int64_t* sizes, const void* const* from, void* const* to,
    void* scratch, void* stream);

// The sequential part of the gradient; cuda_nonlinear.h defines e.
//   sizes: the same, with whether there are d_outputs
//   from: factors (batch, stages, time, units or twice as many), the
//     transpose of (A, R), resets, d_outputs, d_final_state
//   to: e (batch, stages, time, units), d_initial_state
KERAS_LINREC_PUBLIC int keras_linrec_cuda_nonlinear_scan_backward(
    int flags, const int64_t* sizes, const void* const* from, void* const* to,
    void* scratch, void* stream);

// As `keras_linrec_impulse_response`: on GPUs with fast float64 by a contour
// (cuda_contour.h) where it is right, elsewhere step by step.
KERAS_LINREC_PUBLIC int keras_linrec_cuda_impulse_response(
    int flags, const int64_t* sizes, const void* const* from, void* const* to,
    void* scratch, void* stream);

KERAS_LINREC_PUBLIC int64_t keras_linrec_cuda_impulse_response_scratch(
    int flags, const int64_t* sizes);

// As `keras_linrec_impulse_response_backward`.
KERAS_LINREC_PUBLIC int keras_linrec_cuda_impulse_response_backward(
    int flags, const int64_t* sizes, const void* const* from, void* const* to,
    void* scratch, void* stream);
KERAS_LINREC_PUBLIC int64_t keras_linrec_cuda_impulse_response_backward_scratch(
    int flags, const int64_t* sizes);

}  // extern "C"
