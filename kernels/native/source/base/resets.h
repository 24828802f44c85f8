// Steps before which a scan drops its state.
#pragma once
#include <cstdint>

namespace keras_linrec {

// The resets of one row, or null: a number for each step, zero at most of them.
template <class Real>
struct Resets {
  const Real* marks;

  bool at(int64_t step) const { return marks && marks[step] != Real{0}; }
  bool any(int64_t first, int64_t time) const {
    for (int64_t t = first; marks && t < first + time; t++)
      if (at(t)) return true;
    return false;
  }

  // Calls use(first, time, is_reset) for the steps from `first` on, cut into
  // runs that a state passes through; in the order of time or, if `backwards`,
  // from the last run to the first. A reset step is a run of its own.
  template <class Use>
  void for_each_run(int64_t first, int64_t time, bool backwards,
                    Use use) const {
    for (int64_t done = 0; done < time;) {
      const int64_t here = backwards ? first + time - 1 - done : first + done;
      int64_t count = 1;
      if (!marks) count = time;
      while (!at(here) && done + count < time &&
             !at(backwards ? here - count : here + count))
        count++;
      use(backwards ? here - count + 1 : here, count, at(here));
      done += count;
    }
  }
};

}  // namespace keras_linrec
