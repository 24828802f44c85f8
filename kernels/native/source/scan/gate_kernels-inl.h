// The gates of a scan, and their gradient.
#pragma once
#include "base/activation_kernels-inl.h"
#include "base/vectors-inl.h"
#include "scan/gate_kernels.h"
#include "scan/scan_kernels-inl.h"

namespace keras_linrec {
namespace {

// How the numbers of a row are read and written: a vector, or what is left.
template <class Real>
struct WholeVector {
  typedef typename Types<Real>::Vector Vector;
  typedef typename Types<Real>::VectorInMemory InMemory;
  static INLINE Vector load(const Real* from) {
    return *reinterpret_cast<const InMemory*>(from);
  }
  static INLINE void store(Real* to, Vector value) {
    *reinterpret_cast<InMemory*>(to) = value;
  }
};

// The same, stored past the caches.
template <class Real>
struct StreamedVector : WholeVector<Real> {
  typedef typename Types<Real>::Vector Vector;
#if defined(__AVX512F__)
  static INLINE void store(float* to, Vector value) {
    _mm512_stream_ps(to, (__m512)value);
  }
  static INLINE void store(double* to, Vector value) {
    _mm512_stream_pd(to, (__m512d)value);
  }
#elif defined(__AVX2__)
  static INLINE void store(float* to, Vector value) {
    _mm256_stream_ps(to, (__m256)value);
  }
  static INLINE void store(double* to, Vector value) {
    _mm256_stream_pd(to, (__m256d)value);
  }
#endif
};

template <class Real>
struct PartOfVector {
  typedef typename Types<Real>::Vector Vector;
  int64_t count;
  INLINE Vector load(const Real* from) const {
    Vector value{};
    __builtin_memcpy(&value, from, count * sizeof(Real));
    return value;
  }
  INLINE void store(Real* to, Vector value) const {
    __builtin_memcpy(to, &value, count * sizeof(Real));
  }
};

// Calls use(row, first channel, access) for each vector of each row.
template <class Whole, class Real, class Use>
INLINE void for_each_vector(const GateRows<Real>& s, const Use& use) {
  constexpr int64_t width = Types<Real>::width;
  for (int64_t row = 0; row < s.rows; row++) {
    int64_t channel = 0;
    for (; channel + width <= s.channels; channel += width)
      use(row, channel, Whole());
    if (channel < s.channels)
      use(row, channel, PartOfVector<Real>{s.channels - channel});
  }
}

// Numbers as float64, in as many vectors as that takes.
template <class Real>
struct Wide {
  typedef Types<Real> T;
  static constexpr int count = sizeof(double) / sizeof(Real);
  static constexpr int width = T::width / count;
  Doubles part[count];
  static INLINE Wide of(typename T::Vector value) {
    Wide wide;
    typename T::Narrow narrow[count];
    __builtin_memcpy(narrow, &value, sizeof narrow);
    UNROLL for (int i = 0; i < count; i++)
      wide.part[i] = __builtin_convertvector(narrow[i], Doubles);
    return wide;
  }
  static INLINE Wide load(const double* from) {
    Wide wide;
    UNROLL for (int i = 0; i < count; i++)
      wide.part[i] = load_doubles(from + i * width);
    return wide;
  }
  INLINE void store(double* to) const {
    UNROLL for (int i = 0; i < count; i++)
      store_doubles(to + i * width, part[i]);
  }
  INLINE typename T::Vector narrowed() const {
    typename T::Narrow narrow[count];
    typename T::Vector value;
    UNROLL for (int i = 0; i < count; i++)
      narrow[i] = __builtin_convertvector(part[i], typename T::Narrow);
    __builtin_memcpy(&value, narrow, sizeof value);
    return value;
  }
};

// sigmoid(x) and 1 - sigmoid(x), both to their last digits.
template <class Real>
struct Gate {
  typedef typename Types<Real>::Vector Vector;
  Vector open, closed;
  explicit INLINE Gate(Vector x) {
    const auto negative = x < 0;
    const Vector e = exponential<Real, false>(negative ? x : -x);
    const Vector more = 1 / (1 + e), less = e * more;
    open = negative ? less : more;
    closed = negative ? more : less;
  }
};

// The share of the way towards a candidate, the rest, and the slope by each
// number of the drive.
template <class Real, bool two_gates>
struct Share;

template <class Real>
struct Share<Real, false> {
  typedef typename Types<Real>::Vector Vector;
  Vector share, rest, slope[1];
  explicit INLINE Share(const Vector* drive) {
    const Gate<Real> gate(drive[0]);
    share = gate.open;
    rest = gate.closed;
    slope[0] = share * rest;
  }
};

template <class Real>
struct Share<Real, true> {
  typedef typename Types<Real>::Vector Vector;
  Vector share, rest, slope[2];
  // The share is (1 + exp(-f)) / ((1 + exp(-f)) + (1 + exp(-k))). All terms are
  // divided by the largest, so that none overflows.
  explicit INLINE Share(const Vector* drive) {
    const Vector none{};
    const Vector forget = at_most(-drive[0]), enter = at_most(-drive[1]);
    Vector most = forget > none ? forget : none;
    most = enter > most ? enter : most;
    const Vector one = exponential<Real, false>(-most);
    const Vector no_forget = exponential<Real, false>(forget - most);
    const Vector no_enter = exponential<Real, false>(enter - most);
    const Vector scale = 1 / ((one + no_forget) + (one + no_enter));
    share = (one + no_forget) * scale;
    rest = (one + no_enter) * scale;
    slope[0] = -rest * no_forget * scale;
    slope[1] = share * no_enter * scale;
  }
  // Of two infinities, the difference would be NaN.
  static INLINE Vector at_most(Vector x) {
    const Vector large = Vector{} + Real(1e30);
    return x > large ? large : x;
  }
};

// g, and its slope.
template <class Real, bool positive>
struct Candidate {
  typedef typename Types<Real>::Vector Vector;
  Vector value, slope;
  explicit INLINE Candidate(Vector x) {
    const Vector one = Vector{} + 1;
    value = x;
    slope = one;
    if (!positive) return;
    const auto above = x >= 0;
    const Gate<Real> gate(x);
    value = above ? x + Real(0.5) : gate.open;
    slope = above ? one : gate.open * gate.closed;
  }
};

// With AVX-512 all lanes are asked for by a mask: GCC 12 warns that the plain
// functions read a variable of their own header before it is set.
INLINE Types<float>::Vector square_root(Types<float>::Vector x) {
#if defined(__AVX512F__)
  return (Types<float>::Vector)_mm512_maskz_sqrt_ps(0xffff, (__m512)x);
#elif defined(__AVX2__)
  return (Types<float>::Vector)_mm256_sqrt_ps((__m256)x);
#else
  for (int i = 0; i < Types<float>::width; i++) x[i] = root(x[i]);
  return x;
#endif
}
INLINE Doubles square_root(Doubles x) {
#if defined(__AVX512F__)
  return (Doubles)_mm512_maskz_sqrt_pd(0xff, (__m512d)x);
#elif defined(__AVX2__)
  return (Doubles)_mm256_sqrt_pd((__m256d)x);
#else
  for (int i = 0; i < Types<double>::width; i++) x[i] = root(x[i]);
  return x;
#endif
}

// A decay that is exp(rate), and what lets the input in.
template <class Real>
struct Rated {
  typedef typename Types<Real>::Vector Vector;
  Gate<Real> rate_gate, input_gate;
  Vector loss;   // 1 - decay
  Vector scale;  // sqrt(1 - decay^2)
  Vector slope;  // of the scale by the rate
  INLINE Rated(const Vector* drive, Vector largest_rate)
      : rate_gate(drive[0]), input_gate(drive[1]) {
    // As in the plain form: less is not told from 0 under the root, whose slope
    // is infinite there. NaN propagates.
    const Vector least = Vector{} + Real(1e-36), none{};
    loss = -exponential<Real, true>(largest_rate * rate_gate.open);
    const Vector lost = loss * (2 - loss);
    const auto is_least = lost <= least;
    scale = square_root(is_least ? least : lost);
    slope = is_least ? none : (lost - 1) / scale;
  }
};

// Asks for what the same vector of the next block needs. A processor does not
// foresee it from page to page, nor that blocks go backwards.
template <class Real>
INLINE void read_ahead(const GateRows<Real>& s, const Real* from,
                       int64_t stride) {
  __builtin_prefetch(from + s.rows_ahead * stride, 0, 2);
}

// A vector of the drive, with its bias.
template <class Real, class Access>
INLINE typename Types<Real>::Vector load_drive(const GateRows<Real>& s, int k,
                                               int64_t row, int64_t channel,
                                               Access access) {
  const Real* const from = s.drive[k] + row * s.drive_stride + channel;
  read_ahead(s, from, s.drive_stride);
  return access.load(from) + access.load(s.bias[k] + channel);
}

template <class Real>
INLINE void store_decay(const OpenGates<Real>& s, int64_t at,
                        typename Types<Real>::Vector loss) {
  Wide<Real> decay = Wide<Real>::of(loss);
  for (auto& part : decay.part) part = 1 - part;
  decay.store(s.decay + at);
}

template <class Real, class Access>
INLINE void store_d_drive(const CloseGates<Real>& s, int k, int64_t row,
                          int64_t channel, Access access,
                          typename Types<Real>::Vector value) {
  typedef WholeVector<Real> Whole;
  access.store(s.d_drive[k] + row * s.drive_stride + channel, value);
  Real* const sum = s.d_bias[k] + channel;
  Whole::store(sum, Whole::load(sum) + value);
}

// The gates that give shares: their forward pass, what the gradient keeps of
// them, and the gradient. Each is called for a vector.
template <class Real, bool two_gates, bool positive>
struct Shares {
  typedef typename Types<Real>::Vector Vector;
  typedef WholeVector<Real> Whole;
  static constexpr int gates = 1 + two_gates;

