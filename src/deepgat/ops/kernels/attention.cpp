// Neighbour attention on the CPU: forward and backward without a number per edge and channel.
//
// Mathematics and names are those of ops/reference.py. For a node v with neighbours u in N_v:
//   s_vu  = score + bias,   a_vu = exp(s_vu - L_v)            (row)
//                           a_vu = exp(s_vu - (L_v + L_u)/2)  (symmetric),  L_v = log sum_u exp(s_vu)
//   out_v = sum_u m_vu a_vu V_u,   m_vu the dropout mask, already divided by the keep probability.
// Saved for the backward: L alone. With G = dOut, r_v = <G_v, out_v>:
//   row:        ds_vu = a_vu (m_vu <G_v, V_u> - r_v)
//   symmetric:  ds_vu = m_vu a_vu <G_v, V_u> - exp(s_vu - L_v) (r_v + c_v)/2,  c_v = <dV_v, V_v>
//   dV_u = sum_v m_vu a_vu G_v.
//
// Heads are the SIMD lanes: per-node tensors are [n][channels][stride], the heads innermost and
// padded with zeros to a multiple of W; a block of W heads is worked on at a time. Every output row
// is summed by one thread in the order of its list, so the result does not depend on their number.
//
// One file, compiled once per instruction set (DEEPGAT_SUFFIX names the copy), plain C interface.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#ifndef DEEPGAT_SUFFIX
#define DEEPGAT_SUFFIX base
#endif
#define DEEPGAT_JOIN_(a, b) a##_##b
#define DEEPGAT_JOIN(a, b) DEEPGAT_JOIN_(a, b)
#define DEEPGAT_NAME(name) DEEPGAT_JOIN(name, DEEPGAT_SUFFIX)

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
inline Vec<T> load(const T* p) {
  return *reinterpret_cast<const Vec<T>*>(p);
}
template <class T>
inline void store(T* p, Vec<T> x) {
  *reinterpret_cast<Vec<T>*>(p) = x;
}

// exp to within 2 units in the last place; 0 below the range of normal numbers, so exp(-inf) = 0.
inline Vec<float> vexp(Vec<float> x) {
  typedef VectorOf<float>::bits Int;
  const Int tiny = x < -87.0f;
  Vec<float> y = tiny ? Vec<float>{} - 87.0f : x;
  y = y > 88.0f ? Vec<float>{} + 88.0f : y;
  const Vec<float> halves = y * 1.44269504088896341f + (y < 0.0f ? Vec<float>{} - 0.5f : Vec<float>{} + 0.5f);
  const Int whole = __builtin_convertvector(halves, Int);  // rounds to nearest
  const Vec<float> n = __builtin_convertvector(whole, Vec<float>);
  Vec<float> r = y - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  Vec<float> p = Vec<float>{} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Int power = (whole + 127) << 23;
  Vec<float> scale;
  std::memcpy(&scale, &power, sizeof scale);
  p = p * scale;
  return tiny ? Vec<float>{} : p;
}
inline Vec<double> vexp(Vec<double> x) {
  for (int i = 0; i < W; ++i) x[i] = std::exp(x[i]);
  return x;
}
template <class T>
inline Vec<T> vlog(Vec<T> x) {
  for (int i = 0; i < W; ++i) x[i] = std::log(x[i]);
  return x;
}
template <class T>
inline Vec<T> vmax(Vec<T> a, Vec<T> b) {
  return a > b ? a : b;
}

}  // namespace

