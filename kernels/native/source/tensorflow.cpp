// The core as TensorFlow operations on the CPU. Each has two kernels: one that
// runs it, in eager mode and in graphs, and one that emits it into XLA's
// program as a call of the same code.
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core.h"
#include "kernels.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "xla/ffi/api/ffi.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

// TensorFlow's own table of handlers, which no header of its package declares.
namespace xla::ffi {
const XLA_FFI_Api* GetXlaFfiApi();
}

namespace {

namespace ffi = xla::ffi;
namespace tf = tensorflow;

// Axes are letters: Batch, Time, Features, Channels, Units, blocKs of time,
// Parts, the Numbers of a state; "3" is three and "0" none. Other letters are
// sizes that an operation has of its own. A decay's are "c" or, where it
// is given per step, "btc".
constexpr char decay_axes[] = "decay";

struct Quantity {
  std::string name, axes;
  // One tensor, even where the others are complex and have two parts.
  bool real = false;
  // Of a result: the argument that it may be written over, or -1.
  int reuses = -1;

  int parts(int parts) const { return real ? 1 : parts; }
};

// An operation's attributes, beside the number type.
constexpr int has_parts = 1, has_reverse = 2, has_block = 4, has_time = 8,
              has_alpha = 16, has_form = 32;
constexpr int of_scan = has_parts | has_reverse;

struct Operation {
  const char* name;
  int (*core)(int, const int64_t*, const void* const*, void* const*);
  // The core's sizes behind its groups, of which there is one.
  std::string sizes;
  int attributes;
  std::vector<Quantity> from, to;

  bool has(int attribute) const { return attributes & attribute; }

