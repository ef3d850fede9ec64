// Neighbour attention on the CPU: forward and backward without a number per edge and channel.
//
// Mathematics and names are those of ops/definition.py. For a node v with neighbours u in N_v:
//   s_vu  = score + bias,   a_vu = exp(s_vu - L_v)            (row)
//                           a_vu = exp(s_vu - (L_v + L_u)/2)  (symmetric),  L_v = log sum_u exp(s_vu)
//   out_v = sum_u m_vu a_vu V_u,   m_vu the dropout mask, already divided by the keep probability.
// Saved for the backward: L alone. With G = dOut, r_v = <G_v, out_v>, c_v = <dV_v, V_v>:
//   row:        ds_vu = a_vu (m_vu <G_v, V_u> - r_v)
//   symmetric:  ds_vu = m_vu a_vu <G_v, V_u> - exp(s_vu - L_v) (r_v + c_v)/2
//   dV_u = sum_v m_vu a_vu G_v,   dQ_v = sum_u ds_vu K_u,   dK_u = sum_v ds_vu Q_v.
// On an undirected graph the list of v holds both directions of each of its edges: "there" is
// (v, u), "back" is (u, v), and one pass gives dQ_v, dK_v and dV_v.
//
// Layout. A per-node tensor of C channels is [n][blocks][vectors][W]. With many heads, L = W: a
// block is W heads, a vector holds one channel of each of them. With few heads, L = 1: a block is
// one head, a vector holds W of its channels. The last block or vector is padded with zeros.
// Numbers per node and head (L_v, r_v, c_v, additive scores) are [n][blocks][L].
//
// Work. A list is worked on in pieces; each step runs over the whole piece before the next begins,
// numbers per edge staying in buffers of L numbers per entry. The parts of a list that was cut are
// added in the order of their slots, so no bit of the result depends on the number of threads.

#include "simd.h"

extern "C" struct DeepgatLists {
  const int32_t* index;   // [E] the other end of every entry
  const int64_t* pieces;  // [P][4] (node, begin, end, slot)
  const int64_t* hubs;    // [K][3] (node, first slot, end slot)
  int64_t size, num_pieces, num_hubs;
};

// What one call works on. "lanes" is the layout above; unused pointers are null.
extern "C" struct DeepgatProblem {
  DeepgatLists by_target, by_source;
  const int64_t* edge_by_source;  // [E] the edge that each entry of the lists by source is
  const int64_t* ids;             // [n] what the dropout mask calls each node; null: its number
  int64_t nodes, longest;
  int64_t query_strides[3];       // of node, head and channel, for the activation
  int32_t kind;                   // 0: no score, 1: dot product, 2: additive
  int32_t activation;             // on query before the score: 0 none, 1 softmax, 2 sigmoid
  int32_t symmetric_normalization, shared, undirected;
  int32_t heads, score_channels, channels, lanes, threads;
  uint32_t seed;
  double scale, slope, dropout;
  const void *query, *key, *value;  // lanes; key is query where they are shared
  const void* bias;                 // [E][heads]
  void* activated;                  // lanes: room for the activated query, which is then the key too
  void* out;                        // [n][heads][channels]
  void* log_sum;                    // [n][blocks][L]
  void* scores;                     // [E + W][L]: room for s between two passes; null: computed twice
  const void* grad_out;             // [n][heads][channels]
  void* grad_lanes;                 // L = 1: grad_out padded to lanes, or itself; L = W: room for
                                    // records [n][blocks][G_v in lanes, r_v, L_v]
  void *grad_query, *grad_key, *grad_value;  // lanes; grad_key is null where shared
  void* grad_bias;                  // [E][heads]
  void *row_dot, *column_dot;       // [n][blocks][L]: room for r, where L = 1, and c
  void* parts;                      // room for the parts of the lists that were cut
};

