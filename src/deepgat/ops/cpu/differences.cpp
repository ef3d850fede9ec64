// Sums of powers of differences along lists, and their gradient: ops/differences.py is the definition.
//
// With d = x_v - x_u per channel, f(d) = |d|^p and f'(d) = p |d|^(p-1) sign(d), one pass over lists
// computes for every node v one of
//   VALUE: sum_u f(d),   THERE: sum_u g_v f'(d),   BACK: sum_u g_u f'(d),   BOTH: sum_u (g_v + g_u) f'(d).
// Lists longer than a piece are cut; their parts are added in one order, whatever the number of
// threads.

#include "simd.h"

extern "C" struct DeepgatDifferences {
  const int32_t* index;   // [E] the other end of every entry
  const int64_t* pieces;  // [P][4] (node, begin, end, slot)
  const int64_t* hubs;    // [K][3] (node, first slot, end slot)
  int64_t num_pieces, num_hubs, channels;
  const void *x, *grad;   // [n][channels]; VALUE does not read grad
  void *out, *parts;      // [n][channels], [slots][channels]
  double power;
  int32_t kind, threads;  // of the pass: VALUE, THERE, BACK or BOTH
};

namespace {

enum { VALUE, THERE, BACK, BOTH };

// a^q for a >= 0, 0^0 = 0 since f'(0) = 0. Written number by number: in the loops over channels below
// the compiler makes vectors of the machine's own width of them. Small multiples of 1/2, TWICE = 2q,
// are products of a and its root; any other q goes by the logarithm.
template <class T, int TWICE>
struct Known {
  explicit Known(double) {}
  T operator()(T a) const {
    if (TWICE == 0) return a > T(0) ? T(1) : T(0);
    T r = TWICE % 2 ? std::sqrt(a) : a;
    for (int i = 0; i < (TWICE - 1) / 2; ++i) r *= a;
    return r;
  }
};
template <class T>
struct Any {
  const T q;
  explicit Any(double q) : q(static_cast<T>(q)) {}
  T operator()(T a) const { return power(a, q); }

  static double power(double a, double q) { return std::pow(a, q); }
  // By log and exp, to |log a^q| units in the last place or so.
  static float power(float a, float q) {
    int32_t bits;
    std::memcpy(&bits, &a, sizeof bits);
    const int32_t shifted = bits - 0x3f3504f3;  // so that the fraction lies in [sqrt(1/2), sqrt(2))
    const float n = static_cast<float>(shifted >> 23);
    bits = (shifted & 0x007fffff) + 0x3f3504f3;
    float f;
    std::memcpy(&f, &bits, sizeof f);
    f -= 1.0f;
    const float y = q * log_series(f, n);
    float inside = y > -87.0f ? y : -87.0f;
    inside = inside < 88.0f ? inside : 88.0f;
    const int32_t whole = static_cast<int32_t>(inside * 1.44269504088896341f + (y < 0.0f ? -0.5f : 0.5f));
    const float m = static_cast<float>(whole);
    const float r = (inside - m * 0.693359375f) + m * 2.12194440e-4f;
    const int32_t normal = (y > -87.0f) & (a > 0.0f) ? -1 : 0;
    const int32_t exponent = (whole + 127) << 23 & normal;
    float scale;
    std::memcpy(&scale, &exponent, sizeof scale);
    const float most = std::numeric_limits<float>::infinity();
    scale = y > 88.72283f ? most : scale;  // the logarithm of the largest number
    scale = a < most ? scale : a;          // nan stays nan
    return exp_series(r) * scale;
  }
};

// Calls work(the a^q of this q).
template <class T, class F>
void with_power(double q, F work) {
  const int twice = static_cast<int>(std::min(2 * q, 8.0));
  if (twice < 0 || twice != 2 * q) return work(Any<T>(q));
  switch (twice) {
    case 0: return work(Known<T, 0>(q));
    case 1: return work(Known<T, 1>(q));
    case 2: return work(Known<T, 2>(q));
    case 3: return work(Known<T, 3>(q));
    case 4: return work(Known<T, 4>(q));
    case 5: return work(Known<T, 5>(q));
    case 6: return work(Known<T, 6>(q));
    case 7: return work(Known<T, 7>(q));
    default: return work(Known<T, 8>(q));
  }
}

// Adds what one neighbour contributes to the sums of `channels` channels. A function of its own, so
// that the compiler turns this loop into vectors rather than the one over neighbours.
template <int PASS, class T, class P>
__attribute__((noinline)) void add_neighbor(const P power, int64_t channels, const T* x, const T* theirs,
                                            const T* grad, const T* their_grad, T* __restrict sum) {
  for (int64_t c = 0; c < channels; ++c) {
    const T d = x[c] - theirs[c];
    const T size = power(std::abs(d));
    const T slope = std::copysign(size, d);
    if (PASS == VALUE) sum[c] += size;
    if (PASS == THERE) sum[c] += grad[c] * slope;
    if (PASS == BACK) sum[c] += their_grad[c] * slope;
    if (PASS == BOTH) sum[c] += (grad[c] + their_grad[c]) * slope;
  }
}

template <int PASS, class T, class P>
void sum_piece(const DeepgatDifferences& p, const P& power, const int64_t* piece, T* to) {
  const T *x = static_cast<const T*>(p.x), *grad = static_cast<const T*>(p.grad);
  const int64_t v = piece[0] * p.channels;
  std::fill_n(to, p.channels, T(0));
  for (int64_t j = piece[1]; j < piece[2]; ++j) {
    const int64_t u = p.index[j] * p.channels;
    add_neighbor<PASS>(power, p.channels, x + v, x + u, grad + v, grad + u, to);
  }
  if (PASS != VALUE)
    for (int64_t c = 0; c < p.channels; ++c) to[c] *= static_cast<T>(p.power);
}

template <int PASS, class T>
void pass(const DeepgatDifferences& p) {
  T *out = static_cast<T*>(p.out), *parts = static_cast<T*>(p.parts);
  with_power<T>(PASS == VALUE ? p.power : p.power - 1, [&](const auto& power) {
#pragma omp parallel num_threads(p.threads)
    {
#pragma omp for schedule(dynamic, 16)
      for (int64_t i = 0; i < p.num_pieces; ++i) {
        const int64_t* piece = p.pieces + 4 * i;
        T* to = piece[3] < 0 ? out + piece[0] * p.channels : parts + piece[3] * p.channels;
        sum_piece<PASS>(p, power, piece, to);
      }
      join_pieces(p.hubs, p.num_hubs, p.channels, parts, out);
    }
  });
}

template <class T>
void differences(const DeepgatDifferences& p) {
  switch (p.kind) {
    case VALUE: return pass<VALUE, T>(p);
    case THERE: return pass<THERE, T>(p);
    case BACK: return pass<BACK, T>(p);
    default: return pass<BOTH, T>(p);
  }
}

}  // namespace

#define DEEPGAT_EXPORT(T, bits)                                                            \
  extern "C" void DEEPGAT_NAME(deepgat_differences_##bits)(const DeepgatDifferences* p) {  \
    differences<T>(*p);                                                                    \
  }

DEEPGAT_EXPORT(float, f32)
DEEPGAT_EXPORT(double, f64)
