// The core as TensorFlow operations on the CPU, and the CUDA core as operations
// on GPUs. Each has two kernels: one runs it, in eager mode and in graphs, and
// the other emits a call of the same code into an XLA program.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_call.h"
#include "tensorflow_operations.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"
#include "xla/stream_executor/stream.h"
#include "xla_calls.h"

// TensorFlow's table of FFI handlers, which no header of its package declares.
namespace xla::ffi {
const XLA_FFI_Api* GetXlaFfiApi();
}

namespace keras_linrec {
namespace {

// `REGISTER_OP` for each row of the table in tensorflow_operations.h.
bool define_operations() {
  for (const Operation& operation : operations)
    // By pointer: the table outlives the registered functions, the loop
    // variable does not.
    tf::OpRegistry::Global()->Register([from_table = &operation](
                                           tf::OpRegistrationData* data) {
      const Operation& operation = *from_table;
      tf::OpDefBuilder builder(operation.name);
      builder.Attr("T: {float, double}");
      for (auto [attribute, description] :
           {std::pair(has_parts, "parts: int >= 1"),
            std::pair(has_reverse, "reverse: bool"),
            std::pair(has_block, "block: int >= 1"),
            std::pair(has_time, "time: int >= 1"),
            // The bits of a double, because an attribute `float` has only 32.
            std::pair(has_alpha, "alpha: int"),
            std::pair(has_activation | has_flags, "flags: int"),
            std::pair(has_activation, "leak: int"),
            std::pair(has_wanted, "wanted: list(bool)")})
        if (operation.has(attribute)) builder.Attr(description);
      auto tensors = [&](const Quantity& quantity) {
        const bool one = quantity.real || !operation.has(has_parts);
        return absl::StrCat(quantity.name, one ? ": T" : ": parts * T");
      };
      for (const Quantity& from : operation.from) builder.Input(tensors(from));
      for (const Quantity& to : operation.to) builder.Output(tensors(to));
      builder.SetShapeFn(
          [from_table](tf::shape_inference::InferenceContext* context) {
            return infer_shapes(*from_table, context);
          });
      return builder.Finalize(data);
    });
  return true;
}

[[maybe_unused]] const bool defined = define_operations();

class Kernel : public tf::OpKernel {
 public:
  explicit Kernel(tf::OpKernelConstruction* context)
      : OpKernel(context), attributes_(context) {}

  void Compute(tf::OpKernelContext* context) override {
    std::vector<tf::TensorShape> shapes;
    std::vector<const void*> from;
    for (int i = 0; i < context->num_inputs(); i++) {
      shapes.push_back(context->input(i).shape());
      from.push_back(context->input(i).data());
    }
    Call call(attributes_);
    OP_REQUIRES_OK(context, call.read(shapes));
    std::vector<void*> to;
    OP_REQUIRES_OK(context, call.for_each_result([&](int result, int reused,
                                                     tf::TensorShape shape) {
      std::vector<int> candidates;
      if (reused >= 0) candidates.push_back(reused);
      tf::Tensor* tensor = nullptr;
      TF_RETURN_IF_ERROR(context->forward_input_or_allocate_output(
          candidates, result, shape, &tensor));
      to.push_back(tensor->NumElements() ? tensor->data() : nullptr);
      return absl::OkStatus();
    }));
    const std::vector<int64_t> sizes = call.sizes();
    const Operation& called = attributes_.operation;
    tf::Tensor scratch;
    if (called.cuda) {
      const int64_t bytes = called.scratch(call.flags(), sizes.data());
      OP_REQUIRES_OK(
          context, context->allocate_temp(tf::DT_INT8, tf::TensorShape({bytes}),
                                          &scratch));
    }
    const ffi::Error error =
        called.cuda ? queue(called.cuda, call.flags(), sizes.data(), from, to,
                            {scratch.data(), stream_of(context)})
                    : run(called.name, called.core, call.flags(), sizes.data(),
                          from, to);
    // Both use the same numbers for codes.
    OP_REQUIRES_OK(context,
                   absl::Status(static_cast<absl::StatusCode>(*error.errc()),
                                error.message()));
  }

 private:
  // The stream on which a GPU runs TensorFlow's kernels. The next of them may
  // reuse the scratch memory, since they run after ours.
  static void* stream_of(tf::OpKernelContext* context) {
    const tf::DeviceContext* device = context->op_device_context();
    // In the tests the GPU is the CPU.
    if (!device || !device->stream()) return nullptr;
    return device->stream()->platform_specific_handle().stream;
  }

