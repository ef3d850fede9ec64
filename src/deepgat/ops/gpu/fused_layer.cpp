// A layer's forward and backward pass on a GPU as one autograd node: products by ATen, and kernels
// that were compiled by Triton, launched directly.
//
// Python decides which kernels run: it records the launches of one call (recording.py). A Program
// repeats them on new memory. Nothing here depends on CUDA's headers, so a C++ compiler suffices.

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Tensors = std::vector<Tensor>;
using Maybe = std::optional<Tensor>;

// cuLaunchKernel of the CUDA driver.
using LaunchKernel = int (*)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                             unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                             void *stream, void **parameters, void **extra);
LaunchKernel launch_kernel = nullptr;

LaunchKernel driver() {
  if (launch_kernel == nullptr) {
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    TORCH_CHECK(library != nullptr, "libcuda.so.1 cannot be opened: ", dlerror());
    launch_kernel = reinterpret_cast<LaunchKernel>(dlsym(library, "cuLaunchKernel"));
    TORCH_CHECK(launch_kernel != nullptr, "libcuda.so.1 has no cuLaunchKernel");
  }
  return launch_kernel;
}

void *current_stream(const Tensor &like) {
  if (like.device().is_cpu()) return nullptr;
  c10::impl::VirtualGuardImpl device(like.device().type());
  return device.getStream(like.device()).native_handle();
}

constexpr int kNumber = -1;

// The place in a buffer, or (slot kNumber) a number, in the eight bytes that a parameter may have.
struct Argument {
  int slot;
  int64_t value;
};

struct Launch {
  void *function;
  unsigned grid_x, grid_y, threads, shared;
  std::vector<Argument> arguments;
};

struct Made {
  std::vector<int64_t> sizes;
  at::ScalarType type;
};

// Launches on buffers: first those that are given, then those that the program makes.
class Program {
 public:
  Program(std::vector<Made> made, std::vector<Launch> launches, Tensors constants)
      : made_(std::move(made)), launches_(std::move(launches)), constants_(std::move(constants)) {}

  // All buffers, the given ones first.
  Tensors run(Tensors buffers) const {
    const Tensor like = buffers[0];
    buffers.reserve(buffers.size() + made_.size());
    for (const Made &made : made_)
      buffers.push_back(at::empty(made.sizes, like.options().dtype(made.type)));
    std::vector<char *> places;
    places.reserve(buffers.size());
    for (const Tensor &buffer : buffers)
      places.push_back(buffer.defined() ? static_cast<char *>(buffer.data_ptr()) : nullptr);

    void *stream = current_stream(like);
    std::vector<int64_t> values;
    std::vector<void *> parameters;
    for (const Launch &launch : launches_) {
      values.clear();
      for (const Argument &argument : launch.arguments)
        values.push_back(argument.slot == kNumber ? argument.value
                                                  : reinterpret_cast<int64_t>(places[argument.slot]) +
                                                        argument.value);
      // Triton's kernels end with two addresses of scratch memory; these need none.
      values.push_back(0);
      values.push_back(0);
      parameters.clear();
      for (int64_t &value : values) parameters.push_back(&value);
      const int status =
          driver()(launch.function, launch.grid_x, launch.grid_y, 1, launch.threads, 1, 1,
                   launch.shared, stream, parameters.data(), nullptr);
      TORCH_CHECK(status == 0, "CUDA error ", status, " at the launch of an attention kernel");
    }
    return buffers;
  }

 private:
  std::vector<Made> made_;
  std::vector<Launch> launches_;
  Tensors constants_;  // the neighbour lists, whose addresses are numbers in the launches
};

// Buffers that a forward program is given and makes; a backward program is given all of them.
enum Buffer { kProjected, kTarget, kSource, kSeed, kOut, kLogSum, kOfTarget, kOfSource, kGrad };
// What a backward program makes first.
enum Gradient { kOfProjected = kGrad + 1, kOfProducts, kParts };

// One kind of call on one graph.
struct Step : torch::CustomClassHolder {
  Step(std::shared_ptr<Program> forward, std::shared_ptr<Program> backward, int64_t heads)
      : forward(std::move(forward)), backward(std::move(backward)), heads(heads) {}
  std::shared_ptr<Program> forward, backward;
  int64_t heads;
};

// The arguments of a call that have no gradient.
struct Call {
  c10::intrusive_ptr<Step> step;
  Tensor seed;
};

Tensor or_none(const Maybe &tensor) { return tensor.has_value() ? *tensor : Tensor(); }

// What Python's once_differentiable does: whoever differentiates these gradients gets an error.
variable_list once_differentiable(variable_list grads) {
  if (!at::GradMode::is_enabled()) return grads;
  variable_list defined;
  for (const Tensor &grad : grads)
    if (grad.defined()) defined.push_back(grad.detach().requires_grad_());
  torch::autograd::DelayedError error(
      "trying to differentiate twice a function that was marked with @once_differentiable",
      static_cast<int64_t>(defined.size()));
  const variable_list marked = error.apply(std::move(defined));
  size_t next = 0;
  for (Tensor &grad : grads)
    if (grad.defined()) grad = marked[next++];
  return grads;
}

