#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "base/processors.h"
#include "base/systems.h"

namespace keras_linrec {
namespace {

constexpr const char* variable = "KERAS_LINREC_NUM_THREADS";

// The number of threads that the user asks for, or 0.
int requested_threads() {
  const char* text = std::getenv(variable);
  const long wanted = text ? std::strtol(text, nullptr, 10) : 0;
  return static_cast<int>(std::clamp(wanted, 0L, 1024L));
}

std::exception_ptr failure_of(const std::function<void(int)>& work,
                              int thread) {
  try {
    work(thread);
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

// Threads that sleep until a call wants help. A call works on its caller's
// thread, whether others join it or not, so that calls from several threads, or
// from within another call, never wait for each other.
class Pool {
 public:
  Pool() : processors_(available_processors()), threads_(1) {
    const int requested = requested_threads();
    const int wanted = requested ? requested : processors_.count;
    try {
      while (threads_ < wanted) {
        std::thread(&Pool::help, this).detach();
        threads_++;
      }
    } catch (const std::system_error&) {
      // The system has no more threads: work with those that started.
    }
  }

  int threads() const { return threads_; }

  void run(int wanted, const std::function<void(int)>& work) {
    Call call{&work, std::min(wanted, threads_)};
    if (call.wanted <= 1) return work(0);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      calls_.push_back(&call);
    }
    // Those that are awake look for calls before they sleep.
    for (int i = 1; i < call.wanted; i++) begin_.notify_one();
    const std::exception_ptr own = failure_of(work, 0);
    std::unique_lock<std::mutex> lock(mutex_);
    close(call);
    call.done.wait(lock, [&] { return call.helpers == 0; });
    if (own) std::rethrow_exception(own);
    if (call.failure) std::rethrow_exception(call.failure);
  }

 private:
  struct Call {
    const std::function<void(int)>* work;
    int wanted;
    int joined = 1, helpers = 0;  // threads so far, and other threads at work
    std::exception_ptr failure{};
    std::condition_variable done{};
  };

  // Nobody joins a call whose jobs are all taken.
  void close(const Call& call) {
    calls_.erase(std::remove(calls_.begin(), calls_.end(), &call),
                 calls_.end());
  }

  // The call with the fewest helpers, the oldest of several.
  Call& neediest() const {
    return **std::min_element(calls_.begin(), calls_.end(),
                              [](const Call* one, const Call* other) {
                                return one->helpers < other->helpers;
                              });
  }

  void help() {
    bind_to(processors_.bound);
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      begin_.wait(lock, [this] { return !calls_.empty(); });
      Call& call = neediest();
      const int thread = call.joined++;
      call.helpers++;
      if (call.joined == call.wanted) close(call);
      lock.unlock();
      const std::exception_ptr failure = failure_of(*call.work, thread);
      lock.lock();
      close(call);
      if (failure) call.failure = failure;
      if (--call.helpers == 0) call.done.notify_one();
    }
  }

  const Processors processors_;
  int threads_;
  std::mutex mutex_;
  std::condition_variable begin_;
  std::vector<Call*> calls_;  // those that want more threads
};

std::atomic<Pool*> the_pool{nullptr};
std::mutex making_pool;

// The threads of an OpenMP runtime, if a framework provides one.
struct OpenMP {
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned) = nullptr;
  int (*index)() = nullptr;
  int (*most)() = nullptr;
};

OpenMP lent;
std::atomic<bool> openmp_runs{false};

struct Task {
  const std::function<void(int)>* work;
  std::atomic<bool> failed{false};
  std::exception_ptr failure;
};

void run_task(void* given) {
  Task& task = *static_cast<Task*>(given);
  const std::exception_ptr failure = failure_of(*task.work, lent.index());
  if (failure && !task.failed.exchange(true)) task.failure = failure;
}

void run_on_openmp(int wanted, const std::function<void(int)>& work) {
  Task task;
  task.work = &work;
  lent.parallel(run_task, &task, static_cast<unsigned>(wanted), 0);
  if (task.failure) std::rethrow_exception(task.failure);
}

// A forked child has the pool's memory but none of its threads, and a lock that
// was held stays held: it starts a new pool. Old pools are never destroyed,
// because threads wait in them until the process ends.
void forget_pool() {
  the_pool.store(nullptr);
  new (&making_pool) std::mutex;
  openmp_runs.store(false);
}

void start_anew_after_forks() {
  static const bool registered = (in_forked_children(forget_pool), true);
  (void)registered;
}

Pool& pool() {
  Pool* current = the_pool.load(std::memory_order_acquire);
  if (current) return *current;
  start_anew_after_forks();
  std::lock_guard<std::mutex> lock(making_pool);
  current = the_pool.load(std::memory_order_acquire);
  if (!current) {
    current = new Pool;
    the_pool.store(current, std::memory_order_release);
  }
  return *current;
}

}  // namespace

int threads() {
  if (!openmp_runs.load(std::memory_order_acquire)) return pool().threads();
  const int requested = requested_threads();
  return requested ? requested : lent.most();
}

void parallel(int wanted, const std::function<void(int)>& work) {
  const std::function<void(int)> flushing = [&](int thread) {
    const FlushSubnormals scope;
    work(thread);
  };
  if (wanted <= 1) return flushing(0);
  if (openmp_runs.load(std::memory_order_acquire))
    return run_on_openmp(wanted, flushing);
  pool().run(wanted, flushing);
}

void use_openmp(void* parallel, void* index, void* most) {
  start_anew_after_forks();
  lent.parallel = reinterpret_cast<decltype(lent.parallel)>(parallel);
  lent.index = reinterpret_cast<decltype(lent.index)>(index);
  lent.most = reinterpret_cast<decltype(lent.most)>(most);
  openmp_runs.store(true, std::memory_order_release);
}

}  // namespace keras_linrec
