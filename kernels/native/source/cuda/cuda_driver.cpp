#include "cuda/cuda_driver.h"

#include <map>
#include <mutex>
#include <string>

#include "cuda/cuda_core.h"
#include "base/systems.h"

namespace keras_linrec {
namespace cuda {
namespace {

// The driver's own declarations, as in cuda.h.
using Result = int;
using Ordinal = int;
using Context = void*;
using Module = void*;
using Function = void*;
using Stream = void*;
using Address = unsigned long long;
constexpr int kMultiprocessorCount = 16;
constexpr int kSpeedOfFloat32ByFloat64 = 87;
constexpr int kMostSharedMemoryOptin = 97;
constexpr int kDeviceOrdinalOfPointer = 9;
constexpr int kMostDynamicSharedMemory = 8;

struct Driver {
  Result (*cuInit)(unsigned);
  Result (*cuGetErrorString)(Result, const char**);
  Result (*cuPointerGetAttribute)(void*, int, Address);
  Result (*cuDeviceGetAttribute)(int*, int, Ordinal);
  Result (*cuDevicePrimaryCtxRetain)(Context*, Ordinal);
  Result (*cuCtxPushCurrent_v2)(Context);
  Result (*cuCtxPopCurrent_v2)(Context*);
  Result (*cuModuleLoadData)(Module*, const void*);
  Result (*cuModuleGetFunction)(Function*, Module, const char*);
  Result (*cuFuncSetAttribute)(Function, int, int);
  Result (*cuMemsetD32Async)(Address, unsigned, size_t, Stream);
  Result (*cuLaunchKernel)(Function, unsigned, unsigned, unsigned, unsigned,
                           unsigned, unsigned, unsigned, Stream, void**,
                           void**);
};

struct Loaded {
  Context context = nullptr;
  Module module = nullptr;
  std::map<std::string, Function> kernels;
};

// One for the process. The library and the kernels are never unloaded: work may
// be under way until the process ends.
struct State {
  std::mutex mutex;
  std::string path;  // empty until the driver has been loaded
  Driver driver;
  std::string binary;
  std::map<Ordinal, Loaded> devices;
};

State& state() {
  static State* only = new State;
  return *only;
}

thread_local std::string message;

[[noreturn]] void fail(const std::string& text) {
  message = text;
  throw Failure();
}

void check(const std::string& call, Result result) {
  if (result == 0) return;
  const char* name = nullptr;
  state().driver.cuGetErrorString(result, &name);
  fail(call + ": " + (name ? name : "unknown error") + " (" +
       std::to_string(result) + ")");
}

template <class Type>
void find(void* library, const char* name, Type& function) {
  function = reinterpret_cast<Type>(function_in(library, name));
  if (!function) fail(std::string("the driver has no ") + name + ": it is old");
}

Driver load_driver(const char* path) {
  void* library = open_library(path);
  if (!library) fail(std::string("there is no ") + path + " here");
  Driver driver;
#define KERAS_LINREC_FIND(name) find(library, #name, driver.name)
  KERAS_LINREC_FIND(cuInit);
  KERAS_LINREC_FIND(cuGetErrorString);
  KERAS_LINREC_FIND(cuPointerGetAttribute);
  KERAS_LINREC_FIND(cuDeviceGetAttribute);
  KERAS_LINREC_FIND(cuDevicePrimaryCtxRetain);
  KERAS_LINREC_FIND(cuCtxPushCurrent_v2);
  KERAS_LINREC_FIND(cuCtxPopCurrent_v2);
  KERAS_LINREC_FIND(cuModuleLoadData);
  KERAS_LINREC_FIND(cuModuleGetFunction);
  KERAS_LINREC_FIND(cuFuncSetAttribute);
  KERAS_LINREC_FIND(cuMemsetD32Async);
  KERAS_LINREC_FIND(cuLaunchKernel);
#undef KERAS_LINREC_FIND
  return driver;
}

void open(const char* path, const void* binary, size_t bytes) {
  State& all = state();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (all.path == path) return;
  all.driver = load_driver(path);
  check("cuInit", all.driver.cuInit(0));
  all.binary.assign(static_cast<const char*>(binary), bytes);
  all.devices.clear();
  all.path = path;
}

int attribute(Ordinal number, int which) {
  int value;
  check("cuDeviceGetAttribute",
        state().driver.cuDeviceGetAttribute(&value, which, number));
  return value;
}

// The caller holds the lock.
Loaded& loaded(Ordinal number) {
  Loaded& device = state().devices[number];
  if (device.context) return device;
  check("cuDevicePrimaryCtxRetain",
        state().driver.cuDevicePrimaryCtxRetain(&device.context, number));
  return device;
}

// A kernel of the current device.
Function kernel_of(Ordinal number, const char* name) {
  State& all = state();
  std::lock_guard<std::mutex> lock(all.mutex);
  Loaded& device = loaded(number);
  if (!device.module)
    check("cuModuleLoadData",
          all.driver.cuModuleLoadData(&device.module, all.binary.data()));
  Function& kernel = device.kernels[name];
  if (!kernel) {
    Function found;
    check(std::string("cuModuleGetFunction of ") + name,
          all.driver.cuModuleGetFunction(&found, device.module, name));
    check(std::string("cuFuncSetAttribute of ") + name,
          all.driver.cuFuncSetAttribute(
              found, kMostDynamicSharedMemory,
              attribute(number, kMostSharedMemoryOptin)));
    kernel = found;
  }
  return kernel;
}

}  // namespace

Device::Device(const void* array) {
  State& all = state();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (all.path.empty()) fail("the driver library has not been opened");
  check("cuPointerGetAttribute",
        all.driver.cuPointerGetAttribute(&number_, kDeviceOrdinalOfPointer,
                                         reinterpret_cast<Address>(array)));
  check("cuCtxPushCurrent",
        all.driver.cuCtxPushCurrent_v2(loaded(number_).context));
}

Device::~Device() {
  Context context;
  state().driver.cuCtxPopCurrent_v2(&context);
}

int64_t Device::shared_memory() const {
  return attribute(number_, kMostSharedMemoryOptin);
}

int64_t Device::processors() const {
  return attribute(number_, kMultiprocessorCount);
}

bool Device::has_fast_float64() const {
  int ratio;
  // A driver that does not tell is no failure.
  return state().driver.cuDeviceGetAttribute(&ratio, kSpeedOfFloat32ByFloat64,
                                             number_) == 0 &&
         ratio > 0 && ratio <= 4;
}

void Device::clear(void* numbers, int64_t count, void* stream) const {
  check("cuMemsetD32Async",
        state().driver.cuMemsetD32Async(reinterpret_cast<Address>(numbers), 0,
                                        static_cast<size_t>(count), stream));
}

void Device::launch(const char* kernel, const void* arguments, int64_t blocks,
                    int threads, int64_t shared_bytes, void* stream) const {
  const std::string call = std::string("cuLaunchKernel of ") + kernel;
  // A larger grid is impossible, and the cast below would hide it.
  if (blocks > INT32_MAX) fail(call + ": too many blocks");
  void* parameters[] = {const_cast<void*>(arguments)};
  check(call, state().driver.cuLaunchKernel(
                  kernel_of(number_, kernel), static_cast<unsigned>(blocks), 1,
                  1, threads, 1, 1, static_cast<unsigned>(shared_bytes), stream,
                  parameters, nullptr));
}

}  // namespace cuda
}  // namespace keras_linrec

extern "C" {

int keras_linrec_cuda_open(const char* driver, const void* kernels,
                           int64_t bytes) {
  try {
    keras_linrec::cuda::open(driver, kernels, static_cast<size_t>(bytes));
  } catch (const keras_linrec::cuda::Failure&) {
    return kKerasLinrecFailed;
  }
  return kKerasLinrecDone;
}

const char* keras_linrec_cuda_message() {
  return keras_linrec::cuda::message.c_str();
}

}  // extern "C"
