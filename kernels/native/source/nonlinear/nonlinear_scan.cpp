// Nonlinear recurrences, one step after another. One thread takes a share of
// the batch's rows through all steps, with their state in the cache; the
// products multiply the rows of one step by the recurrent matrix. The forward
// pass stores only the states. The backward pass, which knows them all,
// recomputes what else it needs for a block of steps at once, and sums the
// gradients of the weights by products over a block too. If there are more
// threads than shares, others recompute and sum up a share's blocks while one
// takes its steps.
#include <algorithm>

#include "nonlinear/nonlinear_backward.h"
#include "base/parallel.h"
#include "base/pipeline.h"
#include "base/systems.h"

namespace keras_linrec {
namespace nonlinear {
namespace {

// Numbers in a block's tiles in the backward pass, which should stay in the
// second-level cache.
constexpr int64_t block_numbers = 1 << 17;

// The threads that the blocks of one share keep busy, and the blocks that they
// work on at once.
constexpr int64_t threads_a_share = 3, blocks_at_once = 4;

// How the rows of a batch are shared out.
struct ShareSizes {
  int64_t batch, count, longest;
  int threads;
  ShareSizes(const Sizes& s, bool backward)
      : batch(s.batch),
        count(std::max<int64_t>(s.shares(backward), 1)),
        longest(std::max<int64_t>(s.shares_of(count), 1)),
        threads(s.threads(count)) {}

  int64_t first(int64_t share) const { return batch * share / count; }
  int64_t rows(int64_t share) const { return first(share + 1) - first(share); }
};

// The arrays of one group.
template <class Real>
Arguments<Real> arguments_of(const Sizes& s, int64_t group,
                             const void* const* from) {
  const auto at = [&](int which, int64_t numbers) {
    return static_cast<const Real*>(from[which]) + group * numbers;
  };
  return {at(0, s.batch * s.time * s.features),
          at(1, s.features * s.driven()),
          at(2, s.driven()),
          at(3, s.units * s.recurrent()),
          at(4, s.rank * s.units),
          at(5, s.steps()),
          at(6, s.biases()),
          at(7, s.marks()),
          at(8, s.batch * s.units)};
}

template <class Real>
int nonlinear_scan(const Sizes& s, const void* const* from, void* const* to) {
  Real* outputs = static_cast<Real*>(to[0]);
  Real* final_state = static_cast<Real*>(to[1]);
  const int64_t row = s.time * s.units;
  const ShareSizes shares(s, false);
  if (s.kept)
    prepare_to_write(outputs, s.groups * s.batch * row * sizeof(Real));
  for (int64_t g = 0; g < s.groups; g++) {
    const Weights<Real> weights(s, arguments_of<Real>(s, g, from));
    std::vector<Forward<Real>> passes(
        shares.threads, Forward<Real>(weights, shares.longest));
    for_each_job(shares.threads, shares.count, [&](int thread, int64_t i) {
      passes[thread].run(shares.first(i), shares.rows(i),
                         s.kept ? outputs + g * s.batch * row : nullptr,
                         final_state + g * s.batch * s.units);
    });
  }
  return kKerasLinrecDone;
}

// Runs the backward pass of all shares.
template <class Real>
class BackwardShares {
 public:
  BackwardShares(const Weights<Real>& weights,
                 const Transposed<Real>& transposed, int64_t steps,
                 const ShareSizes& sizes, const Cotangents<Real>& cotangents)
      : sizes_(sizes),
        cotangents_(cotangents),
        blocks_(weights.s.blocks(steps)),
        total_(weights, sizes.count) {
    const int64_t slots = std::min(blocks_, blocks_at_once);
    const int together =
        weights.s.threads(std::min(slots, threads_a_share) * sizes.count);
    const bool pipelined = together > sizes.threads;
    const int64_t shares = pipelined ? sizes.count : sizes.threads;
    const int64_t passes = pipelined ? shares * slots : shares;
    for (int64_t i = 0; i < shares; i++)
      shares_.emplace_back(weights, sizes.longest);
    passes_.reserve(passes);
    for (int64_t i = 0; i < passes; i++)
      passes_.emplace_back(weights, transposed, sizes.longest, steps);
    pipelined ? run_together(together, slots) : run_apart();
  }
  const Sums<Real>& sums() { return total_.all(); }

 private:
  // One thread takes a share through all its blocks.
  void run_apart() {
    for_each_job(sizes_.threads, sizes_.count, [&](int thread, int64_t i) {
      Share<Real>& share = shares_[thread];
      Backward<Real>& pass = passes_[thread];
      begin(i, share);
      for (int64_t block = 0; block < blocks_; block++) {
        pass.prepare(block, cotangents_, share);
        pass.step(block, cotangents_, share);
        pass.finish(block, cotangents_, share);
      }
      total_.end(i, std::move(share.sums));
    });
  }

