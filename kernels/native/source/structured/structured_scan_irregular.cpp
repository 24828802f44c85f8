// The response of structured systems whose steps differ in length. With
// y = Q x, a step of the length dt is
//
//   y += dt M^-1 (E y + T P^-1 B u),
//   E = T D + I,  M = T diag(1 / (P Q)) - alpha dt E,
//
// with M eliminated anew for each step: two sweeps along a tridiagonal matrix.
// A job takes `lanes` systems side by side, each a feature of a row. The
// forward pass keeps the states that enter blocks of time, from which the
// backward pass recomputes the others. All sums are float64.
#include <algorithm>
#include <cstring>

#include "base/parallel.h"
#include "structured/structured_arguments.h"
#include "base/systems.h"

namespace keras_linrec {
namespace {

// The least numbers of states that pay for another thread.
constexpr double least_work_a_thread = 1 << 16;

struct IrregularSizes {
  int64_t groups, batch, time, features, channels, state, block;
  const int64_t lanes = instruction_set().lanes;
  double alpha;
  explicit IrregularSizes(const int64_t* sizes)
      : groups(sizes[0]),
        batch(sizes[1]),
        time(sizes[2]),
        features(sizes[3]),
        channels(sizes[4]),
        state(sizes[5]),
        block(sizes[6]) {
    std::memcpy(&alpha, sizes + 7, sizeof alpha);
  }
  bool valid() const {
    return groups >= 0 && batch >= 0 && time >= 1 && features >= 0 &&
           channels >= 0 && state >= 1 && block >= 1;
  }
  int64_t systems() const { return batch * features; }
  int64_t jobs() const { return (systems() + lanes - 1) / lanes; }
  int64_t blocks() const { return (time + block - 1) / block; }
  // At least the states that enter the blocks, and the final one.
  int64_t checkpoints() const { return time / block + 2; }
};

// The arrays of a group.
template <class Real>
struct IrregularArrays {
  const Real *timescale, *output_matrix, *time_deltas, *resets, *inputs, *state;
};

// T's entry in a row, by band: left of the diagonal, on it, right of it.
template <class Of>
auto& of_transition(Of& w, int band, int64_t row) {
  if (band == 0) return w.below[row - 1];
  return band == 1 ? w.diagonal[row] : w.above[row];
}

// E, M0 and T P^-1 B, or their gradients.
struct IrregularBands {
  Numbers step[3], base[3], input;
  explicit IrregularBands(int64_t size) : input(size) {
    for (int band = 0; band < 3; band++) {
      step[band].resize(size);
      base[band].resize(size);
    }
  }

  explicit IrregularBands(const Parameters& w) : IrregularBands(w.p.size()) {
    const int64_t size = w.p.size();
    for (int64_t n = 0; n < size; n++)
      for (int band = 0; band < 3; band++) {
        const int64_t column = n + band - 1;
        if (column < 0 || column == size) continue;
        const double entry = of_transition(w, band, n);
        step[band][n] = entry * w.d[column] + (band == 1);
        base[band][n] = entry / (w.p[column] * w.q[column]);
        input[n] += entry * w.b[column] / w.p[column];
      }
  }

