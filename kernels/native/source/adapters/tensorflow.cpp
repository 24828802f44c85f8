// The table in operations.h as TensorFlow operations, on CPUs and, where the
// CUDA core has them, on GPUs. Each has two kernels for each kind of device:
// one runs it, in eager mode and in graphs, and the other emits a call of the
// same code into an XLA program.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "adapters/tensorflow_shapes.h"
#include "adapters/xla_calls.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/call.h"
#include "base/operations.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"
#include "xla/stream_executor/stream.h"

// TensorFlow's table of FFI handlers, which no header of its package declares.
namespace xla::ffi {
const XLA_FFI_Api* GetXlaFfiApi();
}

namespace keras_linrec {
namespace {

enum class Device { kCpu, kCuda };

// "KerasLinrecMoveSteps" for "move_steps", or "KerasLinrecCudaMoveSteps".
std::string name_in_tensorflow(const Operation& operation, Device device) {
  std::string name = "KerasLinrec";
  if (device == Device::kCuda && operation.core) name += "Cuda";
  bool starts = true;
  for (char letter : operation.name) {
    if (letter != '_')
      name += starts ? letter - 'a' + 'A' : letter;
    starts = letter == '_';
  }
  return name;
}

const Operation& operation_of(const std::string& name) {
  for (const Operation& operation : operations) {
    if (operation.core && name == name_in_tensorflow(operation, Device::kCpu))
      return operation;
    if (operation.cuda && name == name_in_tensorflow(operation, Device::kCuda))
      return operation;
  }
  LOG(FATAL) << "keras_linrec has no operation " << name;
}

// `REGISTER_OP` for an operation. The function that it registers refers to the
// table, which is never destroyed.
void define(const Operation& operation, Device device) {
  tf::OpRegistry::Global()->Register([&operation, device](
                                         tf::OpRegistrationData* data) {
    const bool is_complex = operation.kind == Kind::kComplex;
    tf::OpDefBuilder builder(name_in_tensorflow(operation, device));
    builder.Attr("T: {float, double}").Attr("flags: int");
    auto tensors = [&](const Quantity& quantity) {
      const bool has_parts = is_complex && !quantity.real;
      return absl::StrCat(quantity.name, has_parts ? ": parts * T" : ": T");
    };
    for (const Quantity& from : operation.from) builder.Input(tensors(from));
    for (const Quantity& to : operation.to) builder.Output(tensors(to));
    if (is_complex) builder.Attr("parts: int >= 1");
    for (const Attribute& attribute : all_attributes)
      if (operation.has(attribute.bit))
        builder.Attr(absl::StrCat(attribute.name, ": int"));
    if (!operation.wanted.empty()) builder.Attr("wanted: list(bool)");
    builder.SetShapeFn(
        [&operation](tf::shape_inference::InferenceContext* context) {
          return infer_shapes(operation, context);
        });
    return builder.Finalize(data);
  });
}

bool define_operations() {
  for (const Operation& operation : operations) {
    if (operation.core) define(operation, Device::kCpu);
    if (operation.cuda) define(operation, Device::kCuda);
  }
  return true;
}

[[maybe_unused]] const bool defined = define_operations();

// What a kernel is constructed with.
struct Attributes {
  const Operation& operation;
  tf::DataType type = tf::DT_INVALID;
  int64_t flags = 0;
  std::vector<int64_t> numbers;
  std::vector<bool> wanted;

  explicit Attributes(tf::OpKernelConstruction* context)
      : operation(operation_of(context->def().op())) {
    OP_REQUIRES_OK(context, context->GetAttr("T", &type));
    OP_REQUIRES_OK(context, context->GetAttr("flags", &flags));
    for (const Attribute& attribute : all_attributes)
      if (operation.has(attribute.bit))
        OP_REQUIRES_OK(context, context->GetAttr(attribute.name,
                                                 &numbers.emplace_back()));
    if (!operation.wanted.empty())
      OP_REQUIRES_OK(context, context->GetAttr("wanted", &wanted));
    OP_REQUIRES(context, is_complete(operation, wanted),
                absl::InvalidArgumentError(absl::StrCat(
                    operation.name, ": `wanted` should have ",
                    operation.to.size(), " entries, as in `",
                    operation.wanted, "`")));
  }

