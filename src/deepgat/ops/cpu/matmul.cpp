// Sparse matrix times dense matrix, and dropout of a dense matrix: ops/matmul.py is the definition.
//
// Lists longer than a piece are cut; their parts are added in one order, whatever the number of
// threads. Entries that dropout takes out are not read at all.

#include "simd.h"

extern "C" struct DeepgatProduct {
  const int32_t* index;     // [nnz]
  const int64_t* position;  // [nnz] or null: in order
  const int64_t* pieces;    // [P][4] (list, begin, end, slot)
  const int64_t* hubs;      // [K][3] (list, first slot, end slot)
  const int64_t* ids;       // [rows] what the dropout mask calls each row; null: its number
  int64_t num_pieces, num_hubs, longest, columns;
  const void *values, *dense;
  void *out, *parts;        // [lists][columns], [slots][columns]
  double dropout;
  uint32_t seed;
  int32_t transposed, threads;
};

namespace {

// The entries of one piece that dropout leaves, with their factors.
template <class T>
struct Entries {
  std::vector<int32_t> index;
  std::vector<T> weight;
  int64_t count = 0;
  explicit Entries(int64_t longest) : index(longest + W), weight(longest + W) {}

  void read(const DeepgatProduct& p, const int64_t* piece, const Dropout<T>& mask) {
    const T* values = static_cast<const T*>(p.values);
    const int64_t begin = piece[1], size = piece[2] - begin;
    const int64_t* position = p.position ? p.position + begin : nullptr;
    int32_t* to = index.data();
    T* factor = weight.data();
    std::copy_n(p.index + begin, size, to);
    if (position) for (int64_t j = 0; j < size; ++j) factor[j] = values[position[j]];
    else std::copy_n(values + begin, size, factor);
    count = size;
    if (!mask.active) return;
    const uint32_t mine = id_of(p.transposed ? nullptr : p.ids, piece[0]);
    const uint32_t mixed = mix(mask.seed ^ mine);
    std::fill_n(to + size, W, 0);
    for (int64_t j = 0; j < size; j += W) {
      const Words other = ids_of(p.transposed ? p.ids : nullptr, to + j);
      const Words draw = p.transposed ? mix(mix(mask.seed ^ other) + mine) : mix(mixed + other);
      store(factor + j, load(factor + j) * mask(draw));
    }
    count = 0;
    for (int64_t j = 0; j < size; ++j) {  // without branches: whether an entry stays is a coin toss
      const T kept = factor[j];
      to[count] = to[j];
      factor[count] = kept;
      count += kept != T(0);
    }
  }
};

template <class T>
void row_of_product(const DeepgatProduct& p, const Entries<T>& e, T* to) {
  const T* dense = static_cast<const T*>(p.dense);
  const int m = static_cast<int>(p.columns);
  if (m < W) {
    T sum[W] = {};
    for (int64_t j = 0; j < e.count; ++j)
      for (int c = 0; c < m; ++c) sum[c] += e.weight[j] * dense[e.index[j] * int64_t(m) + c];
    std::copy(sum, sum + m, to);
    return;
  }
  by_blocks((m + W - 1) / W, [&](auto B, int first) {
    const int from = first * W, last = std::min((B() - 1) * W, m - W - from);
    add_rows<B(), 1>(to + from, e.weight.data(), dense + from, m, last, e.index.data(), e.count, nullptr);
  });
}

template <class T>
void product(const DeepgatProduct& p) {
  const Dropout<T> mask(p.seed, p.dropout);
  T *out = static_cast<T*>(p.out), *parts = static_cast<T*>(p.parts);
#pragma omp parallel num_threads(p.threads)
  {
    Entries<T> entries(p.longest);
#pragma omp for schedule(dynamic, 16)
    for (int64_t i = 0; i < p.num_pieces; ++i) {
      const int64_t* piece = p.pieces + 4 * i;
      entries.read(p, piece, mask);
      row_of_product(p, entries, piece[3] < 0 ? out + piece[0] * p.columns : parts + piece[3] * p.columns);
    }
    join_pieces(p.hubs, p.num_hubs, p.columns, parts, out);
  }
}

template <class T>
void drop(const T* x, T* out, int64_t rows, int64_t columns, const int64_t* ids,
          const Dropout<T>& mask, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t i = 0; i < rows; ++i) {
    const uint32_t row = mix(mask.seed ^ id_of(ids, i));
    const T* from = x + i * columns;
    T* to = out + i * columns;
    int64_t c = 0;
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4)
      for (; c + 16 <= columns; c += 16) {
        constexpr WideWords count = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        const WideWords draw = mix(count + (row + static_cast<uint32_t>(c)));
        const Wide factor = draw >= mask.threshold ? Wide{} + mask.factor : Wide{};
        *reinterpret_cast<Wide*>(to + c) = *reinterpret_cast<const Wide*>(from + c) * factor;
      }
#endif
    for (; c + W <= columns; c += W)
      store(to + c, load(from + c) * mask(mix(COUNT + (row + static_cast<uint32_t>(c)))));
    for (; c < columns; ++c) to[c] = from[c] * mask(mix(row + static_cast<uint32_t>(c)));
  }
}

}  // namespace

#define DEEPGAT_EXPORT(T, bits)                                                                   \
  extern "C" void DEEPGAT_NAME(deepgat_product_##bits)(const DeepgatProduct* p) {                 \
    product<T>(*p);                                                                               \
  }                                                                                               \
  extern "C" void DEEPGAT_NAME(deepgat_drop_##bits)(const T* x, T* out, int64_t rows,             \
                                                    int64_t columns, const int64_t* ids,          \
                                                    uint32_t seed, double share,                  \
                                                    int32_t threads) {                            \
    drop<T>(x, out, rows, columns, ids, Dropout<T>(seed, share), threads);                        \
  }

DEEPGAT_EXPORT(float, f32)
DEEPGAT_EXPORT(double, f64)
