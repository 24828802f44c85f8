// Shared by the adapters that XLA calls: the handlers of the table in
// operations.h, which read shapes from the buffers, so that a program with
// symbolic sizes runs with any.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "base/call.h"
#include "base/operations.h"
#include "xla/ffi/api/ffi.h"

namespace keras_linrec {

namespace ffi = xla::ffi;

inline ffi::Error error_of(const std::string& name, int status) {
  switch (status) {
    case kKerasLinrecDone:
      return ffi::Error::Success();
    case kKerasLinrecOutOfMemory:
      return ffi::Error(ffi::ErrorCode::kResourceExhausted,
                        name + ": out of memory");
    case kKerasLinrecBadSizes:
      return ffi::Error::InvalidArgument(name +
                                         ": the sizes do not fit together");
    default:
      return ffi::Error::Internal(name + ": failed");
  }
}

// The addresses of a call, as the core takes them.
struct Addresses {
  std::vector<const void*> from;
  std::vector<void*> to;
};

// What a call of the CUDA core takes besides its arrays.
struct Queue {
  void* scratch;
  void* stream;
};

inline ffi::Error queue(const Operation& operation, int flags,
                        const std::vector<int64_t>& sizes,
                        const Addresses& arrays, const Queue& where) {
  if (!where.scratch)
    return ffi::Error(ffi::ErrorCode::kResourceExhausted,
                      operation.name + ": out of the GPU's memory");
  const int status =
      operation.cuda(flags, sizes.data(), arrays.from.data(), arrays.to.data(),
                     where.scratch, where.stream);
  if (status == kKerasLinrecDone) return ffi::Error::Success();
  return ffi::Error::Internal(operation.name + ": " +
                              keras_linrec_cuda_message());
}

// The bytes of scratch memory of a call: at least 8, since allocators may
// return null for 0.
inline int64_t scratch_of(const Operation& operation, int flags,
                          const std::vector<int64_t>& sizes) {
  return operation.scratch ? operation.scratch(flags, sizes.data())
                           : sizeof(double);
}

// The buffers of a program's call.
struct Buffers : Addresses {
  std::vector<ffi::AnyBuffer> arguments;
  ffi::Error error;

  Buffers(const ffi::RemainingArgs& given, const ffi::RemainingRets& wanted) {
    for (size_t i = 0; i < given.size(); i++) {
      auto buffer = given.get<ffi::AnyBuffer>(i);
      if (!take(buffer)) return;
      arguments.push_back(*buffer);
      from.push_back(buffer->untyped_data());
    }
    for (size_t i = 0; i < wanted.size(); i++) {
      auto buffer = wanted.get<ffi::AnyBuffer>(i);
      if (!take(buffer)) return;
      // A result without elements is one that nobody wants.
      const bool wanted = (*buffer)->element_count();
      to.push_back(wanted ? (*buffer)->untyped_data() : nullptr);
    }
  }

 private:
  template <class Buffer>
  bool take(const Buffer& buffer) {
    if (buffer.has_error()) error = buffer.error();
    return buffer.has_value();
  }
};

// Reads a call's buffers and runs work(operation, flags, sizes, buffers).
template <class Work>
ffi::Error handle(const ffi::RemainingArgs& arguments,
                  const ffi::RemainingRets& results, int64_t operation,
                  int64_t flags, ffi::Span<const int64_t> attributes,
                  Work work) {
  const Operation& called = operations[operation];
  const Buffers buffers(arguments, results);
  if (buffers.error.failure()) return buffers.error;
  const ffi::DataType type = buffers.arguments[0].element_type();
  std::vector<Shape> shapes;
  for (const ffi::AnyBuffer& buffer : buffers.arguments) {
    const auto sizes = buffer.dimensions();
    shapes.push_back({sizes.begin(), sizes.size()});
    if (buffer.element_type() != type)
      return ffi::Error::InvalidArgument(
          called.name + ": the arrays should have one dtype");
  }
  if (type != ffi::DataType::F32 && type != ffi::DataType::F64)
    return ffi::Error::InvalidArgument(
        called.name + ": the arrays should be float32 or float64");
  Call call(called, flags, attributes.begin());
  if (const std::string error = call.read(shapes); !error.empty())
    return ffi::Error::InvalidArgument(called.name + ": " + error);
  const int typed = static_cast<int>(flags) |
                    (type == ffi::DataType::F64 ? kKerasLinrecFloat64 : 0);
  return work(called, typed, call.sizes(), buffers);
}

inline ffi::Error handle_on_cpu(ffi::RemainingArgs arguments,
                                ffi::RemainingRets results, int64_t operation,
                                int64_t flags,
                                ffi::Span<const int64_t> attributes) {
  return handle(
      arguments, results, operation, flags, attributes,
      [](const Operation& called, int flags, const std::vector<int64_t>& sizes,
         const Addresses& arrays) {
        return error_of(called.name,
                        called.core(flags, sizes.data(), arrays.from.data(),
                                    arrays.to.data()));
      });
}

// On the stream of a program, whose next kernels may reuse the scratch memory,
// since they run after ours.
inline ffi::Error handle_on_gpu(void* stream, ffi::ScratchAllocator memory,
                                ffi::RemainingArgs arguments,
                                ffi::RemainingRets results, int64_t operation,
                                int64_t flags,
                                ffi::Span<const int64_t> attributes) {
  return handle(
      arguments, results, operation, flags, attributes,
      [&](const Operation& called, int flags, const std::vector<int64_t>& sizes,
          const Addresses& arrays) {
        const int64_t bytes = scratch_of(called, flags, sizes);
        void* scratch =
            memory.Allocate(bytes, alignof(double)).value_or(nullptr);
        return queue(called, flags, sizes, arrays, {scratch, stream});
      });
}

// For the tests, in which the driver's GPU is the CPU.
inline ffi::Error handle_on_emulated_gpu(ffi::RemainingArgs arguments,
                                         ffi::RemainingRets results,
                                         int64_t operation, int64_t flags,
                                         ffi::Span<const int64_t> attributes) {
  return handle(
      arguments, results, operation, flags, attributes,
      [](const Operation& called, int flags, const std::vector<int64_t>& sizes,
         const Addresses& arrays) {
        std::vector<double> scratch(
            scratch_of(called, flags, sizes) / sizeof(double) + 1);
        return queue(called, flags, sizes, arrays, {scratch.data(), nullptr});
      });
}

inline auto binding() {
  return ffi::Ffi::Bind()
      .RemainingArgs()
      .RemainingRets()
      .Attr<int64_t>("operation")
      .Attr<int64_t>("flags")
      .Attr<ffi::Span<const int64_t>>("attributes");
}

inline auto binding_on_gpu() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::PlatformStream<void*>>()
      .Ctx<ffi::ScratchAllocator>()
      .RemainingArgs()
      .RemainingRets()
      .Attr<int64_t>("operation")
      .Attr<int64_t>("flags")
      .Attr<ffi::Span<const int64_t>>("attributes");
}

}  // namespace keras_linrec