namespace {

// What one pass over the lists of a backward computes.
struct Pass {
  bool there, value, back;  // ds_vu; dV_v; ds_uv
  bool adds, last;          // to what an earlier pass found for the scores; no later pass will
};

template <class T, int L>
struct Attention {
  typedef Vec<T> V;
  static constexpr T LOWEST = -std::numeric_limits<T>::infinity();
  const DeepgatProblem& p;
  const int block, blocks, value_vectors, score_vectors, count;
  const T scale, slope;
  const Dropout<T> mask;
  const T* const bias;
  struct Table {  // what belongs to node v begins at v
    const T* base;
    int64_t step;
    const T* operator[](int64_t v) const { return base + v * step; }
  };
  Table query, key, value, grad, logs, r, c;

  Attention(const DeepgatProblem& problem, int block)
      : p(problem), block(block), blocks(blocks_of(p)), value_vectors(vectors_of(p.channels)),
        score_vectors(p.kind == 1 ? vectors_of(p.score_channels) : p.kind == 2),
        count(L == 1 ? 1 : std::min<int>(W, p.heads - block * W)), scale(static_cast<T>(p.scale)),
        slope(static_cast<T>(p.slope)), mask(p.seed, p.dropout), bias(static_cast<const T*>(p.bias)) {
    const int width = p.kind == 2 ? L : score_vectors * W;
    query = table(p.activation ? p.activated : p.query, width);
    key = table(p.activation ? p.activated : p.key, width);
    value = table(p.value, value_vectors * W);
    logs = table(p.log_sum, L);
    c = table(p.column_dot, L);
    if (L == 1) {
      grad = table(p.grad_lanes, value_vectors * W);
      r = table(p.row_dot, L);
    } else if (p.grad_lanes) {  // one place in memory for all that is read of a neighbour with G
      grad = table(p.grad_lanes, (value_vectors + 2) * W);
      r = {grad.base + value_vectors * W, grad.step};
      logs = {r.base + W, grad.step};
    }
  }
  Table table(const void* base, int width) const {
    return {static_cast<const T*>(base) + block * width, int64_t(blocks) * width};
  }
  static int blocks_of(const DeepgatProblem& p) { return L == 1 ? p.heads : (p.heads + W - 1) / W; }
  static int vectors_of(int channels) { return L == 1 ? (channels + W - 1) / W : channels; }
  template <class P>
  P* row(P* base, int vectors, int64_t v) const { return base + (v * blocks + block) * vectors * W; }
  V own(const Table& from, int64_t v) const { return L == 1 ? all(*from[v]) : load(from[v]); }
  void set(void* base, int64_t v, V x) const {
    T* to = static_cast<T*>(base) + (v * blocks + block) * L;
    if (L == 1) *to = x[0];
    else store(to, x);
  }
  static V across(V x) { return L == 1 ? all(total<T>(x)) : x; }  // the sum over what L = 1 spread

  // A piece of the list of node v; a group is what one vector of numbers per entry holds.
  struct Piece {
    int64_t v, begin, size, groups;
    const int32_t* index;  // with L = 1 padded by v to whole groups
    const int32_t* ahead;  // entries whose turn will come
  };
  static constexpr int64_t AHEAD = 16;
  struct Room {
    std::vector<int32_t> index;
    std::vector<T> buffer[6];
    explicit Room(int64_t longest) : index(longest + W) {
      for (auto& b : buffer) b.resize((longest + W) * L);
    }
  };
  Piece piece_of(const DeepgatLists& lists, const int64_t* piece, Room& room) const {
    const int64_t size = piece[2] - piece[1];
    const int32_t* index = lists.index + piece[1];
    if (L == 1) {
      int32_t* to = room.index.data();
      std::copy_n(index, size, to);
      for (int i = 0; i < W; ++i) to[size + i] = static_cast<int32_t>(piece[0]);
      index = to;
    }
    const int32_t* ahead = lists.index + piece[1] + (piece[2] + AHEAD <= lists.size ? AHEAD : 0);
    return {piece[0], piece[1], size, L == 1 ? (size + W - 1) / W : size, index, ahead};
  }

