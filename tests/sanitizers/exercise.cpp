// Calls every function of the core in every mode, at awkward sizes.
//
//     exercise          from several threads at once and after a fork, for the
//                       sanitizers: the numbers only have to be finite
//     exercise RESULTS  writes all results to a file, to be compared with those
//                       on another system (tests/cross/run.py), and prints the
//                       instruction set
#ifndef _WIN32
#include <sys/wait.h>
#include <unistd.h>
#endif

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "base/core.h"

namespace {

struct Quantity {
  std::vector<std::vector<char>> parts;  // of exactly the right length
};

template <class Real>
Quantity make(int parts, int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  // The same numbers from every C++ library, as its distributions are not.
  const auto uniform = [&] { return generator() / 4294967296.0 * 1.4 - 0.7; };
  Quantity quantity;
  for (int p = 0; p < parts; p++) {
    std::vector<char> bytes(count * sizeof(Real));
    for (int64_t i = 0; i < count; i++)
      reinterpret_cast<Real*>(bytes.data())[i] =
          static_cast<Real>(uniform());
    quantity.parts.push_back(std::move(bytes));
  }
  return quantity;
}

// Resets before about every third step.
template <class Real>
Quantity marks(int64_t count) {
  Quantity quantity = make<Real>(1, count, 9);
  Real* numbers = reinterpret_cast<Real*>(quantity.parts[0].data());
  for (int64_t i = 0; i < count; i++) numbers[i] = numbers[i] > 0.2;
  return quantity;
}

template <class Real>
void require_finite(const Quantity& quantity) {
  for (const auto& part : quantity.parts)
    for (size_t i = 0; i < part.size() / sizeof(Real); i++)
      if (!std::isfinite(reinterpret_cast<const Real*>(part.data())[i])) {
        std::fprintf(stderr, "a number is not finite\n");
        std::exit(1);
      }
}

// Where results go: for each array the bytes in a number, the count of numbers,
// and the numbers.
std::FILE* results_file = nullptr;

template <class Real>
void write(const Quantity& quantity) {
  for (const auto& part : quantity.parts) {
    const int64_t sizes[] = {sizeof(Real),
                             static_cast<int64_t>(part.size() / sizeof(Real))};
    std::fwrite(sizes, sizeof sizes, 1, results_file);
    std::fwrite(part.data(), 1, part.size(), results_file);
  }
}

typedef int (*Function)(int, const int64_t*, const void* const*, void* const*);

template <class Real>
void call(Function function, int flags, const std::vector<int64_t>& sizes,
          const std::vector<const Quantity*>& from,
          const std::vector<Quantity*>& to, bool finite = true) {
  std::vector<const void*> arrays;
  std::vector<void*> results;
  for (const Quantity* quantity : from)
    for (const auto& part : quantity->parts) arrays.push_back(part.data());
  for (Quantity* quantity : to)
    for (auto& part : quantity->parts) results.push_back(part.data());
  if (function(flags, sizes.data(), arrays.data(), results.data())) {
    std::fprintf(stderr, "the core refused sizes\n");
    std::exit(1);
  }
  if (!finite) return;
  for (Quantity* quantity : to) {
    require_finite<Real>(*quantity);
    if (results_file) write<Real>(*quantity);
  }
}

template <class Real>
void scans(int flags, int64_t g, int64_t b, int64_t t, int64_t n) {
  const int parts = flags & kKerasLinrecComplex ? 2 : 1;
  const int64_t decays = flags & kKerasLinrecPerStep ? g * b * t * n : g * n;
  if (sizeof(Real) == 8) flags |= kKerasLinrecFloat64;
  const Quantity decay = make<Real>(parts, decays, 1);
  const Quantity inputs = make<Real>(parts, g * b * t * n, 2);
  const Quantity resets =
      marks<Real>(flags & kKerasLinrecResets ? g * b * t : 0);
  const Quantity state = make<Real>(parts, g * b * n, 3);
  Quantity outputs = inputs, final_state = state;
  call<Real>(keras_linrec_scan, flags, {g, b, t, n},
             {&decay, &inputs, &resets, &state}, {&outputs, &final_state});
  Quantity d_decay = decay, d_inputs = inputs, d_state = state;
  call<Real>(keras_linrec_scan_backward, flags, {g, b, t, n},
             {&decay, &outputs, &resets, &state, &inputs, &final_state},
             {&d_decay, &d_inputs, &d_state});
}

template <class Real>
void gated_scans(int flags, int64_t g, int64_t b, int64_t t, int64_t n) {
  const int64_t drives = flags & kKerasLinrecTwoGates ? 3 : 2;
  const bool rates = flags & kKerasLinrecRates;
  if (sizeof(Real) == 8) flags |= kKerasLinrecFloat64;
  const Quantity drive = make<Real>(1, g * b * t * n * drives, 1);
  const Quantity bias = make<Real>(1, g * n * drives, 2);
  const Quantity inputs = make<Real>(1, rates ? g * b * t * n : 0, 3);
  Quantity rate = make<Real>(1, rates ? g * n : 0, 4);
  Real* const numbers = reinterpret_cast<Real*>(rate.parts[0].data());
  for (int64_t i = 0; rates && i < g * n; i++) numbers[i] -= 1;
  const Quantity resets =
      marks<Real>(flags & kKerasLinrecResets ? g * b * t : 0);
  const Quantity state = make<Real>(1, g * b * n, 5);
  Quantity outputs = make<Real>(1, g * b * t * n, 6), final_state = state;
  call<Real>(keras_linrec_gated_scan, flags, {g, b, t, n},
             {&drive, &bias, &inputs, &rate, &resets, &state},
             {&outputs, &final_state});
  Quantity d_drive = drive, d_bias = bias, d_inputs = inputs, d_rate = rate;
  Quantity d_state = state;
  call<Real>(keras_linrec_gated_scan_backward, flags, {g, b, t, n},
             {&drive, &bias, &inputs, &rate, &outputs, &resets, &state,
              &outputs, &final_state},
             {&d_drive, &d_bias, &d_inputs, &d_rate, &d_state});
}

template <class Real>
void projected_scans(int flags, int64_t b, int64_t t, int64_t f, int64_t n,
                     int64_t u, int64_t block) {
  const int parts = flags & kKerasLinrecComplex ? 2 : 1;
  const int64_t decays = flags & kKerasLinrecPerStep ? b * t * n : n;
  if (sizeof(Real) == 8) flags |= kKerasLinrecFloat64;
  const std::vector<int64_t> sizes = {1, b, t, f, n, u, block};
  const Quantity decay = make<Real>(parts, decays, 1);
  const Quantity inputs = make<Real>(1, b * t * f, 2);
  const Quantity resets = marks<Real>(flags & kKerasLinrecResets ? b * t : 0);
  const Quantity into = make<Real>(parts, f * n, 3);
  const Quantity out = make<Real>(parts, n * u, 4);
  const Quantity state = make<Real>(parts, b * n, 5);
  Quantity outputs = make<Real>(1, b * t * u, 6), final_state = state;
  Quantity kept = make<Real>(1, b * (t / block + 2) * parts * n, 7);
  call<Real>(keras_linrec_projected_scan, flags, sizes,
             {&decay, &inputs, &into, &out, &resets, &state},
             {&outputs, &final_state, &kept});
  Quantity d_decay = decay, d_inputs = inputs, d_into = into, d_out = out;
  Quantity d_state = state;
  call<Real>(keras_linrec_projected_scan_backward, flags, sizes,
             {&decay, &inputs, &into, &out, &resets, &kept, &outputs,
              &final_state},
             {&d_decay, &d_inputs, &d_into, &d_out, &d_state});
}

// first + random * scale
template <class Real>
Quantity around(double first, double scale, int64_t count, unsigned seed) {
  Quantity quantity = make<Real>(1, count, seed);
  Real* numbers = reinterpret_cast<Real*>(quantity.parts[0].data());
  for (int64_t i = 0; i < count; i++)
    numbers[i] = static_cast<Real>(first + scale * numbers[i]);
  return quantity;
}

// Structured systems: p, d, q, bands, b, timescale and output matrix.
template <class Real>
std::vector<Quantity> draw_systems(int64_t g, int64_t h, int64_t m, int64_t n) {
  std::vector<Quantity> systems = {
      around<Real>(-1.5, 1.0, g * n, 1),    around<Real>(0.5, 0.5, g * n, 2),
      around<Real>(1.5, 1.0, g * n, 3),     around<Real>(0.0, 0.3, g * 3 * n, 4),
      make<Real>(1, g * n, 5),              around<Real>(0.1, 0.1, g * h, 6),
      make<Real>(1, g * h * m * n, 7),
  };
  Real* bands = reinterpret_cast<Real*>(systems[3].parts[0].data());
  for (int64_t i = 0; i < g * 3 * n; i++)
    if (i / n % 3 == 1) bands[i] += Real{2};
  return systems;
}

// Pointers to the systems' quantities, then these.
std::vector<const Quantity*> with(const std::vector<Quantity>& systems,
                                  const std::vector<const Quantity*>& others) {
  std::vector<const Quantity*> all;
  for (const Quantity& quantity : systems) all.push_back(&quantity);
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

std::vector<Quantity*> with(std::vector<Quantity>& systems,
                            const std::vector<Quantity*>& others) {
  std::vector<Quantity*> all;
  for (Quantity& quantity : systems) all.push_back(&quantity);
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

template <class Real>
void impulse_responses(int64_t g, int64_t h, int64_t m, int64_t n, int64_t t,
                       int64_t block) {
  const int flags = sizeof(Real) == 8 ? kKerasLinrecFloat64 : 0;
  const double alpha = 0.5;
  std::vector<int64_t> sizes = {g, h, m, n, t, 0, block};
  std::memcpy(&sizes[5], &alpha, sizeof alpha);
  const std::vector<Quantity> systems = draw_systems<Real>(g, h, m, n);
  Quantity response = make<Real>(1, g * h * m * t, 8);
  call<Real>(keras_linrec_impulse_response, flags, sizes,
             with(systems, {}), {&response});
  std::vector<Quantity> d_systems = systems;
  call<Real>(keras_linrec_impulse_response_backward, flags, sizes,
             with(systems, {&response}), with(d_systems, {}));
}

template <class Real>
void irregular_scans(int64_t g, int64_t b, int64_t t, int64_t h, int64_t m,
                     int64_t n, int64_t block) {
  const int flags = sizeof(Real) == 8 ? kKerasLinrecFloat64 : 0;
  const double alpha = 0.5;
  std::vector<int64_t> sizes = {g, b, t, h, m, n, block, 0};
  std::memcpy(&sizes[7], &alpha, sizeof alpha);
  const std::vector<Quantity> systems = draw_systems<Real>(g, h, m, n);
  const Quantity lengths = around<Real>(1.0, 1.0, g * b * t, 8);
  const Quantity resets = make<Real>(1, g * b * t, 9);
  const Quantity inputs = make<Real>(1, g * b * t * h, 10);
  const Quantity state = make<Real>(1, g * b * h * n, 11);
  Quantity outputs = make<Real>(1, g * b * t * h * m, 12), final_state = state;
  Quantity kept = make<Real>(1, g * b * (t / block + 2) * h * n, 13);
  call<Real>(keras_linrec_structured_scan_irregular, flags, sizes,
             with(systems, {&lengths, &resets, &inputs, &state}),
             {&outputs, &final_state, &kept});
  std::vector<Quantity> d_systems = systems;
  Quantity d_lengths = lengths, d_inputs = inputs, d_state = state;
  call<Real>(keras_linrec_structured_scan_irregular_backward, flags, sizes,
             with(systems, {&lengths, &resets, &inputs, &state, &kept, &outputs,
                            &final_state}),
             with(d_systems, {&d_lengths, &d_inputs, &d_state}));
}

template <class Real>
void structured_scans(int64_t g, int64_t b, int64_t t, int64_t h, int64_t m,
                      int64_t n) {
  int flags = sizeof(Real) == 8 ? kKerasLinrecFloat64 : 0;
  const double alpha = 0.5;
  std::vector<int64_t> sizes = {g, b, t, h, m, n, 0};
  std::memcpy(&sizes[6], &alpha, sizeof alpha);
  const std::vector<Quantity> systems = draw_systems<Real>(g, h, m, n);
  Quantity lengths = make<Real>(1, g * b, 8);
  for (int64_t row = 0; row < g * b; row++)
    reinterpret_cast<Real*>(lengths.parts[0].data())[row] =
        static_cast<Real>(t - row % (t + 1));
  // Without resets, and then with one before every second step or so.
  Quantity resets = around<Real>(-2.0, 1.0, g * b * t, 12);
  Quantity inputs = make<Real>(1, g * b * t * h, 9);
  const Quantity state = make<Real>(1, g * b * h * n, 10);
  for (int form = 0; form < 4; form++) {
    if (form == 1) resets = make<Real>(1, g * b * t, 12);
    // From zeros, and with rows that end earlier.
    if (form == 3) {
      flags |= kKerasLinrecFromZeros;
      resets = around<Real>(0.0, 0.0, g * b * t, 12);
      inputs = make<Real>(1, g * b * t * h, 9);
    }
    // In one row of the first group.
    if (form == 2)
      reinterpret_cast<Real*>(inputs.parts[0].data())[0] =
          std::numeric_limits<Real>::quiet_NaN();
    Quantity outputs = make<Real>(1, g * b * t * h * m, 11);
    Quantity final_state = state;
    call<Real>(keras_linrec_structured_scan, flags, sizes,
               with(systems, {&lengths, &resets, &inputs, &state}),
               {&outputs, &final_state}, form != 2);
    std::vector<Quantity> d_systems = systems;
    Quantity d_inputs = inputs, d_state = state;
    call<Real>(keras_linrec_structured_scan_backward, flags, sizes,
               with(systems, {&lengths, &resets, &inputs, &state, &outputs,
                              &final_state}),
               with(d_systems, {&d_inputs, &d_state}), form != 2);
  }
}

template <class Real>
void causal_convolutions(int activation, int64_t g, int64_t b, int64_t t,
                         int64_t h, int64_t m, int64_t taps) {
  const int flags = (sizeof(Real) == 8 ? kKerasLinrecFloat64 : 0) |
                    activation << kKerasLinrecActivationBit;
  const std::vector<int64_t> sizes = {g, b, t, h, m, taps, 0};
  const Quantity inputs = make<Real>(1, g * b * t * h, 1);
  const Quantity response = make<Real>(1, g * h * m * taps, 2);
  Quantity outputs = make<Real>(1, g * b * t * h * m, 3);
  call<Real>(keras_linrec_causal_convolution, flags, sizes,
             {&inputs, &response}, {&outputs});
  Quantity d_inputs = inputs, d_response = response;
  call<Real>(keras_linrec_causal_convolution_backward, flags, sizes,
             {&inputs, &response, &outputs}, {&d_inputs, &d_response});
}

// Both ways, beside the steps and in place.
template <class Real>
void moves_of_steps(int64_t g, int64_t b, int64_t t, int64_t f) {
  const std::vector<int64_t> sizes = {g, b, t, f};
  const Quantity steps = make<Real>(1, g * b * t * f, 1);
  Quantity mask = make<Real>(1, g * b * t, 2), moved = steps;
  Real* counts = reinterpret_cast<Real*>(mask.parts[0].data());
  for (int64_t i = 0; i < g * b * t; i++)
    counts[i] = i % t >= t - i / t || counts[i] < Real{0.1} ? 0 : 1;
  for (int form : {0, 16, 32, 48}) {
    const int flags = form | (sizeof(Real) == 8 ? kKerasLinrecFloat64 : 0);
    call<Real>(keras_linrec_move_steps, flags, sizes, {&steps, &mask},
               {&moved});
    Quantity place = steps;
    call<Real>(keras_linrec_move_steps, flags, sizes, {&place, &mask},
               {&place});
  }
}

// Of `h` heads, which share queries and keys in pairs if they are even; with a
// decay for each key channel, each head, or none.
template <class Real>
void matrix_scans(int form, int64_t b, int64_t t, int64_t m, int64_t h,
                  int64_t n, int64_t v, int64_t decays, bool all) {
  const int flags = form | (sizeof(Real) == 8 ? kKerasLinrecFloat64 : 0);
  const int64_t shared = h % 2 ? h : h / 2, given = all ? h : 0, block = 5;
  const std::vector<int64_t> sizes = {1, b, t, m, h,      shared, h,
                                      n, v, decays, given, given, block};
  const Quantity queries = make<Real>(1, b * t * h * n, 1);
  const Quantity keys = around<Real>(0.0, 0.5, b * t * m * shared * n, 2);
  const Quantity values = make<Real>(1, b * t * m * h * v, 3);
  // Logarithms are negative.
  const Quantity decay =
      around<Real>(form & kKerasLinrecLogarithmic ? -0.5 : 0.5, 0.5,
                   b * t * h * decays, 4);
  const Quantity erase = make<Real>(1, b * t * m * given, 5);
  const Quantity write = make<Real>(1, b * t * m * given, 6);
  const Quantity resets = marks<Real>(form & kKerasLinrecResets ? b * t : 0);
  const Quantity state = make<Real>(1, b * h * n * v, 7);
  Quantity outputs = make<Real>(1, b * t * h * v, 8), final_state = state;
  Quantity kept = make<Real>(1, b * (t / block + 2) * h * n * v, 9);
  call<Real>(keras_linrec_matrix_scan, flags, sizes,
             {&queries, &keys, &values, &decay, &erase, &write, &resets,
              &state},
             {&outputs, &final_state, &kept});
  Quantity d_queries = queries, d_keys = keys, d_values = values;
  Quantity d_decay = decay, d_erase = erase, d_write = write, d_state = state;
  call<Real>(keras_linrec_matrix_scan_backward, flags, sizes,
             {&queries, &keys, &values, &decay, &erase, &write, &resets,
              &state, &kept, &outputs, &final_state},
             {&d_queries, &d_keys, &d_values, &d_decay, &d_erase, &d_write,
              &d_state});
}

template <class Real>
void matrix_scans() {
  for (int form : {0, kKerasLinrecLogarithmic | kKerasLinrecResets}) {
    for (int64_t decays : {0, 1, 5}) {
      matrix_scans<Real>(form, 2, 21, 1, 4, 5, 3, decays, true);
      matrix_scans<Real>(form, 1, 3, 3, 1, 5, 70, decays, true);
      matrix_scans<Real>(form, 9, 1, 1, 1, 5, 2, decays, false);
    }
    matrix_scans<Real>(form, 2, 70, 2, 8, 33, 40, 33, true);
    matrix_scans<Real>(form, 3, 40, 1, 3, 64, 32, 1, true);
  }
}

template <class Real>
void nonlinear_scans(int form, int64_t b, int64_t t, int64_t f, int64_t n,
                     int64_t rank) {
  int flags = form | (sizeof(Real) == 8 ? kKerasLinrecFloat64 : 0);
  const int activation = form >> kKerasLinrecActivationBit & 15;
  const int64_t driven = form & kKerasLinrecGated ? 2 * n : n;
  const int64_t recurrent = rank ? rank : form & kKerasLinrecLinear ? 2 * n : n;
  const int64_t pairs = activation == 6 ? n / 2 : 0;
  std::vector<int64_t> sizes = {1, b, t, f, n, rank, t, 0, 0};
  const double leak = 0.1;
  std::memcpy(&sizes[8], &leak, sizeof leak);
  const Quantity inputs = make<Real>(1, b * t * f, 1);
  const Quantity kernel = around<Real>(0.0, 0.3, f * driven, 2);
  const Quantity bias = make<Real>(1, driven, 3);
  const Quantity matrix = around<Real>(0.0, 0.5 / n, n * recurrent, 4);
  const Quantity expansion = around<Real>(0.0, 0.5, rank * n, 5);
  const Quantity steps = around<Real>(
      0.1, 0.1, form & kKerasLinrecPerStep ? b * t : 1, 6);
  const Quantity moduli = make<Real>(1, pairs, 7);
  const Quantity resets =
      marks<Real>(form & kKerasLinrecResets ? b * t : 0);
  const Quantity state = make<Real>(1, b * n, 8);
  Quantity outputs = make<Real>(1, b * t * n, 9), final_state = state;
  const std::vector<const Quantity*> from = {
      &inputs, &kernel, &bias,   &matrix, &expansion,
      &steps,  &moduli, &resets, &state};
  call<Real>(keras_linrec_nonlinear_scan, flags, sizes, from,
             {&outputs, &final_state});
  for (int64_t kept : {int64_t{0}, t}) {
    sizes[7] = kept;
    std::vector<const Quantity*> given = from;
    given.insert(given.end(), {&outputs, &outputs, &final_state});
    Quantity d_inputs = inputs, d_kernel = kernel, d_bias = bias;
    Quantity d_matrix = matrix, d_expansion = expansion, d_steps = steps;
    Quantity d_moduli = moduli, d_resets = resets, d_state = state;
    call<Real>(keras_linrec_nonlinear_scan_backward, flags, sizes, given,
               {&d_inputs, &d_kernel, &d_bias, &d_matrix, &d_expansion,
                &d_steps, &d_moduli, &d_resets, &d_state});
  }
}

// Diagonal systems of `n` numbers a feature, and oscillators, whose steps differ
// in length.
template <class Real>
void irregular_diagonals(int flags, int64_t g, int64_t b, int64_t t,
                         int64_t drives, int64_t m, int64_t n, int64_t f) {
  flags |= kKerasLinrecComplex | (sizeof(Real) == 8 ? kKerasLinrecFloat64 : 0);
  const int64_t block = 5;
  const Quantity resets =
      marks<Real>(flags & kKerasLinrecResets ? g * b * t : 0);
  const std::vector<int64_t> sizes = {g, b, t, drives, m, n, f, block};
  const Quantity eigenvalues = make<Real>(2, g * n * f, 1);
  const Quantity kernel = make<Real>(2, g * m * n * f, 2);
  const Quantity lengths = around<Real>(0.5, 0.5, g * b * t, 3);
  const Quantity inputs = make<Real>(1, g * b * t * drives * f, 4);
  const Quantity state = make<Real>(2, g * b * n * f, 5);
  Quantity outputs = make<Real>(1, g * b * t * m * f, 6), final_state = state;
  Quantity kept = make<Real>(1, g * b * (t / block + 2) * 2 * n * f, 7);
  call<Real>(keras_linrec_diagonal_scan_irregular, flags, sizes,
             {&eigenvalues, &kernel, &lengths, &resets, &inputs, &state},
             {&outputs, &final_state, &kept});
  Quantity d_eigenvalues = eigenvalues, d_kernel = kernel, d_lengths = lengths;
  Quantity d_inputs = inputs, d_state = state;
  call<Real>(keras_linrec_diagonal_scan_irregular_backward, flags, sizes,
             {&eigenvalues, &kernel, &lengths, &resets, &inputs, &state, &kept,
              &outputs, &final_state},
             {&d_eigenvalues, &d_kernel, &d_lengths, &d_inputs, &d_state});
}

template <class Real>
void irregular_oscillators(int flags, int64_t g, int64_t b, int64_t t,
                           int64_t n) {
  flags |= kKerasLinrecComplex | (sizeof(Real) == 8 ? kKerasLinrecFloat64 : 0);
  const Quantity resets =
      marks<Real>(flags & kKerasLinrecResets ? g * b * t : 0);
  const std::vector<int64_t> sizes = {g, b, t, n};
  const Quantity lengths = around<Real>(0.2, 0.2, g * b * t * n, 1);
  const Quantity stiffness = around<Real>(1.0, 1.0, g * b * t * n, 2);
  const Quantity factor = around<Real>(0.9, 0.1, g * b * t * n, 3);
  const Quantity forces = make<Real>(2, g * b * t * n, 4);
  const Quantity state = make<Real>(2, g * b * n, 5);
  Quantity positions = forces, speeds = forces;
  call<Real>(
      keras_linrec_oscillator_scan_irregular, flags, sizes,
      {&lengths, &stiffness, &factor, &forces, &resets, &state, &state},
      {&positions, &speeds});
  Quantity d_lengths = lengths, d_stiffness = stiffness, d_factor = factor;
  Quantity d_forces = forces, d_positions = state, d_speeds = state;
  call<Real>(keras_linrec_oscillator_scan_irregular_backward, flags, sizes,
             {&lengths, &stiffness, &factor, &forces, &positions, &speeds,
              &resets, &state, &state, &positions, &speeds},
             {&d_lengths, &d_stiffness, &d_factor, &d_forces, &d_positions,
              &d_speeds});
}

template <class Real>
void irregular_steps() {
  for (int form : {0, kKerasLinrecBilinear | kKerasLinrecResets}) {
    irregular_diagonals<Real>(form, 1, 1, 1, 1, 1, 1, 1);
    irregular_diagonals<Real>(form, 2, 3, 12, 1, 2, 5, 9);
    irregular_diagonals<Real>(form, 1, 5, 70, 2, 1, 40, 17);
    irregular_oscillators<Real>(form & kKerasLinrecResets, 1, 1, 1, 1);
    irregular_oscillators<Real>(form & kKerasLinrecResets, 2, 5, 60, 130);
  }
}

// Every activation, with and without a solver, plain and with all options.
template <class Real>
void nonlinear_scans() {
  const int all = kKerasLinrecLinear | kKerasLinrecGated |
                  kKerasLinrecPerStep | kKerasLinrecStepGradient |
                  kKerasLinrecResets;
  for (int activation = 0; activation < 7; activation++) {
    const int solver = activation % 4;
    const int form = solver << kKerasLinrecSolverBit |
                     activation << kKerasLinrecActivationBit;
    nonlinear_scans<Real>(form, 7, 20, 2, 66, 5);
    nonlinear_scans<Real>(form, 1, 1, 1, 2, 0);
    nonlinear_scans<Real>(form | kKerasLinrecResets, 3, 5, 1, 2, 1);
    const int options = solver ? all : 0;
    nonlinear_scans<Real>(form | options, 5, 11, 3, 34, 0);
    nonlinear_scans<Real>(form | options, 140, 2, 35, 36, 0);
    // Blocks of a row that several threads take through the backward pass.
    if (activation > 4) nonlinear_scans<Real>(form, 1, 1500, 2, 66, 0);
  }
}

template <class Real>
void everything() {
  nonlinear_scans<Real>();
  matrix_scans<Real>();
  irregular_steps<Real>();
  for (int64_t block : {-1, 0, 1, 8, 64}) {
    impulse_responses<Real>(1, 1, 1, 1, 1, block);
    impulse_responses<Real>(2, 3, 2, 5, 50, block);
    impulse_responses<Real>(1, 40, 1, 33, 70, block);
    impulse_responses<Real>(1, 2, 3, 130, 20, block);
  }
  irregular_scans<Real>(1, 1, 1, 1, 1, 1, 1);
  irregular_scans<Real>(2, 3, 20, 7, 2, 5, 8);
  irregular_scans<Real>(1, 5, 9, 20, 1, 33, 3);
  structured_scans<Real>(1, 1, 1, 1, 1, 1);
  structured_scans<Real>(2, 3, 20, 7, 2, 5);
  structured_scans<Real>(1, 5, 70, 3, 1, 33);
  structured_scans<Real>(1, 4, 900, 2, 1, 3);
  structured_scans<Real>(2, 2, 5, 17, 2, 64);
  // From zeros by a convolution.
  structured_scans<Real>(2, 3, 21, 17, 2, 40);
  structured_scans<Real>(1, 5, 70, 5, 1, 64);
  moves_of_steps<Real>(1, 1, 1, 1);
  moves_of_steps<Real>(2, 3, 50, 7);
  moves_of_steps<Real>(1, 1, 3000, 40);
  for (int gates : {0, kKerasLinrecTwoGates | kKerasLinrecPositive,
                    +kKerasLinrecRates})
    for (int flags : {gates, gates | kKerasLinrecResets}) {
      gated_scans<Real>(flags, 1, 1, 1, 1);
      gated_scans<Real>(flags, 2, 3, 50, 7);
      gated_scans<Real>(flags, 1, 1, 20000, 3);
      gated_scans<Real>(flags, 1, 4, 700, 70);
    }
  for (int activation : {0, 3, 7}) {  // linear, tanh, GELU
    causal_convolutions<Real>(activation, 1, 1, 1, 1, 1, 1);
    causal_convolutions<Real>(activation, 2, 3, 50, 7, 2, 20);
    causal_convolutions<Real>(activation, 1, 40, 63, 1, 1, 63);
    causal_convolutions<Real>(activation, 1, 5, 785, 20, 3, 785);
  }
  for (int form = 0; form < 16; form++) {
    const int flags = form & 8 ? form ^ 8 ^ kKerasLinrecResets : form;
    scans<Real>(flags, 1, 1, 1, 1);
    scans<Real>(flags, 2, 3, 50, 7);
    scans<Real>(flags, 1, 1, 20000, 3);
    scans<Real>(flags, 1, 4, 700, 70);
    projected_scans<Real>(flags, 1, 1, 1, 1, 1, 48);
    projected_scans<Real>(flags, 3, 100, 5, 7, 6, 48);
    projected_scans<Real>(flags, 1, 1000, 33, 40, 37, 48);
    projected_scans<Real>(flags, 4, 300, 64, 64, 64, 96);
  }
}

// The checks of a linear scan's shapes, and of some that do not fit.
bool checks_shapes() {
  const std::vector<int64_t> fitting = {1, 3,           // decay
                                        3, 2, 5, 3,     // inputs
                                        2, 0, 0,        // resets
                                        2, 2, 3};       // initial state
  int64_t sizes[16];
  if (!keras_linrec_operations()[0] ||
      keras_linrec_sizes(0, 0, nullptr, 4, fitting.data(), sizes) ||
      sizes[0] != 1 || sizes[1] != 2 || sizes[2] != 5 || sizes[3] != 3)
    return false;
  for (int place : {1, 3, 5, 7, 8, 10, 11}) {
    std::vector<int64_t> wrong = fitting;
    wrong[place]++;
    if (!keras_linrec_sizes(0, 0, nullptr, 4, wrong.data(), sizes))
      return false;
  }
  return keras_linrec_sizes(0, 0, nullptr, 3, fitting.data(), sizes);
}

int write_results(const char* path) {
  results_file = std::fopen(path, "wb");
  if (!results_file) return 1;
  everything<float>();
  everything<double>();
  std::puts(keras_linrec_instruction_set());
  return std::fclose(results_file);
}

// In a child process, where there are any, and beside it.
int exercise_after_a_fork() {
#ifndef _WIN32
  const pid_t child = fork();
  everything<float>();
  if (child == 0) return 0;
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
#else
  return 0;
#endif
}

}  // namespace

int main(int count, char** arguments) {
  if (!checks_shapes()) return 1;
  if (count > 1) return write_results(arguments[1]);
  everything<float>();
  everything<double>();
  std::thread other([] { everything<float>(); });
  everything<float>();
  other.join();
  return exercise_after_a_fork();
}
