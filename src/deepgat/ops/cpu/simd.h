// Shared by the kernels: vectors of W numbers, their exp and log, sums of rows, dropout masks.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "names.h"

namespace {

constexpr int W = 8;

template <class T>
struct VectorOf;
template <>
struct VectorOf<float> {
  typedef float type __attribute__((vector_size(W * sizeof(float)), aligned(4)));
  typedef int32_t bits __attribute__((vector_size(W * sizeof(int32_t))));
};
template <>
struct VectorOf<double> {
  typedef double type __attribute__((vector_size(W * sizeof(double)), aligned(8)));
  typedef int64_t bits __attribute__((vector_size(W * sizeof(int64_t))));
};
template <class T>
using Vec = typename VectorOf<T>::type;
template <class T>
using Bits = typename VectorOf<T>::bits;
typedef uint32_t Words __attribute__((vector_size(W * sizeof(uint32_t)), aligned(4)));
constexpr Words COUNT = {0, 1, 2, 3, 4, 5, 6, 7};

// The part of a Vec that fits in one register. GCC keeps wider vectors in memory, so the innermost
// loops work on registers.
#if defined(__AVX512F__)
constexpr int REGISTER_BYTES = 64;
#elif defined(__AVX__)
constexpr int REGISTER_BYTES = 32;
#else
constexpr int REGISTER_BYTES = 16;
#endif
template <class T>
constexpr int PER_REGISTER = std::min<int>(W, REGISTER_BYTES / sizeof(T));
template <class T>
struct RegisterOf;
template <>
struct RegisterOf<float> {
  typedef float type __attribute__((vector_size(PER_REGISTER<float> * sizeof(float)), aligned(4)));
};
template <>
struct RegisterOf<double> {
  typedef double type __attribute__((vector_size(PER_REGISTER<double> * sizeof(double)), aligned(8)));
};
template <>
struct RegisterOf<int32_t> {
  typedef int32_t type __attribute__((vector_size(PER_REGISTER<int32_t> * sizeof(int32_t))));
};
template <>
struct RegisterOf<uint32_t> {
  typedef uint32_t type __attribute__((vector_size(PER_REGISTER<uint32_t> * sizeof(uint32_t)), aligned(4)));
};
template <class T>
using Register = typename RegisterOf<T>::type;
template <class T>
constexpr int REGISTERS = W / PER_REGISTER<T>;  // of one Vec

template <class T>
inline Vec<T> load(const T* p) {
  return *reinterpret_cast<const Vec<T>*>(p);
}
template <class T>
inline void store(T* p, Vec<T> x) {
  *reinterpret_cast<Vec<T>*>(p) = x;
}
template <class T>
inline Register<T> load_register(const T* p) {
  return *reinterpret_cast<const Register<T>*>(p);
}
template <class T>
inline void store_register(T* p, Register<T> x) {
  *reinterpret_cast<Register<T>*>(p) = x;
}
// work(x), or work(x, y), register by register: GCC splits selections of wider vectors into scalars.
// Vectors are given by their address: a template that takes them by reference forgets that they are
// aligned like one number.
template <class T, class F, class... X>
inline Vec<T> by_registers(F work, const X*... x) {
  constexpr int N = PER_REGISTER<T>;
  Vec<T> found;
  for (int r = 0; r < REGISTERS<T>; ++r)
    store_register(reinterpret_cast<T*>(&found) + r * N,
                   work(load_register(reinterpret_cast<const T*>(x) + r * N)...));
  return found;
}
// The sum of a register's numbers, by pairwise halving.
template <class T>
inline T across_register(Register<T> x) {
  T part[PER_REGISTER<T>];
  store_register(part, x);
  for (int width = PER_REGISTER<T> / 2; width; width /= 2)
    for (int i = 0; i < width; ++i) part[i] += part[i + width];
  return part[0];
}
template <class T>
inline Vec<T> all(T x) {
  return Vec<T>{} + x;
}
template <class T>
inline Vec<T> vmax(Vec<T> a, Vec<T> b) {
  typedef Register<T> R;
  return by_registers<T>([](R x, R y) -> R { return x > y ? x : y; }, &a, &b);
}
// x in the first `count` places, `other` in the rest. Writing a part of a vector to memory, number by
// number, would delay the load of the whole.
template <class T>
inline Vec<T> first_lanes(Vec<T> x, int64_t count, T other) {
  typedef Register<T> R;
  const Vec<T> place = {0, 1, 2, 3, 4, 5, 6, 7};
  const T end = static_cast<T>(count);
  return by_registers<T>([=](R a, R at) -> R { return at < end ? a : R{} + other; }, &x, &place);
}
// Shuffles (a, b): places 0 ... W-1 are in a, places W ... 2W-1 in b.
#ifdef __clang__
#define DEEPGAT_PICK(T, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define DEEPGAT_PICK(T, a, b, ...) __builtin_shuffle(a, b, Bits<T>{__VA_ARGS__})
#endif

// The largest number, and the sum as ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)).
template <class T>
inline T highest(Vec<T> x) {
  x = vmax<T>(x, DEEPGAT_PICK(T, x, x, 4, 5, 6, 7, 0, 1, 2, 3));
  x = vmax<T>(x, DEEPGAT_PICK(T, x, x, 2, 3, 0, 1, 6, 7, 4, 5));
  return vmax<T>(x, DEEPGAT_PICK(T, x, x, 1, 0, 3, 2, 5, 4, 7, 6))[0];
}
template <class T>
inline T total(Vec<T> x) {
  x = x + DEEPGAT_PICK(T, x, x, 1, 0, 3, 2, 5, 4, 7, 6);
  x = x + DEEPGAT_PICK(T, x, x, 2, 3, 0, 1, 6, 7, 4, 5);
  return x[0] + x[4];
}

// exp(r) for |r| up to log(2)/2; r is a number or a vector.
template <class V>
inline V exp_series(V r) {
  V p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return p * r * r + r + 1.0f;
}
// log((1 + f) 2^n) for 1 + f in [sqrt(1/2), sqrt(2)); f is a number or a vector.
template <class V>
inline V log_series(V f, V n) {
  const V square = f * f;
  V p = f * 7.0376836292e-2f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  p = p * f * square - n * 2.12194440e-4f - 0.5f * square;
  return (f + p) + n * 0.693359375f;
}

// exp to within 2 units in the last place; 0 below the range of normal numbers, so exp(-inf) = 0.
__attribute__((always_inline)) inline Register<float> exp_register(Register<float> x) {
  typedef Register<float> V;
  typedef Register<int32_t> Int;
  const Int tiny = x < -87.0f;
  V y = tiny ? V{} - 87.0f : x;
  y = y > 88.0f ? V{} + 88.0f : y;
  const V halves = y * 1.44269504088896341f + (y < 0.0f ? V{} - 0.5f : V{} + 0.5f);
  const Int whole = __builtin_convertvector(halves, Int);  // rounds to nearest
  const V n = __builtin_convertvector(whole, V);
  V r = y - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  const Int power = (whole + 127) << 23;
  V scale;
  std::memcpy(&scale, &power, sizeof scale);
  return tiny ? V{} : exp_series(r) * scale;
}
inline Vec<float> vexp(Vec<float> x) {
  return by_registers<float>([](Register<float> y) { return exp_register(y); }, &x);
}
inline Vec<double> vexp(Vec<double> x) {
  for (int i = 0; i < W; ++i) x[i] = std::exp(x[i]);
  return x;
}
// log to within 2 units in the last place of normal numbers; log(0) = -inf.
inline Register<float> log_register(Register<float> x) {
  typedef Register<float> V;
  typedef Register<int32_t> Int;
  Int bits;
  std::memcpy(&bits, &x, sizeof bits);
  const Int shifted = bits - 0x3f3504f3;  // so that the fraction lies in [sqrt(1/2), sqrt(2))
  const V n = __builtin_convertvector(shifted >> 23, V);
  bits = (shifted & 0x007fffff) + 0x3f3504f3;
  V f;
  std::memcpy(&f, &bits, sizeof f);
  f = f - 1.0f;
  V p = log_series(f, n);
  p = x > 0.0f ? p : V{} - std::numeric_limits<float>::infinity();
  return x < std::numeric_limits<float>::infinity() ? p : x;  // keeps nan
}
inline Vec<float> vlog(Vec<float> x) { return by_registers<float>(log_register, &x); }
inline Vec<double> vlog(Vec<double> x) {
  for (int i = 0; i < W; ++i) x[i] = std::log(x[i]);
  return x;
}

// Transposes W vectors of W numbers.
template <class T>
inline void turn(Vec<T>* x) {
  for (int i : {0, 2, 4, 6}) {
    const Vec<T> a = x[i], b = x[i + 1];
    x[i] = DEEPGAT_PICK(T, a, b, 0, 8, 2, 10, 4, 12, 6, 14);
    x[i + 1] = DEEPGAT_PICK(T, a, b, 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (int i : {0, 1, 4, 5}) {
    const Vec<T> a = x[i], b = x[i + 2];
    x[i] = DEEPGAT_PICK(T, a, b, 0, 1, 8, 9, 4, 5, 12, 13);
    x[i + 2] = DEEPGAT_PICK(T, a, b, 2, 3, 10, 11, 6, 7, 14, 15);
  }
  for (int i : {0, 1, 2, 3}) {
    const Vec<T> a = x[i], b = x[i + 4];
    x[i] = DEEPGAT_PICK(T, a, b, 0, 1, 2, 3, 8, 9, 10, 11);
    x[i + 4] = DEEPGAT_PICK(T, a, b, 4, 5, 6, 7, 12, 13, 14, 15);
  }
}
// The sums of adjacent pairs in a, then in b; and the sum of each of W vectors.
template <class T>
inline Vec<T> pairs(Vec<T> a, Vec<T> b) {
  return DEEPGAT_PICK(T, a, b, 0, 2, 4, 6, 8, 10, 12, 14) + DEEPGAT_PICK(T, a, b, 1, 3, 5, 7, 9, 11, 13, 15);
}
template <class T>
inline Vec<T> totals(const Vec<T>* x) {
  return pairs<T>(pairs<T>(pairs<T>(x[0], x[1]), pairs<T>(x[2], x[3])),
                  pairs<T>(pairs<T>(x[4], x[5]), pairs<T>(x[6], x[7])));
}

// Calls work(B, first vector) for blocks of B <= 8 vectors; B is a compile-time constant.
template <class F>
inline void by_blocks(int vectors, const F& work) {
  for (int first = 0; first < vectors; first += 8) {
    switch (std::min(8, vectors - first)) {
      case 1: work(std::integral_constant<int, 1>(), first); break;
      case 2: work(std::integral_constant<int, 2>(), first); break;
      case 3: work(std::integral_constant<int, 3>(), first); break;
      case 4: work(std::integral_constant<int, 4>(), first); break;
      case 5: work(std::integral_constant<int, 5>(), first); break;
      case 6: work(std::integral_constant<int, 6>(), first); break;
      case 7: work(std::integral_constant<int, 7>(), first); break;
      default: work(std::integral_constant<int, 8>(), first);
    }
  }
}

// Prefetches a row of B vectors.
template <int B, class T>
inline void fetch_row(const T* row) {
  for (int i = 0; i < B * W; i += 64 / int(sizeof(T))) __builtin_prefetch(row + i);
}

#if defined(__AVX512F__)
typedef float Wide __attribute__((vector_size(64), aligned(4)));
typedef uint32_t WideWords __attribute__((vector_size(64), aligned(4)));

// add_rows for whole rows of B registers of 16 numbers each: the same sums in half as many loads.
template <int B>
inline void add_wide_rows(float* sum, const float* w, const float* base, int64_t step,
                          const int32_t* index, int64_t count, const int32_t* ahead) {
  Wide part[B] = {};
  for (int64_t j = 0; j < count; ++j) {
    const float* row = base + index[j] * step;
    if (ahead) fetch_row<2 * B>(base + ahead[j] * step);
    const Wide factor = Wide{} + w[j];
    for (int b = 0; b < B; ++b) part[b] += factor * *reinterpret_cast<const Wide*>(row + b * 16);
  }
  for (int b = 0; b < B; ++b) *reinterpret_cast<Wide*>(sum + b * 16) = part[b];
}
#endif

// sum = sum_j w_j row_j, rows of B vectors, row_j = base + index_j * step. A weight is one number or,
// with EACH = W, one per lane. The last vector begins at `last`, so that rows whose length is no
// multiple of W can end with a vector that overlaps the one before.
template <int B, int EACH, class T>
inline void add_rows(T* sum, const T* w, const T* base, int64_t step, int last,
                     const int32_t* index, int64_t count, const int32_t* ahead) {
#if defined(__AVX512F__)
  if constexpr (EACH == 1 && sizeof(T) == 4 && B % 2 == 0)
    if (last == (B - 1) * W) return add_wide_rows<B / 2>(sum, w, base, step, index, count, ahead);
#endif
  constexpr int N = PER_REGISTER<T>, R = REGISTERS<T>;
  Register<T> part[B * R] = {};
  for (int64_t j = 0; j < count; ++j) {
    const T* row = base + index[j] * step;
    if (ahead) fetch_row<B>(base + ahead[j] * step);
    for (int b = 0; b < B; ++b)
      for (int r = 0; r < R; ++r) {
        const Register<T> x = EACH == 1 ? Register<T>{} + w[j] : load_register(w + j * W + r * N);
        part[b * R + r] += x * load_register(row + (b < B - 1 ? b * W : last) + r * N);
      }
  }
  for (int b = 0; b < B; ++b)
    for (int r = 0; r < R; ++r) store_register(sum + (b < B - 1 ? b * W : last) + r * N, part[b * R + r]);
}

// Called inside a parallel region. Adds the partial sums of each hub in the order of its pieces.
// A hub is (row of `out`, first row of `parts`, end row).
template <class T>
inline void join_pieces(const int64_t* hubs, int64_t num_hubs, int64_t columns, const T* parts, T* out) {
#pragma omp for schedule(dynamic, 1)
  for (int64_t i = 0; i < num_hubs; ++i) {
    const int64_t* hub = hubs + 3 * i;
    T* to = out + hub[0] * columns;
    std::copy_n(parts + hub[1] * columns, columns, to);
    for (int64_t slot = hub[1] + 1; slot < hub[2]; ++slot)
      for (int64_t c = 0; c < columns; ++c) to[c] += parts[slot * columns + c];
  }
}

// Dropout masks are a hash of (seed, row, column[, head]): forward and backward pass agree without
// storing them. ops/dropout_masks.py is the reference.
template <class U>
inline U mix(U x) {
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x ^= x >> 15;
  x *= 0x846ca68bU;
  x ^= x >> 16;
  return x;
}
// The number of a row (or several) that a mask hashes. In a part, it is that of the whole graph.
inline uint32_t id_of(const int64_t* ids, int64_t row) {
  return static_cast<uint32_t>(ids ? ids[row] : row);
}
inline Words ids_of(const int64_t* ids, const int32_t* rows) {
  Words found;
  if (!ids) std::memcpy(&found, rows, sizeof found);
  else for (int i = 0; i < W; ++i) found[i] = static_cast<uint32_t>(ids[rows[i]]);
  return found;
}
template <class T>
struct Dropout {
  uint32_t seed, threshold;
  T factor;
  bool active;
  Dropout(uint32_t seed, double share)
      : seed(seed),
        threshold(static_cast<uint32_t>(share * 4294967296.0)),
        factor(static_cast<T>(1.0 / (1.0 - share))),
        active(share > 0) {}
  inline T operator()(uint32_t draw) const { return draw >= threshold ? factor : T(0); }
  inline Vec<T> operator()(Words draw) const {
    if constexpr (sizeof(T) == sizeof(uint32_t)) {
      Vec<T> found;
      for (int i = 0; i < W; i += PER_REGISTER<T>) {
        const auto kept = load_register(reinterpret_cast<const uint32_t*>(&draw) + i) >= threshold;
        store_register(reinterpret_cast<T*>(&found) + i, kept ? Register<T>{} + factor : Register<T>{});
      }
      return found;
    } else {
      const Bits<T> kept = __builtin_convertvector(draw >= threshold, Bits<T>);
      return kept ? all(factor) : Vec<T>{};
    }
  }
};

}  // namespace
