#include "parallel.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#ifdef __linux__
#include <sched.h>
#include <sys/mman.h>
#endif

namespace keras_linrec {
namespace {

int available_processors() {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
#endif
  const unsigned count = std::thread::hardware_concurrency();
  return count ? static_cast<int>(count) : 1;
}

constexpr const char* variable = "KERAS_LINREC_NUM_THREADS";

int wanted_threads() {
  const char* text = std::getenv(variable);
  const long wanted = text ? std::strtol(text, nullptr, 10) : 0;
  if (wanted > 0) return static_cast<int>(wanted < 1024 ? wanted : 1024);
  return available_processors();
}

class Pool {
 public:
  Pool() : threads_(1) {
    const int wanted = wanted_threads();
    try {
      while (threads_ < wanted) {
        std::thread(&Pool::wait_for_work, this, threads_).detach();
        threads_++;
      }
    } catch (const std::system_error&) {
      // The system has no more threads: work with those that started.
    }
  }

  int threads() const { return threads_; }

  void run(int wanted, const std::function<void(int, int)>& work) {
    std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    const int count = wanted < threads_ ? wanted : threads_;
    if (count <= 1 || !turn.owns_lock()) return work(0, 1);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      work_ = &work;
      count_ = count;
      left_ = count - 1;
      round_++;
    }
    begin_.notify_all();
    std::exception_ptr own = failure_of(work, 0, count);
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return left_ == 0; });
    if (!own) own = failure_;
    failure_ = nullptr;
    if (own) std::rethrow_exception(own);
  }

 private:
  static std::exception_ptr failure_of(
      const std::function<void(int, int)>& work, int index, int count) {
    try {
      work(index, count);
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

  void wait_for_work(int index) {
    std::uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      begin_.wait(lock, [&] { return round_ != seen; });
      seen = round_;
      if (index >= count_) continue;
      const std::function<void(int, int)>& work = *work_;
      const int count = count_;
      lock.unlock();
      const std::exception_ptr failure = failure_of(work, index, count);
      lock.lock();
      if (failure) failure_ = failure;
      if (--left_ == 0) done_.notify_one();
    }
  }

  int threads_;
  std::mutex turn_;  // held by the call that uses the threads
  std::mutex mutex_;
  std::condition_variable begin_, done_;
  const std::function<void(int, int)>* work_ = nullptr;
  int count_ = 0, left_ = 0;
  std::uint64_t round_ = 0;
  std::exception_ptr failure_;
};

std::atomic<Pool*> the_pool{nullptr};
std::mutex making_pool;

// The threads of an OpenMP runtime, if a framework provides one.
struct OpenMP {
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned) = nullptr;
  int (*index)() = nullptr;
  int (*count)() = nullptr;
  int (*most)() = nullptr;
};

OpenMP lent;
std::atomic<bool> openmp_runs{false};

struct Task {
  const std::function<void(int, int)>* work;
  std::atomic<bool> failed{false};
  std::exception_ptr failure;
};

void run_task(void* given) {
  Task& task = *static_cast<Task*>(given);
  try {
    (*task.work)(lent.index(), lent.count());
  } catch (...) {
    if (!task.failed.exchange(true)) task.failure = std::current_exception();
  }
}

void run_on_openmp(int wanted, const std::function<void(int, int)>& work) {
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
  static const int registered = pthread_atfork(nullptr, nullptr, forget_pool);
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
  return std::getenv(variable) ? wanted_threads() : lent.most();
}

void parallel(int wanted, const std::function<void(int, int)>& work) {
  if (wanted <= 1) return work(0, 1);
  if (openmp_runs.load(std::memory_order_acquire))
    return run_on_openmp(wanted, work);
  pool().run(wanted, work);
}

void use_openmp(void* parallel, void* index, void* count, void* most) {
  start_anew_after_forks();
  lent.parallel = reinterpret_cast<decltype(lent.parallel)>(parallel);
  lent.index = reinterpret_cast<decltype(lent.index)>(index);
  lent.count = reinterpret_cast<decltype(lent.count)>(count);
  lent.most = reinterpret_cast<decltype(lent.most)>(most);
  openmp_runs.store(true, std::memory_order_release);
}

void prepare_to_write(void* array, std::size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr std::uintptr_t page = 1 << 21;
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(array);
  const std::uintptr_t first = (begin + page - 1) & ~(page - 1);
  const std::uintptr_t last = (begin + bytes) & ~(page - 1);
  // If the system ignores the advice, that is no error.
  if (last > first + page)
    madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#else
  (void)array;
  (void)bytes;
#endif
}

}  // namespace keras_linrec