  // Pulls back gradients of these bands.
  void backward(const Parameters& w, Parameters& gradient) const {
    const int64_t size = w.p.size();
    for (int64_t n = 0; n < size; n++)
      for (int band = 0; band < 3; band++) {
        const int64_t column = n + band - 1;
        if (column < 0 || column == size) continue;
        const double p = w.p[column], q = w.q[column], b = w.b[column];
        const double entry = of_transition(w, band, n);
        of_transition(gradient, band, n) += step[band][n] * w.d[column] +
                                            base[band][n] / (p * q) +
                                            input[n] * b / p;
        gradient.d[column] += step[band][n] * entry;
        const double d_log = base[band][n] * entry / (p * q);
        gradient.q[column] -= d_log / q;
        gradient.p[column] -= (d_log + input[n] * entry * b / p) / p;
        gradient.b[column] += input[n] * entry / p;
      }
  }
};

// The gradients that a job computes of its own part of the arrays.
template <class Real>
struct IrregularGradients {
  Real *d_inputs, *d_state;
  double* d_timescale;      // (systems,)
  double* d_output_matrix;  // (systems, channels, state)
  double* d_time_deltas;    // (rows of the job, time)
  Parameters* shared;
};

class IrregularResponse {
 public:
  IrregularResponse(const IrregularSizes& s, const Parameters& parameters,
                    const IrregularBands& bands, bool backward)
      : s_(s),
        w_(parameters),
        bands_(bands),
        row_(s.state * s.lanes),
        transposed_left_(s.state),
        transposed_right_(s.state),
        read_out_(s.channels * row_),
        state_(row_),
        scratch_(2 * row_),
        lengths_(s.block * s.lanes),
        shifts_(s.block * s.lanes),
        rests_(s.block * s.lanes),
        deltas_(s.block * s.lanes),
        inputs_(s.block * s.lanes),
        resets_(s.block * s.lanes),
        outputs_(s.block * s.channels * s.lanes),
        inverses_(backward ? s.block * stride() : 0),
        solutions_(backward ? s.block * stride() : 0),
        betweens_(backward ? s.block * stride() : 0),
        slopes_(backward ? s.block * stride() : 0),
        d_state_(backward ? row_ : 0),
        d_read_out_(backward ? s.channels * row_ : 0),
        d_bands_(backward ? 7 * row_ : 0) {
    for (int64_t n = 0; n < s.state; n++) {
      transposed_left_[n] = n > 0 ? bands.step[2][n - 1] : 0.0;
      transposed_right_[n] = n + 1 < s.state ? bands.step[0][n + 1] : 0.0;
    }
    system_ = {s.state,
               bands.step[0].data(),
               bands.step[1].data(),
               bands.step[2].data(),
               bands.base[0].data(),
               bands.base[1].data(),
               bands.base[2].data(),
               bands.input.data()};
  }

  template <class Real>
  void forward(const IrregularArrays<Real>& given, int64_t job, Real* outputs,
               Real* final_state, Real* checkpoints) {
    begin(given, job);
    for (int64_t block = 0; block < s_.blocks(); block++) {
      keep(block, checkpoints);
      load(given, block);
      for (int64_t step = 0; step < steps_of(block); step++)
        take_step(step, false);
      for_each_output(block, [&](double& output, int64_t at) {
        outputs[at] = static_cast<Real>(output);
      });
    }
    keep(s_.blocks(), checkpoints);
    for_each_number([&](int64_t at, int64_t lane, int64_t n) {
      const double number = state_[n * s_.lanes + lane];
      final_state[at] = static_cast<Real>(number / w_.q[n]);
    });
  }

  template <class Real>
  void backward(const IrregularArrays<Real>& given, int64_t job,
                const Real* checkpoints, const Real* d_outputs,
                const Real* d_final_state, IrregularGradients<Real> to) {
    begin(given, job);
    for (Numbers* sums : {&d_state_, &d_read_out_, &d_bands_})
      std::fill(sums->begin(), sums->end(), 0.0);
    std::fill_n(d_timescale_, s_.lanes, 0.0);
    fetch(s_.blocks(), checkpoints);
    for_each_number([&](int64_t at, int64_t lane, int64_t n) {
      const int64_t place = n * s_.lanes + lane;
      const double q = w_.q[n], slope = d_final_state[at] / q;
      d_state_[place] = slope;
      to.shared->q[n] -= slope * state_[place] / q;
    });
    for (int64_t block = s_.blocks() - 1; block >= 0; block--) {
      fetch(block, checkpoints);
      load(given, block);
      for (int64_t step = 0; step < steps_of(block); step++)
        take_step(step, true);
      // Lanes without a system have no cotangents.
      std::fill(outputs_.begin(), outputs_.end(), 0.0);
      for_each_output(block, [&](double& output, int64_t at) {
        output = d_outputs[at];
      });
      for (int64_t step = steps_of(block) - 1; step >= 0; step--)
        take_step_back(block, step, to);
      add_sums(block);
    }
    give(given, to);
  }

 private:
  // From one step to the next. Powers of two would fall into the same sets of
  // the cache.
  int64_t stride() const { return row_ + s_.lanes; }
  int64_t steps_of(int64_t block) const {
    return std::min(s_.block, s_.time - block * s_.block);
  }

