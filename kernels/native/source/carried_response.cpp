// Responses with states before and after them: in blocks, see
// carried_response.h, of which a job takes one feature; or step by step.
#include "carried_response.h"

#include <array>
#include <cmath>
#include <memory>

#include "parallel.h"
#include "structured_arguments.h"
#include "systems.h"

namespace keras_linrec {
namespace {

// The least multiply-adds that pay for another thread.
constexpr double least_work_a_thread = 1 << 20;

template <class Real, class Use>
void for_each_feature(const CarriedSizes& s, const Pieces& pieces,
                      const Parameters& parameters, bool backward, Use use) {
  const double most = std::min<int64_t>(threads(), s.features);
  const double work = s.features * s.work(s.doublings());
  const double wanted = std::clamp(work / least_work_a_thread, 1.0, most);
  for_each_job(
      static_cast<int>(wanted), s.features,
      [&] { return CarriedResponse<Real>(s, pieces, parameters, backward); },
      use);
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
    const int64_t first = b * block, count = std::min(rows - first, block);
    for (int64_t column = 0; column < columns; column++) {
      const Real* source = from + (first * columns + column) * width;
      Real* target = to + (column * rows + first) * width;
      if (width == 1 && count == block) {
        // Of a length that the compiler knows.
        for (int64_t row = 0; row < block; row++)
          target[row] = source[row * columns];
        continue;
      }
      for (int64_t row = 0; row < count; row++)
        for (int64_t i = 0; i < width; i++)
          target[row * width + i] = source[row * columns * width + i];
    }
  });
}

// Memory without the zeros that a std::vector begins with.
template <class Real>
std::unique_ptr<Real[]> numbers(int64_t count) {
  return std::unique_ptr<Real[]>(new Real[count]);
}

template <class Real>
struct CarriedArguments {
  StructuredArguments<Real> system;
  const Real *lengths, *resets, *inputs, *state;

  explicit CarriedArguments(Reader<Real, const void>& read)
      : system(read),
        lengths(read.in()[0]),
        resets(read.in()[0]),
        inputs(read.in()[0]),
        state(read.in()[0]) {}

  Pieces pieces(const CarriedSizes& s, int64_t group) const {
    return Pieces(s, int64_t{1} << s.doublings(), lengths + group * s.batch,
                  resets + group * s.batch * s.time);
  }

  // The inputs are exchanged into `sequences`.
  CarriedArrays<Real> at(const CarriedSizes& s, int64_t group,
                         Real* sequences) const {
    const int64_t steps = s.batch * s.time;
    exchange(inputs + group * steps * s.features, steps, s.features, 1,
             sequences);
    return {system.timescale[0] + group * s.features,
            system.output_matrix[0] +
                group * s.features * s.channels * s.state,
            sequences, state + group * s.batch * s.features * s.state};
  }
};

template <class Real>
bool all_finite(const void* array, int64_t count) {
  const Real* numbers = static_cast<const Real*>(array);
  int other = 0;
  for (int64_t i = 0; i < count; i++) other |= numbers[i] - numbers[i] != 0;
  return !other;
}

// --- step by step -----------------------------------------------------------

// A call of the response to steps of any length (core.h): the length is 1, and
// behind the ends of rows 0.
template <class Real>
class Steps {
 public:
  Steps(const CarriedSizes& s, const void* const* from)
      : s_(s),
        flags_(sizeof(Real) == 8 ? kKerasLinrecFloat64 : 0),
        deltas_(s.groups * s.batch * s.time),
        resets_(deltas_.size()) {
    const Real* lengths = static_cast<const Real*>(from[7]);
    const Real* resets = static_cast<const Real*>(from[8]);
    for (int64_t row = 0; row < s.groups * s.batch; row++)
      for (int64_t step = 0; step < s.time; step++)
        if (step < lengths[row]) {
          deltas_[row * s.time + step] = 1;
          resets_[row * s.time + step] = resets[row * s.time + step];
        }
    // As in `varying_block` of kernels/native/__init__.py.
    const int64_t block = std::max<int64_t>(
        {8, 1024 / s.state, static_cast<int64_t>(std::sqrt(s.time)) / 2});
    sizes_ = {s.groups,   s.batch, s.time, s.features,
              s.channels, s.state, block,  0};
    std::memcpy(&sizes_[7], &s.alpha, sizeof s.alpha);
    checkpoints_ = numbers<Real>(s.groups * (s.time / block + 2) * s.batch *
                                 s.features * s.state);
    std::copy_n(from, 11, from_);
    from_[7] = deltas_.data();
    from_[8] = resets_.data();
    from_[11] = checkpoints_.get();
  }

  int forward(void* outputs, void* final_state) {
    void* const to[] = {outputs, final_state, checkpoints_.get()};
    const int status =
        keras_linrec_varying_response(flags_, sizes_.data(), from_, to);
    clear_behind(static_cast<Real*>(outputs));
    return status;
  }

  int backward(const void* d_outputs, const void* d_final_state,
               void* const* to) {
    // The forward pass keeps nothing.
    const int64_t rows = s_.groups * s_.batch, count = rows * per_row();
    const auto outputs = numbers<Real>(count);
    const auto states = numbers<Real>(rows * s_.features * s_.state);
    const int status = forward(outputs.get(), states.get());
    if (status != kKerasLinrecDone) return status;
    std::copy_n(static_cast<const Real*>(d_outputs), count, outputs.get());
    clear_behind(outputs.get());
    from_[12] = outputs.get();
    from_[13] = d_final_state;
    // The cotangents of the steps' lengths, which nobody wants.
    const auto d_deltas = numbers<Real>(rows * s_.time);
    void* all[10];
    std::copy_n(to, 7, all);
    all[7] = d_deltas.get();
    std::copy_n(to + 7, 2, all + 8);
    return keras_linrec_varying_response_backward(flags_, sizes_.data(), from_,
                                                  all);
  }

