// The free response of initial states, and final states: see
// carried_states.h. A job takes one feature.
#include "carried_states.h"

#include "parallel.h"
#include "structured_arguments.h"
#include "systems.h"

namespace keras_linrec {
namespace {

// The least multiply-adds that pay for another thread.
constexpr double least_work_a_thread = 1 << 20;

template <class Workspace, class Use>
void for_each_feature(const CarriedSizes& s, const Parameters& parameters,
                      bool backward, Use use) {
  const double most = std::min<int64_t>(threads(), s.features);
  const double work = s.features * s.work(s.doublings());
  const double wanted = std::clamp(work / least_work_a_thread, 1.0, most);
  for_each_job(
      static_cast<int>(wanted), s.features,
      [&] { return Workspace(s, parameters, backward); }, use);
}

// to (columns, rows, width) = from (rows, columns, width)
template <class Real>
void exchange(const Real* from, int64_t rows, int64_t columns, int64_t width,
              Real* to) {
  constexpr int64_t least = 1 << 16, block = 16;
  const int64_t blocks = (rows + block - 1) / block;
  const int64_t wanted = std::min<int64_t>(
      threads(), rows * columns * width / least + 1);
  for_each_job(static_cast<int>(wanted), blocks, [&](int, int64_t b) {
    const int64_t end = std::min(rows, (b + 1) * block);
    for (int64_t column = 0; column < columns; column++)
      for (int64_t row = b * block; row < end; row++)
        for (int64_t i = 0; i < width; i++)
          to[(column * rows + row) * width + i] =
              from[(row * columns + column) * width + i];
  });
}

template <class Real>
struct CarriedArguments {
  StructuredArguments<Real> system;
  const Real *lengths = nullptr, *inputs = nullptr, *state;

  CarriedArguments(Reader<Real, const void>& read, bool with_inputs)
      : system(read) {
    if (with_inputs) {
      lengths = read.in()[0];
      inputs = read.in()[0];
    }
    state = read.in()[0];
  }

  // The inputs are exchanged into `sequences`.
  CarriedArrays<Real> at(const CarriedSizes& s, int64_t group,
                         std::vector<Real>& sequences) const {
    CarriedArrays<Real> arrays = at(s, group);
    if (!inputs) return arrays;
    const int64_t steps = s.batch * s.time;
    exchange(inputs + group * steps * s.features, steps, s.features, 1,
             sequences.data());
    arrays.inputs = sequences.data();
    return arrays;
  }