  template <class Real>
  void begin(const IrregularArrays<Real>& given, int64_t job) {
    first_ = job * s_.lanes;
    count_ = std::min(s_.lanes, s_.systems() - first_);
    for (int64_t lane = 0; lane < s_.lanes; lane++) {
      // Lanes without a system repeat the first one.
      const int64_t system = first_ + (lane < count_ ? lane : 0);
      rows_[lane] = system / s_.features;
      features_[lane] = system % s_.features;
      timescale_[lane] = given.timescale[features_[lane]];
      for (int64_t n = 0; n < s_.state; n++) {
        const int64_t place = n * s_.lanes + lane;
        state_[place] = w_.q[n] * given.state[system * s_.state + n];
        for (int64_t m = 0; m < s_.channels; m++)
          read_out_[m * row_ + place] =
              given.output_matrix[of_matrix(lane, m, n)] / w_.q[n];
      }
    }
  }

  int64_t of_matrix(int64_t lane, int64_t channel, int64_t n) const {
    return (features_[lane] * s_.channels + channel) * s_.state + n;
  }

  // Checkpoints (batch, checkpoints, features, state) hold y.
  template <class Real>
  void keep(int64_t checkpoint, Real* checkpoints) const {
    for (int64_t lane = 0; lane < count_; lane++) {
      Real* to = checkpoints + of_checkpoint(lane, checkpoint);
      for (int64_t n = 0; n < s_.state; n++)
        to[n] = static_cast<Real>(state_[n * s_.lanes + lane]);
    }
  }

  template <class Real>
  void fetch(int64_t checkpoint, const Real* checkpoints) {
    for (int64_t lane = 0; lane < s_.lanes; lane++) {
      const Real* from = checkpoints + of_checkpoint(lane, checkpoint);
      for (int64_t n = 0; n < s_.state; n++)
        state_[n * s_.lanes + lane] = from[n];
    }
  }

  int64_t of_checkpoint(int64_t lane, int64_t checkpoint) const {
    const int64_t row = rows_[lane] * s_.checkpoints() + checkpoint;
    return (row * s_.features + features_[lane]) * s_.state;
  }

  // Calls use(index, lane, n) for the numbers of the states.
  template <class Use>
  void for_each_number(Use use) const {
    for (int64_t lane = 0; lane < count_; lane++)
      for (int64_t n = 0; n < s_.state; n++)
        use((first_ + lane) * s_.state + n, lane, n);
  }

  template <class Real>
  void load(const IrregularArrays<Real>& given, int64_t block) {
    for (int64_t step = 0; step < steps_of(block); step++)
      for (int64_t lane = 0; lane < s_.lanes; lane++) {
        const int64_t at = step * s_.lanes + lane;
        const int64_t time = rows_[lane] * s_.time + block * s_.block + step;
        deltas_[at] = given.time_deltas[time];
        lengths_[at] = deltas_[at] * timescale_[lane];
        shifts_[at] = s_.alpha * lengths_[at];
        rests_[at] = lengths_[at] - shifts_[at];
        inputs_[at] = given.inputs[time * s_.features + features_[lane]];
        resets_[at] = given.resets[time] > 0;
      }
  }

  // Calls use(output, index) for the outputs of a block.
  template <class Use>
  void for_each_output(int64_t block, Use use) {
    for (int64_t step = 0; step < steps_of(block); step++)
      for (int64_t lane = 0; lane < count_; lane++) {
        const int64_t time = rows_[lane] * s_.time + block * s_.block + step;
        const int64_t at = time * s_.features + features_[lane];
        for (int64_t m = 0; m < s_.channels; m++)
          use(outputs_[(step * s_.channels + m) * s_.lanes + lane],
              at * s_.channels + m);
      }
  }

  // Sets the numbers of a quantity to zero in the lanes that a step resets.
  void reset(int64_t step, Numbers& numbers) const {
    for (int64_t lane = 0; lane < s_.lanes; lane++)
      if (resets_[step * s_.lanes + lane])
        for (int64_t n = 0; n < s_.state; n++)
          numbers[n * s_.lanes + lane] = 0.0;
  }

