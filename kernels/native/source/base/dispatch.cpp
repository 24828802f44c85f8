#include <cstdlib>
#include <cstring>

#include "base/core.h"
#include "base/kernels.h"
#include "base/parallel.h"
#include "base/systems.h"

namespace keras_linrec {

extern const InstructionSet baseline;
#ifdef KERAS_LINREC_X86
extern const InstructionSet avx2;
extern const InstructionSet avx512;
#endif

namespace {

const InstructionSet& choose() {
#ifdef KERAS_LINREC_X86
  // Tests ask for less than the processor supports.
  const char* limit = std::getenv("KERAS_LINREC_INSTRUCTION_SET");
  const bool only_baseline = limit && !std::strcmp(limit, baseline.name);
  const bool only_avx2 = limit && !std::strcmp(limit, avx2.name);
  if (supports_avx512() && !only_baseline && !only_avx2) return avx512;
  if (supports_avx2() && !only_baseline) return avx2;
#endif
  return baseline;
}

}  // namespace

const InstructionSet& instruction_set() {
  static const InstructionSet& chosen = choose();
  return chosen;
}

}  // namespace keras_linrec

const char* keras_linrec_instruction_set() {
  return keras_linrec::instruction_set().name;
}

int keras_linrec_threads() { return keras_linrec::threads(); }

void keras_linrec_use_openmp(void* parallel, void* index, void* most) {
  keras_linrec::use_openmp(parallel, index, most);
}
