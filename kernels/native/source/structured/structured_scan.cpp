// Responses with states before and after them: in blocks, see
// structured_scan.h, of which a job takes one feature; or step by step, see
// structured_scan_steps.h.
#include "structured/structured_scan.h"

#include <memory>

#include "base/parallel.h"
#include "base/systems.h"
#include "structured/scan_from_zeros.h"
#include "structured/structured_arguments.h"
#include "structured/structured_scan_steps.h"

namespace keras_linrec {
namespace {

// The least multiply-adds that pay for another thread.
constexpr double least_work_a_thread = 1 << 20;

template <class Real, class Use>
void for_each_feature(const StructuredScanSizes& s, const Pieces& pieces,
                      const Parameters& parameters, bool backward, Use use) {
  const double most = std::min<int64_t>(threads(), s.features);
  const double work = s.features * s.work(s.doublings());
  const double wanted = std::clamp(work / least_work_a_thread, 1.0, most);
  for_each_job(
      static_cast<int>(wanted), s.features,
      [&] { return StructuredScan<Real>(s, pieces, parameters, backward); },
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

template <class Real>
struct StructuredScanArguments {
  StructuredArguments<Real> system;
  const Real *lengths, *resets, *inputs, *state;

  explicit StructuredScanArguments(Reader<Real, const void>& read)
      : system(read),
        lengths(read.in()[0]),
        resets(read.in()[0]),
        inputs(read.in()[0]),
        state(read.in()[0]) {}

  Pieces pieces(const StructuredScanSizes& s, int64_t group) const {
    return Pieces(s, int64_t{1} << s.doublings(), lengths + group * s.batch,
                  resets + group * s.batch * s.time);
  }

  // The inputs are exchanged into `sequences`.
  StructuredScanArrays<Real> at(const StructuredScanSizes& s, int64_t group,
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
int in_blocks(const StructuredScanSizes& s, const void* const* from,
              void* const* to) {
  Reader<Real, const void> read(from, false);
  const StructuredScanArguments<Real> given(read);
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
    const StructuredScanArrays<Real> arrays = given.at(s, g, sequences.get());
    const Pieces pieces = given.pieces(s, g);
    for_each_feature<Real>(
        s, pieces, parameters, false,
        [&](StructuredScan<Real>& workspace, int64_t feature) {
          workspace.forward(arrays, feature, results.get(),
                            final_state + g * states);
        });
    exchange(results.get(), s.features, s.batch * s.time, s.channels,
             outputs + g * steps * s.channels);
  }
  return kKerasLinrecDone;
}

template <class Real>
int in_blocks_backward(const StructuredScanSizes& s, const void* const* from,
                       void* const* to) {
  Reader<Real, const void> read(from, false);
  const StructuredScanArguments<Real> given(read);
  const Real* d_outputs = read.in()[0];
  const Real* d_final_state = read.in()[0];
  Reader<Real, void> write(to, false);
  Out<Real> d_shared[5];
  for (Out<Real>& quantity : d_shared) quantity = write.out();
  StructuredScanSlopes<Real> slopes{};
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
    const StructuredScanArrays<Real> arrays = given.at(s, g, sequences.get());
    const Pieces pieces = given.pieces(s, g);
    exchange(d_outputs + g * steps * s.channels, s.batch * s.time, s.features,
             s.channels, d_results.get());
    const StructuredScanSlopes<Real> of_group{
        slopes.timescale + g * s.features, slopes.output_matrix + g * read_out,
        d_sequences.get(), slopes.state + g * states};
    SharedGradients gradients(s.features, s.state);
    if (states > 0)
      for_each_feature<Real>(
          s, pieces, parameters, true,
          [&](StructuredScan<Real>& workspace, int64_t feature) {
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

// --- the choice -------------------------------------------------------------

// The arrays of a call, with zeros for an initial state that it lacks, and
// memory for the cotangent.
template <class Real>
class WithState {
 public:
  WithState(const StructuredScanSizes& s, const void* const* from, int count,
            void* const* to)
      : from_(from), to_(to) {
    if (!s.from_zeros) return;
    state_.resize(s.groups * s.batch * s.states());
    std::copy_n(from, count, with_state_);
    with_state_[10] = state_.data();
    from_ = with_state_;
    if (!to) return;
    d_state_ = numbers<Real>(state_.size());
    std::copy_n(to, 8, with_slope_);
    with_slope_[8] = d_state_.get();
    to_ = with_slope_;
  }
  const void* const* from() const { return from_; }
  void* const* to() const { return to_; }

 private:
  const void* const* from_;
  void* const* to_;
  std::vector<Real> state_;
  std::unique_ptr<Real[]> d_state_;
  const void* with_state_[13];
  void* with_slope_[9];
};

template <class Real>
bool by_convolution(const StructuredScanSizes& s, const void* const* from) {
  return s.by_convolution() &&
         all_zero(static_cast<const Real*>(from[8]),
                  s.groups * s.batch * s.time);
}

template <class Real>
int at_once(const StructuredScanSizes& s, const void* const* from,
            void* const* to) {
  if (!by_convolution<Real>(s, from)) return in_blocks<Real>(s, from, to);
  return FromZeros<Real>(s, from).forward(static_cast<Real*>(to[0]),
                                          static_cast<Real*>(to[1]));
}

template <class Real>
int at_once_backward(const StructuredScanSizes& s, const void* const* from,
                     void* const* to) {
  if (!by_convolution<Real>(s, from))
    return in_blocks_backward<Real>(s, from, to);
  return FromZeros<Real>(s, from).backward(to);
}

template <class Real>
int structured_scan(const StructuredScanSizes& s, const void* const* from,
                    void* const* to) {
  if (s.in_steps() && !by_convolution<Real>(s, from))
    return Steps<Real>(s, from).forward(to[0], to[1]);
  const BadRows<Real> bad(s, from, nullptr);
  if (bad.most() == 0) return at_once<Real>(s, from, to);
  const auto others = bad.without(from, 11);
  int status = at_once<Real>(s, others.arrays(), to);
  if (status != kKerasLinrecDone) return status;
  const auto alone = bad.alone(from, 11);
  const auto outputs = bad.numbers_for(s.outputs());
  const auto states = bad.numbers_for(s.states());
  status = Steps<Real>(bad.sizes(), alone.arrays())
               .forward(outputs.get(), states.get());
  bad.put(outputs.get(), s.outputs(), to[0]);
  bad.put(states.get(), s.states(), to[1]);
  return status;
}

template <class Real>
int structured_scan_backward(const StructuredScanSizes& s,
                             const void* const* from, void* const* to) {
  if (s.in_steps() && !by_convolution<Real>(s, from))
    return Steps<Real>(s, from).backward(from[11], from[12], to);
  const BadRows<Real> bad(s, from, from[11]);
  if (bad.most() == 0) return at_once_backward<Real>(s, from, to);
  const auto others = bad.without(from, 13);
  int status = at_once_backward<Real>(s, others.arrays(), to);
  if (status != kKerasLinrecDone) return status;
  const auto alone = bad.alone(from, 13);
  const auto inputs = bad.numbers_for(s.inputs());
  const auto states = bad.numbers_for(s.states());
  // Of p, d, q, t, b, the timescale and C, which all rows share.
  const int64_t n = s.state, read_out = s.features * s.channels * n;
  const int64_t counts[] = {n, n, n, 3 * n, n, s.features, read_out};
  std::unique_ptr<Real[]> shared[7];
  void* all[9];
  for (int i = 0; i < 7; i++) {
    shared[i] = numbers<Real>(s.groups * counts[i]);
    all[i] = shared[i].get();
  }
  all[7] = inputs.get();
  all[8] = states.get();
  status = Steps<Real>(bad.sizes(), alone.arrays())
               .backward(alone.arrays()[11], alone.arrays()[12], all);
  for (int i = 0; i < 7; i++)
    for (int64_t j = 0; j < s.groups * counts[i]; j++)
      static_cast<Real*>(to[i])[j] += shared[i][j];
  bad.put(inputs.get(), s.inputs(), to[7]);
  bad.put(states.get(), s.states(), to[8]);
  return status;
}

}  // namespace
}  // namespace keras_linrec

using namespace keras_linrec;

int keras_linrec_structured_scan(int flags, const int64_t* sizes,
                                 const void* const* from, void* const* to) {
  const StructuredScanSizes s(flags, sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    const WithState<decltype(real)> given(s, from, 11, nullptr);
    return structured_scan<decltype(real)>(s, given.from(), to);
  });
}

int keras_linrec_structured_scan_backward(int flags, const int64_t* sizes,
                                          const void* const* from,
                                          void* const* to) {
  const StructuredScanSizes s(flags, sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    const WithState<decltype(real)> given(s, from, 13, to);
    return structured_scan_backward<decltype(real)>(s, given.from(),
                                                    given.to());
  });
}
