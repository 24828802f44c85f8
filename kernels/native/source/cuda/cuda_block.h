// What the CUDA kernels are made of: a block of threads, its shared memory,
// and flags by which blocks tell one another what they have written.
//
// A block works in phases: all its threads finish one phase before any begins
// the next. So the kernels can be tested without a GPU: any C++ compiler makes
// a phase a loop over the threads, and runs several blocks at the same time.
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#include <cuda_pipeline.h>
#define KERAS_LINREC_DEVICE __host__ __device__ __forceinline__
#define KERAS_LINREC_UNROLL _Pragma("unroll")
#define KERAS_LINREC_UNROLL_BY_8 _Pragma("unroll 8")
#define KERAS_LINREC_NO_UNROLL _Pragma("unroll 1")
#else
#include <cstring>
#include <deque>
#include <thread>
#include <vector>
#define KERAS_LINREC_DEVICE inline
#define KERAS_LINREC_UNROLL
#define KERAS_LINREC_UNROLL_BY_8
#define KERAS_LINREC_NO_UNROLL
#endif

namespace keras_linrec {
namespace cuda {

#ifndef __CUDACC__
// A copy to shared memory that has begun and not ended.
struct Copy {
  void* to;
  const void* from;
  size_t size;
};
// Those that began in each phase, the newest last: never empty.
using UnderWay = std::deque<std::vector<Copy>>;
#endif

struct Block {
  int64_t index;
  unsigned char* memory;
#ifndef __CUDACC__
  // Whether the emulated threads run from the last to the first, and fetched
  // data arrives at once or at the last moment. No result may depend on it.
  bool backwards;
  UnderWay* under_way;
#endif

  // Calls work(item) for each item, shared among the threads.
  template <class Work>
  KERAS_LINREC_DEVICE void each(int count, Work work) const {
    share(count, work);
#ifdef __CUDA_ARCH__
    __syncthreads();
#endif
  }
  // The same, without the copies that nvcc makes of the work for several items
  // at once: long work would fill the cache of instructions.
  template <class Work>
  KERAS_LINREC_DEVICE void each_by_itself(int count, Work work) const {
#ifdef __CUDA_ARCH__
    KERAS_LINREC_NO_UNROLL
    for (int item = threadIdx.x; item < count; item += blockDim.x) work(item);
    __syncthreads();
#else
    share(count, work);
#endif
  }
  // All fetched data has arrived afterwards, but for that which was fetched
  // within the last `later` phases of this kind, and between them.
  template <int later = 0, class Work>
  KERAS_LINREC_DEVICE void each_and_receive(int count, Work work) const {
    share(count, work);
#ifdef __CUDA_ARCH__
    __pipeline_commit();
    __pipeline_wait_prior(later);
    __syncthreads();
#elif !defined(__CUDACC__)
    under_way->emplace_back();
    for (; under_way->size() > later + 1; under_way->pop_front())
      for (const auto& copy : under_way->front())
        std::memcpy(copy.to, copy.from, copy.size);
#endif
  }
  // Shared memory is filled asynchronously while the threads go on.
  template <class Real>
  KERAS_LINREC_DEVICE void fetch(const Real* from, Real& to) const {
#ifdef __CUDA_ARCH__
    __pipeline_memcpy_async(&to, from, sizeof(Real));
#elif !defined(__CUDACC__)
    if (backwards)
      to = *from;
    else
      under_way->back().push_back({&to, from, sizeof(Real)});
#endif
  }

 private:
  template <class Work>
  KERAS_LINREC_DEVICE void share(int count, const Work& work) const {
#ifdef __CUDA_ARCH__
    for (int item = threadIdx.x; item < count; item += blockDim.x) work(item);
#elif !defined(__CUDACC__)
    for (int item = 0; item < count; item++)
      work(backwards ? count - 1 - item : item);
#endif
  }
};

// Hands out shared memory piece by piece; with a null base it only counts.
struct Memory {
  unsigned char* begin;
  int64_t used = 0;

  // The next piece begins at a multiple of `bytes`.
  KERAS_LINREC_DEVICE void align(int64_t bytes) {
    used = (used + bytes - 1) / bytes * bytes;
  }
  template <class Type>
  KERAS_LINREC_DEVICE Type* take(int64_t count) {
    Type* taken = begin ? reinterpret_cast<Type*>(begin + used) : nullptr;
    used += count * sizeof(Type);
    return taken;
  }
};

// A number that no other block has drawn, counted from zero: the order in which
// blocks have begun. A block may wait for those with smaller numbers, since
// they are running or done, whatever the order in which a GPU starts blocks.
KERAS_LINREC_DEVICE unsigned draw(unsigned* counter) {
#ifdef __CUDA_ARCH__
  return atomicAdd(counter, 1u);
#elif !defined(__CUDACC__)
  return __atomic_fetch_add(counter, 1u, __ATOMIC_RELAXED);
#else
  return 0;
#endif
}

// By one thread, after a phase: what the block has written so far is there.
KERAS_LINREC_DEVICE void raise(unsigned* flag) {
#ifdef __CUDA_ARCH__
  // The release orders what other threads wrote before the phase ended, too:
  // a fence besides would wait for memory twice.
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(1u)
               : "memory");
#elif !defined(__CUDACC__)
  __atomic_store_n(flag, 1u, __ATOMIC_RELEASE);
#endif
}

// After the phase in which one thread has waited, all threads of the block may
// read what was written before the flag was raised.
KERAS_LINREC_DEVICE void wait_for(const unsigned* flag) {
#ifdef __CUDA_ARCH__
  unsigned raised;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                 : "=r"(raised)
                 : "l"(flag)
                 : "memory");
  } while (!raised);
#elif !defined(__CUDACC__)
  while (!__atomic_load_n(flag, __ATOMIC_ACQUIRE)) std::this_thread::yield();
#endif
}

}  // namespace cuda
}  // namespace keras_linrec
