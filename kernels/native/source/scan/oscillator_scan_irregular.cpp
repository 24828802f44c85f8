// Forced oscillators whose steps differ in length: for each part,
//
//   z_t = s_t (z_{t-1} + dt_t (b_t - A_t x_{t-1})),  x_t = x_{t-1} + dt_t z_t.
//
// A job takes some oscillators of a row, and computes in float64.
#include <algorithm>
#include <vector>

#include "base/arrays.h"
#include "base/parallel.h"
#include "base/resets.h"
#include "base/systems.h"

namespace keras_linrec {
namespace {

constexpr int64_t oscillators_a_job = 64;
// The least steps of oscillators that pay for another thread.
constexpr int64_t least_work_a_thread = 1 << 15;

struct OscillatorSizes {
  int64_t groups, batch, time, size;
  bool is_complex, has_resets;
  OscillatorSizes(int flags, const int64_t* sizes)
      : groups(sizes[0]),
        batch(sizes[1]),
        time(sizes[2]),
        size(sizes[3]),
        is_complex(flags & kKerasLinrecComplex),
        has_resets(flags & kKerasLinrecResets) {}
  bool valid() const {
    return is_complex && groups >= 0 && batch >= 0 && time >= 1 && size >= 0;
  }
  int64_t places() const {
    return (size + oscillators_a_job - 1) / oscillators_a_job;
  }
  int64_t rows() const { return groups * batch; }
  int64_t jobs() const { return rows() * places(); }
  int64_t wanted() const {
    const int64_t work = rows() * time * size;
    return std::min<int64_t>(threads(), 1 + work / least_work_a_thread);
  }
};

// The oscillators of a job.
struct Oscillators {
  int64_t row, first, count;
  Oscillators(const OscillatorSizes& s, int64_t job)
      : row(job / s.places()),
        first(job % s.places() * oscillators_a_job),
        count(std::min(oscillators_a_job, s.size - first)) {}
  int64_t at(const OscillatorSizes& s, int64_t step) const {
    return (row * s.time + step) * s.size + first;
  }
  int64_t of_row(const OscillatorSizes& s) const {
    return row * s.size + first;
  }
};

template <class Real>
struct OscillatorArguments {
  const Real *timescale, *stiffness, *factor;
  In<Real> forces, positions, speeds;  // those of all steps, of a gradient
  const Real* resets;
  In<Real> initial_positions, initial_speeds;

  OscillatorArguments(Reader<Real, const void>& read, bool with_results)
      : timescale(read.real_in()[0]),
        stiffness(read.real_in()[0]),
        factor(read.real_in()[0]),
        forces(read.in()),
        positions(with_results ? read.in() : In<Real>()),
        speeds(with_results ? read.in() : In<Real>()),
        resets(read.real_in()[0]),
        initial_positions(read.in()),
        initial_speeds(read.in()) {}

