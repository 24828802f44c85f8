// The scan of diagonal systems whose steps differ in length: the factors of a
// step are computed where they are used, and states of single steps are not
// stored. Computed in float64.
//
// A job takes `features_at_once` features of some rows; of fewer features, the
// others are computed in vain. The forward pass keeps the states that enter
// blocks of time, from which the backward pass recomputes the others.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "base/arrays.h"
#include "base/parallel.h"
#include "base/resets.h"
#include "base/systems.h"
#include "scan/diagonal_kernels.h"

namespace keras_linrec {
namespace {

// The least steps of systems that pay for another thread.
constexpr int64_t least_work_a_thread = 1 << 12;
// Of a batch, each of which adds up the gradients of its systems. Not as many
// as there are threads, so that sums round in the same places.
constexpr int64_t most_shares = 64;

typedef Aligned<double> Numbers;

struct DiagonalSizes {
  int64_t groups, batch, time, drives, channels, size, features, block;
  bool is_complex, has_resets, bilinear;
  DiagonalSizes(int flags, const int64_t* sizes)
      : groups(sizes[0]),
        batch(sizes[1]),
        time(sizes[2]),
        drives(sizes[3]),
        channels(sizes[4]),
        size(sizes[5]),
        features(sizes[6]),
        block(sizes[7]),
        is_complex(flags & kKerasLinrecComplex),
        has_resets(flags & kKerasLinrecResets),
        bilinear(flags & kKerasLinrecBilinear) {}
  bool valid() const {
    return is_complex && groups >= 0 && batch >= 0 && time >= 1 &&
           channels >= 0 && size >= 0 && features >= 0 && block >= 1 &&
           (drives == 1 || drives == 2);
  }
  int64_t places() const {
    return (features + features_at_once - 1) / features_at_once;
  }
  int64_t blocks() const { return (time + block - 1) / block; }
  // At least the states that enter the blocks.
  int64_t checkpoints() const { return time / block + 2; }
  int64_t rows() const { return groups * batch; }
  int64_t rows_a_share() const {
    return std::max<int64_t>(1, (batch + most_shares - 1) / most_shares);
  }
  int64_t shares() const {
    return (batch + rows_a_share() - 1) / rows_a_share();
  }
  int64_t jobs() const { return groups * shares() * places(); }
  int64_t wanted() const {
    const int64_t systems = rows() * places() * std::max<int64_t>(size, 1);
    const int64_t work = systems * time;
    return std::min<int64_t>(threads(), 1 + work / least_work_a_thread);
  }
};

// The rows of a group that a job takes, and their features. `row` is one of
// them.
struct Place {
  int64_t group, row, end, first, count;
  Place(const DiagonalSizes& s, int64_t job)
      : group(job / s.places() / s.shares()),
        row(group * s.batch + job / s.places() % s.shares() * s.rows_a_share()),
        end(std::min(row + s.rows_a_share(), (group + 1) * s.batch)),
        first(job % s.places() * features_at_once),
        count(std::min(features_at_once, s.features - first)) {}
  // Where the lengths' cotangents of a row are.
  int64_t of_row(const DiagonalSizes& s) const {
    return row * s.places() + first / features_at_once;
  }
};

// The arguments that both calls begin with.
template <class Real>
struct DiagonalArguments {
  In<Real> eigenvalues, output_kernel;
  const Real *time_deltas, *resets, *inputs;
  In<Real> initial_state;
  explicit DiagonalArguments(Reader<Real, const void>& read)
      : eigenvalues(read.in()),
        output_kernel(read.in()),
        time_deltas(read.real_in()[0]),
        resets(read.real_in()[0]),
        inputs(read.real_in()[0]),
        initial_state(read.in()) {}
};

// What a thread needs for its jobs.
template <class Real>
class Workspace {
 public:
  Workspace(const DiagonalSizes& s, const DiagonalArguments<Real>& from)
      : s_(s), from_(from), steps_(std::min(s.block, s.time)) {
    const int64_t row = features_at_once;
    for (int p = 0; p < 2; p++) {
      eigenvalue_[p].resize(s.size * row);
      inverse_[p].resize(s.size * row);
      read_out_[p].resize(s.channels * s.size * row);
      state[p].resize(s.size * row);
      system_.eigenvalue[p] = eigenvalue_[p].data();
      system_.inverse[p] = inverse_[p].data();
      system_.read_out[p] = read_out_[p].data();
    }
    system_.size = s.size;
    system_.channels = s.channels;
    system_.drives = static_cast<int>(s.drives);
    system_.bilinear = s.bilinear;
    lengths.resize(steps_);
    drops.reset(new bool[steps_]);
    inputs.resize(steps_ * s.drives * row);
    outputs.resize(steps_ * s.channels * row);
  }