  // The first tensor of an argument.
  int argument(int quantity, int parts) const {
    int tensor = 0;
    for (int q = 0; q < quantity; q++) tensor += from[q].parts(parts);
    return tensor;
  }
};

const Operation operations[] = {
    {"KerasLinrecScan",
     keras_linrec_scan,
     "btc",
     of_scan,
     {{"decay", decay_axes}, {"inputs", "btc"}, {"initial_state", "bc"}},
     {{"outputs", "btc", false, 1}, {"final_state", "bc"}}},
    {"KerasLinrecScanBackward",
     keras_linrec_scan_backward,
     "btc",
     of_scan,
     {{"decay", decay_axes},
      {"outputs", "btc"},
      {"initial_state", "bc"},
      {"d_outputs", "btc"},
      {"d_final_state", "bc"}},
     {{"d_decay", decay_axes},
      {"d_inputs", "btc", false, 3},
      {"d_initial_state", "bc"}}},
    {"KerasLinrecProjectedScan",
     keras_linrec_projected_scan,
     "btfcu",
     of_scan | has_block,
     {{"decay", decay_axes},
      {"inputs", "btf", true},
      {"input_kernel", "fc"},
      {"output_kernel", "cu"},
      {"initial_state", "bc"}},
     {{"outputs", "btu", true},
      {"final_state", "bc"},
      {"checkpoints", "bkpc", true}}},
    // Its initial state is there for the gradient's own gradient. The core
    // does not look at what comes after the arguments that it knows.
    {"KerasLinrecProjectedScanBackward",
     keras_linrec_projected_scan_backward,
     "btfcu",
     of_scan | has_block,
     {{"decay", decay_axes},
      {"inputs", "btf", true},
      {"input_kernel", "fc"},
      {"output_kernel", "cu"},
      {"checkpoints", "bkpc", true},
      {"d_outputs", "btu", true},
      {"d_final_state", "bc"},
      {"initial_state", "bc"}},
     {{"d_decay", decay_axes},
      {"d_inputs", "btf", true},
      {"d_input_kernel", "fc"},
      {"d_output_kernel", "cu"},
      {"d_initial_state", "bc"}}},
    {"KerasLinrecImpulseResponse",
     keras_linrec_impulse_response,
     "fcnt",
     has_time | has_alpha,
     {{"p", "n"},
      {"d", "n"},
      {"q", "n"},
      {"t", "3n"},
      {"b", "n"},
      {"timescale", "f"},
      {"output_matrix", "fcn"}},
     {{"response", "fct"}}},
    {"KerasLinrecImpulseResponseBackward",
     keras_linrec_impulse_response_backward,
     "fcnt",
     has_time | has_alpha,
     {{"p", "n"},
      {"d", "n"},
      {"q", "n"},
      {"t", "3n"},
      {"b", "n"},
      {"timescale", "f"},
      {"output_matrix", "fcn"},
      {"d_response", "fct"}},
     {{"d_p", "n"},
      {"d_d", "n"},
      {"d_q", "n"},
      {"d_t", "3n"},
      {"d_b", "n"},
      {"d_timescale", "f"},
      {"d_output_matrix", "fcn"}}},
    {"KerasLinrecNonlinearScan",
     keras_linrec_nonlinear_scan,
     "btfnmt0",
     has_form,
     {{"inputs", "btf"},
      {"input_kernel", "fg"},
      {"bias", "g"},
      {"recurrent", "nr"},
      {"expansion", "mn"},
      {"step_size", "ij"},
      {"modulus_bias", "q"},
      {"initial_state", "bn"}},
     {{"outputs", "btn"}, {"final_state", "bn"}}},
    {"KerasLinrecNonlinearScanBackward",
     keras_linrec_nonlinear_scan_backward,
     "btfnmtz",
     has_form,
     {{"inputs", "btf"},
      {"input_kernel", "fg"},
      {"bias", "g"},
      {"recurrent", "nr"},
      {"expansion", "mn"},
      {"step_size", "ij"},
      {"modulus_bias", "q"},
      {"initial_state", "bn"},
      {"outputs", "btn"},
      {"d_outputs", "bzn"},
      {"d_final_state", "bn"}},
     {{"d_inputs", "btf"},
      {"d_input_kernel", "fg"},
      {"d_bias", "g"},
      {"d_recurrent", "nr"},
      {"d_expansion", "mn"},
      {"d_step_size", "ij"},
      {"d_modulus_bias", "q"},
      {"d_initial_state", "bn"}}},
};

const Operation& operation_of(const std::string& name) {
  for (const Operation& operation : operations)
    if (name == operation.name) return operation;
  LOG(FATAL) << "keras_linrec: there is no operation " << name;
}

std::string axes_of(const Quantity& quantity, bool per_step) {
  if (quantity.axes != decay_axes) return quantity.axes;
  return per_step ? "btc" : "c";
}

int64_t blocks_of(int64_t time, int64_t block) {
  return time / block + 2;
}

// What operations look like, and the shapes of their results as far as they
// can be known ahead.

absl::Status infer_shapes(const Operation& operation,
                          tf::shape_inference::InferenceContext* context) {
  using tf::shape_inference::DimensionHandle;
  using tf::shape_inference::ShapeHandle;
  int parts = 1;
  if (operation.has(has_parts))
    TF_RETURN_IF_ERROR(context->GetAttr("parts", &parts));
  const ShapeHandle decay = context->input(0);
  const bool decay_known = context->RankKnown(decay);
  const bool per_step = decay_known && context->Rank(decay) == 3;

  std::map<char, DimensionHandle> axes;
  axes['p'] = context->MakeDim(parts);
  axes['3'] = context->MakeDim(3);
  if (operation.has(has_time)) {
    int64_t time;
    TF_RETURN_IF_ERROR(context->GetAttr("time", &time));
    axes['t'] = context->MakeDim(time);
  }
  auto axis = [&](char letter) -> DimensionHandle& {
    return axes.emplace(letter, context->UnknownDim()).first->second;
  };
  int tensor = 0;
  for (const Quantity& quantity : operation.from)
    for (int p = 0; p < quantity.parts(parts); p++) {
      ShapeHandle shape = context->input(tensor++);
      if (quantity.axes == decay_axes && !decay_known) continue;
      const std::string letters = axes_of(quantity, per_step);
      TF_RETURN_IF_ERROR(context->WithRank(shape, letters.size(), &shape));
      for (size_t i = 0; i < letters.size(); i++) {
        DimensionHandle& known = axis(letters[i]);
        TF_RETURN_IF_ERROR(
            context->Merge(known, context->Dim(shape, i), &known));
      }
    }
  if (operation.has(has_block) && context->ValueKnown(axis('t'))) {
    int64_t block;
    TF_RETURN_IF_ERROR(context->GetAttr("block", &block));
    axes['k'] = context->MakeDim(blocks_of(context->Value(axes['t']), block));
  }

  tensor = 0;
  for (const Quantity& quantity : operation.to)
    for (int p = 0; p < quantity.parts(parts); p++) {
      ShapeHandle shape = decay;
      if (quantity.axes != decay_axes || decay_known) {
        std::vector<DimensionHandle> dimensions;
        for (char letter : axes_of(quantity, per_step))
          dimensions.push_back(axis(letter));
        shape = context->MakeShape(dimensions);
      }
      context->set_output(tensor++, shape);
    }
  return absl::OkStatus();
}

// `REGISTER_OP`, but from the table above.
bool define_operations() {
  for (const Operation& operation : operations)
    // The table outlives the registry's functions, the loop does not.
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
            // The bits of a double: an attribute `float` has half as many.
            std::pair(has_alpha, "alpha: int"),
            std::pair(has_form, "flags: int"),
            std::pair(has_form, "leak: int")})
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