// What one call works on. "lanes" is the layout [n][channels][stride]; unused pointers are null.
extern "C" struct DeepgatProblem {
  int64_t nodes;
  const int64_t* ptr;               // [n+1] lists by target
  const int32_t* source;            // [E]
  const int64_t* source_ptr;        // [n+1] lists by source
  const int32_t* target_by_source;  // [E] targets in the order of the lists by source
  const int64_t* edge_by_source;    // [E] the edge that each of them is
  int32_t kind;                     // 0: no score, 1: dot product, 2: additive
  int32_t activation;               // on query before the score: 0 none, 1 softmax, 2 sigmoid
  int32_t symmetric_normalization;
  int32_t single_pass;              // s_vu = s_uv, no bias, row-normalised: one backward pass
  int32_t heads, stride, score_channels, channels;
  int32_t threads;
  uint32_t seed;
  double scale, slope, dropout;
  const void *query, *key, *value;  // lanes
  const void* bias;                 // [E][heads]
  void* activated;                  // lanes: room for the activated query, which is then the key too
  void* out;                        // [n][heads][channels]
  void* log_sum;                    // lanes, one channel
  const void* grad_out;             // [n][heads][channels]
  void* grad_lanes;                 // lanes: room for grad_out
  void *grad_query, *grad_key, *grad_value;  // lanes; grad_key may be grad_query: then they add up
  void* grad_bias;                  // [E][heads]
  void *row_dot, *column_dot;       // lanes, one channel: room for r and c
};

namespace {

// The dropout mask of (v, u, head): a hash, so forward and backward agree without storing it.
inline uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x ^= x >> 15;
  x *= 0x846ca68bU;
  x ^= x >> 16;
  return x;
}
template <class T>
struct Dropout {
  uint32_t seed, threshold;
  T factor;
  bool active;
  explicit Dropout(const DeepgatProblem& p)
      : seed(p.seed),
        threshold(static_cast<uint32_t>(p.dropout * 4294967296.0)),
        factor(static_cast<T>(1.0 / (1.0 - p.dropout))),
        active(p.dropout > 0) {}
  inline Vec<T> operator()(int64_t v, int64_t u, int first_head) const {
    const uint32_t pair = mix(mix(seed ^ static_cast<uint32_t>(v)) + static_cast<uint32_t>(u));
    Vec<T> m;
    for (int i = 0; i < W; ++i) {
      const uint32_t draw = mix(pair + 0x9e3779b9U * static_cast<uint32_t>(first_head + i + 1));
      m[i] = draw >= threshold ? factor : T(0);
    }
    return m;
  }
};

// One block of W heads, with D channels known to the compiler where D is not 0.
template <class T, int KIND, int D>
struct Block {
  typedef Vec<T> V;
  const DeepgatProblem& p;
  const int first, S, A, channels, count;
  const T scale, slope;
  const Dropout<T> mask;
  const T *query, *key, *value, *bias, *grad, *logs, *r, *c;

  Block(const DeepgatProblem& problem, int block)
      : p(problem), first(block * W), S(p.stride), A(p.score_channels), channels(D ? D : p.channels),
        count(std::min<int>(W, p.heads - first)), scale(static_cast<T>(p.scale)),
        slope(static_cast<T>(p.slope)), mask(p) {
    query = at(p.activation ? p.activated : p.query);
    key = at(p.activation ? p.activated : p.key);
    value = at(p.value);
    grad = at(p.grad_lanes);
    logs = at(p.log_sum);
    r = at(p.row_dot);
    c = at(p.column_dot);
    bias = static_cast<const T*>(p.bias);
  }
  const T* at(const void* base) const { return base ? static_cast<const T*>(base) + first : nullptr; }
  T* at(void* base) const { return base ? static_cast<T*>(base) + first : nullptr; }
  inline int width() const { return D ? D : channels; }
  template <class P>
  inline P* scores_of(P* base, int64_t v) const { return base + v * A * S; }
  template <class P>
  inline P* values_of(P* base, int64_t v) const { return base + v * width() * S; }
  template <class P>
  inline P* one_of(P* base, int64_t v) const { return base + v * S; }