  // Numbers of a group of entries: per node, of the mask, of the bias.
  V others(const Table& from, const Piece& x, int64_t g) const {
    if (L == W) return load(from[x.index[g]]);
    V found;
    for (int i = 0; i < W; ++i) found[i] = *from[x.index[g * W + i]];
    return found;
  }
  V draw(const Piece& x, int64_t g, bool back) const {
    if (!mask.active) return all(T(1));
    const uint32_t v = id_of(p.ids, x.v);
    constexpr uint32_t golden = 0x9e3779b9U;
    if (L == W) {
      const uint32_t u = id_of(p.ids, x.index[g]);
      const uint32_t pair = back ? mix(mix(mask.seed ^ u) + v) : mix(mix(mask.seed ^ v) + u);
      return mask(mix(pair + golden * (COUNT + static_cast<uint32_t>(block * W + 1))));
    }
    const Words u = ids_of(p.ids, x.index + g * W);
    const Words pair = back ? mix(mix(mask.seed ^ u) + v) : mix(mix(mask.seed ^ v) + u);
    return mask(mix(pair + golden * static_cast<uint32_t>(block + 1)));
  }
  template <class F>
  void each_bias(const Piece& x, int64_t g, bool back, F work) const {  // work(lane, place)
    const int64_t first = x.begin + g * (W / L);
    const int64_t entries = L == 1 ? std::min<int64_t>(W, x.size - g * W) : 1;
    for (int64_t j = 0; j < entries; ++j) {
      const int64_t edge = back ? p.edge_by_source[first + j] : first + j;
      for (int i = 0; i < count; ++i) work(j + i, edge * p.heads + block * L + i);
    }
  }

  // to_j (+)= <own, row_j>, times factor.
  void dots(const T* mine, const Table& theirs, int vectors, const Piece& x, T factor, T* to) const {
    constexpr int ENTRIES = W / L, N = PER_REGISTER<T>, R = REGISTERS<T>;
    by_blocks(vectors, [&](auto B, int first) {
      Register<T> own[B() * R];
      for (int k = 0; k < B() * R; ++k) own[k] = load_register(mine + first * W + k * N) * factor;
      const T* from = theirs.base + first * W;
      const int64_t step = theirs.step, size = x.size, groups = x.groups;
      const int32_t *index = x.index, *ahead = x.ahead;
      for (int64_t g = 0; g < groups; ++g) {
        V found;
        V sum[ENTRIES];
        for (int i = 0; i < ENTRIES; ++i) {
          const int64_t j = g * ENTRIES + i;
          const T* other = from + index[j] * step;
          if (L == W || j < size) fetch_row<B()>(from + ahead[j] * step);
          if constexpr (R == 1) {
            sum[i] = own[0] * load(other);
            for (int b = 1; b < B(); ++b) sum[i] += own[b] * load(other + b * W);
          } else if constexpr (L == 1) {
            Register<T> one = own[0] * load_register(other);
            for (int k = 1; k < B() * R; ++k) one += own[k] * load_register(other + k * N);
            found[i] = across_register<T>(one);
          } else {
            for (int r = 0; r < R; ++r) {
              Register<T> one = own[r] * load_register(other + r * N);
              for (int b = 1; b < B(); ++b) one += own[b * R + r] * load_register(other + b * W + r * N);
              store_register(reinterpret_cast<T*>(&found) + r * N, one);
            }
          }
        }
        if constexpr (R == 1) found = L == 1 ? totals<T>(sum) : sum[0];
        store(to + g * W, first ? load(to + g * W) + found : found);
      }
    });
  }
  // to = sum_j w_j row_j.
  void sums(const T* w, const Table& theirs, int vectors, const Piece& x, bool fetch, T* to) const {
    by_blocks(vectors, [&](auto B, int first) {
      add_rows<B(), L>(to + first * W, w, theirs.base + first * W, theirs.step, (B() - 1) * W, x.index,
                       x.size, fetch ? x.ahead : nullptr);
    });
  }

