// The causal convolution of sequences with responses, and its gradient: tiles
// of sequences cut into jobs.
#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "base/arrays.h"
#include "convolution/fourier_plan.h"
#include "convolution/outliers.h"
#include "base/parallel.h"
#include "base/systems.h"

namespace keras_linrec {
namespace {

struct Sizes {
  int64_t groups, batch, time, features, channels, taps;
  Activation activation;
  double leak;

  Sizes(int flags, const int64_t* sizes)
      : groups(sizes[0]),
        batch(sizes[1]),
        time(sizes[2]),
        features(sizes[3]),
        channels(sizes[4]),
        taps(sizes[5]),
        activation(static_cast<Activation>(
            flags >> kKerasLinrecActivationBit & 15)) {
    std::memcpy(&leak, &sizes[6], sizeof leak);
  }

  bool valid() const {
    return groups >= 0 && batch >= 0 && time >= 1 && features >= 0 &&
           channels >= 0 && taps >= 1 && taps <= time &&
           activation < kActivations && !is_of_pairs(activation);
  }
  int64_t inputs() const { return batch * time * features; }
  int64_t responses() const { return features * channels * taps; }
  // Nothing to convolve.
  bool empty() const { return inputs() == 0 || channels == 0; }
  bool linear() const { return activation == kLinear; }
};

// Memory that nobody has written yet, in large pages where it is large.
template <class Real>
class Memory {
 public:
  explicit Memory(int64_t count) {
    constexpr size_t page = 1 << 21;
    const size_t alignment = count * sizeof(Real) < page ? 64 : page;
    const size_t bytes =
        (count * sizeof(Real) + alignment - 1) / alignment * alignment;
    alignment_ = std::align_val_t{alignment};
    numbers_ = static_cast<Real*>(::operator new(bytes, alignment_));
    prepare_to_write(numbers_, bytes);
  }
  Memory(const Memory&) = delete;
  Memory(Memory&& other)
      : numbers_(std::exchange(other.numbers_, nullptr)),
        alignment_(other.alignment_) {}
  ~Memory() { ::operator delete(numbers_, alignment_); }
  Real* at(int64_t number = 0) const { return numbers_ + number; }

 private:
  Real* numbers_;
  std::align_val_t alignment_;
};

// The threads that so much work pays for.
int threads_for(double work, int64_t jobs) {
  // Numbers below which one thread is as fast.
  constexpr double least_a_thread = 1 << 14;
  const double most = std::min<int64_t>(threads(), jobs);
  return static_cast<int>(std::min(work / least_a_thread + 1.0, most));
}

// Sequences side by side in the lanes of a vector: features of one row, or, at
// the end or where there are few, the same features of several rows.
struct Tiling {
  int64_t width, features, batch;

  int64_t blocks() const { return (features + width - 1) / width; }
  int64_t first(int64_t block) const { return block * width; }
  int64_t count(int64_t block) const {
    return std::min(width, features - first(block));
  }
  int64_t rows(int64_t block) const { return width / count(block); }
  int64_t tiles(int64_t block) const {
    return (batch + rows(block) - 1) / rows(block);
  }
  // A block's tiles in so many parts, whatever the number of threads: sums
  // over the batch have the same order, and so the same bits, for any.
  int64_t parts(int64_t block) const {
    constexpr int64_t jobs_wanted = 16;
    const int64_t wanted = (jobs_wanted + blocks() - 1) / blocks();
    return std::clamp<int64_t>(tiles(block) / 2, 1, wanted);
  }
};

// The convolution of one group.
template <class Real>
class Convolution {
 public:
  explicit Convolution(const Sizes& s)
      : s_(s),
        tables_(FourierTables<Real>::of(s.time)),
        plan_(tables_->plan()),
        width_(kernels<Real>().panel / 2),
        tiling_{width_, s.features, s.batch},
        // Behind a spectrum some vectors more, so that not all begin in the
        // same sets of a cache.
        spectrum_((plan_.rows * plan_.stride + 37) * 2 * width_),
        responses_(tiling_.blocks() * s.channels * spectrum_),
        growth_(s.features * s.channels) {
    for (int64_t block = 0; block < tiling_.blocks(); block++)
      for (int64_t part = 0; part < tiling_.parts(block); part++)
        jobs_.push_back({block, part});
  }