  // Reads the systems of some features.
  void begin(const Place& place) {
    const int64_t of_group = place.group * s_.size * s_.features;
    for (int p = 0; p < 2; p++) {
      read_rows(from_.eigenvalues[p] + of_group, s_.size, place,
                eigenvalue_[p]);
      read_rows(from_.output_kernel[p] + s_.channels * of_group,
                s_.channels * s_.size, place, read_out_[p]);
    }
    for (size_t i = 0; i < eigenvalue_[0].size(); i++) invert(i);
  }

  // The states of a row before its first step.
  void read_state(const In<Real>& states, const Place& place, Numbers* to) {
    for (int p = 0; p < 2; p++)
      read_rows(states[p] + place.row * s_.size * s_.features, s_.size, place,
                to[p]);
  }
  void write_state(const Numbers* states, const Place& place,
                   const Out<Real>& to) const {
    for (int p = 0; p < 2; p++)
      write_rows(states[p], s_.size, place,
                 to[p] + place.row * s_.size * s_.features);
  }

  // The steps of a block, and its inputs.
  int64_t read_block(const Place& place, int64_t block) {
    const int64_t first = block * s_.block;
    const int64_t count = std::min(s_.block, s_.time - first);
    const int64_t step = place.row * s_.time + first;
    const Resets<Real> resets{s_.has_resets ? from_.resets + step : nullptr};
    for (int64_t t = 0; t < count; t++) {
      lengths[t] = from_.time_deltas[step + t];
      drops[t] = resets.at(t);
    }
    read_rows(from_.inputs + step * s_.drives * s_.features, count * s_.drives,
              place, inputs);
    return count;
  }

  void read_rows(const Real* from, int64_t rows, const Place& place,
                 Numbers& to) const {
    for (int64_t r = 0; r < rows; r++) {
      const Real* const row = from + r * s_.features + place.first;
      std::copy_n(row, place.count, &to[r * features_at_once]);
    }
  }

  void write_rows(const Numbers& from, int64_t rows, const Place& place,
                  Real* to) const {
    for (int64_t r = 0; r < rows; r++)
      for (int64_t i = 0; i < place.count; i++)
        to[r * s_.features + place.first + i] =
            static_cast<Real>(from[r * features_at_once + i]);
  }

  // Where a checkpoint's states are, for one of their parts.
  int64_t checkpoint(const Place& place, int64_t block, int part) const {
    const int64_t at = place.row * s_.checkpoints() + block;
    return (2 * at + part) * s_.size * s_.features;
  }

  const DiagonalSystem& system() const { return system_; }

  Numbers lengths, inputs, outputs, state[2];
  std::unique_ptr<bool[]> drops;

 private:
  void invert(size_t i) {
    // Divided by its larger part, which neither overflows nor underflows.
    const double real = eigenvalue_[0][i], imag = eigenvalue_[1][i];
    const double most = std::max(std::abs(real), std::abs(imag));
    inverse_[0][i] = inverse_[1][i] = 0.0;
    if (most == 0.0) return;
    const double a = real / most, b = imag / most;
    const double square = (a * a + b * b) * most;
    inverse_[0][i] = a / square;
    inverse_[1][i] = -b / square;
  }

