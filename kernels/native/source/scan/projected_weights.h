// The layout of a projected scan's channels and weights in panels.
#pragma once
#include <algorithm>

#include "base/panels.h"
#include "base/parallel.h"

namespace keras_linrec {
namespace projected {

// The least multiply-adds that pay for another thread.
constexpr int64_t least_work_a_thread = 1 << 20;

struct Sizes {
  int64_t groups, batch, time, features, channels, units, block;
  bool complex, per_step, reverse, resets;
  Sizes(int flags, const int64_t* sizes)
      : groups(sizes[0]),
        batch(sizes[1]),
        time(sizes[2]),
        features(sizes[3]),
        channels(sizes[4]),
        units(sizes[5]),
        block(sizes[6]),
        complex(flags & kKerasLinrecComplex),
        per_step(flags & kKerasLinrecPerStep),
        reverse(flags & kKerasLinrecReverse),
        resets(flags & kKerasLinrecResets) {}
  bool valid() const {
    return groups >= 0 && batch >= 0 && time >= 1 && features >= 0 &&
           channels >= 0 && units >= 0 && block >= 1;
  }
  int64_t parts() const { return complex ? 2 : 1; }
  int64_t blocks() const { return (time + block - 1) / block; }
  // The numbers in a row's checkpoints: see core.h.
  int64_t kept() const { return (time / block + 2) * parts() * channels; }
  int64_t longest() const { return std::min(block, time); }
  int64_t work() const {
    return batch * time * parts() * channels * (features + units);
  }
  // One for each block of each row.
  int64_t jobs() const { return batch * blocks(); }
  // The sums that the gradients of the weights are added to in turn, whatever
  // the number of threads. With more of them, fewer threads wait for each
  // other, but each takes memory, and is less often in a cache.
  int64_t sums() const {
    constexpr int64_t numbers_of_all = 1 << 22;
    const int64_t numbers = parts() * channels * (features + units);
    const int64_t most = std::clamp<int64_t>(
        numbers_of_all / std::max<int64_t>(numbers, 1), 4, 8);
    return std::clamp<int64_t>(jobs(), 1, most);
  }
  int threads() const {
    const int64_t most = std::min<int64_t>(keras_linrec::threads(), jobs());
    return static_cast<int>(std::clamp<int64_t>(work() / least_work_a_thread, 1,
                                                std::max<int64_t>(most, 1)));
  }
};

// The panels of a tile. In a complex system the first half of each panel holds
// real parts and the second half the imaginary parts of the same channels.
template <class Real>
struct Layout {
  int64_t panel, share, panels, columns, channels;
  bool complex;
  explicit Layout(const Sizes& s)
      : panel(kernels<Real>().panel),
        share(s.complex ? panel / 2 : panel),
        panels((s.channels + share - 1) / share),
        columns(panels * panel),
        channels(s.channels),
        complex(s.complex) {}
  int64_t part_of(int64_t column) const {
    return complex && column % panel >= share;
  }
  int64_t channel_of(int64_t column) const {
    return column / panel * share + column % share;
  }
  // The parts of a panel's channels, given the panel's first number.
  template <class Pointer>
  Parts<Pointer> parts(Pointer first) const {
    return {{first, complex ? first + share : nullptr}};
  }
  // Calls use(column, part, channel, count) for each run of channels.
  template <class Use>
  void for_each_run(Use use) const {
    for (int64_t p = 0; p < panels; p++)
      for (int64_t part = 0; part <= complex; part++) {
        const int64_t channel = p * share;
        use(p * panel + part * share, part, channel,
            std::min(share, channels - channel));
      }
  }
  template <class From, class To>
  void into(const Parts<From>& from, To* to) const {
    std::fill_n(to, columns, To{0});
    for_each_run([&](int64_t column, int64_t part, int64_t channel,
                     int64_t count) {
      std::copy_n(from[part] + channel, count, to + column);
    });
  }
  template <class From, class To>
  void out_of(const From* from, const Parts<To*>& to) const {
    for_each_run([&](int64_t column, int64_t part, int64_t channel,
                     int64_t count) {
      for (int64_t i = 0; i < count; i++)
        to[part][channel + i] = static_cast<To>(from[column + i]);
    });
  }
};

// The four right factors, which every call packs anew. A streaming step does
// little else, so each has plain loops of its own: a common one over any order
// of rows and columns was slower.
template <class Real>
struct Weights {
  Layout<Real> layout;
  In<Real> input_kernel, output_kernel;
  int64_t features, units;

  // Outputs are real parts: the derivative by the imaginary part of a state is
  // minus the imaginary part of the output kernel.
  static Real sign(int64_t part) { return part ? -1 : 1; }

  // Projects inputs into a tile.
  Panels<Real> input() const {
    Panels<Real> packed(features, layout.columns);
    layout.for_each_run([&](int64_t column, int64_t part, int64_t channel,
                            int64_t count) {
      const Real* from = input_kernel[part] + channel;
      Real* to = packed.at(column / layout.panel, 0) + column % layout.panel;
      for (int64_t f = 0; f < features; f++)
        for (int64_t i = 0; i < count; i++)
          to[f * layout.panel + i] = from[f * layout.channels + i];
    });
    return packed;
  }

  // Projects a tile into outputs.
  Panels<Real> output() const {
    Panels<Real> packed(layout.columns, units);
    layout.for_each_run([&](int64_t column, int64_t part, int64_t channel,
                            int64_t count) {
      const Real* from = output_kernel[part] + channel * units;
      for (int64_t p = 0; p < packed.panels; p++) {
        const int64_t first = p * layout.panel;
        const int64_t width = std::min(layout.panel, units - first);
        Real* to = packed.at(p, column);
        for (int64_t i = 0; i < count; i++)
          for (int64_t u = 0; u < width; u++)
            to[i * layout.panel + u] =
                sign(part) * from[i * units + first + u];
      }
    });
    return packed;
  }

  // Projects cotangents of a tile into those of the inputs.
  Panels<Real> input_transposed() const {
    Panels<Real> packed(layout.columns, features);
    layout.for_each_run([&](int64_t column, int64_t part, int64_t channel,
                            int64_t count) {
      const Real* from = input_kernel[part] + channel;
      for (int64_t p = 0; p < packed.panels; p++) {
        const int64_t first = p * layout.panel;
        const int64_t width = std::min(layout.panel, features - first);
        Real* to = packed.at(p, column);
        for (int64_t f = 0; f < width; f++)
          for (int64_t i = 0; i < count; i++)
            to[i * layout.panel + f] =
                from[(first + f) * layout.channels + i];
      }
    });
    return packed;
  }

  // Projects cotangents of the outputs into those of a tile.
  Panels<Real> output_transposed() const {
    Panels<Real> packed(units, layout.columns);
    layout.for_each_run([&](int64_t column, int64_t part, int64_t channel,
                            int64_t count) {
      const Real* from = output_kernel[part] + channel * units;
      Real* to = packed.at(column / layout.panel, 0) + column % layout.panel;
      for (int64_t i = 0; i < count; i++)
        for (int64_t u = 0; u < units; u++)
          to[u * layout.panel + i] = sign(part) * from[i * units + u];
    });
    return packed;
  }
};

}  // namespace projected
}  // namespace keras_linrec
