// Moves of the unmasked steps of each row to its front, and back.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/arrays.h"
#include "base/parallel.h"
#include "base/systems.h"

namespace keras_linrec {
namespace {

struct Sizes {
  int64_t rows, time, features;

  explicit Sizes(const int64_t* sizes)
      : rows(sizes[0] * sizes[1]), time(sizes[2]), features(sizes[3]) {}

  bool valid() const { return rows >= 0 && time >= 0 && features >= 0; }
  int64_t row() const { return time * features; }
};

// Unmasked steps that follow one another, and the masked steps after them.
struct Run {
  int64_t front;  // where its first step is moved to
  int64_t begin, end, next;

  int64_t count() const { return end - begin; }
};

template <class Real>
std::vector<Run> runs_of(const Real* mask, int64_t time) {
  const auto masked = [](Real value) { return value == Real{0}; };
  const auto unmasked = [](Real value) { return value != Real{0}; };
  const auto place = [&](const Real* at) { return int64_t(at - mask); };
  std::vector<Run> runs;
  const Real* at = std::find_if(mask, mask + time, unmasked);
  for (int64_t front = 0; at != mask + time; front += runs.back().count()) {
    const Real* end = std::find_if(at, mask + time, masked);
    const Real* next = std::find_if(end, mask + time, unmasked);
    runs.push_back({front, place(at), place(end), place(next)});
    at = next;
  }
  return runs;
}

// Some features of one row. Every move works in place: it reads a step before
// it writes to where that step was.
template <class Real>
struct Row {
  const Real* from;
  Real* to;
  int64_t time, features, first, count;

  void move(int64_t target, int64_t source, int64_t steps) const {
    if (count == features) {
      move_numbers(target * features, source * features, steps * features);
      return;
    }
    for (int64_t i = 0; i < steps; i++) {
      const int64_t step = target <= source ? i : steps - 1 - i;
      move_numbers((target + step) * features + first,
                   (source + step) * features + first, count);
    }
  }

  void move_numbers(int64_t target, int64_t source, int64_t numbers) const {
    if (to + target != from + source)
      std::memmove(to + target, from + source, numbers * sizeof(Real));
  }

  void clear(int64_t begin, int64_t end) const {
    for (int64_t step = begin; step < end; step++)
      std::fill_n(to + step * features + first, count, Real{0});
  }

  // `sums`: whether the masked steps after each step are added to it.
  void to_front(const std::vector<Run>& runs, bool sums) const {
    std::vector<double> total;
    int64_t length = 0;
    for (const Run& run : runs) {
      move(run.front, run.begin, run.count());
      length = run.front + run.count();
      if (!sums || run.next == run.end) continue;
      Real* last = to + (length - 1) * features + first;
      total.assign(last, last + count);
      for (int64_t step = run.end; step < run.next; step++) {
        const Real* added = from + step * features + first;
        for (int64_t i = 0; i < count; i++) total[i] += added[i];
      }
      std::copy(total.begin(), total.end(), last);
    }
    clear(length, time);
  }

  // `repeats`: whether masked steps repeat the step before them.
  void to_places(const std::vector<Run>& runs, bool repeats) const {
    for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
      if (repeats)
        for (int64_t step = run->end; step < run->next; step++)
          move(step, run->front + run->count() - 1, 1);
      else
        clear(run->end, run->next);
      move(run->begin, run->front, run->count());
    }
    clear(0, runs.empty() ? time : runs.front().begin);
  }
};

template <class Real>
int move_steps(int flags, const Sizes& s, const Real* from, const Real* mask,
               Real* to) {
  const bool back = flags & kKerasLinrecToPlaces;
  const bool with_masked = flags & kKerasLinrecWithMasked;
  if (s.rows * s.row() == 0) return kKerasLinrecDone;
  if (from != to) prepare_to_write(to, s.rows * s.row() * sizeof(Real));
  // Bytes below which one thread is as fast, and features that a thread takes
  // where there are fewer rows than threads.
  constexpr int64_t least_a_thread = 1 << 17, least_features = 16;
  const int64_t wanted = std::min<int64_t>(
      threads(), 1 + s.rows * s.row() * sizeof(Real) / least_a_thread);
  const int64_t slices = std::clamp<int64_t>(
      (wanted + s.rows - 1) / s.rows, 1,
      std::max<int64_t>(1, s.features / least_features));
  const int64_t jobs = s.rows * slices;
  const int most = static_cast<int>(std::min(wanted, jobs));
  for_each_job(most, jobs, [&](int, int64_t job) {
    const int64_t row = job / slices, slice = job % slices;
    const int64_t first = slice * s.features / slices;
    const int64_t last = (slice + 1) * s.features / slices;
    const Row<Real> part = {from + row * s.row(), to + row * s.row(),
                            s.time, s.features, first, last - first};
    const std::vector<Run> runs = runs_of(mask + row * s.time, s.time);
    if (back)
      part.to_places(runs, with_masked);
    else
      part.to_front(runs, with_masked);
  });
  return kKerasLinrecDone;
}

}  // namespace
}  // namespace keras_linrec

int keras_linrec_move_steps(int flags, const int64_t* sizes,
                            const void* const* from, void* const* to) {
  using namespace keras_linrec;
  const Sizes s(sizes);
  if (!s.valid()) return kKerasLinrecBadSizes;
  return status_of(flags, [&](auto real) {
    using Real = decltype(real);
    return move_steps(flags, s, static_cast<const Real*>(from[0]),
                      static_cast<const Real*>(from[1]),
                      static_cast<Real*>(to[0]));
  });
}

int keras_linrec_move_steps_backward(int flags, const int64_t* sizes,
                                     const void* const* from, void* const* to) {
  return keras_linrec_move_steps(flags ^ kKerasLinrecToPlaces, sizes, from, to);
}
