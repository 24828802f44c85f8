// Threads that are started once and wait for work.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>

namespace keras_linrec {

// The number of threads: KERAS_LINREC_NUM_THREADS, or one per available CPU.
int threads();

// Calls work(thread) on the caller's own thread, number 0, and on at most
// `wanted` - 1 others, each with a number of its own below `wanted`. How many
// join, and when, depends on what else runs, so `work` has to take its jobs one
// by one from a counter until none is left. Calls from several threads at once
// share the others.
void parallel(int wanted, const std::function<void(int)>& work);

// Calls use(thread, job) for every job below `jobs`. They begin in their order:
// a job may wait for an earlier one.
template <class Use>
void for_each_job(int wanted, int64_t jobs, const Use& use) {
  std::atomic<int64_t> next{0};
  parallel(wanted, [&](int thread) {
    for (int64_t job; (job = next.fetch_add(1)) < jobs;) use(thread, job);
  });
}

// Calls use(workspace, job) for every job below `jobs`, with the workspace that
// make() gives to each thread.
template <class Make, class Use>
void for_each_job(int wanted, int64_t jobs, const Make& make, const Use& use) {
  std::atomic<int64_t> next{0};
  parallel(wanted, [&](int) {
    auto workspace = make();
    for (int64_t job; (job = next.fetch_add(1)) < jobs;) use(workspace, job);
  });
}

// From now on, work runs on the threads of an OpenMP runtime: its
// GOMP_parallel, omp_get_thread_num and omp_get_max_threads.
void use_openmp(void* parallel, void* index, void* most);

}  // namespace keras_linrec