  const Attributes attributes_;
};

// XLA: the handler that a program calls, and the kernel that emits the call.

ffi::Error handle(ffi::RemainingArgs arguments, ffi::RemainingRets results,
                  int64_t operation, int64_t flags,
                  ffi::Span<const int64_t> sizes) {
  const Buffers buffers(arguments, results);
  if (buffers.error.failure()) return buffers.error;
  return run(operations[operation].name, operations[operation].core,
             static_cast<int>(flags), sizes.begin(), buffers.from, buffers.to);
}

constexpr char handler_name[] = "keras_linrec_tensorflow";

XLA_FFI_DEFINE_HANDLER(handler, handle,
                       ffi::Ffi::Bind()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<int64_t>("operation")
                           .Attr<int64_t>("flags")
                           .Attr<ffi::Span<const int64_t>>("sizes"));
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), handler_name, "Host", handler);

// The same for the CUDA core.
template <class Where>
ffi::Error handle_cuda(Where&& where, ffi::RemainingArgs arguments,
                       ffi::RemainingRets results, int64_t operation,
                       int64_t flags, ffi::Span<const int64_t> sizes) {
  const Buffers buffers(arguments, results);
  if (buffers.error.failure()) return buffers.error;
  const Operation& called = operations[operation];
  const int given = static_cast<int>(flags);
  return queue(called.cuda, given, sizes.begin(), buffers.from, buffers.to,
               where(called.scratch(given, sizes.begin())));
}

ffi::Error handle_on_gpu(void* stream, ffi::ScratchAllocator memory,
                         ffi::RemainingArgs arguments,
                         ffi::RemainingRets results, int64_t operation,
                         int64_t flags, ffi::Span<const int64_t> sizes) {
  return handle_cuda(OnGpu{stream, memory}, arguments, results, operation,
                     flags, sizes);
}

ffi::Error handle_on_cpu(ffi::RemainingArgs arguments,
                         ffi::RemainingRets results, int64_t operation,
                         int64_t flags, ffi::Span<const int64_t> sizes) {
  return handle_cuda(OnCpu{}, arguments, results, operation, flags, sizes);
}

constexpr char cuda_handler_name[] = "keras_linrec_tensorflow_cuda";

XLA_FFI_DEFINE_HANDLER(cuda_handler, handle_on_gpu,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<void*>>()
                           .Ctx<ffi::ScratchAllocator>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<int64_t>("operation")
                           .Attr<int64_t>("flags")
                           .Attr<ffi::Span<const int64_t>>("sizes"));
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), cuda_handler_name, "CUDA",
                         cuda_handler);
XLA_FFI_DEFINE_HANDLER(cuda_handler_on_cpu, handle_on_cpu,
                       ffi::Ffi::Bind()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<int64_t>("operation")
                           .Attr<int64_t>("flags")
                           .Attr<ffi::Span<const int64_t>>("sizes"));
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), cuda_handler_name, "Host",
                         cuda_handler_on_cpu);

class XlaKernel : public tf::XlaOpKernel {
 public:
  explicit XlaKernel(tf::OpKernelConstruction* context)
      : XlaOpKernel(context), attributes_(context) {}