  const DiagonalSizes& s_;
  const DiagonalArguments<Real>& from_;
  const int64_t steps_;
  DiagonalSystem system_;
  Numbers eigenvalue_[2], inverse_[2], read_out_[2];
};

template <class Real>
int diagonal_scan(const DiagonalSizes& s, const void* const* from,
                  void* const* to) {
  Reader<Real, const void> read(from, true);
  const DiagonalArguments<Real> arguments(read);
  Reader<Real, void> write(to, true);
  Real* const outputs = write.real_out()[0];
  const Out<Real> final_state = write.out();
  Real* const checkpoints = write.real_out()[0];
  prepare_to_write(outputs, s.rows() * s.time * s.channels * s.features *
                                sizeof(Real));
  const auto make = [&] { return Workspace<Real>(s, arguments); };
  for_each_job(s.wanted(), s.jobs(), make, [&](auto& w, int64_t job) {
    Place place(s, job);
    w.begin(place);
    for (; place.row < place.end; place.row++) {
      w.read_state(arguments.initial_state, place, w.state);
      for (int64_t block = 0; block < s.blocks(); block++) {
        if (checkpoints)
          for (int p = 0; p < 2; p++)
            w.write_rows(w.state[p], s.size, place,
                         checkpoints + w.checkpoint(place, block, p));
        const int64_t steps = w.read_block(place, block);
        instruction_set().step_diagonals(
            {&w.system(), steps, w.lengths.data(), w.drops.get(),
             w.inputs.data(), {w.state[0].data(), w.state[1].data()},
             w.outputs.data()});
        const int64_t step = place.row * s.time + block * s.block;
        w.write_rows(w.outputs, steps * s.channels, place,
                     outputs + step * s.channels * s.features);
      }
      w.write_state(w.state, place, final_state);
    }
  });
  return kKerasLinrecDone;
}

template <class Real>
class DiagonalGradient {
 public:
  DiagonalGradient(const DiagonalSizes& s, const void* const* from,
                   void* const* to)
      : s_(s), read_(from, true), arguments_(read_) {
    checkpoints_ = read_.real_in()[0];
    d_outputs_ = read_.real_in()[0];
    d_final_ = read_.in();
    Reader<Real, void> write(to, true);
    d_eigenvalues_ = write.out();
    d_output_kernel_ = write.out();
    d_time_deltas_ = write.real_out()[0];
    d_inputs_ = write.real_out()[0];
    d_initial_ = write.out();
  }

  void run() {
    prepare_to_write(d_inputs_, s_.rows() * s_.time * s_.drives * s_.features *
                                    sizeof(Real));
    for (auto& part : sums_) part.resize(s_.jobs() * numbers());
    d_lengths_.resize(s_.rows() * s_.places() * s_.time);
    const auto make = [&] { return Own(s_, arguments_); };
    for_each_job(s_.wanted(), s_.jobs(), make,
                 [&](Own& own, int64_t job) { run(own, job); });
    for_each_job(s_.wanted(), s_.rows(),
                 [&](int, int64_t row) { add_lengths(row); });
    for_each_job(s_.wanted(), s_.groups * s_.places(),
                 [&](int, int64_t place) { add_sums(place); });
  }

 private:
  struct Own : Workspace<Real> {
    Own(const DiagonalSizes& s, const DiagonalArguments<Real>& from)
        : Workspace<Real>(s, from) {
      const int64_t row = features_at_once;
      const int64_t steps = this->lengths.size();
      for (auto& part : d_state) part.resize(s.size * row);
      d_inputs.resize(steps * s.drives * row);
      d_lengths.resize(steps * row);
      scratch.resize(numbers_a_step * steps * row);
    }
    Numbers d_state[2], d_inputs, d_lengths, scratch;
  };

  // Those of a job: the cotangents of eigenvalues, then of the output kernel.
  int64_t numbers() const {
    return (1 + s_.channels) * s_.size * features_at_once;
  }

  void run(Own& w, int64_t job) {
    Place place(s_, job);
    w.begin(place);
    double* const sums[] = {sums_[0].data() + job * numbers(),
                            sums_[1].data() + job * numbers()};
    for (; place.row < place.end; place.row++) {
      w.read_state(d_final_, place, w.d_state);
      for (int64_t block = s_.blocks() - 1; block >= 0; block--)
        run_block(w, place, block, sums);
      w.write_state(w.d_state, place, d_initial_);
    }
  }