  void forward(const Real* inputs, const Real* response, Real* outputs) {
    transform_responses(response);
    const auto make = [&] { return Space(*this, s_.channels > 1); };
    for_each_part(work(), make, [&](const Space& space, int64_t job) {
      FourierConvolution<Real> call{};
      call.plan = &plan_;
      call.activation = s_.activation;
      call.leak = static_cast<Real>(s_.leak);
      call.scratch = space.scratch;
      call.channels = s_.channels;
      call.spectrum_size = spectrum_;
      call.spectrum = space.spectrum;
      call.product = s_.channels > 1 ? space.other : space.spectrum;
      for_each_tile(jobs_[job], [&](const Tile& tile) {
        call.inputs = tile.inputs(inputs);
        call.outputs = tile.outputs(outputs);
        call.responses = responses_of(tile.block);
        const Cut cut = cut_of(tile.block, call.inputs);
        if (cut.lanes.empty())
          kernels<Real>().convolve(call);
        else
          convolve_in_pieces(call, tile.block, cut);
      });
    });
  }

  // Either gradient may be null.
  void backward(const Real* inputs, const Real* response,
                const Real* d_outputs, Real* d_inputs, Real* d_response) {
    if (d_inputs || !s_.linear()) transform_responses(response);
    const int64_t block_size = s_.channels * spectrum_;
    const Memory<Real> sums(d_response ? jobs_.size() * block_size : 0);
    const auto make = [&] { return Space(*this, true, s_.channels > 1); };
    for_each_part(4 * work(), make, [&](const Space& space, int64_t job) {
      FourierGradient<Real> call{};
      call.plan = &plan_;
      call.activation = s_.activation;
      call.leak = static_cast<Real>(s_.leak);
      call.scratch = space.scratch;
      call.channels = s_.channels;
      call.spectrum_size = spectrum_;
      call.spectrum = space.spectrum;
      call.product = space.other;
      call.sum = s_.channels > 1 ? space.third : nullptr;
      if (d_response) call.d_responses = sums.at(job * block_size);
      call.is_first = true;
      for_each_tile(jobs_[job], [&](const Tile& tile) {
        call.inputs = tile.inputs(inputs);
        call.d_outputs = tile.outputs(d_outputs);
        if (d_inputs) call.d_inputs = tile.inputs(d_inputs);
        call.responses = responses_of(tile.block);
        const Cut cut = cut_of(tile.block, call.inputs);
        if (cut.lanes.empty())
          kernels<Real>().convolve_backward(call);
        else
          convolve_in_pieces_backward(call, tile.block, cut);
        call.is_first = false;
      });
    });
    if (d_response) invert_sums(sums, d_response);
  }

 private:
  struct Job {
    int64_t block, part;
  };

  struct Space {
    Memory<Real> memory;
    FourierScratch<Real> scratch;
    Real *spectrum, *other, *third;

    explicit Space(const Convolution& c, bool two = false, bool three = false)
        : memory((1 + two + three) * c.spectrum_ +
                 (c.plan_.rows * (c.plan_.width + 1) + 2 * c.plan_.rows + 16) *
                     c.width_) {
      spectrum = memory.at();
      other = spectrum + two * c.spectrum_;
      third = other + three * c.spectrum_;
      scratch.column = third + c.spectrum_;
      scratch.values = scratch.column + (2 * c.plan_.rows + 8) * c.width_;
    }
  };

  struct Tile {
    const Convolution& of;
    int64_t block, first_row, rows;
    std::vector<int64_t> input_places, output_places;

    FourierLanes<const Real> inputs(const Real* numbers) const {
      return lanes(numbers, 1, input_places);
    }
    FourierLanes<Real> inputs(Real* numbers) const {
      return lanes(numbers, 1, input_places);
    }
    FourierLanes<const Real> outputs(const Real* numbers) const {
      return lanes(numbers, of.s_.channels, output_places);
    }
    FourierLanes<Real> outputs(Real* numbers) const {
      return lanes(numbers, of.s_.channels, output_places);
    }