  void run_together(int threads, int64_t slots) {
    for (int64_t i = 0; i < sizes_.count; i++) begin(i, shares_[i]);
    Pipeline pipeline(sizes_.count, blocks_, slots);
    const auto of = [&](int64_t i, int64_t block) -> Backward<Real>& {
      return passes_[i * slots + block % slots];
    };
    parallel(threads, [&](int) {
      pipeline.work(
          [&](int64_t i, int64_t block) {
            of(i, block).prepare(block, cotangents_, shares_[i]);
          },
          [&](int64_t i, int64_t block) {
            of(i, block).step(block, cotangents_, shares_[i]);
          },
          [&](int64_t i, int64_t block) {
            of(i, block).finish(block, cotangents_, shares_[i]);
          });
    });
    for (int64_t i = 0; i < sizes_.count; i++)
      total_.end(i, std::move(shares_[i].sums));
  }

  void begin(int64_t i, Share<Real>& share) {
    passes_[0].begin(sizes_.first(i), sizes_.rows(i), cotangents_,
                     total_.begin(), share);
  }

  const ShareSizes& sizes_;
  const Cotangents<Real>& cotangents_;
  int64_t blocks_;
  Total<Real> total_;
  std::vector<Share<Real>> shares_;
  std::vector<Backward<Real>> passes_;
};

template <class Real>
int nonlinear_scan_backward(const Sizes& s, const void* const* from,
                            void* const* to) {
  const auto given = [&](int which, int64_t group, int64_t numbers) {
    return static_cast<const Real*>(from[which]) + group * numbers;
  };
  const auto result = [&](int which, int64_t group, int64_t numbers) {
    return static_cast<Real*>(to[which]) + group * numbers;
  };
  const ShareSizes shares(s, true);
  const int64_t states = s.batch * s.units, rows = s.batch * s.time;
  prepare_to_write(to[0], s.groups * rows * s.features * sizeof(Real));
  for (int64_t g = 0; g < s.groups; g++) {
    const Weights<Real> w(s, arguments_of<Real>(s, g, from));
    const Transposed<Real> transposed(w);
    Cotangents<Real> c{given(9, g, rows * s.units),
                       s.d_kept ? given(10, g, rows * s.units) : nullptr,
                       given(11, g, states),
                       result(0, g, rows * s.features),
                       result(5, g, s.steps()),
                       result(8, g, states)};
    std::fill_n(c.d_steps, s.steps(), Real{0});
    std::fill_n(result(7, g, s.marks()), s.marks(), Real{0});
    const int64_t columns = w.units.size() * s.method().stages *
                            (5 + 2 * s.gated + 2 * s.linear);
    const int64_t steps =
        std::clamp<int64_t>(block_numbers / (columns * shares.longest), 1,
                            s.time);
    BackwardShares<Real> run(w, transposed, steps, shares, c);
    const Sums<Real>& sums = run.sums();

    for (int part = 0; part <= s.gated; part++) {
      unpack(sums.input[part], w.features, w.units,
             result(1, g, s.features * s.driven()) + part * s.units,
             s.driven());
      w.units.out_of(sums.input[part].at(0, s.features),
                     sums.input[part].stride(),
                     result(2, g, s.driven()) + part * s.units);
    }
    Real* d_recurrent = result(3, g, s.units * s.recurrent());
    if (s.rank) {
      unpack(sums.recurrent[0], w.units, w.ranks, d_recurrent, s.rank);
      unpack(sums.recurrent[1], w.ranks, w.units,
             result(4, g, s.rank * s.units), s.units, Real{-1});
    } else {
      for (int part = 0; part <= s.linear; part++)
        unpack(sums.recurrent[part], w.units, w.units,
               d_recurrent + part * s.units, s.recurrent());
    }
    if (!s.per_step) c.d_steps[0] = static_cast<Real>(sums.step);
    std::copy_n(sums.modulus_bias.begin(), s.biases(),
                result(6, g, s.biases()));
  }
  return kKerasLinrecDone;
}

}  // namespace
}  // namespace nonlinear
}  // namespace keras_linrec

int keras_linrec_nonlinear_scan(int flags, const int64_t* sizes,
                                const void* const* from, void* const* to) {
  using namespace keras_linrec::nonlinear;
  const Sizes s(flags, sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return keras_linrec::status_of(flags, [&](auto real) {
    return nonlinear_scan<decltype(real)>(s, from, to);
  });
}

int keras_linrec_nonlinear_scan_backward(int flags, const int64_t* sizes,
                                         const void* const* from,
                                         void* const* to) {
  using namespace keras_linrec::nonlinear;
  const Sizes s(flags, sizes);
  if (!s.valid() || s.kept != s.time) return kKerasLinrecBadSizes;
  return keras_linrec::status_of(flags, [&](auto real) {
    return nonlinear_scan_backward<decltype(real)>(s, from, to);
  });
}
