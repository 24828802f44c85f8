// The CUDA core with a GPU that is emulated on the CPU, whose blocks run at the
// same time and wait for one another. The argument is the stand-in's library.
#include <cmath>
#include <cstdio>
#include <vector>

#include "cuda_core.h"

int main(int, char** arguments) {
  const char kernels[] = "the kernels of the stand-in";
  if (keras_linrec_cuda_open(arguments[1], kernels, sizeof(kernels))) {
    std::puts(keras_linrec_cuda_message());
    return 1;
  }
  const int64_t time = 200000, sizes[] = {1, 2, time, 1};
  const float decay = 0.9999f;
  std::vector<float> ones(2 * time, 1), outputs(2 * time), zeros(2);
  std::vector<float> final_state(2), d_decay(1), d_inputs(2 * time), d_first(2);
  auto scratch = [](int64_t bytes) { return std::vector<double>(bytes / 8); };
  auto forward = scratch(keras_linrec_cuda_scan_scratch(0, sizes));
  auto backward = scratch(keras_linrec_cuda_scan_backward_scratch(0, sizes));
  const void* from[] = {&decay, ones.data(), nullptr, zeros.data()};
  void* to[] = {outputs.data(), final_state.data()};
  const void* d_from[] = {&decay,       outputs.data(), nullptr,
                          zeros.data(), ones.data(),    zeros.data()};
  void* d_to[] = {d_decay.data(), d_inputs.data(), d_first.data()};
  if (keras_linrec_cuda_scan(0, sizes, from, to, forward.data(), nullptr) ||
      keras_linrec_cuda_scan_backward(0, sizes, d_from, d_to, backward.data(),
                                      nullptr)) {
    std::puts(keras_linrec_cuda_message());
    return 1;
  }
  const double last = -std::expm1(time * std::log(double(decay))) / (1 - decay);
  const bool right = std::fabs(outputs.back() / last - 1) < 1e-6 &&
                     std::fabs(d_inputs[0] / last - 1) < 1e-6;
  if (!right) std::printf("%g should be %g\n", outputs.back(), last);
  return right ? 0 : 1;
}