  // s of every entry and, for additive scores, the slope that its gradient is multiplied by.
  void scores(const Piece& x, bool back, T* s, T* steep) const {
    const Table &mine = back ? key : query, &theirs = back ? query : key;
    if (p.kind == 1) {
      dots(mine[x.v], theirs, score_vectors, x, scale, s);
    } else {
      for (int64_t g = 0; g < x.groups; ++g) {
        V sum{};
        if (p.kind == 2) {
          sum = own(mine, x.v) + others(theirs, x, g);
          const V there = sum > T(0) ? all(T(1)) : all(slope);
          if (steep) store(steep + g * W, there);
          sum *= there;
        }
        store(s + g * W, sum);
      }
    }
    if (bias)
      for (int64_t g = 0; g < x.groups; ++g)
        each_bias(x, g, back, [&](int64_t lane, int64_t place) { s[g * W + lane] += bias[place]; });
    if (L == 1) close(x, s);
  }
  // Beyond the end of the piece, s = -inf.
  static void close(const Piece& x, T* s) {
    const int64_t last = x.size / W * W;
    if (last < x.size) store(s + last, first_lanes<T>(load(s + last), x.size - last, LOWEST));
  }

  // Forward. The record of a piece: its part of the sum, of which top was subtracted, top, and z.
  static constexpr int TOP = 0, Z = W, SUM = 2 * W;
  void softmax(const Piece& x, Room& room, bool with_values, T* to) const {
    if (!with_values && p.kind == 0 && !bias) {  // s = 0
      store(to + TOP, V{});
      store(to + Z, all(static_cast<T>(x.size)));
      return;
    }
    T* s = room.buffer[0].data();
    scores(x, false, s, nullptr);
    if (p.scores) std::copy_n(s, x.size * L, static_cast<T*>(p.scores) + x.begin * L);
    V top = all(LOWEST), z{};
    for (int64_t g = 0; g < x.groups; ++g) top = vmax<T>(top, load(s + g * W));
    if (L == 1) top = all(highest<T>(top));
    const V shift = finite_or_0(top);
    for (int64_t g = 0; g < x.groups; ++g) {
      const V e = vexp(load(s + g * W) - shift);
      z += e;
      store(s + g * W, with_values ? e * draw(x, g, false) : e);
    }
    store(to + TOP, top);
    store(to + Z, across(z));
    if (with_values) sums(s, value, value_vectors, x, true, to + SUM);
  }
  // in a list of nothing but -inf, shifting by it would give nan
  static V finite_or_0(V top) { return top == LOWEST ? V{} : top; }
  void join_softmax(const T* parts, int64_t pieces, int64_t size, T* to) const {
    V top = load(parts + TOP);
    for (int64_t i = 1; i < pieces; ++i) top = vmax<T>(top, load(parts + i * size + TOP));
    std::fill_n(to, size, T(0));
    for (int64_t i = 0; i < pieces; ++i) {
      const V factor = vexp(load(parts + i * size + TOP) - finite_or_0(top));
      for (int64_t k = Z; k < size; k += W) store(to + k, load(to + k) + factor * load(parts + i * size + k));
    }
    store(to + TOP, top);
  }
  void finish_softmax(int64_t v, const T* from, bool with_values) const {
    const V z = load(from + Z);
    set(p.log_sum, v, load(from + TOP) + (L == 1 ? all(std::log(z[0])) : vlog(z)));
    if (with_values) write_out(v, from + SUM, T(1) / z);
  }
  // The second half of it where the neighbours' sums L_u are needed first.
  void symmetric(const Piece& x, Room& room, T* to) const {
    T* s = room.buffer[0].data();
    const T* kept = s;  // what lies beyond the end of the piece is not summed
    if (p.scores) kept = static_cast<const T*>(p.scores) + x.begin * L;
    else scores(x, false, s, nullptr);
    const V mine = own(logs, x.v);
    for (int64_t g = 0; g < x.groups; ++g) {
      const V a = vexp(load(kept + g * W) - (mine + others(logs, x, g)) * T(0.5));
      store(s + g * W, a * draw(x, g, false));
    }
    sums(s, value, value_vectors, x, true, to);
  }

