// What a convolution by Fourier transforms is told: see kernels.h.
#pragma once
#include <cstdint>

#include "base/activation_kernels.h"

namespace keras_linrec {

// A transform of `points` complex numbers in stages, each of which takes
// `radix` of them at a time, `below` apart. Forward, the stages run from the
// first to the last (decimation in frequency); backward, from the last to the
// first (decimation in time). The frequencies so come in no natural order, and
// nothing needs one: products of spectra go number by number.
constexpr int most_stages = 24;

template <class Real>
struct FourierStage {
  int64_t radix, below;
  const Real* twiddles;  // (below, radix) complex numbers
};

template <class Real>
struct FourierFactor {
  int64_t points;
  int stages;  // at least 2
  FourierStage<Real> stage[most_stages];
};

// A transform of points = rows * width, as `width` transforms along columns,
// twiddles, and `rows` transforms along rows.
//
// It takes frequencies a quarter of a bin off. Real numbers are real still,
// and a product of two spectra gives their convolution in the real part and
// what wraps around in the imaginary one, so that `points` numbers do where a
// cyclic convolution takes twice as many.
template <class Real>
struct FourierPlan {
  int64_t points, rows, width;
  // From a row of a spectrum to the next; not a power of two, at which rows
  // would fall into the same sets of a cache.
  int64_t stride;
  FourierFactor<Real> column, row;
  const Real* shift;     // (radix of a column's first stage) complex numbers
  const Real* twiddles;  // (width, rows) complex numbers
};

// Where the sequences of a tile lie, one a lane.
template <class Real>
struct FourierLanes {
  Real* numbers;
  int64_t steps, step;   // how many, and the way from one to the next
  int64_t lanes;         // those in use
  const int64_t* place;  // of each lane's first number; null: side by side
};

// The squares of a tile's numbers over windows of time, lane by lane.
template <class Real>
struct FourierSquares {
  FourierLanes<const Real> from;
  int64_t window;  // steps in a window, but for the last
  int64_t stride;  // from a window's sums to the next
  Real* sums;      // (windows, lanes), overwritten
  Real* largest;   // (lanes), overwritten
};

// Memory of a thread. A spectrum is rows * stride complex vectors.
template <class Real>
struct FourierScratch {
  Real* values;  // rows * (width + 1) vectors
  Real* column;  // rows complex vectors
};

// spectrum = scale * transform of the sequences.
template <class Real>
struct FourierSpectrum {
  const FourierPlan<Real>* plan;
  FourierScratch<Real> scratch;
  FourierLanes<const Real> from;
  Real scale;
  Real* spectrum;
};

// outputs = activation(inputs convolved with responses, one after another).
template <class Real>
struct FourierConvolution {
  const FourierPlan<Real>* plan;
  FourierScratch<Real> scratch;
  FourierLanes<const Real> inputs;
  Activation activation;  // not one of pairs
  Real leak;              // of kLeakyRelu
  int64_t channels;
  const Real* responses;  // their spectra, one behind another
  int64_t spectrum_size;
  FourierLanes<Real> outputs;  // of the first channel, the others a number on
  Real* spectrum;              // of the inputs: scratch
  Real* product;               // scratch; may be `spectrum` for one channel
};

// Its gradients: d_inputs, and what is added to the responses' spectra. The
// arguments of the activation are computed again: that takes less time than
// writing them to memory, and no memory.
template <class Real>
struct FourierGradient {
  const FourierPlan<Real>* plan;
  FourierScratch<Real> scratch;
  FourierLanes<const Real> inputs, d_outputs;
  Activation activation;
  Real leak;
  int64_t channels;
  const Real* responses;
  int64_t spectrum_size;
  FourierLanes<Real> d_inputs;  // `numbers` are null where nobody wants them
  Real* d_responses;            // their spectra; null where nobody wants them
  bool is_first;                // `d_responses` are not written yet
  Real* spectrum;               // of the inputs: scratch
  Real* product;                // of the cotangents: scratch
  Real* sum;                    // over channels: scratch, null for one channel
};

// The sequences of a spectrum, times `scale`.
template <class Real>
struct FourierInverse {
  const FourierPlan<Real>* plan;
  FourierScratch<Real> scratch;
  Real* spectrum;  // overwritten
  Real scale;
  FourierLanes<Real> to;
};

}  // namespace keras_linrec