// A call: what is known when a kernel is made, and what the shapes tell.

struct Attributes {
  const Operation& operation;
  tf::DataType type = tf::DT_INVALID;
  int parts = 1;
  bool reverse = false;
  int64_t block = 1, time = 1, alpha = 0, flags = 0, leak = 0;

  explicit Attributes(tf::OpKernelConstruction* context)
      : operation(operation_of(context->def().op())) {
    OP_REQUIRES_OK(context, context->GetAttr("T", &type));
    get(context, has_parts, "parts", &parts);
    get(context, has_reverse, "reverse", &reverse);
    get(context, has_block, "block", &block);
    get(context, has_time, "time", &time);
    get(context, has_alpha, "alpha", &alpha);
    get(context, has_form, "flags", &flags);
    get(context, has_form, "leak", &leak);
    OP_REQUIRES(context, parts <= 2,
                absl::InvalidArgumentError(absl::StrCat(
                    operation.name, ": a number has one part or two, not ",
                    parts)));
  }

 private:
  template <class Value>
  void get(tf::OpKernelConstruction* context, int attribute, const char* name,
           Value* value) {
    if (operation.has(attribute))
      OP_REQUIRES_OK(context, context->GetAttr(name, value));
  }
};

class Call {
 public:
  explicit Call(const Attributes& attributes)
      : attributes_(attributes), operation_(attributes.operation) {}

  absl::Status read(const std::vector<tf::TensorShape>& shapes) {
    per_step_ = shapes[0].dims() == 3;
    axes_['p'] = attributes_.parts;
    axes_['3'] = 3;
    axes_['0'] = 0;
    if (operation_.has(has_time)) axes_['t'] = attributes_.time;
    size_t tensor = 0;
    for (const Quantity& quantity : operation_.from)
      for (int p = 0; p < quantity.parts(attributes_.parts); p++)
        TF_RETURN_IF_ERROR(read(quantity, shapes[tensor++]));
    if (axes_['t'] < 1)
      return absl::InvalidArgumentError(absl::StrCat(
          operation_.name, ": there should be one time step at least"));
    const int64_t blocks = blocks_of(axes_['t'], attributes_.block);
    if (axes_.emplace('k', blocks).first->second != blocks)
      return absl::InvalidArgumentError(
          absl::StrCat(operation_.name, ": there should be ", blocks,
                       " checkpoints, not ", axes_['k']));
    return operation_.has(has_form) ? read_form() : absl::OkStatus();
  }