  // Backward.
  void backward(const Piece& x, Room& room, const Pass& pass, T* to) const {
    T *s = room.buffer[0].data(), *s_back = room.buffer[1].data();
    T *ds = room.buffer[2].data(), *ds_back = room.buffer[3].data();
    T *steep = room.buffer[4].data(), *steep_back = room.buffer[5].data();
    const bool same = pass.there && p.shared && !bias;  // s_uv = s_vu
    if (pass.there) {
      scores(x, false, s, steep);
      dots(grad[x.v], value, value_vectors, x, T(1), ds);
    }
    if (pass.value || pass.back) {
      if (same) s_back = s;
      else scores(x, true, s_back, steep_back);
      if (pass.back) dots(value[x.v], grad, value_vectors, x, T(1), ds_back);
      T* w = room.buffer[1].data();  // over s_back where that is not s itself
      weigh_back(x, pass, s_back, ds_back, w);
      if (pass.value) {
        sums(w, grad, value_vectors, x, !pass.back, to);
        to += value_vectors * W;
      }
    }
    if (pass.there) weigh_there(x, s, ds);
    if (pass.there && p.grad_bias) {
      T* found = static_cast<T*>(p.grad_bias);
      for (int64_t g = 0; g < x.groups; ++g)
        each_bias(x, g, false, [&](int64_t lane, int64_t place) { found[place] = ds[g * W + lane]; });
    }
    if (!p.grad_query) return;
    if (pass.there && pass.back && p.shared) {
      for (int64_t g = 0; g < x.groups; ++g) store(ds + g * W, load(ds + g * W) + load(ds_back + g * W));
      sum_scores(x, ds, nullptr, key, to);
      return;
    }
    if (pass.there) sum_scores(x, ds, steep, key, to);
    if (pass.back) sum_scores(x, ds_back, steep_back, query, to + (pass.there ? score_vectors * W : 0));
  }
  void weigh_there(const Piece& x, const T* s, T* ds) const {
    const V log_v = own(logs, x.v), r_v = own(r, x.v);
    const V share = p.symmetric_normalization ? (r_v + own(c, x.v)) * T(0.5) : r_v;
    for (int64_t g = 0; g < x.groups; ++g) {
      const V alone = vexp(load(s + g * W) - log_v), pull = draw(x, g, false) * load(ds + g * W);
      if (!p.symmetric_normalization) {
        store(ds + g * W, alone * (pull - share));
      } else {
        const V a = vexp(load(s + g * W) - (log_v + others(logs, x, g)) * T(0.5));
        store(ds + g * W, a * pull - alone * share);
      }
    }
  }
  void weigh_back(const Piece& x, const Pass& pass, const T* s, T* ds, T* w) const {
    const V log_v = own(logs, x.v);
    for (int64_t g = 0; g < x.groups; ++g) {
      if (L == W) __builtin_prefetch(r[x.ahead[g]]);
      const V log_u = others(logs, x, g), score = load(s + g * W);
      const V a = vexp(score - (p.symmetric_normalization ? (log_v + log_u) * T(0.5) : log_u));
      const V kept = a * draw(x, g, true);
      if (pass.value) store(w + g * W, kept);
      if (!pass.back) continue;
      V r_u = others(r, x, g), alone = a;
      if (p.symmetric_normalization) {
        r_u = (r_u + others(c, x, g)) * T(0.5);
        alone = vexp(score - log_u);
      }
      store(ds + g * W, kept * load(ds + g * W) - alone * r_u);
    }
  }
  void sum_scores(const Piece& x, const T* ds, const T* steep, const Table& theirs, T* to) const {
    if (p.kind == 1) return sums(ds, theirs, score_vectors, x, false, to);
    V sum{};
    for (int64_t g = 0; g < x.groups; ++g) sum += load(ds + g * W) * load(steep + g * W);
    store(to, across(sum));
  }
  int64_t record_of(const Pass& pass) const {
    const bool both = pass.there && pass.back && !p.shared;
    const int scored = p.grad_query && (pass.there || pass.back) ? (both ? 2 : 1) : 0;
    return (int64_t(pass.value) * value_vectors + scored * score_vectors) * W;
  }
  void finish_backward(int64_t v, const Pass& pass, const T* from) const {
    if (pass.value) {
      T* to = row(static_cast<T*>(p.grad_value), value_vectors, v);
      if (from != to) std::copy_n(from, value_vectors * W, to);
      if (p.column_dot) set(p.column_dot, v, dot(to, value[v], value_vectors));
      from += value_vectors * W;
    }
    if (!p.grad_query) return;
    if (pass.there || (pass.back && p.shared)) {
      finish_scores(v, pass, from, static_cast<T*>(p.grad_query));
      from += score_vectors * W;
    }
    if (pass.back && !p.shared) finish_scores(v, pass, from, static_cast<T*>(p.grad_key));
  }
  void finish_scores(int64_t v, const Pass& pass, const T* from, T* base) const {
    if (p.kind == 2) return set(base, v, load(from));
    T* to = row(base, score_vectors, v);
    for (int i = 0; i < score_vectors * W; i += W) {
      const V found = load(from + i) * scale;
      store(to + i, pass.adds ? load(to + i) + found : found);
    }
    if (p.activation && pass.last) deactivate(v, to);
  }
  V dot(const T* x, const T* y, int vectors) const {
    V sum{};
    for (int i = 0; i < vectors * W; i += W) sum += load(x + i) * load(y + i);
    return across(sum);
  }

