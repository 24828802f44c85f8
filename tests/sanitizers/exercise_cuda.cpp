// The CUDA core with a GPU that is emulated on the CPU, whose blocks run at the
// same time and wait for one another. The argument is the stand-in's library.
#include <dlfcn.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "cuda/cuda_core.h"

namespace {

// Its numbers are tested elsewhere. The contour runs on GPUs with fast float64.
bool response_runs() {
  const int64_t features = 3, channels = 2, state = 37, time = 50;
  const double alpha = 0.5;
  int64_t sizes[] = {1, features, channels, state, time, 0, 0};
  std::memcpy(sizes + 5, &alpha, sizeof alpha);
  std::vector<float> minus(state, -1), ones(3 * state, 1);
  std::vector<float> steps(features, 0.01f), rows(features * channels * state, 1);
  std::vector<float> response(features * channels * time, 1);
  const void* from[] = {minus.data(), ones.data(),  ones.data(), ones.data(),
                        ones.data(),  steps.data(), rows.data(),
                        response.data()};
  void* to[] = {response.data()};
  std::vector<double> memory(
      keras_linrec_cuda_impulse_response_scratch(0, sizes) / 8);
  if (keras_linrec_cuda_impulse_response(0, sizes, from, to, memory.data(),
                                         nullptr))
    return false;
  std::vector<double> scratch(
      keras_linrec_cuda_impulse_response_backward_scratch(0, sizes) / 8);
  std::vector<float> d_p(state), d_d(state), d_q(state), d_t(3 * state);
  std::vector<float> d_b(state), d_steps(features), d_rows(rows.size());
  void* d_to[] = {d_p.data(), d_d.data(),     d_q.data(),   d_t.data(),
                  d_b.data(), d_steps.data(), d_rows.data()};
  return !keras_linrec_cuda_impulse_response_backward(
      0, sizes, from, d_to, scratch.data(), nullptr);
}

// Makes the stand-in such a GPU.
bool has_fast_float64(const char* path) {
  using Set = void (*)(int64_t, int64_t, int64_t, int64_t);
  void* library = dlopen(path, RTLD_NOW);
  const auto set = reinterpret_cast<Set>(dlsym(library, "stand_in_set"));
  if (set) set(1 << 16, 4, 0, 2);
  return set;
}

bool resets_run() {
  const int64_t time = 20000, sizes[] = {1, 2, time, 1};
  const float decay = 0.5f;
  std::vector<float> ones(2 * time, 1), outputs(2 * time), zeros(2);
  std::vector<float> final_state(2), resets(2 * time);
  for (int64_t t = 0; t < 2 * time; t += 97) resets[t] = 1;
  std::vector<double> scratch(
      keras_linrec_cuda_scan_scratch(kKerasLinrecResets, sizes) / 8);
  const void* from[] = {&decay, ones.data(), resets.data(), zeros.data()};
  void* to[] = {outputs.data(), final_state.data()};
  if (keras_linrec_cuda_scan(kKerasLinrecResets, sizes, from, to,
                             scratch.data(), nullptr))
    return false;
  return outputs[97] == 1 && outputs[98] == 1.5f;
}

bool nonlinear_scan_runs() {
  const int64_t batch = 3, time = 40, units = 5;
  const int64_t sizes[] = {1, batch, time, units, 1, 0};
  const int flags = kKerasLinrecResets;
  std::vector<float> drive(batch * time * units, 1), matrix(units * units, 0.1f);
  std::vector<float> resets(batch * time), state(batch * units, 1), step(1, 1);
  for (int64_t t = 0; t < batch * time; t += 7) resets[t] = 1;
  std::vector<float> outputs(drive.size()), last(state.size());
  const void* from[] = {drive.data(), matrix.data(), step.data(),
                        resets.data(), state.data()};
  void* to[] = {outputs.data(), last.data()};
  if (keras_linrec_cuda_nonlinear_scan(flags, sizes, from, to, nullptr,
                                       nullptr))
    return false;
  // The first step starts from zero, and the second from ones.
  if (outputs[0] != 1 || std::fabs(outputs[units] - 1.5f) > 1e-6f) return false;
  std::vector<float> d_slopes(drive.size()), d_state(state.size());
  const void* d_from[] = {drive.data(), matrix.data(), resets.data(),
                          outputs.data(), last.data()};
  void* d_to[] = {d_slopes.data(), d_state.data()};
  return !keras_linrec_cuda_nonlinear_scan_backward(flags, sizes, d_from, d_to,
                                                    nullptr, nullptr) &&
         d_state[0] == 0;
}

}  // namespace

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
  if (!response_runs() || !resets_run() || !nonlinear_scan_runs() ||
      !has_fast_float64(arguments[1]) || !response_runs()) {
    std::puts(keras_linrec_cuda_message());
    return 1;
  }
  return right ? 0 : 1;
}