  int flags() const {
    const int wide =
        attributes_.type == tf::DT_DOUBLE ? kKerasLinrecFloat64 : 0;
    if (operation_.has(has_form))
      return static_cast<int>(attributes_.flags) | wide;
    return wide | (attributes_.parts == 2 ? kKerasLinrecComplex : 0) |
           (per_step_ ? kKerasLinrecPerStep : 0) |
           (attributes_.reverse ? kKerasLinrecReverse : 0);
  }

  std::vector<int64_t> sizes() const {
    std::vector<int64_t> sizes = {1};
    for (char letter : operation_.sizes) sizes.push_back(axes_.at(letter));
    if (operation_.has(has_block)) sizes.push_back(attributes_.block);
    // The core may choose the length of its blocks.
    if (operation_.has(has_alpha))
      sizes.insert(sizes.end(), {attributes_.alpha, 0});
    if (operation_.has(has_form)) sizes.push_back(attributes_.leak);
    return sizes;
  }

  // Calls work(tensor, reused, shape) for each tensor of the results; `reused`
  // is the tensor that it may be written over, or -1.
  template <class Work>
  absl::Status for_each_result(Work work) const {
    int tensor = 0;
    for (const Quantity& quantity : operation_.to)
      for (int p = 0; p < quantity.parts(attributes_.parts); p++) {
        tf::TensorShape shape;
        for (char letter : axes_of(quantity, per_step_))
          shape.AddDim(axes_.at(letter));
        const int reused =
            quantity.reuses < 0
                ? -1
                : operation_.argument(quantity.reuses, attributes_.parts) + p;
        TF_RETURN_IF_ERROR(work(tensor++, reused, shape));
      }
    return absl::OkStatus();
  }

 private:
  // The sizes that a nonlinear scan's form asks for.
  absl::Status read_form() {
    const int64_t flags = attributes_.flags, units = axes_['n'];
    const bool modrelu = (flags >> kKerasLinrecActivationBit & 15) ==
        keras_linrec::kModrelu;
    const bool per_step = flags & kKerasLinrecPerStep;
    const std::pair<char, int64_t> sizes[] = {
        {'g', (flags & kKerasLinrecGated ? 2 : 1) * units},
        {'r', axes_['m'] ? axes_['m']
                         : (flags & kKerasLinrecLinear ? 2 : 1) * units},
        {'q', modrelu ? units / 2 : 0},
        {'i', per_step ? axes_['b'] : 1},
        {'j', per_step ? axes_['t'] : 1}};
    for (auto [letter, size] : sizes)
      if (axes_[letter] != size)
        return absl::InvalidArgumentError(absl::StrCat(
            operation_.name, ": `", std::string(1, letter), "` should be ",
            size, ". Received: ", axes_[letter]));
    return absl::OkStatus();
  }

  absl::Status read(const Quantity& quantity, const tf::TensorShape& shape) {
    const std::string letters = axes_of(quantity, per_step_);
    bool fits = shape.dims() == static_cast<int>(letters.size());
    for (int i = 0; fits && i < shape.dims(); i++) {
      const int64_t size = shape.dim_size(i);
      fits = axes_.emplace(letters[i], size).first->second == size;
    }
    if (fits) return absl::OkStatus();
    static const std::map<char, const char*> names = {
        {'b', "batch"},    {'t', "time"},  {'f', "features"},
        {'c', "channels"}, {'u', "units"}, {'k', "blocks"},
        {'p', "parts"},    {'n', "state"}, {'3', "bands"},
        {'g', "driven units"}, {'r', "recurrent columns"}, {'m', "rank"},
        {'i', "rows"}, {'j', "steps"}, {'q', "pairs"}, {'z', "steps or 0"}};
    // Whatever sizes are known from the arguments before this one.
    std::vector<std::string> expected;
    for (char letter : letters) {
      const auto known = axes_.find(letter);
      expected.push_back(known == axes_.end() ? names.at(letter)
                                              : absl::StrCat(names.at(letter),
                                                             "=",
                                                             known->second));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        operation_.name, ": `", quantity.name, "` should have shape (",
        absl::StrJoin(expected, ", "), "). Received: shape ",
        shape.DebugString()));
  }

  const Attributes& attributes_;
  const Operation& operation_;
  bool per_step_ = false;
  std::map<char, int64_t> axes_;
};