  // [heads][channels] of one node to lanes, and out of them.
  bool whole_turns() const { return L == W && count == W && p.channels % W == 0; }
  void read_in(const T* from, T* to) const {
    if (L == 1) {
      std::copy_n(from, p.channels, to);
      std::fill_n(to + p.channels, value_vectors * W - p.channels, T(0));
    } else if (whole_turns()) {
      for (int d = 0; d < p.channels; d += W) {
        V x[W];
        for (int i = 0; i < W; ++i) x[i] = load(from + i * p.channels + d);
        turn<T>(x);
        for (int i = 0; i < W; ++i) store(to + (d + i) * W, x[i]);
      }
    } else {
      for (int d = 0; d < p.channels; ++d)
        for (int i = 0; i < W; ++i) to[d * W + i] = i < count ? from[i * p.channels + d] : T(0);
    }
  }
  T* out_row(int64_t v) const { return static_cast<T*>(p.out) + (v * p.heads + block * L) * p.channels; }
  void write_out(int64_t v, const T* from, V factor) const {
    T* out = out_row(v);
    if (L == 1) {
      int d = 0;
      for (; d + W <= p.channels; d += W) store(out + d, load(from + d) * factor);
      for (; d < p.channels; ++d) out[d] = from[d] * factor[0];
    } else if (whole_turns()) {
      for (int d = 0; d < p.channels; d += W) {
        V x[W];
        for (int i = 0; i < W; ++i) x[i] = load(from + (d + i) * W) * factor;
        turn<T>(x);
        for (int i = 0; i < W; ++i) store(out + i * p.channels + d, x[i]);
      }
    } else {
      for (int d = 0; d < p.channels; ++d)
        for (int i = 0; i < count; ++i) out[i * p.channels + d] = from[d * W + i] * factor[i];
    }
  }
  // The gradient in lanes, and r_v = <G_v, out_v>.
  void prepare_backward(int64_t v, T* room) const {
    const int64_t place = (v * p.heads + block * L) * p.channels;
    const T *from = static_cast<const T*>(p.grad_out) + place, *out = static_cast<const T*>(p.out) + place;
    T* to = static_cast<T*>(p.grad_lanes) + (grad[v] - static_cast<const T*>(p.grad_lanes));
    const bool scored = p.grad_query || p.grad_bias;
    if (to != from) read_in(from, to);
    if (to != from && scored) {
      read_in(out, room);
      out = room;
    }
    if (L == 1) {
      if (scored) set(p.row_dot, v, dot(to, out, value_vectors));
    } else {
      if (scored) store(to + value_vectors * W, dot(to, out, value_vectors));
      store(to + (value_vectors + 1) * W, load(static_cast<const T*>(p.log_sum) + (v * blocks + block) * W));
    }
  }

