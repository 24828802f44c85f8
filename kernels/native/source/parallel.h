// Threads that are started once and wait for work.
#pragma once
#include <cstddef>
#include <functional>

namespace keras_linrec {

// The number of threads: KERAS_LINREC_NUM_THREADS, or one per available CPU.
int threads();

// Calls work(index, count) concurrently for every index below `count`, which is
// at most `wanted`. It is 1, the caller's own thread, while another call uses
// the threads.
void parallel(int wanted, const std::function<void(int, int)>& work);

// From now on, work runs on the threads of an OpenMP runtime: its
// GOMP_parallel, omp_get_thread_num, omp_get_num_threads, omp_get_max_threads.
void use_openmp(void* parallel, void* index, void* count, void* most);

// Requests large pages for a big array that is about to be written for the
// first time. The page faults of a new 64 MB array cost 25 to 100 ms with pages
// of 4 KiB, and 2 ms with pages of 2 MB.
void prepare_to_write(void* array, std::size_t bytes);

}  // namespace keras_linrec
