// Parts of neighbour lists for mini-batches: ops/sampling.py is the definition.
//
// Every list is worked on by itself and writes to a place that was reserved for it, so the number of
// threads decides nothing.

#include "simd.h"

extern "C" struct DeepgatSublists {
  const int64_t *ptr, *source_ptr;
  const int32_t *source, *target_by_source;
  const int32_t* place;  // [n]: the new number of a node, or -1
  const int64_t* nodes;  // [count], ascending
  int64_t count;
  int64_t *out_ptr, *out_source_ptr;  // [count + 1]
  int32_t *out_source, *out_target, *out_target_by_source;
  int64_t *out_edge, *out_by_source;
  int32_t threads;
};

namespace {

// The neighbours of v but v itself, at most `most`: those of the smallest (draw, number).
void sample_list(uint32_t v, const int32_t* begin, const int32_t* end, int64_t most, uint32_t seed,
                 std::vector<uint64_t>& draws, int32_t* to) {
  uint64_t last = std::numeric_limits<uint64_t>::max();
  const uint32_t mixed = mix(seed ^ v);
  const auto draw = [&](int32_t u) {
    return uint64_t(mix(mixed + static_cast<uint32_t>(u))) << 32 | static_cast<uint32_t>(u);
  };
  if (end - begin - 1 > most) {
    draws.clear();
    for (const int32_t* u = begin; u < end; ++u)
      if (static_cast<uint32_t>(*u) != v) draws.push_back(draw(*u));
    std::nth_element(draws.begin(), draws.begin() + (most - 1), draws.end());
    last = draws[most - 1];
  }
  for (const int32_t* u = begin; u < end; ++u)
    if (static_cast<uint32_t>(*u) != v && draw(*u) <= last) *to++ = *u;
}

void sample(const int64_t* ptr, const int32_t* source, const int64_t* nodes, int64_t count,
            int64_t most, uint32_t seed, const int64_t* out_ptr, int32_t* out, int threads) {
#pragma omp parallel num_threads(threads)
  {
    std::vector<uint64_t> draws;
#pragma omp for schedule(dynamic, 64)
    for (int64_t i = 0; i < count; ++i) {
      const int64_t v = nodes[i];
      sample_list(static_cast<uint32_t>(v), source + ptr[v], source + ptr[v + 1], most, seed, draws,
                  out + out_ptr[i]);
    }
  }
}

// How many of a list's entries are among the nodes, for every list: out[1 …].
void count_inside(const DeepgatSublists& p, const int64_t* ptr, const int32_t* index, int64_t* out) {
#pragma omp parallel for schedule(dynamic, 64) num_threads(p.threads)
  for (int64_t i = 0; i < p.count; ++i) {
    const int64_t v = p.nodes[i];
    int64_t found = 0;
    for (int64_t e = ptr[v]; e < ptr[v + 1]; ++e) found += p.place[index[e]] >= 0;
    out[i + 1] = found;
  }
  out[0] = 0;
  for (int64_t i = 0; i < p.count; ++i) out[i + 1] += out[i];
}

void fill(const DeepgatSublists& p) {
#pragma omp parallel num_threads(p.threads)
  {
#pragma omp for schedule(dynamic, 64)
    for (int64_t i = 0; i < p.count; ++i) {
      const int64_t v = p.nodes[i];
      int64_t to = p.out_ptr[i];
      for (int64_t e = p.ptr[v]; e < p.ptr[v + 1]; ++e) {
        const int32_t u = p.place[p.source[e]];
        if (u < 0) continue;
        p.out_source[to] = u;
        p.out_target[to] = static_cast<int32_t>(i);
        p.out_edge[to++] = e;
      }
    }
#pragma omp for schedule(dynamic, 64)
    for (int64_t i = 0; i < p.count; ++i) {
      const int64_t u = p.nodes[i];
      int64_t to = p.out_source_ptr[i];
      for (int64_t e = p.source_ptr[u]; e < p.source_ptr[u + 1]; ++e) {
        const int32_t v = p.place[p.target_by_source[e]];
        if (v < 0) continue;
        const int32_t* list = p.out_source + p.out_ptr[v];
        const int32_t* end = p.out_source + p.out_ptr[v + 1];
        p.out_target_by_source[to] = v;
        p.out_by_source[to++] =
            std::lower_bound(list, end, static_cast<int32_t>(i)) - p.out_source;
      }
    }
  }
}

}  // namespace

extern "C" void DEEPGAT_NAME(deepgat_sample)(const int64_t* ptr, const int32_t* source,
                                             const int64_t* nodes, int64_t count, int64_t most,
                                             uint32_t seed, const int64_t* out_ptr, int32_t* out,
                                             int32_t threads) {
  sample(ptr, source, nodes, count, most, seed, out_ptr, out, threads);
}
extern "C" void DEEPGAT_NAME(deepgat_sublists_count)(const DeepgatSublists* p) {
  count_inside(*p, p->ptr, p->source, p->out_ptr);
  count_inside(*p, p->source_ptr, p->target_by_source, p->out_source_ptr);
}
extern "C" void DEEPGAT_NAME(deepgat_sublists_fill)(const DeepgatSublists* p) { fill(*p); }