  // softmax or sigmoid of one node's query, and the way back for its gradient, in place.
  void activate(int64_t v) const {
    const T* from = static_cast<const T*>(p.query) + v * p.query_strides[0] + block * L * p.query_strides[1];
    T* y = row(static_cast<T*>(p.activated), score_vectors, v);
    const bool as_it_is = L == W && count == W && p.query_strides[1] == 1;
    const T* end = nullptr;  // of the numbers that may be read, where channels are side by side
    if (L == 1 && p.query_strides[2] == 1 && p.query_strides[0] >= p.heads * int64_t(p.score_channels))
      end = static_cast<const T*>(p.query) + (p.nodes - 1) * p.query_strides[0] + block * p.query_strides[1] + p.score_channels;
    const T low = LOWEST;  // its softmax is 0
    V top = all(low), z{};
    for (int k = 0; k < score_vectors; ++k) {
      V x = L == 1 ? all(low) : V{};
      if (as_it_is) x = load(from + k * p.query_strides[2]);
      else if (L == 1 && from + (k + 1) * W <= end) x = first_lanes<T>(load(from + k * W), p.score_channels - k * W, low);
      else if (L == W) for (int i = 0; i < count; ++i) x[i] = from[i * p.query_strides[1] + k * p.query_strides[2]];
      else for (int i = 0; i < std::min(W, p.score_channels - k * W); ++i) x[i] = from[(k * W + i) * p.query_strides[2]];
      store(y + k * W, x);
      top = vmax<T>(top, x);
    }
    if (L == 1) top = all(highest<T>(top));
    for (int k = 0; k < score_vectors * W; k += W) {
      const V x = load(y + k);
      V e = p.activation == 1 ? vexp(x - finite_or_0(top)) : T(1) / (T(1) + vexp(-x));
      e = x == low ? V{} : e;
      store(y + k, e);
      z += e;
    }
    z = across(z);
    if (p.activation == 1) for (int k = 0; k < score_vectors * W; k += W) store(y + k, load(y + k) / z);
  }
  void deactivate(int64_t v, T* to) const {
    const T* y = query[v];
    const V inner = p.activation == 1 ? dot(to, y, score_vectors) : V{};
    for (int k = 0; k < score_vectors * W; k += W) {
      const V prob = load(y + k), slope_there = p.activation == 1 ? prob : prob * (T(1) - prob);
      store(to + k, slope_there * (load(to + k) - inner));
    }
  }

  // Drivers. place(v) is where the record of v belongs if it needs no more than to be there, or null.
  template <class Place, class Work, class Join, class Finish>
  void over_lists(const DeepgatLists& lists, int64_t record, Place place, Work work, Join join, Finish finish) const {
    T* parts = static_cast<T*>(p.parts);
#pragma omp parallel num_threads(p.threads)
    {
      Room room(p.longest);
      std::vector<T> mine(record);
#pragma omp for schedule(dynamic, 32)
      for (int64_t i = 0; i < lists.num_pieces; ++i) {
        const int64_t *piece = lists.pieces + 4 * i, slot = piece[3];
        T* there = place(piece[0]);
        T* to = slot >= 0 ? parts + slot * record : there ? there : mine.data();
        work(piece_of(lists, piece, room), room, to);
        if (slot < 0) finish(piece[0], to);
      }
#pragma omp for schedule(dynamic, 1)
      for (int64_t i = 0; i < lists.num_hubs; ++i) {
        const int64_t* hub = lists.hubs + 3 * i;
        join(parts + hub[1] * record, hub[2] - hub[1], record, mine.data());
        finish(hub[0], mine.data());
      }
    }
  }
  static void add_up(const T* parts, int64_t pieces, int64_t size, T* to) {
    std::copy_n(parts, size, to);
    for (int64_t i = 1; i < pieces; ++i)
      for (int64_t k = 0; k < size; ++k) to[k] += parts[i * size + k];
  }
  template <class F>
  void over_nodes(F work) const {
#pragma omp parallel for schedule(static) num_threads(p.threads)
    for (int64_t v = 0; v < p.nodes; ++v) work(v);
  }

