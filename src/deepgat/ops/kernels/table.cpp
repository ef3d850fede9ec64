// Delimited text to columns, a buffer at a time: data/own/text.py is the definition, in Python.
//
// A table is fed whole buffers; it takes the complete rows and says how many bytes those were. Text
// cells become numbers of a dictionary (Names), which several columns and tables may share, so no
// text is kept twice. The first mistake stops the reading and is kept with its line and column.

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#ifndef DEEPGAT_SUFFIX
#define DEEPGAT_SUFFIX base
#endif
#define DEEPGAT_JOIN_(a, b) a##_##b
#define DEEPGAT_JOIN(a, b) DEEPGAT_JOIN_(a, b)
#define DEEPGAT_NAME(name) DEEPGAT_JOIN(name, DEEPGAT_SUFFIX)

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

// Texts numbered in the order in which they first came.
struct Names {
  std::string texts;
  std::vector<int64_t> ends{0};
  struct Slot {
    uint32_t hash = 0;
    int32_t index = -1;
  };
  std::vector<Slot> slots = std::vector<Slot>(1024);
  std::vector<int32_t> small;     // of whole numbers that lie close together: no hashing

  int32_t count() const { return static_cast<int32_t>(ends.size() - 1); }
  Slice text(int32_t i) const { return {texts.data() + ends[i], ends[i + 1] - ends[i]}; }

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

  int32_t find(Slice s, int64_t number, uint64_t hash, size_t* place) const {
    if (number >= 0 && number < static_cast<int64_t>(small.size()) && small[number] >= 0)
      return small[number];
    const size_t mask = slots.size() - 1;
    for (*place = hash & mask; slots[*place].index >= 0; *place = (*place + 1) & mask) {
      const Slot slot = slots[*place];
      if (slot.hash != static_cast<uint32_t>(hash >> 32)) continue;
      const Slice found = text(slot.index);
      if (found.size == s.size && !std::memcmp(found.at, s.at, static_cast<size_t>(s.size)))
        return slot.index;
    }
    return -1;
  }

  int32_t find(Slice s) const {
    const int64_t number = whole(s);
    if (number >= 0 && number < static_cast<int64_t>(small.size()) && small[number] >= 0)
      return small[number];
    size_t place;
    return find(s, number, hash_of(s), &place);
  }

  // The number of a text, new or not; −1 and the mistake where it may not be a name.
  int32_t take(Slice s, bool* is_new, Mistake* mistake) {
    *is_new = false;
    const int64_t number = whole(s);
    if (number >= 0 && number < static_cast<int64_t>(small.size()) && small[number] >= 0)
      return small[number];
    const uint64_t hash = hash_of(s);
    size_t place = 0;
    const int32_t found = find(s, number, hash, &place);
    if (found >= 0) return found;
    if (std::memchr(s.at, 0, static_cast<size_t>(s.size))) { *mistake = NUL_BYTE; return -1; }
    if (!is_utf8(s)) { *mistake = NOT_UTF8; return -1; }
    const int32_t mine = count();
    if (mine == std::numeric_limits<int32_t>::max() - 1) { *mistake = TOO_MANY; return -1; }
    *is_new = true;
    texts.append(s.at, static_cast<size_t>(s.size));
    ends.push_back(static_cast<int64_t>(texts.size()));
    if (number >= 0 && number < 4 * int64_t(mine) + 1024) {
      if (number >= static_cast<int64_t>(small.size())) small.resize(2 * number + 1024, -1);
      small[number] = mine;
      return mine;
    }
    slots[place] = {static_cast<uint32_t>(hash >> 32), mine};
    if (++used * 2 > slots.size()) grow();
    return mine;
  }

 private:
  size_t used = 0;

  void grow() {
    std::vector<Slot> old(slots.size() * 2);
    old.swap(slots);
    const size_t mask = slots.size() - 1;
    for (const Slot slot : old) {
      if (slot.index < 0) continue;
      size_t place = hash_of(text(slot.index)) & mask;
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
  }
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
  while (p < end && !t.mistake) {
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