   private:
    template <class Number>
    FourierLanes<Number> lanes(Number* numbers, int64_t channels,
                               const std::vector<int64_t>& places) const {
      const Sizes& s = of.s_;
      const int64_t step = s.features * channels;
      const int64_t count = of.tiling_.count(block);
      return {numbers + first_row * s.time * step +
                  of.tiling_.first(block) * channels,
              s.time,
              step,
              rows * count,
              rows == 1 && channels == 1 ? nullptr : places.data()};
    }
  };

  // Calls use(space, job) for the parts of all blocks.
  template <class Make, class Use>
  void for_each_part(double work, const Make& make, const Use& use) const {
    const int64_t jobs = jobs_.size();
    for_each_job(threads_for(work, jobs), jobs, make, use);
  }

  // Calls use(space, block, channel) for the transforms of responses.
  template <class Use>
  void for_each_response(const Use& use) const {
    const int64_t jobs = tiling_.blocks() * s_.channels;
    for_each_job(
        threads_for(double(jobs) * plan_.points * width_, jobs), jobs,
        [&] { return Space(*this); },
        [&](const Space& space, int64_t job) {
          use(space, job / s_.channels, job % s_.channels);
        });
  }

  template <class Use>
  void for_each_tile(const Job& job, const Use& use) const {
    const int64_t parts = tiling_.parts(job.block);
    const int64_t tiles = tiling_.tiles(job.block);
    const int64_t together = tiling_.rows(job.block);
    Tile tile{*this, job.block, 0, 0, places(job.block, 1),
              places(job.block, s_.channels)};
    for (int64_t t = tiles * job.part / parts;
         t < tiles * (job.part + 1) / parts; t++) {
      tile.first_row = t * together;
      tile.rows = std::min(together, s_.batch - tile.first_row);
      use(tile);
    }
  }

  // Where the lanes of a tile begin, rows one behind another.
  std::vector<int64_t> places(int64_t block, int64_t channels) const {
    std::vector<int64_t> places;
    for (int64_t row = 0; row < tiling_.rows(block); row++)
      for (int64_t h = 0; h < tiling_.count(block); h++)
        places.push_back((row * s_.time * s_.features + h) * channels);
    return places;
  }

  // The same for a response, which all rows of a tile share.
  std::vector<int64_t> response_places(int64_t block, int64_t rows) const {
    std::vector<int64_t> places;
    for (int64_t row = 0; row < rows; row++)
      for (int64_t h = 0; h < tiling_.count(block); h++)
        places.push_back(h * s_.channels * s_.taps);
    return places;
  }

  Real* responses_of(int64_t block) const {
    return responses_.at(block * s_.channels * spectrum_);
  }

  void transform_responses(const Real* response) {
    response_ = response;
    for_each_response([&](const Space& space, int64_t block, int64_t channel) {
      for (int64_t h = 0; h < tiling_.count(block); h++) {
        const int64_t feature = tiling_.first(block) + h;
        growth_[feature * s_.channels + channel] =
            growth_of(response_at(feature, channel), s_.taps);
      }
      const std::vector<int64_t> places =
          response_places(block, tiling_.rows(block));
      FourierSpectrum<Real> call{};
      call.plan = &plan_;
      call.scratch = space.scratch;
      call.from = {
          response + (tiling_.first(block) * s_.channels + channel) * s_.taps,
          s_.taps, 1, static_cast<int64_t>(places.size()), places.data()};
      call.scale = Real(1.0 / plan_.points);
      call.spectrum = responses_of(block) + channel * spectrum_;
      kernels<Real>().spectrum_of(call);
    });
  }

  const Real* response_at(int64_t feature, int64_t channel) const {
    return response_ + (feature * s_.channels + channel) * s_.taps;
  }

  // A tile that has to be cut, see outliers.h.

