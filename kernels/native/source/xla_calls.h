// Shared by the adapters that XLA calls: a call's buffers, and the conversion
// of the core's status into an XLA error.
#pragma once
#include <string>
#include <vector>

#include "core.h"
#include "xla/ffi/api/ffi.h"

namespace keras_linrec {

namespace ffi = xla::ffi;

typedef int (*Core)(int, const int64_t*, const void* const*, void* const*);

// The buffers of a call, and their addresses as the core takes them.
struct Buffers {
  std::vector<ffi::AnyBuffer> arguments, results;
  std::vector<const void*> from;
  std::vector<void*> to;
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
      results.push_back(**buffer);
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

inline ffi::Error run(const std::string& name, Core core, int flags,
                      const int64_t* sizes,
                      const std::vector<const void*>& from,
                      const std::vector<void*>& to) {
  switch (core(flags, sizes, from.data(), to.data())) {
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

}  // namespace keras_linrec