// out = sum of a_vu W x_u, plus b; and W_1 x if class_weight, W_1, is given. The score compares
// class predictions then, and else it is GAT's, with the vectors target and source.
class Layer : public torch::autograd::Function<Layer> {
 public:
  static variable_list forward(AutogradContext *ctx, const Tensor &x, const Tensor &weight,
                               const Maybe &class_weight, const Maybe &target, const Maybe &source,
                               const Maybe &bias, const Call &call) {
    const Tensor joint = class_weight ? at::cat({weight, *class_weight}) : weight;
    const Tensor projected = at::mm(x, joint.t());
    variable_list saved = call.step->forward->run(
        {projected, or_none(target), or_none(source), call.seed});
    const Tensor out = saved[kOut];
    if (class_weight) saved.resize(kOfTarget);  // no products: what follows is scratch memory
    saved.resize(kGrad);
    saved.insert(saved.end(), {x, joint, or_none(class_weight)});
    ctx->save_for_backward(std::move(saved));
    ctx->set_materialize_grads(false);
    ctx->saved_data["step"] = c10::IValue::make_capsule(call.step);
    ctx->saved_data["bias"] = bias.has_value();
    variable_list outputs{bias ? out + *bias : out};
    if (class_weight) {
      const int64_t heads = call.step->heads, classes = class_weight->size(0) / heads;
      outputs.push_back(
          projected.narrow(1, weight.size(0), heads * classes).unflatten(1, {heads, classes}));
    }
    return outputs;
  }

  static variable_list backward(AutogradContext *ctx, const variable_list &grads) {
    variable_list saved = ctx->get_saved_variables();
    const Tensor x = saved[kGrad], joint = saved[kGrad + 1], class_weight = saved[kGrad + 2];
    saved.resize(kGrad);
    const bool by_class = class_weight.defined();
    const bool has_logits = by_class && grads[1].defined();
    // Inputs that were not given are not counted.
    const bool want_x = ctx->needs_input_grad(0), want_weight = ctx->needs_input_grad(1);
    const bool want_class = by_class && ctx->needs_input_grad(2);
    const bool want_target = !by_class && ctx->needs_input_grad(2);
    const bool want_source = !by_class && ctx->needs_input_grad(3);
    const bool want_bias =
        ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(by_class ? 3 : 4);
    variable_list found(7);
    Tensor &of_x = found[0], &of_weight = found[1], &of_class = found[2], &of_target = found[3],
           &of_source = found[4], &of_bias = found[5];

    if (!grads[0].defined()) {
      if (!has_logits) return found;
      const Tensor of_logits = grads[1].flatten(1);
      if (want_x) of_x = at::mm(of_logits, class_weight);
      if (want_class) of_class = at::mm(of_logits.t(), x);
      return found;  // linear maps, which can be differentiated again
    }
    {
      at::NoGradGuard guard;
      const Tensor grad = grads[0].contiguous();
      if (want_bias) of_bias = grad.sum(0);
      if (want_x || want_weight || want_class || want_target || want_source) {
        const int64_t classes = by_class ? class_weight.size(0) : 0;
        const int64_t width = joint.size(0) - classes;
        saved.push_back(grad);
        const auto step =
            c10::static_intrusive_pointer_cast<Step>(ctx->saved_data["step"].toCapsule());
        const Tensors buffers = step->backward->run(std::move(saved));
        Tensor of_projected = buffers[kOfProjected].view({x.size(0), joint.size(0)});
        if (has_logits) of_projected.narrow(1, width, classes).add_(grads[1].flatten(1));
        if (!by_class) {
          of_projected.add_(buffers[kOfProducts].view_as(of_projected));
          const Tensor sums = buffers[kParts].sum(0).to(x.scalar_type());
          if (want_target) of_target = sums.select(0, 0);
          if (want_source) of_source = sums.select(0, 1);
        }
        if (want_x) of_x = at::mm(of_projected, joint);
        if (want_weight || want_class) {
          const Tensor of_joint = at::mm(of_projected.t(), x);
          if (want_weight) of_weight = of_joint.narrow(0, 0, width);
          if (want_class) of_class = of_joint.narrow(0, width, classes);
        }
      }
    }
    return once_differentiable(std::move(found));
  }
};

using LaunchTuple = std::tuple<int64_t, unsigned, unsigned, unsigned, unsigned,
                               std::vector<std::pair<int, int64_t>>>;

std::shared_ptr<Program> make_program(
    const std::vector<std::pair<std::vector<int64_t>, at::ScalarType>> &made,
    const std::vector<LaunchTuple> &launches, Tensors constants) {
  std::vector<Made> buffers;
  for (const auto &[sizes, type] : made) buffers.push_back({sizes, type});
  std::vector<Launch> all;
  for (const auto &[function, grid_x, grid_y, threads, shared, arguments] : launches) {
    all.push_back({reinterpret_cast<void *>(function), grid_x, grid_y, threads, shared, {}});
    for (const auto &[slot, value] : arguments) all.back().arguments.push_back({slot, value});
  }
  return std::make_shared<Program>(std::move(buffers), std::move(all), std::move(constants));
}

variable_list apply(const Tensor &x, const Tensor &weight, const Maybe &class_weight,
                    const Maybe &target, const Maybe &source, const Maybe &bias,
                    const c10::intrusive_ptr<Step> &step, const Maybe &seed) {
  return Layer::apply(x, weight, class_weight, target, source, bias, Call{step, or_none(seed)});
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  py::class_<Program, std::shared_ptr<Program>>(m, "Program").def(py::init(&make_program));
  py::class_<Step, c10::intrusive_ptr<Step>>(m, "Step")
      .def(py::init<std::shared_ptr<Program>, std::shared_ptr<Program>, int64_t>());
  m.def("apply", &apply, py::call_guard<py::gil_scoped_release>());
  m.def("launch_by", [](int64_t address) {
    launch_kernel = reinterpret_cast<LaunchKernel>(address);
  });
}
