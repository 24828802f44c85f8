// The scan whose gates compute its decays and what enters, block by block, and
// its gradient, which computes them again.
#include <utility>

#include "base/systems.h"
#include "scan/scan_jobs.h"

namespace keras_linrec {
namespace {

using scans::Job;
using scans::Sizes;

// The numbers of a block, of which there are five to eight arrays in a cache.
// With 2^10, 2^11, 2^12 and 2^13 of them, a gradient at (32, 784, 128) takes
// 25, 23, 25 and 30 ms with rates, and 17, 13, 17 and 16 with one gate, on one
// thread.
constexpr int64_t numbers_a_block = 1 << 11;
// As many steps are summed in `Real` before the sum settles.
constexpr int64_t least_steps_a_block = 8, most_steps_a_block = 64;

struct Form {
  bool two_gates, rates, positive;
  explicit Form(int flags)
      : two_gates(flags & kKerasLinrecTwoGates),
        rates(flags & kKerasLinrecRates),
        positive(flags & kKerasLinrecPositive) {}
  // The numbers that a channel's drive has.
  int drives() const { return two_gates ? 3 : 2; }
  // What has a sum over all steps: the biases, and the largest rate.
  int sums() const { return drives() + rates; }
  // The planes that the gradient keeps of the gates: see gate_kernels-inl.h.
  int kept() const { return rates ? 4 : drives(); }
};

// The sizes of the scan itself.
Sizes sizes_of(int flags, const int64_t* sizes) {
  Sizes s(flags & (kKerasLinrecResets | kKerasLinrecFloat64), sizes);
  s.per_step = true;
  return s;
}

template <class Real>
struct GatedRows {
  typedef double Factor;

  const Sizes& s;
  const Form form;
  const Real *drive, *bias, *inputs, *largest_rate;
  // Of the gradient. There are sums for all places, one kind after another.
  Real *d_drive, *d_inputs;
  double* sums;
  int64_t all_places;
  bool streamed;
  const std::vector<double> zeros = std::vector<double>(s.channels);

  // A block's rows, of whole vectors.
  struct Workspace {
    int64_t stride, steps;
    std::vector<double> decay;
    std::vector<Real> entering, kept, d_decay, block_sums;
    std::vector<double> sums;
    int64_t plane() const { return stride * steps; }
  };

  static int64_t padded(int64_t channels) {
    const int64_t panel = kernels<Real>().panel;
    return (channels + panel - 1) / panel * panel;
  }

  Workspace workspace(const Job& job) const {
    const int64_t stride = padded(job.width);
    // Whatever a job's share of the channels: sums round in the same places.
    const int64_t steps = std::clamp(numbers_a_block / padded(s.channels),
                                     least_steps_a_block, most_steps_a_block);
    Workspace made{stride, std::min(steps, job.time), {}, {}, {}, {}, {}, {}};
    made.decay.resize(made.plane());
    made.entering.resize(made.plane());
    if (!d_drive) return made;
    made.kept.resize(form.kept() * made.plane());
    made.d_decay.resize(made.plane());
    made.block_sums.resize(form.sums() * stride);
    made.sums.resize(form.sums() * stride);
    return made;
  }

  // Calls use(block, steps before it) for the blocks of some steps.
  template <class Use>
  static void for_each_block(const Job& steps, int64_t length, bool backwards,
                             Use use) {
    for (int64_t done = 0; done < steps.time; done += length) {
      const int64_t time = std::min(length, steps.time - done);
      const int64_t before = backwards ? steps.time - done - time : done;
      use(steps.with_steps(steps.first + before, time), before);
    }
  }

  // Where a channel's first number of the drive is at the first step.
  int64_t drive_at(const Job& steps) const {
    const int64_t step = steps.row * s.time + steps.first;
    return step * form.drives() * s.channels + steps.channel;
  }