  template <class Access>
  static INLINE Share<Real, two_gates> share_at(const GateRows<Real>& s,
                                                int64_t row, int64_t channel,
                                                Access access) {
    Vector drive[gates];
    UNROLL for (int k = 0; k < gates; k++)
      drive[k] = load_drive(s, k, row, channel, access);
    return Share<Real, two_gates>(drive);
  }

  template <class Access>
  static INLINE Candidate<Real, positive> candidate_at(
      const GateRows<Real>& s, int64_t row, int64_t channel, Access access) {
    return Candidate<Real, positive>(
        load_drive(s, gates, row, channel, access));
  }

  struct Forward {
    const OpenGates<Real> s;
    template <class Access>
    INLINE void operator()(int64_t row, int64_t channel, Access access) const {
      const auto share = share_at(s, row, channel, access);
      const auto candidate = candidate_at(s, row, channel, access);
      const int64_t at = row * s.stride + channel;
      store_decay(s, at, share.share);
      Whole::store(s.entering + at, share.share * candidate.value);
    }
  };

  struct Keep {
    const OpenGates<Real> s;
    template <class Access>
    INLINE void operator()(int64_t row, int64_t channel, Access access) const {
      const auto share = share_at(s, row, channel, access);
      const int64_t at = row * s.stride + channel;
      store_decay(s, at, share.share);
      Whole::store(s.kept + at, share.share);
      UNROLL for (int k = 0; k < gates; k++)
        Whole::store(s.kept + (1 + k) * s.plane + at, share.slope[k]);
    }
  };