  struct Cut {
    std::vector<bool> lanes;      // those in pieces; empty in most tiles
    std::vector<bool> has_growth;  // those because of their responses
    std::vector<bool> is_cut;      // those with outliers; may be empty
  };

  Cut cut_of(int64_t block, const FourierLanes<const Real>& inputs) const {
    Loudness<Real> loudness = loudness_of(inputs);
    Cut cut{loudness.is_cut, {}, loudness.is_cut};
    for (int64_t lane = 0; lane < inputs.lanes; lane++) {
      const Real norm = s_.time * std::sqrt(loudness.total[lane]);
      for (int64_t c = 0; c < s_.channels; c++) {
        const auto& growth = growth_[feature_of(block, lane) * s_.channels + c];
        if (!growth.has_growth &&
            std::isfinite(norm * (s_.time * std::sqrt(growth.total))))
          continue;
        cut.lanes.resize(width_);
        cut.has_growth.resize(width_);
        cut.lanes[lane] = cut.has_growth[lane] = true;
      }
    }
    return cut;
  }

  int64_t feature_of(int64_t block, int64_t lane) const {
    return tiling_.first(block) + lane % tiling_.count(block);
  }

  void convolve_in_pieces(const FourierConvolution<Real>& call, int64_t block,
                          const Cut& cut) const {
    const Memory<Real> outputs = sum_of_pieces(call, block, cut);
    activate(outputs.at(), nullptr);
    for_each_output(call.outputs, [&](int64_t at, Real& output) {
      output = *outputs.at(at);
    });
  }

  void convolve_in_pieces_backward(FourierGradient<Real> call, int64_t block,
                                   const Cut& cut) const {
    const Memory<Real> d_arguments = zeros(s_.channels);
    for_each_output(call.d_outputs, [&](int64_t at, const Real& d_output) {
      *d_arguments.at(at) = d_output;
    });
    FourierConvolution<Real> again{};
    again.plan = call.plan;
    again.scratch = call.scratch;
    again.inputs = call.inputs;
    again.channels = call.channels;
    again.responses = call.responses;
    again.spectrum_size = call.spectrum_size;
    again.spectrum = call.spectrum;
    again.product = call.product;
    if (!s_.linear()) {
      const Memory<Real> arguments = sum_of_pieces(again, block, cut);
      const Memory<Real> slopes = zeros(s_.channels);
      activate(arguments.at(), slopes.at());
      // What is not differentiated has no part in the gradient, even where the
      // slope is NaN.
      for (int64_t i = 0; i < s_.time * width_ * s_.channels; i++)
        if (*d_arguments.at(i) != 0) *d_arguments.at(i) *= *slopes.at(i);
    }
    const Memory<Real> inputs = zeros(1);
    copy_differentiated(call.inputs, d_arguments.at(), inputs.at());
    const std::vector<int64_t> places = wide_places();
    call.inputs = {inputs.at(), s_.time, width_, width_, nullptr};
    call.d_outputs = {d_arguments.at(), s_.time, width_ * s_.channels, width_,
                      places.data()};
    call.activation = kLinear;
    kernels<Real>().convolve_backward(call);
    if (call.d_inputs.numbers && !cut.has_growth.empty())
      set_d_inputs(again, block, cut, d_arguments.at(), call.d_inputs);
  }

  // The cotangents of the inputs are those of the arguments, read from their
  // end, convolved with the response: they feel its growth as much.
  void set_d_inputs(FourierConvolution<Real> call, int64_t block,
                    const Cut& cut, const Real* d_arguments,
                    const FourierLanes<Real>& d_inputs) const {
    const std::vector<int64_t> places = wide_places();
    const int64_t step = width_ * s_.channels;
    const Memory<Real> sums = zeros(1);
    call.channels = 1;
    for (int64_t c = 0; c < s_.channels; c++) {
      call.inputs = {d_arguments + (s_.time - 1) * step + c, s_.time, -step,
                     width_, places.data()};
      const std::vector<bool> all(width_, true);
      add_pieces(call, block, c, {cut.has_growth, {}, all}, sums.at());
    }
    for (int64_t lane = 0; lane < d_inputs.lanes; lane++) {
      if (!cut.has_growth[lane]) continue;
      Real* to = d_inputs.numbers +
                 (d_inputs.place ? d_inputs.place[lane] : lane);
      for (int64_t t = 0; t < s_.time; t++)
        to[t * d_inputs.step] = *sums.at((s_.time - 1 - t) * width_ + lane);
    }
  }