 private:
  CarriedArrays<Real> at(const CarriedSizes& s, int64_t group) const {
    return {system.timescale[0] + group * s.features,
            system.output_matrix[0] +
                group * s.features * s.channels * s.state,
            lengths ? lengths + group * s.batch : nullptr,
            nullptr,
            state + group * s.batch * s.features * s.state};
  }
};

// Numbers of a group in the results, (batch, time, features, channels) or
// (batch, features, state).
template <class Workspace>
int64_t numbers_of(const CarriedSizes& s) {
  return s.batch * s.features *
         (std::is_same_v<Workspace, FreeResponse> ? s.time * s.channels
                                                  : s.state);
}

// Space for the sequences of a group, feature by feature.
template <class Workspace, class Real>
std::vector<Real> sequences_of(const CarriedSizes& s) {
  const bool outputs = std::is_same_v<Workspace, FreeResponse>;
  return std::vector<Real>(s.batch * s.time * s.features *
                           (outputs ? s.channels : 1));
}

template <class Workspace, class Real>
int carried(const CarriedSizes& s, const void* const* from, void* const* to) {
  Reader<Real, const void> read(from, false);
  constexpr bool with_inputs = std::is_same_v<Workspace, FinalStates>;
  const CarriedArguments<Real> given(read, with_inputs);
  Real* results = static_cast<Real*>(to[0]);
  const int64_t numbers = numbers_of<Workspace>(s);
  if (s.groups * numbers == 0) return kKerasLinrecDone;
  prepare_to_write(results, s.groups * numbers * sizeof(Real));
  std::vector<Real> sequences = sequences_of<Workspace, Real>(s);
  for (int64_t g = 0; g < s.groups; g++) {
    const Parameters parameters = given.system.parameters(s.state, g);
    const CarriedArrays<Real> arrays = given.at(s, g, sequences);
    Real* to = results + g * numbers;
    for_each_feature<Workspace>(
        s, parameters, false, [&](Workspace& workspace, int64_t feature) {
          workspace.forward(arrays, feature,
                            with_inputs ? to : sequences.data());
        });
    if (!with_inputs)
      exchange(sequences.data(), s.features, s.batch * s.time, s.channels, to);
  }
  return kKerasLinrecDone;
}

template <class Workspace, class Real>
int carried_backward(const CarriedSizes& s, const void* const* from,
                     void* const* to) {
  constexpr bool with_inputs = std::is_same_v<Workspace, FinalStates>;
  Reader<Real, const void> read(from, false);
  const CarriedArguments<Real> given(read, with_inputs);
  const Real* d_results = read.in()[0];
  Reader<Real, void> write(to, false);
  Out<Real> d_shared[5];
  for (Out<Real>& quantity : d_shared) quantity = write.out();
  CarriedSlopes<Real> slopes{};
  slopes.timescale = write.out()[0];
  slopes.output_matrix = write.out()[0];
  if (with_inputs) slopes.inputs = write.out()[0];
  slopes.state = write.out()[0];
  const int64_t numbers = numbers_of<Workspace>(s);
  const int64_t states = s.batch * s.features * s.state;
  const int64_t read_out = s.features * s.channels * s.state;
  const int64_t steps = s.batch * s.time * s.features;
  std::vector<Real> sequences = sequences_of<Workspace, Real>(s);
  std::vector<Real> d_sequences(with_inputs ? sequences.size() : 0);
  std::fill_n(slopes.timescale, s.groups * s.features, Real{0});
  std::fill_n(slopes.output_matrix, s.groups * read_out, Real{0});
  std::fill_n(slopes.state, s.groups * states, Real{0});
  for (int64_t g = 0; g < s.groups; g++) {
    const Parameters parameters = given.system.parameters(s.state, g);
    const CarriedArrays<Real> arrays = given.at(s, g, sequences);
    const Real* d_given = d_results + g * numbers;
    if (!with_inputs) {
      exchange(d_given, s.batch * s.time, s.features, s.channels,
               sequences.data());
      d_given = sequences.data();
    }
    // Beyond the lengths of rows there are no gradients.
    std::fill(d_sequences.begin(), d_sequences.end(), Real{0});
    const CarriedSlopes<Real> of_group{
        slopes.timescale + g * s.features, slopes.output_matrix + g * read_out,
        d_sequences.data(),
        slopes.state + g * states};
    SharedGradients gradients(s.features, s.state);
    if (numbers > 0)
      for_each_feature<Workspace>(
          s, parameters, true, [&](Workspace& workspace, int64_t feature) {
            workspace.backward(arrays, feature, d_given, of_group,
                               gradients.at(feature));
          });
    if (with_inputs)
      exchange(d_sequences.data(), s.features, s.batch * s.time, 1,
               slopes.inputs + g * steps);
    gradients.give(d_shared, g);
  }
  return kKerasLinrecDone;
}

}  // namespace
}  // namespace keras_linrec

using namespace keras_linrec;

int keras_linrec_free_response(int flags, const int64_t* sizes,
                               const void* const* from, void* const* to) {
  const CarriedSizes s(sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    return carried<FreeResponse, decltype(real)>(s, from, to);
  });
}

int keras_linrec_free_response_backward(int flags, const int64_t* sizes,
                                        const void* const* from,
                                        void* const* to) {
  const CarriedSizes s(sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    return carried_backward<FreeResponse, decltype(real)>(s, from, to);
  });
}

int keras_linrec_final_states(int flags, const int64_t* sizes,
                              const void* const* from, void* const* to) {
  const CarriedSizes s(sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    return carried<FinalStates, decltype(real)>(s, from, to);
  });
}

int keras_linrec_final_states_backward(int flags, const int64_t* sizes,
                                       const void* const* from,
                                       void* const* to) {
  const CarriedSizes s(sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    return carried_backward<FinalStates, decltype(real)>(s, from, to);
  });
}