  void run_block(Own& w, const Place& place, int64_t block,
                 double* const (&sums)[2]) {
    const int64_t kernel = s_.size * features_at_once;
    const int64_t steps = w.read_block(place, block);
    const int64_t step = place.row * s_.time + block * s_.block;
    for (int p = 0; p < 2; p++)
      w.read_rows(checkpoints_ + w.checkpoint(place, block, p), s_.size, place,
                  w.state[p]);
    w.read_rows(d_outputs_ + step * s_.channels * s_.features,
                steps * s_.channels, place, w.outputs);
    std::fill(w.d_inputs.begin(), w.d_inputs.end(), 0.0);
    std::fill(w.d_lengths.begin(), w.d_lengths.end(), 0.0);
    instruction_set().step_diagonals_backward(
        {&w.system(), steps, w.lengths.data(), w.drops.get(), w.inputs.data(),
         {w.state[0].data(), w.state[1].data()}, w.outputs.data(),
         {w.d_state[0].data(), w.d_state[1].data()}, w.d_inputs.data(),
         w.d_lengths.data(), {sums[0], sums[1]},
         {sums[0] + kernel, sums[1] + kernel}, w.scratch.data()});
    w.write_rows(w.d_inputs, steps * s_.drives, place,
                 d_inputs_ + step * s_.drives * s_.features);
    double* const lengths =
        d_lengths_.data() + place.of_row(s_) * s_.time + block * s_.block;
    for (int64_t t = 0; t < steps; t++)
      for (int64_t i = 0; i < place.count; i++)
        lengths[t] += w.d_lengths[t * features_at_once + i];
  }

  void add_lengths(int64_t row) {
    for (int64_t t = 0; t < s_.time; t++) {
      double sum = 0.0;
      for (int64_t p = 0; p < s_.places(); p++)
        sum += d_lengths_[(row * s_.places() + p) * s_.time + t];
      d_time_deltas_[row * s_.time + t] = static_cast<Real>(sum);
    }
  }

  // Of the shares of a group, for some features.
  void add_sums(int64_t job) {
    const int64_t group = job / s_.places(), at = job % s_.places();
    const int64_t first = at * features_at_once;
    const int64_t count = std::min(features_at_once, s_.features - first);
    for (int p = 0; p < 2; p++)
      for (int64_t r = 0; r < (1 + s_.channels) * s_.size; r++) {
        double sum[features_at_once] = {};
        for (int64_t share = 0; share < s_.shares(); share++) {
          const int64_t from = (group * s_.shares() + share) * s_.places() + at;
          const double* const part =
              &sums_[p][from * numbers() + r * features_at_once];
          for (int64_t i = 0; i < features_at_once; i++) sum[i] += part[i];
        }
        Real* const to = r < s_.size
                             ? d_eigenvalues_[p] + group * s_.size * s_.features
                             : d_output_kernel_[p] +
                                   (group * s_.channels - 1) * s_.size *
                                       s_.features;
        for (int64_t i = 0; i < count; i++)
          to[r * s_.features + first + i] = static_cast<Real>(sum[i]);
      }
  }

  const DiagonalSizes& s_;
  Reader<Real, const void> read_;
  const DiagonalArguments<Real> arguments_;
  const Real *checkpoints_, *d_outputs_;
  In<Real> d_final_;
  Out<Real> d_eigenvalues_, d_output_kernel_, d_initial_;
  Real *d_time_deltas_, *d_inputs_;
  Numbers sums_[2], d_lengths_;
};

}  // namespace
}  // namespace keras_linrec

int keras_linrec_diagonal_scan_irregular(int flags, const int64_t* sizes,
                                         const void* const* from,
                                         void* const* to) {
  using namespace keras_linrec;
  const DiagonalSizes s(flags, sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    return diagonal_scan<decltype(real)>(s, from, to);
  });
}

int keras_linrec_diagonal_scan_irregular_backward(int flags,
                                                  const int64_t* sizes,
                                                  const void* const* from,
                                                  void* const* to) {
  using namespace keras_linrec;
  const DiagonalSizes s(flags, sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    DiagonalGradient<decltype(real)>(s, from, to).run();
    return kKerasLinrecDone;
  });
}