  // The arguments of the activation, (time, width, channels). Lanes that need
  // no pieces have the same bits as in tiles that are not cut.
  Memory<Real> sum_of_pieces(FourierConvolution<Real> call, int64_t block,
                             const Cut& cut) const {
    Memory<Real> sums = zeros(s_.channels);
    const std::vector<int64_t> places = wide_places();
    const FourierLanes<const Real> inputs = call.inputs;
    call.activation = kLinear;
    call.outputs = {sums.at(), s_.time, width_ * s_.channels, inputs.lanes,
                    places.data()};
    kernels<Real>().convolve(call);
    for_each_output(call.outputs, [&](int64_t at, Real& sum) {
      if (cut.lanes[at / s_.channels % width_]) sum = 0;
    });
    add_pieces(call, block, 0, cut, sums.at());
    return sums;
  }

  // Adds the convolutions of the lanes that are cut with the responses of some
  // channels, (time, width, channels).
  void add_pieces(FourierConvolution<Real> call, int64_t block,
                  int64_t first_channel, const Cut& cut, Real* sums) const {
    const int64_t channels = call.channels;
    const Memory<Real> outputs = zeros(channels);
    const Memory<Real> spectra(channels * spectrum_);
    std::vector<int64_t> places;
    for (int64_t lane = 0; lane < width_; lane++)
      places.push_back(lane * channels);
    Levels<Real> levels(call.inputs, cut.lanes, cut.is_cut, width_);
    std::vector<ResponseParts<Real>> parts;
    for (int64_t lane = 0; lane < call.inputs.lanes; lane++)
      for (int64_t c = 0; c < channels; c++)
        parts.emplace_back(
            cut.lanes[lane]
                ? response_at(feature_of(block, lane), first_channel + c)
                : nullptr,
            s_.taps);
    call.activation = kLinear;
    call.outputs = {outputs.at(), s_.time, width_ * channels, width_,
                    places.data()};
    call.responses = spectra.at();
    while (transform_next_parts(parts, channels, call.scratch, spectra.at())) {
      levels.restart();
      while (levels.next()) {
        call.inputs = levels.piece();
        kernels<Real>().convolve(call);
        add_where_seen(levels, parts, channels, outputs.at(), sums);
      }
    }
    for (size_t i = 0; i < parts.size(); i++) {
      const int64_t lane = i / channels, c = i % channels;
      if (!cut.lanes[lane]) continue;
      const int64_t tap = parts[i].broken();
      const int64_t first =
          std::min(levels.broken(lane), tap < s_.taps ? tap : s_.time);
      for (int64_t t = first; t < s_.time; t++)
        sums[(t * width_ + lane) * channels + c] =
            std::numeric_limits<Real>::quiet_NaN();
    }
  }

  // Moves on to the next part of every response, or returns false.
  bool transform_next_parts(std::vector<ResponseParts<Real>>& parts,
                            int64_t channels,
                            const FourierScratch<Real>& scratch,
                            Real* spectra) const {
    bool is_over = true;
    for (auto& part : parts) is_over = !part.next() && is_over;
    if (is_over) return false;
    std::vector<Real> taps(s_.taps * width_);
    for (int64_t c = 0; c < channels; c++) {
      for (size_t i = c; i < parts.size(); i += channels)
        parts[i].write(taps.data() + i / channels, width_);
      FourierSpectrum<Real> call{};
      call.plan = &plan_;
      call.scratch = scratch;
      call.from = {taps.data(), s_.taps, width_, width_, nullptr};
      call.scale = Real(1.0 / plan_.points);
      call.spectrum = spectra + c * spectrum_;
      kernels<Real>().spectrum_of(call);
    }
    return true;
  }