  void describe(const Job& block, GateRows<Real>& gates) const {
    gates.rows_ahead = d_drive ? -block.time : block.time;
    gates.rows = block.time;
    gates.channels = block.width;
    gates.two_gates = form.two_gates;
    gates.rates = form.rates;
    gates.positive = form.positive;
    gates.drive_stride = form.drives() * s.channels;
    gates.input_stride = s.channels;
    const int64_t of_group = block.group * s.channels + block.channel;
    for (int k = 0; k < form.drives(); k++) {
      gates.drive[k] = drive + drive_at(block) + k * s.channels;
      gates.bias[k] = bias + block.group * gates.drive_stride +
                      k * s.channels + block.channel;
    }
    if (!form.rates) return;
    gates.inputs = inputs + block.at(s, block.first);
    gates.largest_rate = largest_rate + of_group;
  }

  void open(const Job& block, Workspace& workspace) const {
    OpenGates<Real> gates{};
    describe(block, gates);
    gates.stride = workspace.stride;
    gates.decay = workspace.decay.data();
    gates.plane = workspace.plane();
    if (d_drive) gates.kept = workspace.kept.data();
    else gates.entering = workspace.entering.data();
    kernels<Real>().open_gates(gates);
  }

  template <class Rows>
  void set_decay(const Workspace& workspace, bool is_reset, Rows& rows) const {
    rows.per_step = true;
    rows.decay_stride = workspace.stride;
    rows.decay[0] = is_reset ? zeros.data() : workspace.decay.data();
  }

  void run(const Job& steps, bool is_reset, Workspace& workspace,
           const ScanRows<Real, double>& all) const {
    for_each_block(
        steps, workspace.steps, false, [&](const Job& block, int64_t before) {
          open(block, workspace);
          ScanRows<Real, double> rows = all;
          set_decay(workspace, is_reset, rows);
          rows.time = block.time;
          rows.input_stride = workspace.stride;
          rows.inputs[0] = workspace.entering.data();
          rows.outputs[0] += before * rows.output_stride;
          kernels<Real>().scan_gated_rows(rows);
        });
  }

  void run_backward(const Job& steps, bool is_reset, bool keep,
                    Workspace& workspace,
                    const ScanRowsBackward<Real, double>& all) const {
    for_each_block(
        steps, workspace.steps, true, [&](const Job& block, int64_t before) {
          open(block, workspace);
          ScanRowsBackward<Real, double> rows = all;
          set_decay(workspace, is_reset, rows);
          rows.time = block.time;
          rows.d_input_stride = rows.d_decay_stride = workspace.stride;
          rows.d_inputs[0] = workspace.entering.data();
          rows.d_decay[0] = workspace.d_decay.data();
          rows.outputs[0] += before * rows.output_stride;
          rows.d_outputs[0] += before * rows.d_output_stride;
          if (before) rows.initial[0] = rows.outputs[0] - rows.output_stride;
          kernels<Real>().scan_gated_rows_backward(rows);
          if (is_reset)
            std::fill_n(workspace.d_decay.begin(), block.width, Real{0});
          if (keep) close(block, workspace);
        });
  }

  void close(const Job& block, Workspace& workspace) const {
    CloseGates<Real> gates{};
    describe(block, gates);
    gates.stride = workspace.stride;
    gates.streamed = streamed;
    gates.decay = workspace.decay.data();
    gates.kept = workspace.kept.data();
    gates.plane = workspace.plane();
    gates.d_decay = workspace.d_decay.data();
    gates.d_entering = workspace.entering.data();
    for (int k = 0; k < form.drives(); k++) {
      gates.d_drive[k] = d_drive + drive_at(block) + k * s.channels;
      gates.d_bias[k] = workspace.block_sums.data() + k * workspace.stride;
    }
    if (form.rates) {
      gates.d_inputs = d_inputs + block.at(s, block.first);
      gates.d_largest_rate =
          workspace.block_sums.data() + form.drives() * workspace.stride;
    }
    kernels<Real>().close_gates(gates);
    for (size_t i = 0; i < workspace.sums.size(); i++)
      workspace.sums[i] += std::exchange(workspace.block_sums[i], Real{0});
  }

  void finish(const Job& job, int64_t place, const Workspace& workspace) const {
    for (int k = 0; k < form.sums(); k++)
      std::copy_n(workspace.sums.data() + k * workspace.stride, job.width,
                  sums + k * all_places + place);
  }

