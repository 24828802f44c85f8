// The inner loops, compiled once for each instruction set (kernels.cpp) and
// chosen at run time (dispatch.cpp). Plain data and function pointers: a
// template or an inline function of the standard library would be one symbol
// for all, and the linker might keep the copy an older processor cannot run.
#pragma once
#include <cstdint>

namespace keras_linrec {

// Rows of a scan h_t = decay_t * h_{t-1} + inputs_t: `time` rows of `channels`
// numbers. The imaginary parts are null for a real scan. A stride is the way
// from a row to the next; one of 0 reads, or writes, the same row each time.
//
// The state is kept in float64 whatever `Real` is. It costs nothing where
// memory sets the pace, and in float32 a sum under a decay of 1 - 1e-6 stalls
// 3% short of its limit.
template <class Real>
struct ScanRows {
  int64_t time, channels;
  bool per_step, reverse;
  int64_t decay_stride, input_stride, output_stride;
  const Real* decay[2];
  const Real* inputs[2];
  Real* outputs[2];  // may be `inputs`
  double* state[2];  // before, and after
};

// The gradient of the same rows. `outputs` are those of the forward pass.
template <class Real>
struct ScanRowsBackward {
  int64_t time, channels;
  bool per_step, reverse;  // `reverse`: the direction of the forward pass
  int64_t decay_stride, output_stride, d_output_stride, d_input_stride;
  int64_t d_decay_stride;
  const Real* decay[2];
  const Real* outputs[2];
  const Real* initial[2];
  const Real* d_outputs[2];
  Real* d_inputs[2];       // may be `d_outputs`
  Real* d_decay[2];        // per step
  double* d_decay_sum[2];  // time-invariant: added to
  double* carry[2];        // the cotangent of the last state in, and out that
                           // of the state before the first step
};

// c[rows x panel] (+)= a[rows x (outer * inner)] b, where
// a(i, o, k) = a[i * a_row + o * a_outer + k * a_inner].
template <class Real>
struct Product {
  int64_t rows, outer, inner;
  const Real* a;
  int64_t a_row, a_outer, a_inner;
  const Real* b;
  int64_t b_row;
  Real* c;
  int64_t c_row;
  bool add;
};

// The scan of a tile of `time` rows by `panels` panels: number (t, p) is at
// tile[t * row + p * panel_stride]. In a complex panel the first half of the
// numbers are real parts, the second half those channels' imaginary parts.
template <class Real>
struct ScanTile {
  int64_t time, panels, row, panel_stride;
  bool complex, reverse;
  const double* decay;     // a number a column, or null
  const Real* decay_tile;  // laid out like `tile`, where `decay` is null
  Real* tile;              // inputs, then states
  double* state;           // a number a column: before, and after
};

template <class Real>
struct ScanTileBackward {
  int64_t time, panels, row, panel_stride;
  bool complex, reverse;
  const double* decay;
  const Real* decay_tile;
  const Real* states;
  const double* initial;   // the state before the tile
  Real* d_tile;            // cotangents of the states, then of the inputs
  double* carry;
  double* d_decay;         // time-invariant: added to
  Real* d_decay_tile;      // per step; may be `states`' own tile
};

// The activations of nonlinear recurrences. In those of pairs the first half of
// a panel's columns holds the first numbers of pairs, the second half the
// others.
enum Activation {
  kLinear,
  kRelu,
  kLeakyRelu,
  kTanh,
  kSigmoid,
  kOplu,     // pairs: the larger, the smaller
  kModrelu,  // pairs: a real and an imaginary part
  kActivations,
};

// response = activation(argument + bias), or, with the optional parts,
//   gate = sigmoid(gate + gate_bias + product),
//   response = gate * (linear + activation(argument + bias + product)),
// on `rows` rows of a panel. Null is an optional part that is not there.
template <class Real>
struct Respond {
  int64_t rows;
  Activation activation;
  Real leak;                 // of kLeakyRelu
  const Real* modulus_bias;  // of kModrelu: half a panel's width
  const Real* bias;       // a number a column
  const Real* gate_bias;
  const Real* product;
  const Real* argument;
  const Real* linear;
  Real* gate;
  Real* change;    // linear + activation(argument); only if there is a gate
  Real* response;  // may be `argument`, or null: only `memory` is wanted
  Real* memory;    // for the gradient; may be `argument`, or null
};

template <class Real>
struct RespondBackward {
  int64_t rows;
  Activation activation;
  Real leak;
  const Real* modulus_bias;
  const Real* memory;
  const Real* gate;
  const Real* change;
  const Real* d_response;
  Real* d_argument;
  Real* d_gate;    // of the gate's own argument
  Real* d_linear;
  Real* d_modulus_bias;  // added to
};

// to = base + factor * from on `rows` rows of a panel, with a factor for each.
template <class Real>
struct AddScaled {
  int64_t rows;
  const Real* factors;
  const Real* base;
  const Real* from;
  Real* to;
};

// to[row] (+)= (row of a tile, b), where b is one row of the same columns.
template <class Real>
struct DotRows {
  int64_t rows, panels, panel_stride, to_row;
  const Real* a;
  const Real* b;
  Real* to;
  bool add;
};

// Tridiagonal matrices, in float64, by `size` rows of so many numbers each.
constexpr int64_t band_columns = 64;

// right = M^-1 right, by the elimination of M: its forward factors (one for
// each row but the first), its pivots' inverses, and its superdiagonal. Rows
// before `first` are zero.
struct BandSolve {
  int64_t size, first;
  const double* factors;
  const double* inverses;
  const double* above;
  double* right;
};

// to = M from; row n of M is left[n], middle[n], right[n].
struct BandProduct {
  int64_t size;
  const double* left;
  const double* middle;
  const double* right;
  const double* from;
  double* to;
};

// What (a b^T) adds to the bands of M: the same three numbers of each row.
struct BandSums {
  int64_t size;
  const double* a;
  const double* b;
  double* left;
  double* middle;
  double* right;
};

// Structured systems step by step, so many side by side, in float64:
//
//   state += M^-1 E state,
//
// M and E tridiagonal. A quantity `by lanes` has that many numbers for each
// row of the state. A state has a row more than `size`, of zeros.
constexpr int64_t lanes = 16;

struct LaneSteps {
  int64_t size, steps, channels;
  const double* left;      // E: a number for each row, the same in all lanes
  const double* middle;
  const double* right;
  const double* factors;   // M's elimination, by lanes; of the first row, 0
  const double* inverses;
  const double* above;     // over the pivot; of the last row, 0
  const double* read_out;  // (channels, size) by lanes
  double* state;           // by lanes, before the first step
  int64_t stride;          // from there to the state after it; 0 is in place
  double* outputs;         // (steps, channels, lanes), of states before steps
  double* scratch;         // by lanes
};

// The gradient of the same steps. What begins with `transposed` is of E^T or
// of M^T.
struct LaneStepsBackward {
  int64_t size, steps, channels;
  const double* transposed_left;
  const double* transposed_middle;
  const double* transposed_right;
  const double* transposed_factors;
  const double* inverses;
  const double* transposed_above;
  const double* read_out;
  const double* d_outputs;
  double* d_state;  // by lanes: after the last step, then before the first
  double* scratch;  // by lanes, its elimination so far: of zero, it is zero
  double* slopes;   // (steps) by lanes: M^-T d_state of the state after a step
};

// What the same steps add to gradients.
struct LaneSums {
  int64_t size, steps, channels;
  const double* states;  // before each step, and after the last
  int64_t stride;
  const double* slopes;
  const double* d_outputs;
  // The bands of slopes states^T, with the states before steps, and after.
  double* before[3];
  double* after[3];
  double* d_read_out;
};

template <class Real>
struct Kernels {
  int64_t panel;  // columns in a panel: two vectors
  void (*scan_rows)(const ScanRows<Real>&);
  void (*scan_rows_backward)(const ScanRowsBackward<Real>&);
  void (*product)(const Product<Real>&);
  void (*scan_tile)(const ScanTile<Real>&);
  void (*scan_tile_backward)(const ScanTileBackward<Real>&);
  void (*respond)(const Respond<Real>&);
  void (*respond_backward)(const RespondBackward<Real>&);
  void (*add_scaled)(const AddScaled<Real>&);
  void (*dot_rows)(const DotRows<Real>&);
};

struct InstructionSet {
  const char* name;
  Kernels<float> single;
  Kernels<double> twofold;
  void (*solve_bands)(const BandSolve&);
  void (*multiply_bands)(const BandProduct&);
  void (*add_bands)(const BandSums&);
  void (*step_lanes)(const LaneSteps&);
  void (*step_lanes_backward)(const LaneStepsBackward&);
  void (*add_lanes)(const LaneSums&);
};

// The best that this processor has.
const InstructionSet& instruction_set();

}  // namespace keras_linrec