  // Adds the response of a level to a part, where it may differ from zero.
  void add_where_seen(const Levels<Real>& levels,
                      const std::vector<ResponseParts<Real>>& parts,
                      int64_t channels, const Real* response,
                      Real* sums) const {
    for (size_t i = 0; i < parts.size(); i++) {
      const ResponseParts<Real>& part = parts[i];
      if (part.begin() == part.end()) continue;
      const int64_t lane = i / channels, c = i % channels;
      const PowerOfTwo<Real> scale(part.exponent() + levels.exponent(lane));
      for (int64_t t = part.begin(); t < s_.time; t++) {
        if (!levels.is_seen(t, lane, part.begin(), part.end())) continue;
        const int64_t at = (t * width_ + lane) * channels + c;
        sums[at] += scale.times(response[at]);
      }
    }
  }

  // Inputs behind the last output that is differentiated are zero: a NaN there
  // has no part in the gradient.
  void copy_differentiated(const FourierLanes<const Real>& from,
                           const Real* d_arguments, Real* to) const {
    for (int64_t lane = 0; lane < from.lanes; lane++) {
      const Real* at = from.numbers + (from.place ? from.place[lane] : lane);
      bool is_differentiated = false;
      for (int64_t t = s_.time - 1; t >= 0; t--) {
        const Real* d = d_arguments + (t * width_ + lane) * s_.channels;
        for (int64_t c = 0; c < s_.channels; c++)
          is_differentiated = is_differentiated || d[c] != 0;
        if (is_differentiated) to[t * width_ + lane] = at[t * from.step];
      }
    }
  }

  // Activates (time, width, channels) numbers in place. The slopes may be null.
  void activate(Real* numbers, Real* slopes) const {
    const Memory<Real> bias = zeros(1);
    Respond<Real> call{};
    call.rows = (s_.time * s_.channels + 1) / 2;
    call.activation = s_.activation;
    call.leak = static_cast<Real>(s_.leak);
    call.bias = bias.at();
    call.argument = call.response = numbers;
    call.memory = slopes;
    kernels<Real>().respond(call);
  }

  // Calls use(place among (time, width, channels), number) for a tile's
  // numbers.
  template <class Number, class Use>
  void for_each_output(const FourierLanes<Number>& lanes,
                       const Use& use) const {
    for (int64_t t = 0; t < s_.time; t++)
      for (int64_t lane = 0; lane < lanes.lanes; lane++) {
        Number* at = lanes.numbers + t * lanes.step +
                     (lanes.place ? lanes.place[lane] : lane);
        for (int64_t c = 0; c < s_.channels; c++)
          use((t * width_ + lane) * s_.channels + c, at[c]);
      }
  }

  // (time, width, channels) zeros, whole panels of two vectors.
  Memory<Real> zeros(int64_t channels) const {
    const int64_t count = (s_.time * channels + 1) / 2 * 2 * width_;
    Memory<Real> memory(count);
    std::fill_n(memory.at(), count, Real(0));
    return memory;
  }

  // Where the lanes of (time, width, channels) begin.
  std::vector<int64_t> wide_places() const {
    std::vector<int64_t> places;
    for (int64_t lane = 0; lane < width_; lane++)
      places.push_back(lane * s_.channels);
    return places;
  }

  // The parts' sums to sequences, and the lanes of several rows to one.
  void invert_sums(const Memory<Real>& sums, Real* d_response) const {
    for_each_response([&](const Space& space, int64_t block, int64_t channel) {
      int64_t job = 0;
      while (jobs_[job].block != block) job++;
      Real* sum = sums.at((job * s_.channels + channel) * spectrum_);
      for (int64_t part = 1; part < tiling_.parts(block); part++)
        add_spectrum(sum + part * s_.channels * spectrum_, sum);
      const int64_t count = tiling_.count(block);
      const int64_t rows = std::min(tiling_.rows(block), s_.batch);
      Real* to = d_response +
                 (tiling_.first(block) * s_.channels + channel) * s_.taps;
      const std::vector<int64_t> places = response_places(block, 1);
      FourierInverse<Real> call{};
      call.plan = &plan_;
      call.scratch = space.scratch;
      call.spectrum = sum;
      call.scale = Real(1.0 / plan_.points);
      call.to = {to, s_.taps, 1, count, places.data()};
      std::vector<Real> lanes(rows > 1 ? s_.taps * width_ : 0);
      if (rows > 1)
        call.to = {lanes.data(), s_.taps, width_, rows * count, nullptr};
      kernels<Real>().sequences_of(call);
      if (rows == 1) return;
      for (int64_t h = 0; h < count; h++)
        for (int64_t t = 0; t < s_.taps; t++) {
          Real total = 0;
          for (int64_t row = 0; row < rows; row++)
            total += lanes[t * width_ + row * count + h];
          to[places[h] + t] = total;
        }
    });
  }