  // s before the bias and, for additive scores, the slope that its gradient is multiplied by.
  inline V score(int64_t v, int64_t u, V* slope_there) const {
    if (KIND == 1) {
      const T *q = scores_of(query, v), *k = scores_of(key, u);
      V s{};
      for (int a = 0; a < A; ++a) s += load(q + a * S) * load(k + a * S);
      return s * scale;
    }
    if (KIND == 2) {
      const V x = load(one_of(query, v)) + load(one_of(key, u));
      const V f = x >= T(0) ? V{} + T(1) : V{} + slope;
      if (slope_there) *slope_there = f;
      return x * f;
    }
    return V{};
  }
  inline V with_bias(V s, int64_t edge) const {
    if (!bias) return s;
    const T* b = bias + edge * p.heads + first;
    for (int i = 0; i < count; ++i) s[i] += b[i];
    return s;
  }

  // Forward: L_v and out_v. `weights` and `sums` are room for one list and one row.
  void forward(int64_t v, std::vector<T>& weights, std::vector<T>& sums) const {
    const int64_t begin = p.ptr[v], size = p.ptr[v + 1] - begin;
    if (weights.size() < static_cast<size_t>(size) * W) weights.resize(size * W);
    V top = V{} - std::numeric_limits<T>::infinity();
    for (int64_t j = 0; j < size; ++j) {
      const V s = with_bias(score(v, p.source[begin + j], nullptr), begin + j);
      store(&weights[j * W], s);
      top = vmax<T>(top, s);
    }
    // in a list of nothing but -inf, shifting by it would give nan
    top = top == -std::numeric_limits<T>::infinity() ? V{} : top;
    V z{};
    for (int64_t j = 0; j < size; ++j) {
      const V e = vexp(load(&weights[j * W]) - top);
      store(&weights[j * W], e);
      z += e;
    }
    store(one_of(at(p.log_sum), v), top + vlog<T>(z));
    if (!p.symmetric_normalization) sum_values(v, weights, sums, T(1) / z);
  }
  // The second half of it where the neighbours' sums L_u are needed first.
  void forward_symmetric(int64_t v, std::vector<T>& weights, std::vector<T>& sums) const {
    const int64_t begin = p.ptr[v], size = p.ptr[v + 1] - begin;
    if (weights.size() < static_cast<size_t>(size) * W) weights.resize(size * W);
    const V mine = load(one_of(logs, v));
    for (int64_t j = 0; j < size; ++j) {
      const int64_t u = p.source[begin + j];
      const V s = with_bias(score(v, u, nullptr), begin + j);
      store(&weights[j * W], vexp(s - (mine + load(one_of(logs, u))) * T(0.5)));
    }
    sum_values(v, weights, sums, V{} + T(1));
  }
  inline void sum_values(int64_t v, const std::vector<T>& weights, std::vector<T>& sums, V factor) const {
    const int64_t begin = p.ptr[v], size = p.ptr[v + 1] - begin;
    V fixed[D ? D : 1] = {};
    if (!D) sums.assign(static_cast<size_t>(width()) * W, T(0));
    for (int64_t j = 0; j < size; ++j) {
      const int64_t u = p.source[begin + j];
      V e = load(&weights[j * W]);
      if (mask.active) e *= mask(v, u, first);
      const T* from = values_of(value, u);
      for (int d = 0; d < width(); ++d) {
        if (D) fixed[D ? d : 0] += e * load(from + d * S);
        else store(&sums[d * W], load(&sums[d * W]) + e * load(from + d * S));
      }
    }
    T* out = static_cast<T*>(p.out) + (v * p.heads + first) * width();
    for (int d = 0; d < width(); ++d) {
      const V row = (D ? fixed[D ? d : 0] : load(&sums[D ? 0 : d * W])) * factor;
      for (int i = 0; i < count; ++i) out[i * width() + d] = row[i];
    }
  }