  void run_forward() const {
    if (p.activation) over_nodes([&](int64_t v) { activate(v); });
    const bool at_once = !p.symmetric_normalization;
    over_lists(
        p.by_target, SUM + (at_once ? value_vectors * W : 0), [](int64_t) -> T* { return nullptr; },
        [&](const Piece& x, Room& room, T* to) { softmax(x, room, at_once, to); },
        [&](const T* parts, int64_t pieces, int64_t size, T* to) { join_softmax(parts, pieces, size, to); },
        [&](int64_t v, const T* from) { finish_softmax(v, from, at_once); });
    if (at_once) return;
    const bool as_it_is = L == 1 && p.channels % W == 0;
    over_lists(
        p.by_target, value_vectors * W, [&](int64_t v) { return as_it_is ? out_row(v) : nullptr; },
        [&](const Piece& x, Room& room, T* to) { symmetric(x, room, to); }, add_up,
        [&](int64_t v, const T* from) { if (from != out_row(v)) write_out(v, from, all(T(1))); });
  }
  void run_pass(const DeepgatLists& lists, const Pass& pass) const {
    const int64_t record = record_of(pass);
    const bool value_alone = pass.value && record == value_vectors * W;
    over_lists(
        lists, record,
        [&](int64_t v) { return value_alone ? row(static_cast<T*>(p.grad_value), value_vectors, v) : nullptr; },
        [&](const Piece& x, Room& room, T* to) { backward(x, room, pass, to); }, add_up,
        [&](int64_t v, const T* from) { finish_backward(v, pass, from); });
  }
  void run_backward() const {
    const bool scored = p.grad_query, there = scored || p.grad_bias;
#pragma omp parallel num_threads(p.threads)
    {
      std::vector<T> room(value_vectors * W);
#pragma omp for schedule(static)
      for (int64_t v = 0; v < p.nodes; ++v) {
        if (p.activation) activate(v);
        prepare_backward(v, room.data());
      }
    }
    if (p.undirected && !p.symmetric_normalization)
      return run_pass(p.by_target, {there, true, scored, false, true});
    const bool with_value = !p.symmetric_normalization;
    if (!with_value) run_pass(p.by_source, {false, true, false, false, false});  // c comes first
    if (p.undirected) {
      if (there) run_pass(p.by_target, {there, false, scored, false, true});
      return;
    }
    const bool from_source = with_value || scored, twice = p.shared && scored;
    if (from_source) run_pass(p.by_source, {false, with_value, scored, false, !twice});
    if (there) run_pass(p.by_target, {true, false, false, twice, true});
  }
};

template <class T>
void run(const DeepgatProblem& p, bool forward) {
  if (p.lanes == 1) {
    for (int b = 0; b < Attention<T, 1>::blocks_of(p); ++b) {
      const Attention<T, 1> work(p, b);
      forward ? work.run_forward() : work.run_backward();
    }
  } else {
    for (int b = 0; b < Attention<T, W>::blocks_of(p); ++b) {
      const Attention<T, W> work(p, b);
      forward ? work.run_forward() : work.run_backward();
    }
  }
}

// A tensor [n][heads][channels] with any strides to lanes.
template <class T>
void to_lanes(const T* from, const int64_t* strides, T* to, int64_t n, int heads, int channels, int lanes, int threads) {
  const int blocks = lanes == 1 ? heads : (heads + W - 1) / W;
  const int vectors = lanes == 1 ? (channels + W - 1) / W : channels;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t v = 0; v < n; ++v)
    for (int b = 0; b < blocks; ++b)
      for (int k = 0; k < vectors; ++k)
        for (int i = 0; i < W; ++i) {
          const int head = lanes == 1 ? b : b * W + i, channel = lanes == 1 ? k * W + i : k;
          to[((v * blocks + b) * vectors + k) * W + i] =
              head < heads && channel < channels
                  ? from[v * strides[0] + head * strides[1] + channel * strides[2]]
                  : T(0);
        }
}

}  // namespace

#define DEEPGAT_EXPORT(T, bits)                                                                   \
  extern "C" void DEEPGAT_NAME(deepgat_forward_##bits)(const DeepgatProblem* p) {                 \
    run<T>(*p, true);                                                                             \
  }                                                                                               \
  extern "C" void DEEPGAT_NAME(deepgat_backward_##bits)(const DeepgatProblem* p) {                \
    run<T>(*p, false);                                                                            \
  }                                                                                               \
  extern "C" void DEEPGAT_NAME(deepgat_to_lanes_##bits)(                                          \
      const T* from, const int64_t* strides, T* to, int64_t n, int32_t heads, int32_t channels,   \
      int32_t lanes, int32_t threads) {                                                           \
    to_lanes(from, strides, to, n, heads, channels, lanes, threads);                              \
  }

DEEPGAT_EXPORT(float, f32)
DEEPGAT_EXPORT(double, f64)