  void take_step(int64_t step, bool keep) {
    reset(step, state_);
    IrregularStep call{};
    call.system = &system_;
    call.channels = s_.channels;
    call.read_out = read_out_.data();
    call.length = lengths_.data() + step * s_.lanes;
    call.shift = shifts_.data() + step * s_.lanes;
    call.inputs = inputs_.data() + step * s_.lanes;
    call.state = state_.data();
    call.outputs = outputs_.data() + step * s_.channels * s_.lanes;
    call.scratch = scratch_.data();
    if (keep) {
      call.inverses = inverses_.data() + step * stride();
      call.solution = solutions_.data() + step * stride();
      call.between = betweens_.data() + step * stride();
    }
    instruction_set().irregular_step(call);
  }

  template <class Real>
  void take_step_back(int64_t block, int64_t step,
                      IrregularGradients<Real>& to) {
    double d_inputs[most_lanes], d_length[most_lanes];
    IrregularStepBackward call{};
    call.system = &system_;
    call.transposed_left = transposed_left_.data();
    call.transposed_right = transposed_right_.data();
    call.channels = s_.channels;
    call.alpha = s_.alpha;
    call.read_out = read_out_.data();
    call.length = lengths_.data() + step * s_.lanes;
    call.shift = shifts_.data() + step * s_.lanes;
    call.inverses = inverses_.data() + step * stride();
    call.solution = solutions_.data() + step * stride();
    call.d_outputs = outputs_.data() + step * s_.channels * s_.lanes;
    call.d_state = d_state_.data();
    call.scratch = scratch_.data();
    call.slopes = slopes_.data() + step * stride();
    call.d_inputs = d_inputs;
    call.d_length = d_length;
    instruction_set().irregular_step_backward(call);
    reset(step, d_state_);
    for (int64_t lane = 0; lane < count_; lane++) {
      const int64_t time = block * s_.block + step;
      const int64_t at = rows_[lane] * s_.time + time;
      to.d_inputs[at * s_.features + features_[lane]] =
          static_cast<Real>(d_inputs[lane]);
      to.d_time_deltas[(rows_[lane] - rows_[0]) * s_.time + time] +=
          d_length[lane] * timescale_[lane];
      d_timescale_[lane] += d_length[lane] * deltas_[step * s_.lanes + lane];
    }
  }

  void add_sums(int64_t block) {
    IrregularSums call{};
    call.size = s_.state;
    call.steps = steps_of(block);
    call.channels = s_.channels;
    call.stride = stride();
    call.solutions = solutions_.data();
    call.betweens = betweens_.data();
    call.slopes = slopes_.data();
    call.inputs = inputs_.data();
    call.rests = rests_.data();
    call.d_outputs = outputs_.data();
    for (int band = 0; band < 3; band++) {
      call.base[band] = d_bands_.data() + band * row_;
      call.step[band] = d_bands_.data() + (3 + band) * row_;
    }
    call.input = d_bands_.data() + 6 * row_;
    call.d_read_out = d_read_out_.data();
    instruction_set().add_irregular(call);
  }

  template <class Real>
  void give(const IrregularArrays<Real>& given, IrregularGradients<Real>& to) {
    IrregularBands sums(s_.state);
    for (int64_t n = 0; n < s_.state; n++)
      for (int64_t lane = 0; lane < s_.lanes; lane++) {
        const double* sum = d_bands_.data() + n * s_.lanes + lane;
        for (int band = 0; band < 3; band++) {
          sums.base[band][n] -= sum[band * row_];
          sums.step[band][n] += sum[(3 + band) * row_];
        }
        sums.input[n] += sum[6 * row_];
      }
    sums.backward(w_, *to.shared);
    for_each_number([&](int64_t at, int64_t lane, int64_t n) {
      const int64_t place = n * s_.lanes + lane;
      const double q = w_.q[n];
      double d_q = d_state_[place] * given.state[at];
      to.d_state[at] = static_cast<Real>(q * d_state_[place]);
      for (int64_t m = 0; m < s_.channels; m++) {
        const double slope = d_read_out_[m * row_ + place] / q;
        const int64_t system = (first_ + lane) * s_.channels + m;
        to.d_output_matrix[system * s_.state + n] = slope;
        d_q -= slope * given.output_matrix[of_matrix(lane, m, n)] / q;
      }
      to.shared->q[n] += d_q;
    });
    for (int64_t lane = 0; lane < count_; lane++)
      to.d_timescale[first_ + lane] = d_timescale_[lane];
  }