  // Before the backward passes: the gradient's lanes, and r_v = <G_v, out_v>.
  void prepare_backward(int64_t v) const {
    const T* from = static_cast<const T*>(p.grad_out) + (v * p.heads + first) * width();
    const T* out = static_cast<const T*>(p.out) + (v * p.heads + first) * width();
    T* to = values_of(at(p.grad_lanes), v);
    V total{};
    for (int d = 0; d < width(); ++d) {
      V g{}, o{};
      for (int i = 0; i < count; ++i) {
        g[i] = from[i * width() + d];
        o[i] = out[i * width() + d];
      }
      store(to + d * S, g);
      total += g * o;
    }
    store(one_of(at(p.row_dot), v), total);
  }
  inline V pull(const T* g, const T* x) const {  // <G_v, V_u>
    V t{};
    for (int d = 0; d < width(); ++d) t += load(g + d * S) * load(x + d * S);
    return t;
  }
  inline V weight(V s, int64_t v, int64_t u) const {
    const V mine = load(one_of(logs, v));
    return vexp(p.symmetric_normalization ? s - (mine + load(one_of(logs, u))) * T(0.5) : s - mine);
  }
  inline V draw(int64_t v, int64_t u) const {
    return mask.active ? mask(v, u, first) : V{} + T(1);
  }
  inline V score_gradient(V s, V a, V m, V pulled, int64_t v) const {
    const V rv = load(one_of(r, v));
    if (!p.symmetric_normalization) return a * (m * pulled - rv);
    const V share = vexp(s - load(one_of(logs, v)));
    return a * m * pulled - share * (rv + load(one_of(c, v))) * T(0.5);
  }
  inline void add_scores(T* to, V ds, V steep, const T* other) const {
    if (KIND == 1) {
      ds *= scale;
      for (int a = 0; a < A; ++a) store(to + a * S, load(to + a * S) + ds * load(other + a * S));
    } else if (KIND == 2) {
      store(to, load(to) + ds * steep);
    }
  }
  inline void clear(T* to, int rows) const {
    for (int i = 0; i < rows; ++i) store(to + i * S, V{});
  }

