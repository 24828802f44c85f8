// The functions that the frameworks' adapters call. Arrays are contiguous, in
// row-major order; a complex quantity is two arrays, real and imaginary.
#pragma once
#include <cstdint>

#ifdef _WIN32
#define KERAS_LINREC_PUBLIC __declspec(dllexport)
#else
#define KERAS_LINREC_PUBLIC __attribute__((visibility("default")))
#endif

enum KerasLinrecFlags {
  kKerasLinrecComplex = 1,
  kKerasLinrecPerStep = 2,  // decay (batch, time, channels), not (channels,)
  kKerasLinrecReverse = 4,
  kKerasLinrecFloat64 = 8,
  // For nonlinear scans; causal convolutions have an activation too.
  kKerasLinrecLinear = 16,  // there is a linear kernel beside the recurrent one
  kKerasLinrecGated = 32,
  kKerasLinrecStepGradient = 64,  // the gradient of the step sizes is needed
  // For moves of steps. The first bit alone tells a move from its transpose.
  kKerasLinrecToPlaces = 16,    // from the front of a row, not to it
  kKerasLinrecWithMasked = 32,  // see `keras_linrec_move_steps`
  // For scans of matrix states: decays are given as their logarithms.
  kKerasLinrecLogarithmic = 16,
  // For scans of structured systems: there is no initial state, but zeros.
  kKerasLinrecFromZeros = 16,
  // For diagonal systems: discretised by the bilinear method.
  kKerasLinrecBilinear = 16,
  // For gated scans: see gate_kernels.h.
  kKerasLinrecTwoGates = 16,
  kKerasLinrecRates = 32,
  kKerasLinrecPositive = 64,
  // There are resets: numbers (batch, time), of which those that are not zero
  // mark steps before which the state is dropped, whatever it was.
  kKerasLinrecResets = 128,
  // The first bits of the solver (0 none, 1 Euler, 2 midpoint, 3 classical
  // Runge-Kutta) and of the activation (activation_kernels.h).
  kKerasLinrecSolverBit = 8,
  kKerasLinrecActivationBit = 12,
};

enum KerasLinrecStatus {
  kKerasLinrecDone = 0,
  kKerasLinrecOutOfMemory = 1,
  kKerasLinrecBadSizes = 2,
  kKerasLinrecFailed = 3,
};