  Resets<Real> resets_of(const OscillatorSizes& s, int64_t row) const {
    return {s.has_resets ? resets + row * s.time : nullptr};
  }
};

typedef double States[oscillators_a_job];

template <class Real>
int oscillator_scan(const OscillatorSizes& s, const void* const* from,
                    void* const* to) {
  Reader<Real, const void> read(from, true);
  const OscillatorArguments<Real> all(read, false);
  Reader<Real, void> write(to, true);
  const Out<Real> positions = write.out(), speeds = write.out();
  for (int p = 0; p < 2; p++)
    for (Real* array : {positions[p], speeds[p]})
      prepare_to_write(array, s.rows() * s.time * s.size * sizeof(Real));
  for_each_job(s.wanted(), s.jobs(), [&](int, int64_t job) {
    const Oscillators some(s, job);
    const Resets<Real> resets = all.resets_of(s, some.row);
    States x[2], z[2];
    for (int p = 0; p < 2; p++) {
      const int64_t at = some.of_row(s);
      std::copy_n(all.initial_positions[p] + at, some.count, x[p]);
      std::copy_n(all.initial_speeds[p] + at, some.count, z[p]);
    }
    for (int64_t t = 0; t < s.time; t++) {
      const int64_t at = some.at(s, t);
      const Real* const dt = all.timescale + at;
      const Real* const stiffness = all.stiffness + at;
      const Real* const factor = all.factor + at;
      for (int p = 0; p < 2; p++) {
        if (resets.at(t)) {
          std::fill_n(x[p], some.count, 0.0);
          std::fill_n(z[p], some.count, 0.0);
        }
        const Real* const force = all.forces[p] + at;
        Real* const to_x = positions[p] + at;
        Real* const to_z = speeds[p] + at;
        for (int64_t n = 0; n < some.count; n++) {
          const double length = dt[n];
          z[p][n] = factor[n] *
                    (z[p][n] + length * (force[n] - stiffness[n] * x[p][n]));
          x[p][n] += length * z[p][n];
          to_x[n] = static_cast<Real>(x[p][n]);
          to_z[n] = static_cast<Real>(z[p][n]);
        }
      }
    }
  });
  return kKerasLinrecDone;
}

template <class Real>
int oscillator_scan_backward(const OscillatorSizes& s, const void* const* from,
                             void* const* to) {
  Reader<Real, const void> read(from, true);
  const OscillatorArguments<Real> all(read, true);
  const In<Real> d_positions = read.in(), d_speeds = read.in();
  Reader<Real, void> write(to, true);
  Real* const d_timescale = write.real_out()[0];
  Real* const d_stiffness = write.real_out()[0];
  Real* const d_factor = write.real_out()[0];
  const Out<Real> d_forces = write.out();
  const Out<Real> d_initial_positions = write.out();
  const Out<Real> d_initial_speeds = write.out();
  for (Real* array :
       {d_timescale, d_stiffness, d_factor, d_forces[0], d_forces[1]})
    prepare_to_write(array, s.rows() * s.time * s.size * sizeof(Real));
  for_each_job(s.wanted(), s.jobs(), [&](int, int64_t job) {
    const Oscillators some(s, job);
    const Resets<Real> resets = all.resets_of(s, some.row);
    // The cotangents of x and z, and those of a step's dt, A and s.
    States d_x[2] = {}, d_z[2] = {}, d_dt, d_a, d_s;
    const States none = {};
    States before_x, before_z;
    for (int64_t t = s.time - 1; t >= 0; t--) {
      const int64_t at = some.at(s, t);
      const Real* const dt = all.timescale + at;
      const Real* const stiffness = all.stiffness + at;
      const Real* const factor = all.factor + at;
      std::copy_n(none, some.count, d_dt);
      std::copy_n(none, some.count, d_a);
      std::copy_n(none, some.count, d_s);
      for (int p = 0; p < 2; p++) {
        if (resets.at(t)) {
          std::copy_n(none, some.count, before_x);
          std::copy_n(none, some.count, before_z);
        } else {
          const Real* const x = t ? all.positions[p] + at - s.size
                                  : all.initial_positions[p] + some.of_row(s);
          const Real* const z = t ? all.speeds[p] + at - s.size
                                  : all.initial_speeds[p] + some.of_row(s);
          std::copy_n(x, some.count, before_x);
          std::copy_n(z, some.count, before_z);
        }
        const Real* const force = all.forces[p] + at;
        const Real* const of_x = d_positions[p] + at;
        const Real* const of_z = d_speeds[p] + at;
        Real* const d_force = d_forces[p] + at;
        for (int64_t n = 0; n < some.count; n++) {
          const double length = dt[n], a = stiffness[n];
          const double pull = force[n] - a * before_x[n];
          const double sum = before_z[n] + length * pull;
          const double by_x = d_x[p][n] + of_x[n];
          const double by_z = d_z[p][n] + of_z[n] + length * by_x;
          const double by_sum = factor[n] * by_z;
          d_s[n] += by_z * sum;
          d_dt[n] += by_x * factor[n] * sum + by_sum * pull;
          d_a[n] -= by_sum * length * before_x[n];
          d_force[n] = static_cast<Real>(by_sum * length);
          d_x[p][n] = by_x - by_sum * length * a;
          d_z[p][n] = by_sum;
        }
        if (resets.at(t)) {
          std::copy_n(none, some.count, d_x[p]);
          std::copy_n(none, some.count, d_z[p]);
        }
      }
      for (int64_t n = 0; n < some.count; n++) {
        d_timescale[at + n] = static_cast<Real>(d_dt[n]);
        d_stiffness[at + n] = static_cast<Real>(d_a[n]);
        d_factor[at + n] = static_cast<Real>(d_s[n]);
      }
    }
    for (int p = 0; p < 2; p++)
      for (int64_t n = 0; n < some.count; n++) {
        const int64_t at = some.of_row(s) + n;
        d_initial_positions[p][at] = static_cast<Real>(d_x[p][n]);
        d_initial_speeds[p][at] = static_cast<Real>(d_z[p][n]);
      }
  });
  return kKerasLinrecDone;
}

}  // namespace
}  // namespace keras_linrec

int keras_linrec_oscillator_scan_irregular(int flags, const int64_t* sizes,
                                           const void* const* from,
                                           void* const* to) {
  using namespace keras_linrec;
  const OscillatorSizes s(flags, sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    return oscillator_scan<decltype(real)>(s, from, to);
  });
}

int keras_linrec_oscillator_scan_irregular_backward(int flags,
                                                    const int64_t* sizes,
                                                    const void* const* from,
                                                    void* const* to) {
  using namespace keras_linrec;
  const OscillatorSizes s(flags, sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    return oscillator_scan_backward<decltype(real)>(s, from, to);
  });
}