absl::Status run(const Operation& operation, int flags, const int64_t* sizes,
                 const std::vector<const void*>& from,
                 const std::vector<void*>& to) {
  switch (operation.core(flags, sizes, from.data(), to.data())) {
    case kKerasLinrecDone:
      return absl::OkStatus();
    case kKerasLinrecOutOfMemory:
      return absl::ResourceExhaustedError(
          absl::StrCat(operation.name, ": out of memory"));
    default:
      return absl::InvalidArgumentError(
          absl::StrCat(operation.name, ": sizes that do not fit"));
  }
}

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
      to.push_back(tensor->data());
      return absl::OkStatus();
    }));
    OP_REQUIRES_OK(context, run(attributes_.operation, call.flags(),
                                call.sizes().data(), from, to));
  }

 private:
  const Attributes attributes_;
};

// XLA's side: the call that a program makes, and the kernel that emits it.

ffi::Error handle(ffi::RemainingArgs arguments, ffi::RemainingRets results,
                  int64_t operation, int64_t flags,
                  ffi::Span<const int64_t> sizes) {
  std::vector<const void*> from;
  for (size_t i = 0; i < arguments.size(); i++) {
    auto buffer = arguments.get<ffi::AnyBuffer>(i);
    if (buffer.has_error()) return buffer.error();
    from.push_back(buffer->untyped_data());
  }
  std::vector<void*> to;
  for (size_t i = 0; i < results.size(); i++) {
    auto buffer = results.get<ffi::AnyBuffer>(i);
    if (buffer.has_error()) return buffer.error();
    to.push_back((*buffer)->untyped_data());
  }
  const absl::Status status = run(operations[operation],
                                  static_cast<int>(flags), sizes.begin(),
                                  from, to);
  if (status.ok()) return ffi::Error::Success();
  // The codes are the same numbers in both.
  return ffi::Error(static_cast<ffi::ErrorCode>(status.code()),
                    std::string(status.message()));
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
        context->builder(), handler_name, operands,
        xla::ShapeUtil::MakeTupleShape(result_shapes), operand_shapes,
        attributes, /*has_side_effect=*/false, aliasing, /*literal=*/nullptr,
        xla::CustomCallSchedule::SCHEDULE_NONE,
        xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
    for (size_t i = 0; i < result_shapes.size(); i++)
      context->SetOutput(i, xla::GetTupleElement(results, i));
  }

 private:
  // Whether an operand is the program's own argument, whose memory is not
  // XLA's to write on: it would copy that first. An intermediate result it may
  // write over, unless someone else needs it still.
  static bool is_parameter(xla::XlaOp operand) {
    using Friend = xla::internal::XlaBuilderFriend;
    const auto* made = Friend::GetInstruction(operand);
    // TensorFlow takes its arguments out of a tuple, or reshapes them to the
    // shape that they have.
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

// XLA's kernels as those of a device like others, not by `REGISTER_XLA_OP`:
// what that keeps is looked at once, before TensorFlow's first operation, and
// this library may be loaded later.
#define KERNELS(name)                                                 \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tf::DEVICE_CPU), Kernel); \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tf::DEVICE_CPU_XLA_JIT), XlaKernel)

KERNELS("KerasLinrecScan");
KERNELS("KerasLinrecScanBackward");
KERNELS("KerasLinrecProjectedScan");
KERNELS("KerasLinrecProjectedScanBackward");
KERNELS("KerasLinrecImpulseResponse");
KERNELS("KerasLinrecImpulseResponseBackward");
KERNELS("KerasLinrecNonlinearScan");
KERNELS("KerasLinrecNonlinearScanBackward");

}  // namespace