 private:
  int64_t per_row() const { return s_.time * s_.features * s_.channels; }

  void clear_behind(Real* numbers) const {
    const int64_t width = s_.features * s_.channels;
    for (size_t step = 0; step < deltas_.size(); step++)
      if (deltas_[step] == 0)
        std::fill_n(numbers + step * width, width, Real{0});
  }

  const CarriedSizes& s_;
  int flags_;
  std::vector<Real> deltas_, resets_;
  std::array<int64_t, 8> sizes_;
  std::unique_ptr<Real[]> checkpoints_;
  const void* from_[14];
};

// Whether steps take the call: they cost less, or there is a NaN or an infinity,
// which in the products of a block would reach the steps on its other side.
template <class Real>
bool takes_steps(const CarriedSizes& s, const void* const* from,
                 const void* d_outputs) {
  const int64_t steps = s.groups * s.batch * s.time * s.features;
  return s.in_steps() || !all_finite<Real>(from[9], steps) ||
         (d_outputs && !all_finite<Real>(d_outputs, steps * s.channels));
}

// --- in blocks --------------------------------------------------------------

template <class Real>
int carried_response(const CarriedSizes& s, const void* const* from,
                     void* const* to) {
  if (takes_steps<Real>(s, from, nullptr))
    return Steps<Real>(s, from).forward(to[0], to[1]);
  Reader<Real, const void> read(from, false);
  const CarriedArguments<Real> given(read);
  Real* outputs = static_cast<Real*>(to[0]);
  Real* final_state = static_cast<Real*>(to[1]);
  const int64_t steps = s.batch * s.time * s.features;
  const int64_t states = s.batch * s.features * s.state;
  if (s.groups * states == 0) return kKerasLinrecDone;
  prepare_to_write(outputs, s.groups * steps * s.channels * sizeof(Real));
  const auto sequences = numbers<Real>(steps);
  const auto results = numbers<Real>(steps * s.channels);
  for (int64_t g = 0; g < s.groups; g++) {
    const Parameters parameters = given.system.parameters(s.state, g);
    const CarriedArrays<Real> arrays = given.at(s, g, sequences.get());
    const Pieces pieces = given.pieces(s, g);
    for_each_feature<Real>(
        s, pieces, parameters, false,
        [&](CarriedResponse<Real>& workspace, int64_t feature) {
          workspace.forward(arrays, feature, results.get(),
                            final_state + g * states);
        });
    exchange(results.get(), s.features, s.batch * s.time, s.channels,
             outputs + g * steps * s.channels);
  }
  return kKerasLinrecDone;
}

template <class Real>
int carried_response_backward(const CarriedSizes& s, const void* const* from,
                              void* const* to) {
  if (takes_steps<Real>(s, from, from[11]))
    return Steps<Real>(s, from).backward(from[11], from[12], to);
  Reader<Real, const void> read(from, false);
  const CarriedArguments<Real> given(read);
  const Real* d_outputs = read.in()[0];
  const Real* d_final_state = read.in()[0];
  Reader<Real, void> write(to, false);
  Out<Real> d_shared[5];
  for (Out<Real>& quantity : d_shared) quantity = write.out();
  CarriedSlopes<Real> slopes{};
  slopes.timescale = write.out()[0];
  slopes.output_matrix = write.out()[0];
  slopes.inputs = write.out()[0];
  slopes.state = write.out()[0];
  const int64_t states = s.batch * s.features * s.state;
  const int64_t read_out = s.features * s.channels * s.state;
  const int64_t steps = s.batch * s.time * s.features;
  prepare_to_write(slopes.inputs, s.groups * steps * sizeof(Real));
  if (states == 0) {
    std::fill_n(slopes.timescale, s.groups * s.features, Real{0});
    std::fill_n(slopes.output_matrix, s.groups * read_out, Real{0});
  }
  const auto sequences = numbers<Real>(steps);
  const auto d_sequences = numbers<Real>(steps);
  const auto d_results = numbers<Real>(steps * s.channels);
  for (int64_t g = 0; g < s.groups; g++) {
    const Parameters parameters = given.system.parameters(s.state, g);
    const CarriedArrays<Real> arrays = given.at(s, g, sequences.get());
    const Pieces pieces = given.pieces(s, g);
    exchange(d_outputs + g * steps * s.channels, s.batch * s.time, s.features,
             s.channels, d_results.get());
    const CarriedSlopes<Real> of_group{
        slopes.timescale + g * s.features, slopes.output_matrix + g * read_out,
        d_sequences.get(), slopes.state + g * states};
    SharedGradients gradients(s.features, s.state);
    if (states > 0)
      for_each_feature<Real>(
          s, pieces, parameters, true,
          [&](CarriedResponse<Real>& workspace, int64_t feature) {
            workspace.backward(arrays, feature, d_results.get(),
                               d_final_state + g * states, of_group,
                               gradients.at(feature));
          });
    exchange(d_sequences.get(), s.features, s.batch * s.time, 1,
             slopes.inputs + g * steps);
    gradients.give(d_shared, g);
  }
  return kKerasLinrecDone;
}

}  // namespace
}  // namespace keras_linrec

using namespace keras_linrec;

int keras_linrec_carried_response(int flags, const int64_t* sizes,
                                  const void* const* from, void* const* to) {
  const CarriedSizes s(sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    return carried_response<decltype(real)>(s, from, to);
  });
}

int keras_linrec_carried_response_backward(int flags, const int64_t* sizes,
                                           const void* const* from,
                                           void* const* to) {
  const CarriedSizes s(sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    return carried_response_backward<decltype(real)>(s, from, to);
  });
}