  struct Backward {
    const CloseGates<Real> s;
    template <class Access>
    INLINE void operator()(int64_t row, int64_t channel, Access access) const {
      const auto candidate = candidate_at(s, row, channel, access);
      const int64_t at = row * s.stride + channel;
      const Vector d_entering = Whole::load(s.d_entering + at);
      const Vector d_share =
          d_entering * candidate.value - Whole::load(s.d_decay + at);
      UNROLL for (int k = 0; k < gates; k++)
        store_d_drive(s, k, row, channel, access,
                      d_share * Whole::load(s.kept + (1 + k) * s.plane + at));
      store_d_drive(s, gates, row, channel, access,
                    d_entering * Whole::load(s.kept + at) * candidate.slope);
    }
  };
};

// The same of the gates that give a rate.
template <class Real>
struct Rates {
  typedef typename Types<Real>::Vector Vector;
  typedef WholeVector<Real> Whole;

  template <class Access>
  static INLINE Rated<Real> rated_at(const GateRows<Real>& s, int64_t row,
                                     int64_t channel, Access access) {
    read_ahead(s, s.inputs + row * s.input_stride + channel, s.input_stride);
    const Vector drive[2] = {load_drive(s, 0, row, channel, access),
                             load_drive(s, 1, row, channel, access)};
    return Rated<Real>(drive, access.load(s.largest_rate + channel));
  }

