// Work whose blocks are prepared in parallel, but stepped through in order.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

namespace keras_linrec {

// Shares of the same number of blocks. Any block may be prepared at any time; a
// share's blocks are stepped through one after another, and finished one after
// another. Whoever is free takes what can be done, so a thread that has to wait
// for a processor holds up the others only with the task that it has begun.
class Pipeline {
 public:
  // A share has room for `slots` blocks between preparing and finishing: block
  // number b uses slot b % slots.
  Pipeline(int64_t shares, int64_t blocks, int64_t slots)
      : blocks_(blocks),
        slots_(slots),
        unfinished_(shares * blocks),
        shares_(shares, Share(slots)) {}

  // Calls prepare(share, block), step and finish for all blocks, together with
  // other threads that call this.
  template <class Prepare, class Step, class Finish>
  void work(const Prepare& prepare, const Step& step, const Finish& finish) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (Task task; take(lock, task);) {
      lock.unlock();
      try {
        if (task.stage == kPrepare) prepare(task.share, task.block);
        if (task.stage == kStep) step(task.share, task.block);
        if (task.stage == kFinish) finish(task.share, task.block);
      } catch (...) {
        lock.lock();
        failed_ = true;
        changes_++;
        changed_.notify_all();
        throw;
      }
      lock.lock();
      end(task);
      changes_++;
      changed_.notify_all();
    }
  }

 private:
  // How long a thread without a task stays awake. Where another process wants
  // its processor, one that sleeps may get it back milliseconds later.
  static constexpr std::chrono::microseconds awake{300};
  enum Stage { kPrepare, kStep, kFinish, kStages };
  struct Task {
    int64_t share, block;
    Stage stage;
  };
  struct Share {
    int64_t begun[kStages] = {}, done[kStages] = {};
    std::vector<bool> prepared;  // the slots whose blocks wait for their steps
    explicit Share(int64_t slots) : prepared(slots) {}
  };

  bool can_begin(Stage stage, const Share& share) const {
    const int64_t block = share.begun[stage];
    if (block == blocks_) return false;
    if (stage == kPrepare) return block < share.done[kFinish] + slots_;
    if (block > share.done[stage]) return false;
    if (stage == kStep) return share.prepared[block % slots_];
    return block < share.done[kStep];
  }

  // Takes a task, once there is one, those that others wait for first; false if
  // all are done, or one has failed.
  bool take(std::unique_lock<std::mutex>& lock, Task& task) {
    for (; unfinished_ > 0 && !failed_; await_change(lock))
      for (const Stage stage : {kStep, kFinish, kPrepare})
        for (size_t i = 0; i < shares_.size(); i++) {
          Share& share = shares_[i];
          if (!can_begin(stage, share)) continue;
          task = {static_cast<int64_t>(i), share.begun[stage]++, stage};
          return true;
        }
    return false;
  }

  void await_change(std::unique_lock<std::mutex>& lock) {
    const int64_t seen = changes_;
    lock.unlock();
    const auto begin = std::chrono::steady_clock::now();
    while (changes_ == seen && std::chrono::steady_clock::now() - begin < awake)
      continue;
    lock.lock();
    changed_.wait(lock, [&] { return changes_ != seen; });
  }

  void end(const Task& task) {
    Share& share = shares_[task.share];
    share.done[task.stage]++;
    if (task.stage == kFinish)
      unfinished_--;
    else
      share.prepared[task.block % slots_] = task.stage == kPrepare;
  }

  int64_t blocks_, slots_, unfinished_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Share> shares_;
  std::atomic<int64_t> changes_{0};  // tasks that ended
  bool failed_ = false;
};

}  // namespace keras_linrec
