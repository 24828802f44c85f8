// The scan of given decays and inputs, and its gradient.
#include <cmath>

#include "base/systems.h"
#include "scan/scan_jobs.h"

namespace keras_linrec {
namespace {

using scans::Job;
using scans::Sizes;
using scans::State;

// The rows of a scan, as they are given.
template <class Real>
struct GivenRows {
  typedef Real Factor;
  typedef State Workspace;  // the sums over a job's steps

  const Sizes& s;
  In<Real> decay;
  In<Real> inputs;
  // Of the gradient; `sums` are those of all places.
  Out<Real> d_decay, d_inputs;
  Out<double> sums;
  bool streamed;
  const std::vector<Real> zeros = std::vector<Real>(s.resets ? s.channels : 0);

  State workspace(const Job& job) const {
    return State(s.per_step ? 0 : job.width, s.complex);
  }

  template <class Rows>
  void describe(const Job& steps, bool is_reset, Rows& rows) const {
    rows.per_step = s.per_step;
    rows.decay_stride = s.per_step ? s.channels : 0;
    const int64_t here = s.per_step ? steps.at(s, steps.first)
                                    : steps.group * s.channels + steps.channel;
    assign(decay.at(here), rows.decay);
    for (int p = 0; is_reset && p <= s.complex; p++)
      rows.decay[p] = zeros.data();
  }

  void run(const Job& steps, bool is_reset, State&, ScanRows<Real> rows) const {
    rows.input_stride = s.channels;
    rows.read_ahead = true;
    assign(inputs.at(steps.at(s, steps.first)), rows.inputs);
    describe(steps, is_reset, rows);
    kernels<Real>().scan_rows(rows);
  }

  void run_backward(const Job& steps, bool is_reset, bool keep, State& sum,
                    ScanRowsBackward<Real> rows) const {
    const int64_t here = steps.at(s, steps.first);
    std::vector<Real> dropped(keep ? 0 : steps.width);
    describe(steps, is_reset, rows);
    for (int p = 0; p <= s.complex; p++) {
      rows.d_inputs[p] = keep ? d_inputs[p] + here : dropped.data();
      rows.d_decay_sum[p] = sum.part[p].data();
      if (s.per_step)
        rows.d_decay[p] = keep ? d_decay[p] + here : dropped.data();
    }
    if (keep) rows.d_input_stride = rows.d_decay_stride = s.channels;
    rows.streamed = keep && streamed;
    kernels<Real>().scan_rows_backward(rows);
    for (int p = 0; is_reset && s.per_step && p <= s.complex; p++)
      std::fill_n(rows.d_decay[p], steps.width, Real{0});
  }

  void finish(const Job& job, int64_t place, const State& sum) const {
    for (int p = 0; !s.per_step && p <= s.complex; p++)
      std::copy_n(sum.part[p].begin(), job.width, sums[p] + place);
  }

  // The product of the decays of a job's steps.
  void product(const Job& job, State&, const Out<double>& to) const {
    if (!s.per_step) {
      const In<Real> here = decay.at(job.group * s.channels + job.channel);
      const double steps = static_cast<double>(job.time);
      for (int64_t i = 0; i < job.width; i++) {
        if (!s.complex) {
          to[0][i] = std::pow(static_cast<double>(here[0][i]), steps);
          continue;
        }
        const std::complex<double> power = std::pow(
            std::complex<double>(here[0][i], here[1][i]), steps);
        to[0][i] = power.real();
        to[1][i] = power.imag();
      }
      return;
    }
    // The state of a scan that starts from 1 and has no inputs.
    const std::vector<Real> zeros(job.width);
    std::vector<Real> dropped(job.width);
    ScanRows<Real> rows{};
    rows.time = job.time;
    rows.channels = job.width;
    rows.reverse = s.reverse;
    describe(job, false, rows);
    std::fill(to[0], to[0] + job.width, 1.0);
    for (int p = 0; p <= s.complex; p++) {
      rows.inputs[p] = zeros.data();
      rows.outputs[p] = dropped.data();
      rows.state[p] = to[p];
    }
    kernels<Real>().scan_rows(rows);
  }
};

template <class Real>
int scan(const Sizes& s, const void* const* from, void* const* to) {
  Reader<Real, const void> read(from, s.complex);
  const In<Real> decay = read.in(), inputs = read.in();
  const In<Real> resets = read.real_in(), initial = read.in();
  Reader<Real, void> write(to, s.complex);
  const Out<Real> outputs = write.out(), final_state = write.out();
  if (s.rows() * s.channels == 0) return kKerasLinrecDone;
  const bool in_place = outputs[0] == inputs[0];
  for (int p = 0; p <= s.complex; p++)
    if (!in_place) prepare_to_write(outputs[p], s.numbers() * sizeof(Real));
  const GivenRows<Real> rows{s, decay, inputs, {}, {}, {}, false};
  scans::run_scan(s, rows, resets[0], initial, outputs, final_state,
                  !in_place && s.streamed<Real>());
  return kKerasLinrecDone;
}

template <class Real>
int scan_backward(const Sizes& s, const void* const* from, void* const* to) {
  Reader<Real, const void> read(from, s.complex);
  const In<Real> decay = read.in(), outputs = read.in();
  const In<Real> resets = read.real_in(), initial = read.in();
  const In<Real> d_outputs = read.in(), d_final = read.in();
  Reader<Real, void> write(to, s.complex);
  const Out<Real> d_decay = write.out(), d_inputs = write.out();
  const Out<Real> d_initial = write.out();
  const int64_t decays =
      s.per_step ? s.numbers() : s.groups * s.channels;
  if (s.rows() * s.channels == 0) {
    for (int p = 0; p <= s.complex; p++)
      std::fill_n(d_decay[p], decays, Real{0});
    return kKerasLinrecDone;
  }
  const bool in_place = d_inputs[0] == d_outputs[0];
  for (int p = 0; p <= s.complex; p++) {
    if (s.per_step) prepare_to_write(d_decay[p], decays * sizeof(Real));
    if (!in_place) prepare_to_write(d_inputs[p], s.numbers() * sizeof(Real));
  }
  State sums(s.per_step ? 0 : scans::places(s), s.complex);
  const GivenRows<Real> rows{s,        decay,      {},
                             d_decay,  d_inputs,   sums.at(0),
                             !in_place && s.streamed<Real>()};
  scans::run_scan_backward(s, rows, resets[0], initial, outputs, d_outputs,
                           d_final, d_initial);
  for (int p = 0; !s.per_step && p <= s.complex; p++)
    scans::add_places(s, sums.part[p].data(), d_decay[p], s.channels);
  return kKerasLinrecDone;
}

}  // namespace
}  // namespace keras_linrec

int keras_linrec_scan(int flags, const int64_t* sizes, const void* const* from,
                      void* const* to) {
  using namespace keras_linrec;
  const Sizes s(flags, sizes);
  if (!s.valid() || s.time < 1) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    return scan<decltype(real)>(s, from, to);
  });
}

int keras_linrec_scan_backward(int flags, const int64_t* sizes,
                               const void* const* from, void* const* to) {
  using namespace keras_linrec;
  const Sizes s(flags, sizes);
  if (!s.valid() || s.time < 1) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    return scan_backward<decltype(real)>(s, from, to);
  });
}