  int typed_flags() const {
    const int wide = type == tf::DT_DOUBLE ? kKerasLinrecFloat64 : 0;
    return static_cast<int>(flags) | wide;
  }

  Call call() const { return Call(operation, flags, numbers.data()); }

  absl::Status read(const std::vector<tf::TensorShape>& shapes,
                    Call* call) const {
    std::vector<absl::InlinedVector<int64_t, 4>> sizes;
    for (const tf::TensorShape& shape : shapes)
      sizes.push_back(shape.dim_sizes());
    std::vector<Shape> given;
    for (const auto& each : sizes) given.push_back({each.data(), each.size()});
    const std::string error = call->read(given);
    if (error.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(operation.name + ": " + error);
  }

  // Calls work(tensor, reused, shape) for each tensor of the results; `reused`
  // is the argument that the result may overwrite, or -1.
  template <class Work>
  absl::Status for_each_result(const Call& call, Work work) const {
    int tensor = 0;
    for (const Quantity& quantity : operation.to)
      for (int p = 0; p < quantity.parts(flags); p++) {
        const tf::TensorShape shape(is_wanted(wanted, tensor)
                                        ? call.shape_of(quantity)
                                        : std::vector<int64_t>{0});
        const int reused =
            quantity.reuses.empty()
                ? -1
                : operation.argument(quantity.reuses, flags) + p;
        TF_RETURN_IF_ERROR(work(tensor++, reused, shape));
      }
    return absl::OkStatus();
  }
};

template <Device device>
class Kernel : public tf::OpKernel {
 public:
  explicit Kernel(tf::OpKernelConstruction* context)
      : OpKernel(context), attributes_(context) {}

  void Compute(tf::OpKernelContext* context) override {
    std::vector<tf::TensorShape> shapes;
    Addresses arrays;
    for (int i = 0; i < context->num_inputs(); i++) {
      shapes.push_back(context->input(i).shape());
      arrays.from.push_back(context->input(i).data());
    }
    Call call = attributes_.call();
    OP_REQUIRES_OK(context, attributes_.read(shapes, &call));
    OP_REQUIRES_OK(context, attributes_.for_each_result(call, [&](
                                int result, int reused, tf::TensorShape shape) {
      std::vector<int> candidates;
      if (reused >= 0) candidates.push_back(reused);
      tf::Tensor* tensor = nullptr;
      TF_RETURN_IF_ERROR(context->forward_input_or_allocate_output(
          candidates, result, shape, &tensor));
      arrays.to.push_back(tensor->NumElements() ? tensor->data() : nullptr);
      return absl::OkStatus();
    }));
    const ffi::Error error = run(context, call.sizes(), arrays);
    // Both use the same numbers for codes.
    OP_REQUIRES_OK(context,
                   absl::Status(static_cast<absl::StatusCode>(*error.errc()),
                                error.message()));
  }

 private:
  ffi::Error run(tf::OpKernelContext* context,
                 const std::vector<int64_t>& sizes, const Addresses& arrays) {
    const Operation& called = attributes_.operation;
    const int flags = attributes_.typed_flags();
    if (device == Device::kCpu)
      return error_of(called.name,
                      called.core(flags, sizes.data(), arrays.from.data(),
                                  arrays.to.data()));
    tf::Tensor scratch;
    const tf::TensorShape bytes({scratch_of(called, flags, sizes)});
    if (!context->allocate_temp(tf::DT_INT8, bytes, &scratch).ok())
      return queue(called, flags, sizes, arrays, {nullptr, nullptr});
    return queue(called, flags, sizes, arrays,
                 {scratch.data(), stream_of(context)});
  }

  // The stream on which a GPU runs TensorFlow's kernels. The next of them may
  // reuse the scratch memory, since they run after ours.
  static void* stream_of(tf::OpKernelContext* context) {
    const tf::DeviceContext* here = context->op_device_context();
    // In the tests the GPU is the CPU.
    if (!here || !here->stream()) return nullptr;
    return here->stream()->platform_specific_handle().stream;
  }

  const Attributes attributes_;
};

// XLA: the handlers that a program calls, and the kernel that emits the call.

constexpr char handler_name[] = "keras_linrec_tensorflow";
constexpr char cuda_handler_name[] = "keras_linrec_tensorflow_cuda";

XLA_FFI_DEFINE_HANDLER(handler, handle_on_cpu, binding());
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), handler_name, "Host", handler);
XLA_FFI_DEFINE_HANDLER(cuda_handler, handle_on_gpu, binding_on_gpu());
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), cuda_handler_name, "CUDA",
                         cuda_handler);
