// The core as XLA FFI handlers, for JAX: one for each kind of device, since a
// call names its operation. `jax.vmap` adds leading axes to every buffer.
#include "adapters/xla_calls.h"

using keras_linrec::binding;
using keras_linrec::binding_on_gpu;
using keras_linrec::handle_on_cpu;
using keras_linrec::handle_on_emulated_gpu;
using keras_linrec::handle_on_gpu;

namespace ffi = xla::ffi;

#define HANDLER(name, function, binding)                                  \
  extern "C" KERAS_LINREC_PUBLIC XLA_FFI_Error* name(XLA_FFI_CallFrame*); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, function, binding())

HANDLER(keras_linrec_xla_cpu, handle_on_cpu, binding);
HANDLER(keras_linrec_xla_cuda, handle_on_gpu, binding_on_gpu);
HANDLER(keras_linrec_xla_emulated_cuda, handle_on_emulated_gpu, binding);
