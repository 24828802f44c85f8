// Threads that are started once and wait for work.
#pragma once
#include <cstddef>
#include <functional>

namespace keras_linrec {

// The number of threads: KERAS_LINREC_NUM_THREADS, or the processors that this
// process may use.
int threads();

// Calls work(index, count) for every index below `count` at the same time,
// where `count` is at most `wanted`. It is 1 where another call is using the
// threads: the caller's own thread is always there.
void parallel(int wanted, const std::function<void(int, int)>& work);

// From now on, work is done by the threads of an OpenMP runtime: its
// GOMP_parallel, omp_get_thread_num, omp_get_num_threads, omp_get_max_threads.
void use_openmp(void* parallel, void* index, void* count, void* most);

// Asks for large pages behind a big array that is about to be written for the
// first time. A page fault for each 4 KiB of a new 64 MB array costs 25 to 100
// ms, with 2 MB pages 2.
void prepare_to_write(void* array, std::size_t bytes);

}  // namespace keras_linrec