  // dV_u, by the lists of source u; for the symmetric normalisation also c_u = <dV_u, V_u>.
  void backward_value(int64_t u) const {
    T* to = values_of(at(p.grad_value), u);
    V fixed[D ? D : 1] = {};
    if (!D) clear(to, width());
    for (int64_t i = p.source_ptr[u]; i < p.source_ptr[u + 1]; ++i) {
      const int64_t v = p.target_by_source[i];
      const V s = with_bias(score(v, u, nullptr), bias ? p.edge_by_source[i] : 0);
      V a = weight(s, v, u);
      if (mask.active) a *= mask(v, u, first);
      const T* g = values_of(grad, v);
      for (int d = 0; d < width(); ++d) {
        if (D) fixed[D ? d : 0] += a * load(g + d * S);
        else store(to + d * S, load(to + d * S) + a * load(g + d * S));
      }
    }
    if (D) for (int d = 0; d < D; ++d) store(to + d * S, fixed[d]);
    if (p.column_dot) store(one_of(at(p.column_dot), u), pull(to, values_of(value, u)));
  }
  // dQ_v and the gradient of the bias, by the lists of target v.
  void backward_query(int64_t v) const {
    T* to = p.grad_query ? scores_of(at(p.grad_query), v) : nullptr;
    if (to) clear(to, A);
    const T* g = values_of(grad, v);
    for (int64_t j = p.ptr[v]; j < p.ptr[v + 1]; ++j) {
      const int64_t u = p.source[j];
      V steep{};
      const V s = with_bias(score(v, u, &steep), j);
      const V ds = score_gradient(s, weight(s, v, u), draw(v, u), pull(g, values_of(value, u)), v);
      if (p.grad_bias) {
        T* b = static_cast<T*>(p.grad_bias) + j * p.heads + first;
        for (int i = 0; i < count; ++i) b[i] = ds[i];
      }
      if (to) add_scores(to, ds, steep, scores_of(key, u));
    }
  }
  // dK_u, by the lists of source u.
  void backward_key(int64_t u) const {
    T* to = scores_of(at(p.grad_key), u);
    if (p.grad_key != p.grad_query) clear(to, A);
    const T* x = values_of(value, u);
    for (int64_t i = p.source_ptr[u]; i < p.source_ptr[u + 1]; ++i) {
      const int64_t v = p.target_by_source[i];
      V steep{};
      const V s = with_bias(score(v, u, &steep), bias ? p.edge_by_source[i] : 0);
      const V ds = score_gradient(s, weight(s, v, u), draw(v, u), pull(values_of(grad, v), x), v);
      add_scores(to, ds, steep, scores_of(query, v));
    }
  }
  // Everything at once where s_vu = s_uv: v's own list holds both directions of every edge.
  void backward_single_pass(int64_t v) const {
    T *to = scores_of(at(p.grad_query), v), *to_value = values_of(at(p.grad_value), v);
    clear(to, A);
    V fixed[D ? D : 1] = {};
    if (!D) clear(to_value, width());
    const T *g = values_of(grad, v), *mine = values_of(value, v);
    const V r_v = load(one_of(r, v)), log_v = load(one_of(logs, v));
    for (int64_t j = p.ptr[v]; j < p.ptr[v + 1]; ++j) {
      const int64_t u = p.source[j];
      const V s = score(v, u, nullptr);
      const V there = vexp(s - log_v), back = vexp(s - load(one_of(logs, u)));  // a_vu, a_uv
      const V m_back = draw(u, v), dropped = back * m_back;
      const T *g_u = values_of(grad, u), *theirs = values_of(value, u);
      V pull_there{}, pull_back{};
      for (int d = 0; d < width(); ++d) {
        const V x = load(g_u + d * S);
        pull_there += load(g + d * S) * load(theirs + d * S);
        pull_back += x * load(mine + d * S);
        if (D) fixed[D ? d : 0] += dropped * x;
        else store(to_value + d * S, load(to_value + d * S) + dropped * x);
      }
      const V ds = there * (draw(v, u) * pull_there - r_v) +
                   back * (m_back * pull_back - load(one_of(r, u)));
      add_scores(to, ds, V{}, scores_of(key, u));
    }
    if (D) for (int d = 0; d < D; ++d) store(to_value + d * S, fixed[d]);
  }

  // softmax or sigmoid of one node's query, and the way back for its gradient, in place.
  void activate(int64_t v) const {
    const T* x = scores_of(at(p.query), v);
    T* y = scores_of(at(p.activated), v);
    V top = V{} - std::numeric_limits<T>::infinity(), z{};
    for (int a = 0; a < A; ++a) top = vmax<T>(top, load(x + a * S));
    for (int a = 0; a < A; ++a) {
      const V logit = load(x + a * S);
      const V e = p.activation == 1 ? vexp(logit - top) : T(1) / (T(1) + vexp(-logit));
      store(y + a * S, e);
      z += e;
    }
    if (p.activation == 1) for (int a = 0; a < A; ++a) store(y + a * S, load(y + a * S) / z);
  }
  void deactivate(int64_t v) const {
    const T* y = scores_of(query, v);
    T* to = scores_of(at(p.grad_query), v);
    V inner{};
    if (p.activation == 1) inner = dot(to, y);
    for (int a = 0; a < A; ++a) {
      const V prob = load(y + a * S), slope_there = p.activation == 1 ? prob : prob * (T(1) - prob);
      store(to + a * S, slope_there * (load(to + a * S) - inner));
    }
  }
  inline V dot(const T* x, const T* y) const {
    V t{};
    for (int a = 0; a < A; ++a) t += load(x + a * S) * load(y + a * S);
    return t;
  }
};