  void Compile(tf::XlaOpKernelContext* context) override {
    std::vector<tf::TensorShape> shapes;
    std::vector<xla::XlaOp> operands;
    std::vector<xla::Shape> operand_shapes, result_shapes;
    for (int i = 0; i < context->num_inputs(); i++) {
      const auto shape = context->InputXlaShape(i);
      OP_REQUIRES_OK(context, shape.status());
      OP_REQUIRES(context, shape->is_static(),
                  absl::UnimplementedError(
                      absl::StrCat(attributes_.operation.name,
                                   ": XLA should know the sizes")));
      shapes.push_back(tf::TensorShape(shape->dimensions()));
      operands.push_back(context->Input(i));
      operand_shapes.push_back(row_major(shapes.back()));
    }
    Call call(attributes_);
    OP_REQUIRES_OK(context, call.read(shapes));
    std::vector<std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>>
        aliasing;
    OP_REQUIRES_OK(context, call.for_each_result([&](int result, int reused,
                                                     tf::TensorShape shape) {
      result_shapes.push_back(row_major(shape));
      if (reused >= 0 && !is_parameter(operands[reused])) {
        auto& [which, operand] = aliasing.emplace_back();
        which.push_back(result);
        operand.first = reused;
      }
      return absl::OkStatus();
    }));
    const std::string attributes = absl::StrCat(
        "{operation = ", &attributes_.operation - operations,
        " : i64, flags = ", call.flags(), " : i64, sizes = array<i64: ",
        absl::StrJoin(call.sizes(), ", "), ">}");
    const xla::XlaOp results = xla::CustomCallWithLayout(
        context->builder(),
        attributes_.operation.cuda ? cuda_handler_name : handler_name, operands,
        xla::ShapeUtil::MakeTupleShape(result_shapes), operand_shapes,
        attributes, /*has_side_effect=*/false, aliasing, /*literal=*/nullptr,
        xla::CustomCallSchedule::SCHEDULE_NONE,
        xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
    for (size_t i = 0; i < result_shapes.size(); i++)
      context->SetOutput(i, xla::GetTupleElement(results, i));
  }

 private:
  // Whether an operand is an argument of the program. XLA may not overwrite its
  // memory and would copy it first; it may overwrite an intermediate result,
  // unless another operation still needs it.
  static bool is_parameter(xla::XlaOp operand) {
    using Friend = xla::internal::XlaBuilderFriend;
    const auto* made = Friend::GetInstruction(operand);
    // TensorFlow extracts arguments from a tuple, or reshapes them to the shape
    // that they have.
    while (made->opcode() == "reshape" || made->opcode() == "get-tuple-element")
      made = Friend::GetInstructionByHandle(operand.builder(),
                                            made->operand_ids(0));
    return made->opcode() == "parameter";
  }

  xla::Shape row_major(const tf::TensorShape& shape) const {
    const auto sizes = shape.dim_sizes();
    return xla::ShapeUtil::MakeShapeWithDescendingLayout(
        attributes_.type == tf::DT_DOUBLE ? xla::F64 : xla::F32,
        {sizes.begin(), sizes.size()});
  }

  const Attributes attributes_;
};

// XLA's kernels are registered as those of a device, not by `REGISTER_XLA_OP`:
// TensorFlow reads that registry once, before its first operation, and this
// library may be loaded later.
#define KERNELS(name)                                                 \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tf::DEVICE_CPU), Kernel); \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tf::DEVICE_CPU_XLA_JIT), XlaKernel)

KERNELS("KerasLinrecScan");
KERNELS("KerasLinrecScanBackward");
KERNELS("KerasLinrecProjectedScan");
KERNELS("KerasLinrecProjectedScanBackward");
KERNELS("KerasLinrecImpulseResponse");
KERNELS("KerasLinrecImpulseResponseBackward");
KERNELS("KerasLinrecVaryingResponse");
KERNELS("KerasLinrecVaryingResponseBackward");
KERNELS("KerasLinrecCarriedResponse");
KERNELS("KerasLinrecCarriedResponseBackward");
KERNELS("KerasLinrecCausalConvolution");
KERNELS("KerasLinrecCausalConvolutionBackward");
KERNELS("KerasLinrecMoveSteps");
KERNELS("KerasLinrecNonlinearScan");
KERNELS("KerasLinrecNonlinearScanBackward");

#define CUDA_KERNELS(name)                                            \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tf::DEVICE_GPU), Kernel); \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tf::DEVICE_GPU_XLA_JIT), XlaKernel)

CUDA_KERNELS("KerasLinrecCudaScan");
CUDA_KERNELS("KerasLinrecCudaScanBackward");
CUDA_KERNELS("KerasLinrecCudaImpulseResponse");
CUDA_KERNELS("KerasLinrecCudaImpulseResponseBackward");
CUDA_KERNELS("KerasLinrecCudaNonlinearScan");
CUDA_KERNELS("KerasLinrecCudaNonlinearScanBackward");

template <class Type>
void register_kernel(const char* name, const char* device) {
  const tf::kernel_factory::OpKernelRegistrar registrar(
      tf::register_kernel::Name(name).Device(device).Build(), name,
      [](tf::OpKernelConstruction* context) -> tf::OpKernel* {
        return new Type(context);
      });
}

}  // namespace
}  // namespace keras_linrec

// For the tests, in which the driver's GPU is the CPU: operations of the CUDA
// core on the CPU, where otherwise none can be placed. Once for a process.
extern "C" KERAS_LINREC_PUBLIC void keras_linrec_tensorflow_cuda_on_cpu() {
  using namespace keras_linrec;
  for (const Operation& operation : operations)
    if (operation.cuda) {
      register_kernel<Kernel>(operation.name, tf::DEVICE_CPU);
      register_kernel<XlaKernel>(operation.name, tf::DEVICE_CPU_XLA_JIT);
    }
}