XLA_FFI_DEFINE_HANDLER(emulated, handle_on_emulated_gpu, binding());
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), cuda_handler_name, "Host",
                         emulated);

template <Device device>
class XlaKernel : public tf::XlaOpKernel {
 public:
  explicit XlaKernel(tf::OpKernelConstruction* context)
      : XlaOpKernel(context), attributes_(context) {}

  void Compile(tf::XlaOpKernelContext* context) override {
    const Operation& called = attributes_.operation;
    std::vector<tf::TensorShape> shapes;
    std::vector<xla::XlaOp> operands;
    std::vector<xla::Shape> operand_shapes, result_shapes;
    for (int i = 0; i < context->num_inputs(); i++) {
      const auto shape = context->InputXlaShape(i);
      OP_REQUIRES_OK(context, shape.status());
      OP_REQUIRES(context, shape->is_static(),
                  absl::UnimplementedError(absl::StrCat(
                      called.name, ": XLA should know the sizes")));
      shapes.push_back(tf::TensorShape(shape->dimensions()));
      operands.push_back(context->Input(i));
      operand_shapes.push_back(row_major(shapes.back()));
    }
    Call call = attributes_.call();
    OP_REQUIRES_OK(context, attributes_.read(shapes, &call));
    std::vector<std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>>
        aliasing;
    OP_REQUIRES_OK(context, attributes_.for_each_result(call, [&](
                                int result, int reused, tf::TensorShape shape) {
      result_shapes.push_back(row_major(shape));
      if (reused >= 0 && !is_parameter(operands[reused])) {
        auto& [which, operand] = aliasing.emplace_back();
        which.push_back(result);
        operand.first = reused;
      }
      return absl::OkStatus();
    }));
    const std::string attributes = absl::StrCat(
        "{operation = ", &called - operations,
        " : i64, flags = ", attributes_.flags, " : i64, attributes = array<i64",
        attributes_.numbers.empty() ? "" : ": ",
        absl::StrJoin(attributes_.numbers, ", "), ">}");
    constexpr bool on_cuda = device == Device::kCuda;
    const xla::XlaOp results = xla::CustomCallWithLayout(
        context->builder(), on_cuda ? cuda_handler_name : handler_name,
        operands, xla::ShapeUtil::MakeTupleShape(result_shapes), operand_shapes,
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

template <class Type>
void register_kernel(const std::string& name, const char* place) {
  const tf::kernel_factory::OpKernelRegistrar registrar(
      tf::register_kernel::Name(name.c_str()).Device(place).Build(), name,
      [](tf::OpKernelConstruction* context) -> tf::OpKernel* {
        return new Type(context);
      });
}

// XLA's kernels are registered as those of a device, not by `REGISTER_XLA_OP`:
// TensorFlow reads that registry once, before its first operation, and this
// library may be loaded later.
template <Device device>
void register_kernels(const Operation& operation, const char* place,
                      const char* place_in_xla) {
  const std::string name = name_in_tensorflow(operation, device);
  register_kernel<Kernel<device>>(name, place);
  register_kernel<XlaKernel<device>>(name, place_in_xla);
}

bool register_all_kernels() {
  for (const Operation& operation : operations) {
    if (operation.core)
      register_kernels<Device::kCpu>(operation, tf::DEVICE_CPU,
                                     tf::DEVICE_CPU_XLA_JIT);
    if (operation.cuda)
      register_kernels<Device::kCuda>(operation, tf::DEVICE_GPU,
                                      tf::DEVICE_GPU_XLA_JIT);
  }
  return true;
}

[[maybe_unused]] const bool registered = register_all_kernels();

}  // namespace
}  // namespace keras_linrec

// For the tests, in which the driver's GPU is the CPU: operations of the CUDA
// core on the CPU, where otherwise none can be placed. Once for a process.
extern "C" KERAS_LINREC_PUBLIC void keras_linrec_tensorflow_cuda_on_cpu() {
  using namespace keras_linrec;
  for (const Operation& operation : operations)
    if (operation.cuda)
      register_kernels<Device::kCuda>(operation, tf::DEVICE_CPU,
                                      tf::DEVICE_CPU_XLA_JIT);
}