  // The product of the decays of a job's steps.
  void product(const Job& job, Workspace& workspace,
               const Out<double>& to) const {
    std::fill_n(to[0], job.width, 1.0);
    for_each_block(
        job, workspace.steps, false, [&](const Job& block, int64_t) {
          open(block, workspace);
          for (int64_t t = 0; t < block.time; t++)
            for (int64_t c = 0; c < job.width; c++)
              to[0][c] *= workspace.decay[t * workspace.stride + c];
        });
  }
};

// The arguments that both calls begin with.
template <class Real>
GatedRows<Real> rows_of(const Sizes& s, const Form& form,
                        Reader<Real, const void>& read) {
  const Real* const drive = read.in()[0];
  const Real* const bias = read.in()[0];
  const Real* const inputs = read.in()[0];
  const Real* const largest_rate = read.in()[0];
  return {s,       form,    drive,   bias, inputs, largest_rate,
          nullptr, nullptr, nullptr, 0,    false};
}

template <class Real>
int gated_scan(const Sizes& s, const Form& form, const void* const* from,
               void* const* to) {
  Reader<Real, const void> read(from, false);
  const GatedRows<Real> rows = rows_of(s, form, read);
  const In<Real> resets = read.in(), initial = read.in();
  Reader<Real, void> write(to, false);
  const Out<Real> outputs = write.out(), final_state = write.out();
  if (s.rows() * s.channels == 0) return kKerasLinrecDone;
  prepare_to_write(outputs[0], s.numbers() * sizeof(Real));
  scans::run_scan(s, rows, resets[0], initial, outputs, final_state,
                  s.streamed<Real>());
  return kKerasLinrecDone;
}

template <class Real>
int gated_scan_backward(const Sizes& s, const Form& form,
                        const void* const* from, void* const* to) {
  Reader<Real, const void> read(from, false);
  GatedRows<Real> rows = rows_of(s, form, read);
  const In<Real> outputs = read.in(), resets = read.in(), initial = read.in();
  const In<Real> d_outputs = read.in(), d_final = read.in();
  Reader<Real, void> write(to, false);
  rows.d_drive = write.out()[0];
  Real* const d_bias = write.out()[0];
  rows.d_inputs = write.out()[0];
  Real* const d_largest_rate = write.out()[0];
  const Out<Real> d_initial = write.out();
  const int64_t drives = form.drives();
  if (s.rows() * s.channels == 0) {
    std::fill_n(d_bias, drives * s.groups * s.channels, Real{0});
    if (form.rates)
      std::fill_n(d_largest_rate, s.groups * s.channels, Real{0});
    return kKerasLinrecDone;
  }
  prepare_to_write(rows.d_drive, drives * s.numbers() * sizeof(Real));
  if (form.rates)
    prepare_to_write(rows.d_inputs, s.numbers() * sizeof(Real));
  const int64_t places = scans::places(s);
  std::vector<double> sums(form.sums() * places);
  rows.sums = sums.data();
  rows.all_places = places;
  rows.streamed = drives * s.numbers() * sizeof(Real) > scans::streamed_bytes;
  scans::run_scan_backward(s, rows, resets[0], initial, outputs, d_outputs,
                           d_final, d_initial);
  for (int k = 0; k < drives; k++)
    scans::add_places(s, &sums[k * places], d_bias + k * s.channels,
                      drives * s.channels);
  if (form.rates)
    scans::add_places(s, &sums[drives * places], d_largest_rate, s.channels);
  return kKerasLinrecDone;
}

}  // namespace
}  // namespace keras_linrec

int keras_linrec_gated_scan(int flags, const int64_t* sizes,
                            const void* const* from, void* const* to) {
  using namespace keras_linrec;
  const Sizes s = sizes_of(flags, sizes);
  if (!s.valid() || s.time < 1) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    return gated_scan<decltype(real)>(s, Form(flags), from, to);
  });
}

int keras_linrec_gated_scan_backward(int flags, const int64_t* sizes,
                                     const void* const* from,
                                     void* const* to) {
  using namespace keras_linrec;
  const Sizes s = sizes_of(flags, sizes);
  if (!s.valid() || s.time < 1) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    return gated_scan_backward<decltype(real)>(s, Form(flags), from, to);
  });
}