  const IrregularSizes& s_;
  const Parameters& w_;
  const IrregularBands& bands_;
  IrregularSystem system_;
  int64_t row_;
  int64_t first_ = 0, count_ = 0;
  int64_t rows_[most_lanes], features_[most_lanes];
  double timescale_[most_lanes], d_timescale_[most_lanes];
  Numbers transposed_left_, transposed_right_;
  // By lanes: see irregular_kernels.h.
  Numbers read_out_, state_, scratch_;
  Numbers lengths_, shifts_, rests_, deltas_, inputs_;
  std::vector<char> resets_;
  Numbers outputs_, inverses_, solutions_, betweens_, slopes_;
  Numbers d_state_, d_read_out_, d_bands_;
};

// Calls use(workspace, job) for all jobs, on as many threads as they pay for.
template <class Use>
void for_each_job(const IrregularSizes& s, const Parameters& parameters,
                  bool backward, Use use) {
  const IrregularBands bands(parameters);
  const double most = std::min<int64_t>(threads(), s.jobs());
  const double work = 1.0 * s.systems() * s.time * s.state;
  const double wanted = std::clamp(work / least_work_a_thread, 1.0, most);
  keras_linrec::for_each_job(
      static_cast<int>(wanted), s.jobs(),
      [&] { return IrregularResponse(s, parameters, bands, backward); }, use);
}

template <class Real>
struct IrregularArguments {
  StructuredArguments<Real> system;
  const Real *time_deltas, *resets, *inputs, *state;

  explicit IrregularArguments(Reader<Real, const void>& read)
      : system(read),
        time_deltas(read.in()[0]),
        resets(read.in()[0]),
        inputs(read.in()[0]),
        state(read.in()[0]) {}

  IrregularArrays<Real> at(const IrregularSizes& s, int64_t group) const {
    const int64_t steps = group * s.batch * s.time;
    return {system.timescale[0] + group * s.features,
            system.output_matrix[0] +
                group * s.features * s.channels * s.state,
            time_deltas + steps,
            resets + steps,
            inputs + steps * s.features,
            state + group * s.systems() * s.state};
  }
};

template <class Real>
int structured_scan_irregular(const IrregularSizes& s, const void* const* from,
                              void* const* to) {
  Reader<Real, const void> read(from, false);
  const IrregularArguments<Real> given(read);
  Real* outputs = static_cast<Real*>(to[0]);
  Real* final_state = static_cast<Real*>(to[1]);
  Real* checkpoints = static_cast<Real*>(to[2]);
  if (s.groups * s.systems() == 0) return kKerasLinrecDone;
  const int64_t numbers = s.systems() * s.time * s.channels;
  const int64_t states = s.systems() * s.state;
  const int64_t kept = states * s.checkpoints();
  prepare_to_write(outputs, s.groups * numbers * sizeof(Real));
  prepare_to_write(checkpoints, s.groups * kept * sizeof(Real));
  for (int64_t g = 0; g < s.groups; g++) {
    const Parameters parameters = given.system.parameters(s.state, g);
    const IrregularArrays<Real> arrays = given.at(s, g);
    for_each_job(s, parameters, false, [&](auto& workspace, int64_t job) {
      workspace.forward(arrays, job, outputs + g * numbers,
                        final_state + g * states, checkpoints + g * kept);
    });
  }
  return kKerasLinrecDone;
}

// The gradients of one group. Each job has sums of its own, and they are added
// in a fixed order, so that they do not depend on the number of threads.
template <class Real>
class IrregularSlopes {
 public:
  explicit IrregularSlopes(const IrregularSizes& s)
      : s_(s),
        shared_(s.jobs(), s.state),
        timescale_(s.systems()),
        output_matrix_(s.systems() * s.channels * s.state),
        time_deltas_(s.jobs()) {}