template <class F>
inline void over_nodes(const DeepgatProblem& p, F work) {
#pragma omp parallel for schedule(dynamic, 64) num_threads(p.threads)
  for (int64_t v = 0; v < p.nodes; ++v) work(v);
}

template <class T, int KIND, int D>
void forward_block(const DeepgatProblem& p, int b) {
  const Block<T, KIND, D> block(p, b);
  if (p.activation) over_nodes(p, [&](int64_t v) { block.activate(v); });
#pragma omp parallel num_threads(p.threads)
  {
    std::vector<T> weights, sums;
#pragma omp for schedule(dynamic, 64)
    for (int64_t v = 0; v < p.nodes; ++v) block.forward(v, weights, sums);
    if (p.symmetric_normalization) {
#pragma omp for schedule(dynamic, 64)
      for (int64_t v = 0; v < p.nodes; ++v) block.forward_symmetric(v, weights, sums);
    }
  }
}

template <class T, int KIND, int D>
void backward_block(const DeepgatProblem& p, int b) {
  const Block<T, KIND, D> block(p, b);
  over_nodes(p, [&](int64_t v) {
    if (p.activation) block.activate(v);
    block.prepare_backward(v);
  });
  if (p.single_pass) {
    over_nodes(p, [&](int64_t v) { block.backward_single_pass(v); });
  } else {
    over_nodes(p, [&](int64_t u) { block.backward_value(u); });
    if (p.grad_query || p.grad_bias) over_nodes(p, [&](int64_t v) { block.backward_query(v); });
    if (p.grad_key) over_nodes(p, [&](int64_t u) { block.backward_key(u); });
  }
  if (p.activation && p.grad_query) over_nodes(p, [&](int64_t v) { block.deactivate(v); });
}

template <class T, int KIND>
void run_block(const DeepgatProblem& p, int b, bool forward) {
  switch (p.channels) {
    case 8:
      return forward ? forward_block<T, KIND, 8>(p, b) : backward_block<T, KIND, 8>(p, b);
    case 16:
      return forward ? forward_block<T, KIND, 16>(p, b) : backward_block<T, KIND, 16>(p, b);
    default:
      return forward ? forward_block<T, KIND, 0>(p, b) : backward_block<T, KIND, 0>(p, b);
  }
}

template <class T>
void run(const DeepgatProblem& p, bool forward) {
  for (int b = 0; b * W < p.stride; ++b) {
    if (p.kind == 1) run_block<T, 1>(p, b, forward);
    else if (p.kind == 2) run_block<T, 2>(p, b, forward);
    else run_block<T, 0>(p, b, forward);
  }
}

// [n][heads][channels] -> [n][channels][stride], the heads padded with zeros.
template <class T>
void to_lanes(const T* from, T* to, int64_t n, int heads, int channels, int stride, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t v = 0; v < n; ++v)
    for (int c = 0; c < channels; ++c)
      for (int h = 0; h < stride; ++h)
        to[(v * channels + c) * stride + h] = h < heads ? from[(v * heads + h) * channels + c] : T(0);
}

}  // namespace

#define DEEPGAT_EXPORT(T, bits)                                                                  \
  extern "C" void DEEPGAT_NAME(deepgat_forward_##bits)(const DeepgatProblem* p) {                \
    run<T>(*p, true);                                                                            \
  }                                                                                              \
  extern "C" void DEEPGAT_NAME(deepgat_backward_##bits)(const DeepgatProblem* p) {               \
    run<T>(*p, false);                                                                           \
  }                                                                                              \
  extern "C" void DEEPGAT_NAME(deepgat_to_lanes_##bits)(const T* from, T* to, int64_t n,         \
                                                        int32_t heads, int32_t channels,         \
                                                        int32_t stride, int32_t threads) {       \
    to_lanes(from, to, n, heads, channels, stride, threads);                                     \
  }

DEEPGAT_EXPORT(float, f32)
DEEPGAT_EXPORT(double, f64)