extern "C" {

// The name of the instruction set in use, and the number of threads.
KERAS_LINREC_PUBLIC const char* keras_linrec_instruction_set();
KERAS_LINREC_PUBLIC int keras_linrec_threads();

// The table in operations.h, as JSON.
KERAS_LINREC_PUBLIC const char* keras_linrec_operations();

// Checks the shapes of a call's tensors. Returns why they do not fit together,
// or null, and then the sizes that the operation's function takes, at most 16.
//   attributes: those of the operation, in their order
//   shapes: of each tensor, the number of axes and their sizes
KERAS_LINREC_PUBLIC const char* keras_linrec_sizes(
    int operation, int64_t flags, const int64_t* attributes, int tensors,
    const int64_t* shapes, int64_t* sizes);

// Makes the core run on the threads of an OpenMP runtime: its GOMP_parallel,
// omp_get_thread_num and omp_get_max_threads. Threads of a framework that spin
// while they wait, as that runtime's do, would otherwise compete with ours for
// the processors.
KERAS_LINREC_PUBLIC void keras_linrec_use_openmp(void* parallel, void* index,
                                                 void* most);

// h_t = decay_t * h_{t-1} + inputs_t. Every quantity is one array, or two if
// complex, with a leading axis of `groups`: independent systems, each with its
// own batch.
//   sizes: groups, batch, time, channels
//   from: decay, inputs (batch, time, channels), resets (batch, time) or
//     empty, one array, initial state (batch, channels)
//   to: outputs, which may be `inputs`, and the final state
KERAS_LINREC_PUBLIC int keras_linrec_scan(int flags, const int64_t* sizes,
                                          const void* const* from,
                                          void* const* to);

//   from: decay, outputs, resets, initial state, d_outputs, d_final_state
//   to: d_decay, d_inputs, which may be `d_outputs`, d_initial_state
KERAS_LINREC_PUBLIC int keras_linrec_scan_backward(int flags,
                                                   const int64_t* sizes,
                                                   const void* const* from,
                                                   void* const* to);

// h_t = decay_t * h_{t-1} + entering_t, which gates compute from a drive, block
// by block: see gate_kernels.h.
//   sizes: groups, batch, time, channels
//   from: drive (batch, time, 2 or 3 times channels), a bias (as many), inputs
//     (batch, time, channels) and largest rate (channels,) with rates, else
//     empty; resets (batch, time) or empty, initial state (batch, channels)
//   to: outputs (batch, time, channels) and the final state
KERAS_LINREC_PUBLIC int keras_linrec_gated_scan(int flags, const int64_t* sizes,
                                                const void* const* from,
                                                void* const* to);

//   from: drive, bias, inputs, largest rate, outputs, resets, initial state,
//     d_outputs, d_final_state
//   to: d_drive, d_bias, d_inputs, d_largest_rate, d_initial_state
KERAS_LINREC_PUBLIC int keras_linrec_gated_scan_backward(
    int flags, const int64_t* sizes, const void* const* from, void* const* to);

// outputs = Re(scan(inputs @ input_kernel) @ output_kernel), block by block.
//   sizes: groups, batch, time, features, channels, units, block
//   from: decay, inputs (batch, time, features), input_kernel (features,
//     channels), output_kernel (channels, units), resets (batch, time) or
//     empty, initial state; `inputs` and resets are always one array
//   to: outputs (batch, time, units), real; the final state; and checkpoints,
//     the state that enters each block of `block` steps, (batch, time / block +
//     2, parts, channels), one array, or null. There are always two or more,
//     so that a compiler that does not know the time need not find out whether
//     there is only one
KERAS_LINREC_PUBLIC int keras_linrec_projected_scan(int flags,
                                                    const int64_t* sizes,
                                                    const void* const* from,
                                                    void* const* to);

//   from: decay, inputs, input_kernel, output_kernel, resets, checkpoints,
//     d_outputs, d_final_state
//   to: d_decay, d_inputs, d_input_kernel, d_output_kernel, d_initial_state
KERAS_LINREC_PUBLIC int keras_linrec_projected_scan_backward(
    int flags, const int64_t* sizes, const void* const* from, void* const* to);

// response[h, m, k] = C[h, m] Abar[h]^k Bbar[h], the output k steps after an
// impulse of systems x' = A x + B u, A = P (D + T^-1) Q, that are discretised
// by the generalised bilinear transform with a timescale for each feature.
//   sizes: groups, features, channels, state, time, the bits of alpha as a
//     double, and the steps in a block: a power of two, -1 for no blocks (step
//     by step), or 0 for the fastest choice
//   from: p, d, q (state,), t (3, state): superdiagonal, diagonal and
//     subdiagonal, where the last entry of the outer two is ignored;
//     b (state,), timescale (features,), C (features, channels, state)
//   to: response (features, channels, time)
KERAS_LINREC_PUBLIC int keras_linrec_impulse_response(int flags,
                                                      const int64_t* sizes,
                                                      const void* const* from,
                                                      void* const* to);

//   from: the same, and d_response
//   to: d_p, d_d, d_q, d_t, d_b, d_timescale, d_C; all but the last may be null
//     together, if nobody wants them
KERAS_LINREC_PUBLIC int keras_linrec_impulse_response_backward(
    int flags, const int64_t* sizes, const void* const* from, void* const* to);

// outputs[b, t, h] = C[h] x_t, the response of the same systems to inputs, with
// a length for each step:
//
//   x_t = Abar x_{t-1} + Bbar u_t, discretised with time_deltas[b, t]
//   timescale[h]; x_{t-1} is zero where resets[b, t] > 0.
//
//   sizes: groups, batch, time, features, channels, state, block, the bits of
//     alpha as a double
//   from: p, d, q, t, b, timescale, C, as above; time_deltas (batch, time),
//     resets (batch, time), inputs (batch, time, features), initial state
//     (batch, features, state)
//   to: outputs (batch, time, features, channels); the final state; and
//     checkpoints, Q x before each block of `block` steps and after the last,
//     (batch, time / block + 2, features, state)
KERAS_LINREC_PUBLIC int keras_linrec_structured_scan_irregular(
    int flags, const int64_t* sizes, const void* const* from, void* const* to);

//   from: the same, checkpoints, d_outputs and d_final_state
//   to: d_p, d_d, d_q, d_t, d_b, d_timescale, d_C, d_time_deltas, d_inputs,
//     d_initial_state
KERAS_LINREC_PUBLIC int keras_linrec_structured_scan_irregular_backward(
    int flags, const int64_t* sizes, const void* const* from, void* const* to);

// The same with steps of one length, in blocks of time: outputs C x_t of
// x_t = Abar x_{t-1} + Bbar u_t, and the states after lengths[b] steps, behind
// which outputs are zero.
//   sizes: groups, batch, time, features, channels, state, the bits of alpha
//     as a double
//   from: p, d, q, t, b, timescale, C, as above; lengths (batch,), whole
//     numbers; resets (batch, time), as above; inputs (batch, time, features),
//     initial state (batch, features, state)
//   to: outputs (batch, time, features, channels), final state (batch,
//     features, state)
// With kKerasLinrecFromZeros nothing is read of the initial state, and nothing
// written to its cotangent.
KERAS_LINREC_PUBLIC int keras_linrec_structured_scan(int flags,
                                                     const int64_t* sizes,
                                                     const void* const* from,
                                                     void* const* to);

//   from: the same, d_outputs and d_final_state
//   to: d_p, d_d, d_q, d_t, d_b, d_timescale, d_C, d_inputs, d_initial_state
KERAS_LINREC_PUBLIC int keras_linrec_structured_scan_backward(
    int flags, const int64_t* sizes, const void* const* from, void* const* to);

// outputs[b, t, h, m] = activation(sum over k of response[h, m, k]
// inputs[b, t - k, h]), with any activation but those of pairs.
//   sizes: groups, batch, time, features, channels, taps (at most time), the
//     bits of the leak as a double
//   from: inputs (batch, time, features), response (features, channels, taps)
//   to: outputs (batch, time, features, channels)
KERAS_LINREC_PUBLIC int keras_linrec_causal_convolution(int flags,
                                                        const int64_t* sizes,
                                                        const void* const* from,
                                                        void* const* to);

//   from: the same, and d_outputs
//   to: d_inputs and d_response, each null where nobody wants it
KERAS_LINREC_PUBLIC int keras_linrec_causal_convolution_backward(
    int flags, const int64_t* sizes, const void* const* from, void* const* to);

// h_t = activation(h_{t-1} R + z_t), z = inputs @ input_kernel + bias, or a
// solver's step along h' = [sigmoid(h R + z'_t)] (h A + activation(h R + z_t)).
//   sizes: groups, batch, time, features, units, rank, steps kept, outputs'
//     cotangents, the bits of the leak as a double
//   from: inputs (batch, time, features), input_kernel (features, units, or
//     twice as many with a gate), bias (as many), recurrent (units, units), or
//     A and R side by side (units, twice as many); expansion (rank, units): if
//     the rank is not 0, `recurrent` is (units, rank) and R = I - recurrent @
//     expansion; step sizes (batch, time) if per step, else one;
//     modulus_bias (units / 2) for modReLU, else empty; resets, or empty;
//     initial state (batch, units)
//   to: outputs (batch, steps kept, units), for all steps or none, and the
//     final state (batch, units)
KERAS_LINREC_PUBLIC int keras_linrec_nonlinear_scan(int flags,
                                                    const int64_t* sizes,
                                                    const void* const* from,
                                                    void* const* to);

//   from: the same, outputs, d_outputs (batch, time or 0, units), d_final_state
//   to: the cotangents of the arguments, in their order
KERAS_LINREC_PUBLIC int keras_linrec_nonlinear_scan_backward(
    int flags, const int64_t* sizes, const void* const* from, void* const* to);

// Moves the unmasked steps of each row to its front, in their order and
// followed by zeros, or back to their places. Masked steps are zero there, or
// they repeat the unmasked step before them (`WithMasked`), if there is one.
// With that flag, to the front, masked steps are added to the unmasked step
// before them.
//   sizes: groups, batch, time, features
//   from: sequences (batch, time, features), mask (batch, time), where 0 is
//     masked
//   to: the moved steps, which may be `sequences`
KERAS_LINREC_PUBLIC int keras_linrec_move_steps(int flags,
                                                const int64_t* sizes,
                                                const void* const* from,
                                                void* const* to);

//   from: the cotangents of the moved steps, and the mask
//   to: those of the sequences, which may be the former
KERAS_LINREC_PUBLIC int keras_linrec_move_steps_backward(
    int flags, const int64_t* sizes, const void* const* from, void* const* to);

// Scans whose states are matrices: for each product of a step,
// S <- S + k (w v - e S^T k)^T, before the first S <- diag(decay) S; and then
// the output S^T q.
//   sizes: groups, batch, time, products, query heads, key heads, heads,
//     key_dim, value_dim, decays, erased heads, written heads, block
//   from: queries (batch, time, query heads, key_dim), keys (batch, time,
//     products, key heads, key_dim), values (batch, time, products, heads,
//     value_dim), decay (batch, time, heads, 0, 1 or key_dim), erase and write
//     (batch, time, products, heads or 0), resets (batch, time) or empty, and
//     the initial state (batch, heads, key_dim, value_dim). Neighbouring heads
//     share queries and keys. Without erase it is 0, without write 1.
//   to: outputs (batch, time, heads, value_dim); the final state; and
//     checkpoints, as those of a projected scan, (batch, time / block + 2,
//     heads, key_dim, value_dim), or null
KERAS_LINREC_PUBLIC int keras_linrec_matrix_scan(int flags,
                                                 const int64_t* sizes,
                                                 const void* const* from,
                                                 void* const* to);

//   from: the same, checkpoints, d_outputs and d_final_state
//   to: the cotangents of all arguments but the resets
KERAS_LINREC_PUBLIC int keras_linrec_matrix_scan_backward(
    int flags, const int64_t* sizes, const void* const* from, void* const* to);

// outputs[b, t, m, f] = Re(sum_n C[m, n, f] z_t[n, f]) of diagonal systems z' =
// lambda z + e, of which each feature has several, with a length for each step:
//
//   z_t = decay z_{t-1} + gain e_t, discretised with time_deltas[b, t]; z_{t-1}
//     is zero where resets[b, t] is not.
//
// What has the axes n and f is two arrays, the real and the imaginary parts,
// and the flag of complex numbers is set.
//   sizes: groups, batch, time, drives, channels, state, features, block
//   from: lambda (state, features), C (channels, state, features), time_deltas
//     (batch, time), resets (batch, time), e (batch, time, drives, features),
//     of one part or two, initial state (batch, state, features)
//   to: outputs (batch, time, channels, features); the final state; and
//     checkpoints, the state before each block of `block` steps, (batch, time /
//     block + 2, 2, state, features), or null
KERAS_LINREC_PUBLIC int keras_linrec_diagonal_scan_irregular(
    int flags, const int64_t* sizes, const void* const* from, void* const* to);

//   from: the same, checkpoints, d_outputs and d_final_state
//   to: d_lambda, d_C, d_time_deltas, d_e, d_initial_state
KERAS_LINREC_PUBLIC int keras_linrec_diagonal_scan_irregular_backward(
    int flags, const int64_t* sizes, const void* const* from, void* const* to);

// Oscillators whose steps differ in length: see oscillator_scan_irregular.cpp.
// Forces, positions x and speeds z are two arrays each, and the flag of complex
// numbers is set.
//   sizes: groups, batch, time, oscillators
//   from: dt, A and s (batch, time, oscillators), forces (batch, time,
//     oscillators), resets (batch, time), x and z before the first step (batch,
//     oscillators)
//   to: x and z of all steps (batch, time, oscillators)
KERAS_LINREC_PUBLIC int keras_linrec_oscillator_scan_irregular(
    int flags, const int64_t* sizes, const void* const* from, void* const* to);

//   from: dt, A, s, forces, x and z of all steps, resets, x and z before the
//     first step, d_x, d_z
//   to: the cotangents of all arguments but the resets
KERAS_LINREC_PUBLIC int keras_linrec_oscillator_scan_irregular_backward(
    int flags, const int64_t* sizes, const void* const* from, void* const* to);

}  // extern "C"