  void add_spectrum(const Real* from, Real* to) const {
    for (int64_t row = 0; row < plan_.rows; row++) {
      const int64_t first = row * plan_.stride * 2 * width_;
      for (int64_t i = first; i < first + plan_.width * 2 * width_; i++)
        to[i] += from[i];
    }
  }

  double work() const {
    return double(s_.inputs()) * s_.channels;
  }

  const Sizes& s_;
  std::shared_ptr<const FourierTables<Real>> tables_;
  const FourierPlan<Real>& plan_;
  int64_t width_;
  Tiling tiling_;
  int64_t spectrum_;
  Memory<Real> responses_;
  std::vector<ResponseGrowth<Real>> growth_;  // (features, channels)
  const Real* response_ = nullptr;
  std::vector<Job> jobs_;
};

template <class Real>
int causal_convolution(const Sizes& s, const void* const* from,
                       void* const* to) {
  Reader<Real, const void> read(from, false);
  const In<Real> inputs = read.in(), response = read.in();
  Real* outputs = static_cast<Real*>(to[0]);
  if (s.empty()) return kKerasLinrecDone;
  prepare_to_write(outputs,
                   s.groups * s.inputs() * s.channels * sizeof(Real));
  Convolution<Real> convolution(s);
  for (int64_t g = 0; g < s.groups; g++)
    convolution.forward(inputs[0] + g * s.inputs(),
                        response[0] + g * s.responses(),
                        outputs + g * s.inputs() * s.channels);
  return kKerasLinrecDone;
}

template <class Real>
int causal_convolution_backward(const Sizes& s, const void* const* from,
                                void* const* to) {
  Reader<Real, const void> read(from, false);
  const In<Real> inputs = read.in(), response = read.in();
  const In<Real> d_outputs = read.in();
  Reader<Real, void> write(to, false);
  const Out<Real> d_inputs = write.out(), d_response = write.out();
  if (s.empty()) {
    if (d_inputs[0]) std::fill_n(d_inputs[0], s.groups * s.inputs(), Real{0});
    if (d_response[0])
      std::fill_n(d_response[0], s.groups * s.responses(), Real{0});
    return kKerasLinrecDone;
  }
  if (d_inputs[0])
    prepare_to_write(d_inputs[0], s.groups * s.inputs() * sizeof(Real));
  Convolution<Real> convolution(s);
  for (int64_t g = 0; g < s.groups; g++)
    convolution.backward(inputs[0] + g * s.inputs(),
                         response[0] + g * s.responses(),
                         d_outputs[0] + g * s.inputs() * s.channels,
                         d_inputs.at(g * s.inputs())[0],
                         d_response.at(g * s.responses())[0]);
  return kKerasLinrecDone;
}

}  // namespace
}  // namespace keras_linrec

int keras_linrec_causal_convolution(int flags, const int64_t* sizes,
                                    const void* const* from, void* const* to) {
  using namespace keras_linrec;
  const Sizes s(flags, sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    return causal_convolution<decltype(real)>(s, from, to);
  });
}

int keras_linrec_causal_convolution_backward(int flags, const int64_t* sizes,
                                             const void* const* from,
                                             void* const* to) {
  using namespace keras_linrec;
  const Sizes s(flags, sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    return causal_convolution_backward<decltype(real)>(s, from, to);
  });
}
