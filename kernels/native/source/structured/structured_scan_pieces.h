// The sizes of a response with states, and how blocks and resets cut its rows
// into pieces: see structured_scan.h.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/core.h"
#include "base/kernels.h"

namespace keras_linrec {

struct StructuredScanSizes {
  int64_t groups, batch, time, features, channels, state;
  bool from_zeros;  // there is no initial state
  double alpha;
  StructuredScanSizes(int flags, const int64_t* sizes)
      : groups(sizes[0]),
        batch(sizes[1]),
        time(sizes[2]),
        features(sizes[3]),
        channels(sizes[4]),
        state(sizes[5]),
        from_zeros(flags & kKerasLinrecFromZeros) {
    std::memcpy(&alpha, sizes + 6, sizeof alpha);
  }
  bool valid() const {
    return groups >= 0 && batch >= 0 && time >= 1 && features >= 0 &&
           channels >= 0 && state >= 1;
  }

  // Numbers of a row.
  int64_t inputs() const { return time * features; }
  int64_t outputs() const { return inputs() * channels; }
  int64_t states() const { return features * state; }

  // Of a feature, in multiply-adds of float32; those of the powers are float64.
  double work(int64_t doublings) const {
    const double n = state, m = channels, steps = 1.0 * batch * time;
    const double size = int64_t{1} << doublings, blocks = time / size + 1.0;
    return 2.0 * (doublings * n * n * n + (1.0 + m) * size * n * n) +
           steps * (m * size / 2.0 + m * n + n) +
           blocks * std::max<double>(batch, 4.0) * n * n;
  }
  // The same step by step, with the states computed again for the gradient. In
  // blocks, a multiply-add takes .16 ns forward and backward (AVX2, a core, N
  // from 64 to 256); a number of a state takes 8 ns in steps, and idle lanes
  // cost as much as others.
  double work_in_steps() const {
    return 50.0 * in_lanes(batch * features) / features * time * state;
  }
  // With the lanes that are idle beside so many systems.
  static double in_lanes(int64_t systems) {
    const int64_t lanes = instruction_set().lanes;
    return (systems + lanes - 1) / lanes * lanes;
  }
  // Whether the steps are less, as with large states and few of them.
  bool in_steps() const {
    return batch * features > 0 && work_in_steps() < work(doublings());
  }
  // The same by a convolution from zeros (scan_from_zeros.h): 11 ns for each
  // number of a state, 22 for an output, and a product.
  double work_from_zeros() const {
    return 70.0 * in_lanes(features) / features * time * state +
           1.0 * batch * time * (140.0 * channels + state);
  }
  // Whether that is less than both. At (32, 784, 128), forward and backward
  // take 310 ms of a core instead of 890 with N = 128 (AVX2), and 215 instead
  // of 270 with 64.
  bool by_convolution() const {
    return from_zeros && groups * batch * features * channels > 0 &&
           work_from_zeros() < std::min(work_in_steps(), work(doublings()));
  }
  // The doublings of a step to a block that cost least. A longer block than
  // the time could overflow where no output does.
  int64_t doublings() const {
    int64_t best = 0;
    for (int64_t k = 1; int64_t{1} << k <= time; k++)
      if (work(k) < work(best)) best = k;
    return best;
  }
};

// Steps of a row in a block between which the state is not dropped.
struct Piece {
  int64_t row, first, count;
  int64_t place;  // in the block
  bool enters;    // the state before the block
  bool fills;     // the block to its end, so that a state leaves it
};

// The pieces of a group, block by block and row by row, and the last piece of
// each row that ends within a block; -1 for the others.
class Pieces {
 public:
  template <class Real>
  Pieces(const StructuredScanSizes& s, int64_t size, const Real* lengths,
         const Real* resets)
      : lengths_(s.batch), ends_(s.batch, -1) {
    for (int64_t row = 0; row < s.batch; row++)
      lengths_[row] = std::clamp<int64_t>(static_cast<int64_t>(lengths[row]),
                                          0, s.time);
    for (int64_t start = 0; start < s.time; start += size) {
      blocks_.push_back(pieces_.size());
      for (int64_t row = 0; row < s.batch; row++)
        cut(row, start, std::min(start + size, lengths_[row]), size,
            resets + row * s.time);
    }
    blocks_.push_back(pieces_.size());
  }

  int64_t count() const { return pieces_.size(); }
  int64_t blocks() const { return blocks_.size() - 1; }
  // The first piece of a block.
  int64_t first(int64_t block) const { return blocks_[block]; }
  const Piece& operator[](int64_t piece) const { return pieces_[piece]; }
  int64_t end(int64_t row) const { return ends_[row]; }
  int64_t length(int64_t row) const { return lengths_[row]; }
  bool any_end() const {
    for (int64_t end : ends_)
      if (end >= 0) return true;
    return false;
  }
  // The steps of the row's last block, if it does not fill it.
  int64_t rest(int64_t row, int64_t size) const {
    return ends_[row] < 0 ? 0 : lengths_[row] % size;
  }

  // The block after as many as a chunk takes.
  int64_t chunk_end(int64_t block) const {
    int64_t end = block + 1;
    while (end < blocks() && first(end + 1) - first(block) <= rows_a_chunk)
      end++;
    return end;
  }
  int64_t chunk_start(int64_t end) const {
    int64_t start = end - 1;
    while (start > 0 && first(end) - first(start - 1) <= rows_a_chunk) start--;
    return start;
  }
  // The most pieces of a chunk.
  int64_t capacity() const {
    int64_t most = std::min(rows_a_chunk, count());
    for (int64_t block = 0; block < blocks(); block++)
      most = std::max(most, first(block + 1) - first(block));
    return most;
  }

 private:
  // The working set of so many pieces stays in the cache, and their sums in
  // float32 lose no more than a digit.
  static constexpr int64_t rows_a_chunk = 256;

  template <class Real>
  void cut(int64_t row, int64_t start, int64_t end, int64_t size,
           const Real* resets) {
    for (int64_t first = start; first < end;) {
      int64_t next = first + 1;
      while (next < end && !(resets[next] > Real{0})) next++;
      const bool enters = first == start && !(resets[first] > Real{0});
      const bool fills = next == start + size;
      if (next == end && !fills) ends_[row] = pieces_.size();
      pieces_.push_back({row, first, next - first, first - start, enters,
                         fills});
      first = next;
    }
  }

  std::vector<Piece> pieces_;
  std::vector<int64_t> blocks_, lengths_, ends_;
};

}  // namespace keras_linrec