  struct Forward {
    const OpenGates<Real> s;
    template <class Access>
    INLINE void operator()(int64_t row, int64_t channel, Access access) const {
      const Rated<Real> rated = rated_at(s, row, channel, access);
      const Vector input =
          access.load(s.inputs + row * s.input_stride + channel);
      const int64_t at = row * s.stride + channel;
      store_decay(s, at, rated.loss);
      Whole::store(s.entering + at,
                   rated.scale * rated.input_gate.open * input);
    }
  };

  struct Keep {
    const OpenGates<Real> s;
    template <class Access>
    INLINE void operator()(int64_t row, int64_t channel, Access access) const {
      const Rated<Real> rated = rated_at(s, row, channel, access);
      const int64_t at = row * s.stride + channel;
      store_decay(s, at, rated.loss);
      const Vector kept[] = {rated.rate_gate.open, rated.input_gate.open,
                             rated.scale, rated.slope};
      UNROLL for (int i = 0; i < 4; i++)
        Whole::store(s.kept + i * s.plane + at, kept[i]);
    }
  };

  struct Backward {
    const CloseGates<Real> s;
    template <class Access>
    INLINE void operator()(int64_t row, int64_t channel, Access access) const {
      const int64_t at = row * s.stride + channel;
      const int64_t input_at = row * s.input_stride + channel;
      Vector kept[4];
      UNROLL for (int i = 0; i < 4; i++)
        kept[i] = Whole::load(s.kept + i * s.plane + at);
      const Vector open = kept[0], enter = kept[1], scale = kept[2];
      const Vector decay = Wide<Real>::load(s.decay + at).narrowed();
      const Vector d_entering = Whole::load(s.d_entering + at);
      const Vector d_scaled = d_entering * scale;
      const Vector entered = enter * access.load(s.inputs + input_at);
      const Vector d_rate = Whole::load(s.d_decay + at) * decay +
                            d_entering * entered * kept[3];
      const Vector d_open = d_rate * open;
      store_d_drive(
          s, 0, row, channel, access,
          d_open * (1 - open) * access.load(s.largest_rate + channel));
      store_d_drive(s, 1, row, channel, access,
                    d_scaled * entered * (1 - enter));
      access.store(s.d_inputs + input_at, d_scaled * enter);
      Whole::store(s.d_largest_rate + channel,
                   Whole::load(s.d_largest_rate + channel) + d_open);
    }
  };
};

template <class Gates, class Real>
void open_with(const OpenGates<Real>& s) {
  typedef WholeVector<Real> Whole;
  s.kept ? for_each_vector<Whole>(s, typename Gates::Keep{s})
         : for_each_vector<Whole>(s, typename Gates::Forward{s});
}

template <class Real>
bool can_stream(const CloseGates<Real>& s) {
  constexpr uintptr_t bytes = VECTOR_BYTES;
  const auto fits = [](const Real* array, int64_t stride) {
    return (reinterpret_cast<uintptr_t>(array) | stride * sizeof(Real)) %
               bytes == 0;
  };
  bool can = streams_exist && s.streamed;
  for (const Real* array : s.d_drive) can = can && fits(array, s.drive_stride);
  return can && fits(s.d_inputs, s.input_stride);
}

template <class Gates, class Real>
void close_with(const CloseGates<Real>& s) {
  const typename Gates::Backward backward{s};
  if (!can_stream(s)) return for_each_vector<WholeVector<Real>>(s, backward);
  for_each_vector<StreamedVector<Real>>(s, backward);
  finish_streams();
}

// Calls use(gates) of the kind that a call has.
template <class Real, class Use>
INLINE void with_gates(const GateRows<Real>& s, const Use& use) {
  if (s.rates) return use(Rates<Real>());
  if (s.two_gates)
    return s.positive ? use(Shares<Real, true, true>())
                      : use(Shares<Real, true, false>());
  s.positive ? use(Shares<Real, false, true>())
             : use(Shares<Real, false, false>());
}

template <class Real>
void open_gates(const OpenGates<Real>& s) {
  with_gates(s, [&](auto gates) { open_with<decltype(gates)>(s); });
}

template <class Real>
void close_gates(const CloseGates<Real>& s) {
  with_gates(s, [&](auto gates) { close_with<decltype(gates)>(s); });
}

}  // namespace
}  // namespace keras_linrec
