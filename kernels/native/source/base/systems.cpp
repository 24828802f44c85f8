#include "base/systems.h"

#ifdef KERAS_LINREC_X86
#include <cpuid.h>
#include <immintrin.h>
#endif
#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#include <pthread.h>
#endif
#ifdef __linux__
#include <sched.h>
#include <sys/mman.h>
#endif

namespace keras_linrec {
namespace {

// The register that controls the arithmetic of this thread, and its bits that
// make numbers below the smallest normal one zero, as operands and as results.
#if defined(KERAS_LINREC_X86)
constexpr uint64_t flush_bits = 0x8040;
uint64_t arithmetic() { return _mm_getcsr(); }
void set_arithmetic(uint64_t bits) {
  _mm_setcsr(static_cast<unsigned>(bits));
}
#elif defined(__aarch64__)
constexpr uint64_t flush_bits = uint64_t{1} << 24;
uint64_t arithmetic() {
  uint64_t bits;
  __asm__ volatile("mrs %0, fpcr" : "=r"(bits));
  return bits;
}
void set_arithmetic(uint64_t bits) {
  __asm__ volatile("msr fpcr, %0" : : "r"(bits));
}
#else
constexpr uint64_t flush_bits = 0;
uint64_t arithmetic() { return 0; }
void set_arithmetic(uint64_t) {}
#endif

#ifdef KERAS_LINREC_X86

constexpr bool all_of(uint64_t bits, uint64_t wanted) {
  return (bits & wanted) == wanted;
}

// The features that the processor has, and the registers that the system
// saves. Asked of the processor itself: `__builtin_cpu_supports` needs a part
// of the compiler's runtime that Zig's lacks, and there says no to everything.
struct Features {
  unsigned basic = 0, extended = 0;
  uint64_t registers = 0;

  Features() {
    unsigned eax, ebx, ecx, edx;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) basic = ecx;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) extended = ebx;
    if (!all_of(basic, bit_OSXSAVE)) return;
    __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    registers = uint64_t{edx} << 32 | eax;
#ifdef __APPLE__
    // macOS saves the registers of AVX-512 from their first use on.
    if (all_of(registers, saves_avx)) registers |= saves_avx512;
#endif
  }

  static constexpr uint64_t saves_avx = 0x6, saves_avx512 = 0xe6;
};

const Features& features() {
  static const Features asked;
  return asked;
}

#endif

}  // namespace

#ifdef KERAS_LINREC_X86

bool supports_avx2() {
  const Features& f = features();
  return all_of(f.registers, Features::saves_avx) &&
         all_of(f.basic, bit_AVX | bit_FMA) && all_of(f.extended, bit_AVX2);
}

bool supports_avx512() {
  const Features& f = features();
  return supports_avx2() && all_of(f.registers, Features::saves_avx512) &&
         all_of(f.extended,
                bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL);
}

#endif

void in_forked_children(void (*prepare)()) {
#ifdef _WIN32
  (void)prepare;
#else
  pthread_atfork(nullptr, nullptr, prepare);
#endif
}

void bind_to(const std::vector<int>& processors) {
#ifdef __linux__
  if (processors.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int processor : processors) CPU_SET(processor, &set);
  sched_setaffinity(0, sizeof(set), &set);
#else
  (void)processors;
#endif
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

#ifdef _WIN32
void* open_library(const char* path) { return LoadLibraryA(path); }
void* function_in(void* library, const char* name) {
  return reinterpret_cast<void*>(
      GetProcAddress(static_cast<HMODULE>(library), name));
}
#else
void* open_library(const char* path) {
  return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}
void* function_in(void* library, const char* name) {
  return dlsym(library, name);
}
#endif

FlushSubnormals::FlushSubnormals() : before_(arithmetic()) {
  set_arithmetic(before_ | flush_bits);
}

FlushSubnormals::~FlushSubnormals() { set_arithmetic(before_); }

}  // namespace keras_linrec
