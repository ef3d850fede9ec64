// Delimited text to columns, a buffer at a time: data/own/text.py is the definition, in Python.
//
// A table is fed whole buffers; it takes the complete rows and says how many bytes those were. Text
// cells become numbers of a dictionary (Names), which several columns and tables may share, so no
// text is kept twice. The first mistake stops the reading and is kept with its line and column.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "names.h"

namespace {

enum Kind { NUMBER = 0, AUTO = 1, TEXT = 2, NEW_ID = 3, KNOWN_ID = 4, ANY_ID = 5, SKIP = 6 };
enum Mistake { NONE = 0, CELLS = 1, NOT_A_NUMBER = 2, REPEATED = 3, UNKNOWN = 4, EMPTY_ID = 5,
               NOT_UTF8 = 6, NUL_BYTE = 7, OPEN_QUOTE = 8, AFTER_QUOTE = 9, TOO_MANY = 10 };

struct Slice {
  const char* at;
  int64_t size;
};

inline uint64_t folded(uint64_t a, uint64_t b) {  // all bits of a reach all bits of the result
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t hash_of(Slice s) {
  uint64_t h = 0x9E3779B97F4A7C15ull ^ static_cast<uint64_t>(s.size);
  while (s.size > 0) {
    uint64_t word = 0;
    const int64_t step = s.size < 8 ? s.size : 8;
    std::memcpy(&word, s.at, static_cast<size_t>(step));
    h = folded(h ^ word, 0xD6E8FEB86659FD93ull);
    s.at += step;
    s.size -= step;
  }
  return folded(h, 0xA0761D6478BD642Full);
}

bool is_utf8(Slice s) {
  const auto* p = reinterpret_cast<const unsigned char*>(s.at);
  const auto* end = p + s.size;
  while (p < end) {
    if (*p < 0x80) { ++p; continue; }
    int more;
    uint32_t code;
    if (*p >= 0xC2 && *p <= 0xDF) { more = 1; code = *p & 0x1Fu; }
    else if (*p >= 0xE0 && *p <= 0xEF) { more = 2; code = *p & 0x0Fu; }
    else if (*p >= 0xF0 && *p <= 0xF4) { more = 3; code = *p & 0x07u; }
    else return false;
    if (end - p <= more) return false;
    for (int i = 1; i <= more; ++i) {
      if ((p[i] & 0xC0) != 0x80) return false;
      code = code << 6 | (p[i] & 0x3Fu);
    }
    if (more == 2 && (code < 0x800 || (code >= 0xD800 && code <= 0xDFFF))) return false;
    if (more == 3 && (code < 0x10000 || code > 0x10FFFF)) return false;
    p += more + 1;
  }
  return true;
}

// Memory that is read here and there: in large pages where the system has them, since looking up
// small pages would take as long as the reading.
template <class T>
class Room {
 public:
  Room() = default;
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  ~Room() { std::free(items); }

  T* data() { return items; }
  const T* data() const { return items; }
  size_t size() const { return count; }
  T& operator[](size_t i) { return items[i]; }
  const T& operator[](size_t i) const { return items[i]; }

  void resize(size_t wanted, T fill) {  // grows alone
    if (wanted > held) {
      constexpr size_t large = size_t(1) << 21;
      size_t bytes = std::max(wanted, 2 * held) * sizeof(T);
      const size_t page = bytes >= 2 * large ? large : 64;
      bytes = (bytes + page - 1) / page * page;
      T* fresh = static_cast<T*>(std::aligned_alloc(page, bytes));
      if (!fresh) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
      if (page == large) madvise(fresh, bytes, MADV_HUGEPAGE);
#endif
      if (count) std::memcpy(static_cast<void*>(fresh), items, count * sizeof(T));
      std::free(items);
      items = fresh;
      held = bytes / sizeof(T);
    }
    std::fill(items + count, items + wanted, fill);
    count = wanted;
  }

  void append(const T* from, size_t more) {
    const size_t before = count;
    resize(count + more, T());
    std::copy_n(from, more, items + before);
  }

  void swap(Room& other) {
    std::swap(items, other.items);
    std::swap(count, other.count);
    std::swap(held, other.held);
  }

 private:
  T* items = nullptr;
  size_t count = 0, held = 0;
};

// Texts numbered in the order in which they first came.
struct Names {
  struct Slot {  // all that is needed to know whether a text is the one
    uint32_t hash = 0;
    int32_t index = -1;
    uint64_t begin : 40, size : 24;
    Slot() : begin(0), size(0) {}
  };
  static_assert(sizeof(Slot) == 16, "a look should read one line of the cache");
  static constexpr int64_t LONGEST = (1 << 24) - 1;

  Room<char> texts;
  std::vector<int64_t> ends{0};
  Room<Slot> slots;
  Room<int32_t> small;  // of whole numbers that lie close together: no hashing

  Names() { slots.resize(1024, Slot()); }
  int32_t count() const { return static_cast<int32_t>(ends.size() - 1); }

  static int64_t whole(Slice s) {
    if (s.size < 1 || s.size > 8 || (s.at[0] == '0' && s.size > 1)) return -1;
    int64_t value = 0;
    for (int64_t i = 0; i < s.size; ++i) {
      const unsigned digit = static_cast<unsigned char>(s.at[i]) - '0';
      if (digit > 9) return -1;
      value = 10 * value + digit;
    }
    return value;
  }

  int32_t find(Slice s) const {
    const int32_t found = find_small(whole(s));
    size_t place;
    return found >= 0 ? found : find_hashed(s, hash_of(s), &place);
  }

  // The number of a text, new or not; −1 and the mistake where it may not be a name.
  int32_t take(Slice s, bool* is_new, Mistake* mistake) {
    *is_new = false;
    const int64_t number = whole(s);
    int32_t found = find_small(number);
    if (found >= 0) return found;
    const uint64_t hash = hash_of(s);
    size_t place = 0;
    found = find_hashed(s, hash, &place);
    if (found >= 0) return found;
    if (std::memchr(s.at, 0, static_cast<size_t>(s.size))) { *mistake = NUL_BYTE; return -1; }
    if (!is_utf8(s)) { *mistake = NOT_UTF8; return -1; }
    const int32_t mine = count();
    if (mine == std::numeric_limits<int32_t>::max() - 1 || s.size > LONGEST) {
      *mistake = TOO_MANY;
      return -1;
    }
    *is_new = true;
    Slot slot;
    slot.hash = static_cast<uint32_t>(hash >> 32);
    slot.index = mine;
    slot.begin = texts.size();
    slot.size = static_cast<uint64_t>(s.size);
    texts.append(s.at, static_cast<size_t>(s.size));
    ends.push_back(static_cast<int64_t>(texts.size()));
    if (number >= 0 && number < 4 * int64_t(mine) + 1024) {
      if (number >= static_cast<int64_t>(small.size())) small.resize(2 * number + 1024, -1);
      small[number] = mine;
      return mine;
    }
    slots[place] = slot;
    if (++used * 2 > slots.size()) grow();
    return mine;
  }

  // Asks for the memory that a look at this text will read, first its slot and then its letters.
  uint64_t ask_for(Slice s) const {
    const int64_t number = whole(s);
    if (number >= 0 && number < static_cast<int64_t>(small.size())) {
      __builtin_prefetch(small.data() + number);
      return 0;
    }
    const uint64_t hash = hash_of(s);
    __builtin_prefetch(slots.data() + (hash & (slots.size() - 1)));
    return hash;
  }
  void ask_for_text(uint64_t hash) const {
    const Slot& slot = slots[hash & (slots.size() - 1)];
    if (hash && slot.index >= 0) __builtin_prefetch(texts.data() + slot.begin);
  }

 private:
  size_t used = 0;

  int32_t find_small(int64_t number) const {
    return number >= 0 && number < static_cast<int64_t>(small.size()) ? small[number] : -1;
  }

  int32_t find_hashed(Slice s, uint64_t hash, size_t* place) const {
    const size_t mask = slots.size() - 1;
    const uint32_t tag = static_cast<uint32_t>(hash >> 32);
    for (*place = hash & mask; slots[*place].index >= 0; *place = (*place + 1) & mask) {
      const Slot& slot = slots[*place];
      if (slot.hash == tag && static_cast<int64_t>(slot.size) == s.size &&
          !std::memcmp(texts.data() + slot.begin, s.at, static_cast<size_t>(s.size)))
        return slot.index;
    }
    return -1;
  }

  void grow() {
    Room<Slot> old;
    old.resize(slots.size() * 2, Slot());
    old.swap(slots);
    const size_t mask = slots.size() - 1;
    for (size_t i = 0; i < old.size(); ++i) {
      const Slot& slot = old[i];
      if (slot.index < 0) continue;
      const Slice s{texts.data() + slot.begin, static_cast<int64_t>(slot.size)};
      size_t place = hash_of(s) & mask;
      while (slots[place].index >= 0) place = (place + 1) & mask;
      slots[place] = slot;
    }
  }
};

bool same(Slice s, const char* word) {  // in any case; word in lower case
  if (s.size != static_cast<int64_t>(std::strlen(word))) return false;
  for (int64_t i = 0; i < s.size; ++i) {
    const char c = s.at[i];
    if ((c >= 'A' && c <= 'Z' ? c + 32 : c) != word[i]) return false;
  }
  return true;
}

bool digits(const char*& p, const char* end) {
  const char* from = p;
  while (p < end && *p >= '0' && *p <= '9') ++p;
  return p > from;
}

// [+-]digits[.digits][e[+-]digits], or a word for "missing" (NaN) or "infinite".
bool number_of(Slice s, double* value) {
  const char *p = s.at, *end = s.at + s.size;
  if (p < end && (*p == '+' || *p == '-')) ++p;
  const char* unsigned_part = p;
  if (end - p <= 9) {  // small whole numbers, the most frequent
    int64_t small = 0;
    while (p < end && *p >= '0' && *p <= '9') small = 10 * small + (*p++ - '0');
    if (p == end && p > unsigned_part) {
      *value = *s.at == '-' ? -static_cast<double>(small) : static_cast<double>(small);
      return true;
    }
    p = unsigned_part;
  }
  bool mantissa = digits(p, end);
  if (p < end && *p == '.') {
    ++p;
    mantissa = digits(p, end) || mantissa;
  }
  if (mantissa && p < end && (*p | 0x20) == 'e') {
    const char* exponent = p + 1;
    if (exponent < end && (*exponent == '+' || *exponent == '-')) ++exponent;
    if (digits(exponent, end)) p = exponent;
  }
  if (mantissa && p == end) {
    const char* from = *s.at == '+' ? s.at + 1 : s.at;
    const auto result = std::from_chars(from, end, *value);
    if (result.ec == std::errc::result_out_of_range)  // infinite, or 0
      *value = std::strtod(std::string(from, end).c_str(), nullptr);
    return true;
  }
  const Slice word{unsigned_part, end - unsigned_part};
  if (same(word, "inf") || same(word, "infinity")) {
    *value = *s.at == '-' ? -INFINITY : INFINITY;
    return true;
  }
  if (!s.size || same(s, "nan") || same(s, "na") || same(s, "n/a") || same(s, "null") ||
      same(s, "none")) {
    *value = NAN;
    return true;
  }
  return false;
}

struct Column {
  int32_t kind;
  Names* names;
  bool turned = false;           // AUTO: some cell was no number
  std::vector<double> numbers;
  std::vector<int32_t> codes;
};

struct Table {
  std::vector<Column> columns;
  char delimiter;                // ' ': any run of blanks and tabs
  bool comments;                 // lines that begin with # or % are not rows
  int64_t line, rows = 0;
  std::vector<int64_t> jumps;    // (row, line) wherever a row is not one line below the last
  int64_t expected;
  Mistake mistake = NONE;
  int64_t mistake_line = 0, mistake_column = -1, mistake_detail = 0;
  std::string mistake_text;
  std::string unquoted;

  // Names are all over the memory: what the coming lines will look up is asked for ahead of time.
  // A wrong guess, where cells are quoted, costs nothing but the guess.
  static constexpr size_t AHEAD = 32;
  std::vector<size_t> id_columns;
  std::vector<uint64_t> hints;  // [AHEAD][ids]
  const char* ahead = nullptr;
  size_t seen = 0, done = 0;

  void look_ahead(const char* end) {
    const size_t ids = id_columns.size();
    while (seen < done + AHEAD && ahead < end) {
      const char* q = ahead;
      size_t column = 0;
      uint64_t* line_hints = hints.data() + seen % AHEAD * ids;
      for (size_t i = 0; i < ids; ++i) {
        line_hints[i] = 0;
        const char* from = q;
        for (;; ++q) {
          if (q < end && *q != '\n' && *q != delimiter) continue;
          if (column == id_columns[i]) break;
          if (q >= end || *q == '\n') break;
          ++column;
          from = q + 1;
        }
        if (column != id_columns[i]) break;
        const char* to = q > from && q[-1] == '\r' ? q - 1 : q;
        line_hints[i] = columns[column].names->ask_for({from, to - from});
        if (q >= end || *q == '\n') {
          std::fill(line_hints + i + 1, line_hints + ids, 0);
          break;
        }
        ++column;
        ++q;
      }
      const void* stop = q < end ? std::memchr(q, '\n', static_cast<size_t>(end - q)) : nullptr;
      ahead = stop ? static_cast<const char*>(stop) + 1 : end;
      ++seen;
      if (seen < AHEAD / 2) continue;
      const uint64_t* half = hints.data() + (seen - AHEAD / 2) % AHEAD * ids;
      for (size_t i = 0; i < ids; ++i) columns[id_columns[i]].names->ask_for_text(half[i]);
    }
  }

  bool fail(Mistake what, int64_t at_line, int64_t column, Slice text, int64_t detail = 0) {
    mistake = what;
    mistake_line = at_line;
    mistake_column = column;
    mistake_detail = detail;
    mistake_text.assign(text.at, static_cast<size_t>(text.size < 80 ? text.size : 80));
    return false;
  }

  bool cell(int64_t number, Slice s) {
    Column& c = columns[number];
    bool is_new = false;
    Mistake wrong = NONE;
    switch (c.kind) {
      case NUMBER:
      case AUTO: {
        double value = NAN;
        if (!c.turned && !number_of(s, &value)) {
          if (c.kind == NUMBER) return fail(NOT_A_NUMBER, line, number, s);
          c.turned = true;
          c.numbers = {};
        }
        if (!c.turned) c.numbers.push_back(value);
        return true;
      }
      case TEXT: {
        const int32_t code = s.size ? c.names->take(s, &is_new, &wrong) : -1;
        if (wrong) return fail(wrong, line, number, s);
        c.codes.push_back(code);
        return true;
      }
      case KNOWN_ID: {
        const int32_t code = c.names->find(s);
        if (code < 0) return fail(s.size ? UNKNOWN : EMPTY_ID, line, number, s);
        c.codes.push_back(code);
        return true;
      }
      case NEW_ID:
      case ANY_ID: {
        if (!s.size) return fail(EMPTY_ID, line, number, s);
        const int32_t code = c.names->take(s, &is_new, &wrong);
        if (wrong) return fail(wrong, line, number, s);
        if (c.kind == NEW_ID && !is_new) return fail(REPEATED, line, number, s, code);
        c.codes.push_back(code);
        return true;
      }
    }
    return true;
  }

  static bool blank(char c, char delimiter) {
    return c == ' ' || (c == '\t' && delimiter != '\t');
  }

  // One row from p, its line ended by a newline or by end with ``last``. Returns where the next
  // begins, null where the row is not complete or wrong.
  const char* row(const char* p, const char* end, bool last) {
    const int64_t width = static_cast<int64_t>(columns.size());
    const char* q = p;
    if (delimiter == ' ') {
      while (q < end && blank(*q, delimiter)) ++q;
    }
    const char* content = q;
    while (content < end && (blank(*content, delimiter) || *content == '\r')) ++content;
    if (content == end && !last) return nullptr;
    const bool skipped = content == end || *content == '\n' ||
                         (comments && (*content == '#' || *content == '%'));
    if (skipped) {  // nothing on this line
      const void* found = std::memchr(content, '\n', static_cast<size_t>(end - content));
      if (!found && !last) return nullptr;
      ++line;
      return found ? static_cast<const char*>(found) + 1 : end;
    }
    if (!last && !complete(q, end)) return nullptr;
    int64_t number = 0, inner = 0;
    for (;;) {
      while (q < end && blank(*q, delimiter)) ++q;
      Slice s;
      if (q < end && *q == '"') {
        ++q;
        const char* from = q;
        unquoted.clear();
        bool copied = false, closed = false;
        while (q < end) {
          if (*q == '"') {
            if (q + 1 < end && q[1] == '"') {
              unquoted.append(from, static_cast<size_t>(q + 1 - from));
              copied = true;
              q += 2;
              from = q;
              continue;
            }
            closed = true;
            break;
          }
          inner += *q == '\n';
          ++q;
        }
        if (!closed) { fail(OPEN_QUOTE, line, number, {from, 0}); return nullptr; }
        s = {from, q - from};
        if (copied) {
          unquoted.append(from, static_cast<size_t>(q - from));
          s = {unquoted.data(), static_cast<int64_t>(unquoted.size())};
        }
        ++q;
        while (q < end && blank(*q, delimiter)) {
          if (delimiter == ' ') break;
          ++q;
        }
        if (q < end && *q == '\r' && (q + 1 == end || q[1] == '\n')) ++q;
        if (q < end && *q != '\n' && !(delimiter == ' ' ? blank(*q, ' ') : *q == delimiter)) {
          fail(AFTER_QUOTE, line, number, s);
          return nullptr;
        }
      } else {
        const char* from = q;
        if (delimiter == ' ') while (q < end && *q != '\n' && !blank(*q, ' ')) ++q;
        else while (q < end && *q != '\n' && *q != delimiter) ++q;
        const char* to = q;
        if (to > from && to[-1] == '\r' && (q == end || *q == '\n')) --to;
        while (to > from && blank(to[-1], delimiter)) --to;
        s = {from, to - from};
      }
      if (delimiter == ' ') {
        while (q < end && blank(*q, ' ')) ++q;
        if (q < end && *q == '\r' && (q + 1 == end || q[1] == '\n')) ++q;
      }
      const bool over = q >= end || *q == '\n';
      if (number < width && !cell(number, s)) return nullptr;
      ++number;
      if (over) break;
      if (delimiter != ' ') ++q;
    }
    if (number != width) {
      fail(CELLS, line, -1, {p, 0}, number);
      return nullptr;
    }
    if (line != expected) {
      jumps.push_back(rows);
      jumps.push_back(line);
    }
    ++rows;
    line += 1 + inner;
    expected = line - inner;  // a row of several lines is a jump for the next one
    return q < end ? q + 1 : end;
  }

  // Whether the row that begins at p ends before end, and not inside quotes.
  bool complete(const char* p, const char* end) const {
    const void* found = std::memchr(p, '\n', static_cast<size_t>(end - p));
    if (!found) return false;
    const char* stop = static_cast<const char*>(found);
    if (!std::memchr(p, '"', static_cast<size_t>(stop - p))) return true;
    for (;;) {  // a quote opens a cell only as its first character
      while (p < end && blank(*p, delimiter)) ++p;
      if (p < end && *p == '"') {
        for (++p; p < end; ++p) {
          if (*p != '"') continue;
          if (p + 1 < end && p[1] == '"') ++p;
          else break;
        }
        if (p >= end - 1) return false;  // still open, or the other half of "" may follow
        ++p;
      }
      if (delimiter == ' ') while (p < end && *p != '\n' && !blank(*p, ' ')) ++p;
      else while (p < end && *p != '\n' && *p != delimiter) ++p;
      if (p >= end) return false;
      if (*p == '\n') return true;
      ++p;
    }
  }
};

}  // namespace

extern "C" {

void* DEEPGAT_NAME(deepgat_names_new)() { return new Names; }
void DEEPGAT_NAME(deepgat_names_free)(void* names) { delete static_cast<Names*>(names); }
int64_t DEEPGAT_NAME(deepgat_names_count)(void* names) {
  return static_cast<Names*>(names)->count();
}
int64_t DEEPGAT_NAME(deepgat_names_bytes)(void* names) {
  return static_cast<int64_t>(static_cast<Names*>(names)->texts.size());
}
void DEEPGAT_NAME(deepgat_names_copy)(void* names, char* texts, int64_t* ends) {
  const Names& n = *static_cast<Names*>(names);
  std::memcpy(texts, n.texts.data(), n.texts.size());
  std::memcpy(ends, n.ends.data(), n.ends.size() * sizeof(int64_t));
}
int64_t DEEPGAT_NAME(deepgat_names_take)(void* names, const char* text, int64_t size) {
  bool is_new;
  Mistake wrong = NONE;
  return static_cast<Names*>(names)->take({text, size}, &is_new, &wrong);
}

void* DEEPGAT_NAME(deepgat_table_new)(int64_t width, const int32_t* kinds, void* const* names,
                                      int32_t delimiter, int32_t comments, int64_t first_line) {
  auto* table = new Table;
  table->columns.resize(static_cast<size_t>(width));
  for (int64_t i = 0; i < width; ++i) {
    table->columns[i].kind = kinds[i];
    table->columns[i].names = static_cast<Names*>(names[i]);
    if (kinds[i] == NEW_ID || kinds[i] == KNOWN_ID || kinds[i] == ANY_ID)
      table->id_columns.push_back(static_cast<size_t>(i));
  }
  table->hints.resize(Table::AHEAD * table->id_columns.size());
  table->delimiter = static_cast<char>(delimiter);
  table->comments = comments != 0;
  table->line = table->expected = first_line;
  return table;
}
void DEEPGAT_NAME(deepgat_table_free)(void* table) { delete static_cast<Table*>(table); }

// The bytes that were taken; whole rows only, unless ``last``. Stops at the first mistake.
int64_t DEEPGAT_NAME(deepgat_table_feed)(void* table, const char* bytes, int64_t size,
                                         int32_t last) {
  Table& t = *static_cast<Table*>(table);
  const char *p = bytes, *end = bytes + size;
  t.ahead = p;
  t.seen = t.done = 0;
  while (p < end && !t.mistake) {
    if (!t.id_columns.empty()) t.look_ahead(end);
    ++t.done;
    const char* next = t.row(p, end, last != 0);
    if (!next) break;
    p = next;
  }
  return p - bytes;
}
// rows, whether columns turned out to be text, and the mistake: code, line, column, detail.
int64_t DEEPGAT_NAME(deepgat_table_state)(void* table, int32_t* turned, int64_t* mistake,
                                          char* text) {
  const Table& t = *static_cast<Table*>(table);
  for (size_t i = 0; i < t.columns.size(); ++i) turned[i] = t.columns[i].turned;
  mistake[0] = t.mistake;
  mistake[1] = t.mistake_line;
  mistake[2] = t.mistake_column;
  mistake[3] = t.mistake_detail;
  mistake[4] = static_cast<int64_t>(t.mistake_text.size());
  std::memcpy(text, t.mistake_text.data(), t.mistake_text.size());
  return t.rows;
}
int64_t DEEPGAT_NAME(deepgat_table_jumps)(void* table, int64_t* out) {
  const Table& t = *static_cast<Table*>(table);
  if (out) std::memcpy(out, t.jumps.data(), t.jumps.size() * sizeof(int64_t));
  return static_cast<int64_t>(t.jumps.size() / 2);
}
// Moves a column out: doubles or int32 codes, and forgets it.
void DEEPGAT_NAME(deepgat_table_column)(void* table, int64_t number, void* out) {
  Column& c = static_cast<Table*>(table)->columns[number];
  if (!c.numbers.empty()) std::memcpy(out, c.numbers.data(), c.numbers.size() * sizeof(double));
  if (!c.codes.empty()) std::memcpy(out, c.codes.data(), c.codes.size() * sizeof(int32_t));
  c.numbers = {};
  c.codes = {};
}

}  // extern "C"