  IrregularGradients<Real> at(int64_t job, Real* d_inputs, Real* d_state) {
    const int64_t rows = last_row(job) - first_row(job) + 1;
    time_deltas_[job].assign(rows * s_.time, 0.0);
    return {d_inputs,
            d_state,
            timescale_.data(),
            output_matrix_.data(),
            time_deltas_[job].data(),
            &shared_.at(job)};
  }

  void give(const Out<Real> (&shared)[5], Real* timescale, Real* output_matrix,
            Real* time_deltas, int64_t group) {
    shared_.give(shared, group);
    give(timescale_, s_.features, timescale + group * s_.features);
    const int64_t numbers = s_.features * s_.channels * s_.state;
    give(output_matrix_, numbers, output_matrix + group * numbers);
    Numbers sums(s_.batch * s_.time);
    for (int64_t job = 0; job < s_.jobs(); job++) {
      double* sum = sums.data() + first_row(job) * s_.time;
      for (double number : time_deltas_[job]) *sum++ += number;
    }
    Real* target = time_deltas + group * s_.batch * s_.time;
    for (double sum : sums) *target++ = static_cast<Real>(sum);
  }

 private:
  int64_t first_row(int64_t job) const { return job * s_.lanes / s_.features; }
  int64_t last_row(int64_t job) const {
    return (std::min((job + 1) * s_.lanes, s_.systems()) - 1) / s_.features;
  }

  // The sum over the rows.
  void give(const Numbers& by_row, int64_t count, Real* to) const {
    for (int64_t i = 0; i < count; i++) {
      double sum = 0.0;
      for (int64_t row = 0; row < s_.batch; row++)
        sum += by_row[row * count + i];
      to[i] = static_cast<Real>(sum);
    }
  }

  const IrregularSizes& s_;
  SharedGradients shared_;
  Numbers timescale_, output_matrix_;
  std::vector<Numbers> time_deltas_;
};

template <class Real>
int structured_scan_irregular_backward(const IrregularSizes& s,
                                       const void* const* from,
                                       void* const* to) {
  Reader<Real, const void> read(from, false);
  const IrregularArguments<Real> given(read);
  const Real* checkpoints = read.in()[0];
  const Real* d_outputs = read.in()[0];
  const Real* d_final_state = read.in()[0];
  Reader<Real, void> write(to, false);
  Out<Real> d_shared[5];
  for (Out<Real>& quantity : d_shared) quantity = write.out();
  Real* d_timescale = write.out()[0];
  Real* d_output_matrix = write.out()[0];
  Real* d_time_deltas = write.out()[0];
  Real* d_inputs = write.out()[0];
  Real* d_state = write.out()[0];
  const int64_t steps = s.systems() * s.time, states = s.systems() * s.state;
  prepare_to_write(d_inputs, s.groups * steps * sizeof(Real));
  for (int64_t g = 0; g < s.groups; g++) {
    const Parameters parameters = given.system.parameters(s.state, g);
    const IrregularArrays<Real> arrays = given.at(s, g);
    IrregularSlopes<Real> slopes(s);
    for_each_job(s, parameters, true, [&](auto& workspace, int64_t job) {
      workspace.backward(
          arrays, job, checkpoints + g * states * s.checkpoints(),
          d_outputs + g * steps * s.channels, d_final_state + g * states,
          slopes.at(job, d_inputs + g * steps, d_state + g * states));
    });
    slopes.give(d_shared, d_timescale, d_output_matrix, d_time_deltas, g);
  }
  return kKerasLinrecDone;
}

}  // namespace
}  // namespace keras_linrec

int keras_linrec_structured_scan_irregular(int flags, const int64_t* sizes,
                                           const void* const* from,
                                           void* const* to) {
  using namespace keras_linrec;
  const IrregularSizes s(sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    return structured_scan_irregular<decltype(real)>(s, from, to);
  });
}

int keras_linrec_structured_scan_irregular_backward(int flags,
                                                    const int64_t* sizes,
                                                    const void* const* from,
                                                    void* const* to) {
  using namespace keras_linrec;
  const IrregularSizes s(sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    return structured_scan_irregular_backward<decltype(real)>(s, from, to);
  });
}
