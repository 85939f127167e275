/* sws.h: decoder of .sws files (docs/format.md). One C99 header, no dependency, no allocation.

   In one source file:     #define SWS_IMPLEMENTATION
                           #include "sws.h"
   In all others:          #include "sws.h"

   To leave codes out, define SWS_WITHOUT_HAN, SWS_WITHOUT_PLANES (byte planes and scales), SWS_WITHOUT_FAST (tensors above
   2^20 weights, and bands) or SWS_WITHOUT_STATIC. A tensor with such a code is then SWS_ARGUMENT, and so is a compact file
   with SWS_WITHOUT_COMPACT.

   Define SWS_SMALL before every include for little flash and RAM: it decodes to the same bits, about four times slower.
   The file is a block of memory (flash, mmap), and the caller gives all other memory. README.md has an example.

   SPDX-License-Identifier: Apache-2.0 */
#ifndef SWS_H
#define SWS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  SWS_OK,
  SWS_END,       /* no tensor, or no tied name, is left */
  SWS_REFUSED,   /* the file breaks the format; section, number and offset of sws_file say where */
  SWS_WORKSPACE, /* the workspace is too small; sws_file.need says how many bytes are enough */
  SWS_ARGUMENT,  /* a shape is missing, a pointer is not aligned, or a tensor has no such output */
  SWS_STOPPED    /* the caller's function returned something other than 0 */
} sws_status;

typedef enum { /* where a file is refused, as format.md 10 names it */
  SWS_PREFIX,
  SWS_CHECKSUM,
  SWS_HEADER,
  SWS_HEADER_TENSOR, /* "header, tensor NUMBER" */
  SWS_HEADER_TIED,   /* "header, tied names" */
  SWS_CODEBOOK,      /* "codebook NUMBER" */
  SWS_TENSOR         /* the section of tensor NUMBER */
} sws_section;

enum { /* dtype numbers (format.md 2) */
  SWS_F32, SWS_F16, SWS_BF16, SWS_F64, SWS_I8, SWS_I16, SWS_I32, SWS_I64, SWS_U8, SWS_BOOL
};

typedef enum {
  SWS_OWN,     /* the tensor's own dtype, the same bits as in Python */
  SWS_FLOAT32, /* its values as float32, rounded once; for floats */
  SWS_FLOAT16, /* its values as float16; for floats */
  SWS_INDEX    /* indices into the codebook, for shared tensors: uint8_t up to 256 values, else uint16_t, and uint32_t for
                  65537. A tensor with scales needs sws_scales too */
} sws_output;

#define SWS_OPEN_BYTES 8192 /* a workspace with which sws_open reads every file; less is enough for short names */
#define SWS_MAX_BYTES (UINT64_C(1) << 32) /* the usual limit of decoded bytes */
#define SWS_OUTLINE_BYTES 1024 /* of the header of a compact file */

typedef struct {
  int version, codec; /* codec: 0 is han, 1 is adaptive */
  int has_names;      /* if 0, the network gives names and shapes: sws_shape */
  int compact;        /* 1: one code for the whole file, so tensors decode one after another; sws_file must not move */
  const uint8_t *base; /* NULL, or in a file of differences the SHA-256 of the checkpoint that they are added to */
  uint32_t n_codebooks, n_tensors, n_tied;
  uint64_t need; /* after SWS_WORKSPACE: bytes of workspace */
  /* after SWS_REFUSED: */
  sws_section section;
  uint32_t number; /* of the tensor or the codebook */
  uint64_t offset; /* in the file */
  /* private */
  const uint8_t *data;
  size_t end, codebooks, entries, tied, alone, sections, marks[16];
  uint32_t n_alone;
  uint32_t stride;
#ifndef SWS_WITHOUT_COMPACT
  const uint8_t *code;
  size_t code_bytes, code_at[2]; /* of tensor 0, and of tensor code_next */
  uint64_t code_range[2], code_value[2];
  uint32_t code_next;
  uint8_t outline[SWS_OUTLINE_BYTES];
#endif
} sws_file;

typedef struct {
  uint32_t number;  /* of the tensor in the file; of a tied name, that of the tensor it repeats */
  const char *name; /* UTF-8 with a 0 at its end, valid until the next call; NULL without names or without room */
  size_t name_bytes;
  int shared, dtype;       /* the dtype that it decodes to */
  int stored, planes;      /* of a tensor of the rest: dtype in the file, and whether it is coded by byte plane */
  int row_scales, column_scales, in_bands, is_static; /* version 2 */
  uint32_t codebook;       /* of a shared tensor */
  int has_shape, n_dims;   /* sws_size has the sizes */
  uint64_t n, rows, cols;  /* values; the matrix they form: one row for each entry of the first dimension, none if n is 0 */
  uint64_t offset, n_bytes; /* of its section; without meaning in a compact file */
  /* private */
  size_t at, sizes, stem_bytes, room;
  uint64_t first_size, counted, names_bytes;
  uint32_t next, before_codebook;
  uint8_t *stem;
  int vector, has_first, before_kind;
} sws_tensor;

/* A row of values, in order. Anything but 0 stops decoding. */
typedef int (*sws_row)(void *user, uint64_t row, const void *values, size_t n);

/* Read the headers alone; the checksum is not checked and nothing limits what the file decodes to. */
sws_status sws_inspect(sws_file *file, const void *data, size_t size, void *work, size_t work_bytes);

/* Check the whole header, the checksum and the limits of format.md 7. A name that repeats a tensor costs nothing here,
   because it is not decoded again. The workspace is free again after the call. */
sws_status sws_open(sws_file *file, const void *data, size_t size, uint64_t max_bytes, void *work, size_t work_bytes);

/* Go through the tensors in order: sws_first, then sws_next until SWS_END. `names` holds the current name (SWS_OPEN_BYTES
   are enough for all); NULL for no names. Then sws_next_tied goes through the tied names, with the same iterator. */
void sws_first(const sws_file *file, sws_tensor *tensor, void *names, size_t room);
sws_status sws_next(sws_file *file, sws_tensor *tensor);
sws_status sws_next_tied(sws_file *file, sws_tensor *tensor);
uint64_t sws_size(const sws_file *file, const sws_tensor *tensor, int dimension);
sws_status sws_shape(sws_tensor *tensor, const uint64_t *sizes, int n_dims); /* for a file without names */

/* Whether the shared tensor of this number is no difference from a base (format.md 3.5). Without a base, all stand alone. */
int sws_stands_alone(const sws_file *file, uint32_t number);

/* The number of values of a codebook, with the zero; and the first `n` of them. */
uint32_t sws_codebook_size(const sws_file *file, uint32_t codebook);
void sws_codebook(const sws_file *file, uint32_t codebook, float *values, uint32_t n);

/* Of a shared tensor, the number of weights that are not zero. */
sws_status sws_nonzero(sws_file *file, const sws_tensor *tensor, uint64_t *n_nonzero);

/* Bytes of a value in this output, 0 if the tensor has no such output; and of the workspace that decoding takes. */
size_t sws_value_bytes(const sws_file *file, const sws_tensor *tensor, sws_output output);
uint64_t sws_need(const sws_file *file, const sws_tensor *tensor, sws_output output); /* for sws_decode */
uint64_t sws_need_rows(const sws_file *file, const sws_tensor *tensor, sws_output output); /* for sws_rows */

/* Decode a tensor into `out`, which has room for n values; or row by row, so that memory need not hold it. If the file
   is refused halfway, what came before has been written. */
sws_status sws_decode(sws_file *file, const sws_tensor *tensor, sws_output output, void *out, void *work, size_t work_bytes);
sws_status sws_rows(sws_file *file, const sws_tensor *tensor, sws_output output, sws_row row, void *user, void *work,
                    size_t work_bytes);

/* The exponents of the rows' scales (columns = 0, `rows` bytes) or of the columns' (columns = 1, `cols` bytes): a weight is
   its value of the codebook times 2^((row + column) / 4), as format.md 5 says exactly. Without scales they are 0. The
   workspace is that of sws_decode. */
sws_status sws_scales(sws_file *file, const sws_tensor *tensor, int columns, int8_t *exponents, void *work, size_t work_bytes);

#ifdef __cplusplus
}
#endif
#endif /* SWS_H */

#ifdef SWS_IMPLEMENTATION
#ifndef SWS_IMPLEMENTED
#define SWS_IMPLEMENTED

/* A right shift of a negative number must round down, as every known compiler does it. */
typedef char swsi_arithmetic_shift[(-3 >> 1) == -2 ? 1 : -1];

#if defined(__GNUC__) && !defined(SWS_SMALL)
#define SWSI_HOT static inline __attribute__((always_inline))
#elif defined(__GNUC__)
#define SWSI_HOT static __attribute__((noinline))
#else
#define SWSI_HOT static
#endif
#if defined(__GNUC__)
#define SWSI_COLD __attribute__((noinline))
#else
#define SWSI_COLD
#endif
#if defined(__GNUC__) && !defined(__clang__) && !defined(SWS_SMALL)
#define SWSI_UNROLL _Pragma("GCC unroll 16")
#else
#define SWSI_UNROLL
#endif

#define SWSI_MAX_VALUES (UINT64_C(1) << 40)
#define SWSI_VERSION 2
#define SWSI_MAX_ITEMS 65536u
#ifndef SWSI_FAST_ABOVE /* tests lower it */
#define SWSI_FAST_ABOVE (UINT64_C(1) << 20)
#endif

static const uint8_t swsi_itemsize[10] = {4, 2, 2, 8, 1, 2, 4, 8, 1, 1};

static uint64_t swsi_add(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }
static uint64_t swsi_mul(uint64_t a, uint64_t b) { return b != 0 && a > UINT64_MAX / b ? UINT64_MAX : a * b; }
static uint64_t swsi_min(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Bytes of the header. After a failure, a reader gives zeros and keeps the place of the first failure. */

typedef struct {
  const uint8_t *data;
  size_t at, end, bad_at;
  int bad; /* 1: refused, 2: no room */
} swsi_reader;

static void swsi_fail(swsi_reader *r, size_t at) {
  if (!r->bad) {
    r->bad = 1;
    r->bad_at = at;
  }
}

static unsigned swsi_byte(swsi_reader *r) {
  if (r->bad) return 0;
  if (r->at >= r->end) {
    swsi_fail(r, r->at);
    return 0;
  }
  return r->data[r->at++];
}

static uint64_t swsi_varint(swsi_reader *r) {
  const size_t start = r->at;
  uint64_t value = 0;
  unsigned octet = 0, shift = 0;
  do {
    octet = swsi_byte(r);
    value |= (uint64_t)(octet & 127) << shift;
    shift += 7;
  } while (octet > 127 && shift < 63);
  if (octet > 127 || (octet == 0 && shift > 7)) swsi_fail(r, start);
  return r->bad ? 0 : value;
}

static uint64_t swsi_count(swsi_reader *r) { /* of items that take at least a byte each */
  const size_t start = r->at;
  const uint64_t n = swsi_varint(r);
  if (n > swsi_min(SWSI_MAX_ITEMS, r->end - r->at)) swsi_fail(r, start);
  return r->bad ? 0 : n;
}

static uint32_t swsi_load(const uint8_t *p, unsigned n) { /* little-endian */
  uint32_t value = 0;
  while (n--) value = value << 8 | p[n];
  return value;
}

/* Floats as bits (format.md 5, 6): a value in another format, rounded to nearest, ties to even. */

static uint64_t swsi_convert(uint64_t bits, int from, int to) {
  static const uint8_t exponents[4] = {8, 5, 8, 11}, mantissas[4] = {23, 10, 7, 52};
  const int m1 = mantissas[from], m2 = mantissas[to], x1 = (1 << exponents[from]) - 1, x2 = (1 << exponents[to]) - 1;
  const uint64_t one = 1, sign = bits >> (exponents[from] + m1) << (exponents[to] + m2);
  uint64_t m = bits & ((one << m1) - 1);
  int e = (int)(bits >> m1) & x1, drop = m1 - m2;
  if (from == to) return bits;
  if (e == x1) { /* infinities, NaNs: widened NaNs keep their payload, and only float32 takes a signalling bfloat16 */
    m = drop > 0 ? m >> drop : m << -drop;
    if ((bits & ((one << m1) - 1)) != 0 && !(from == SWS_BF16 && to == SWS_F32)) m |= one << (m2 - 1);
    return sign | (uint64_t)x2 << m2 | m;
  }
  if (e == 0) {
    if (m == 0) return sign;
    for (e = 1; !(m >> m1); e--) m <<= 1;
  } else {
    m |= one << m1;
  }
  e += (x2 >> 1) - (x1 >> 1); /* in the new bias */
  if (e < 1) {
    drop += 1 - e;
    e = 1;
  }
  if (drop > m1 + 1) return sign;
  m = drop > 0 ? (m + (one << (drop - 1)) - 1 + (m >> drop & 1)) >> drop : m << -drop;
  m += (uint64_t)(e - 1) << m2;
  return sign | (m >> m2 >= (uint64_t)x2 ? (uint64_t)x2 << m2 : m);
}

static int swsi_finite(uint64_t bits, int dtype) { /* dtype: a float */
  const uint64_t wide = swsi_convert(bits, dtype, SWS_F64);
  return (wide >> 52 & 2047) != 2047;
}

/* The header (format.md 3 and 4) */

static const uint8_t *swsi_book(const sws_file *f, uint32_t k, uint32_t *n, int *dtype) {
  swsi_reader r = {f->data, 0, 0, 0, 0};
  uint32_t from = k / f->stride * f->stride;
  r.at = f->marks[k / f->stride];
  r.end = f->end;
  for (;; from++) {
    const uint64_t code = swsi_varint(&r);
    *n = (uint32_t)(code >> 2);
    *dtype = (int)(code & 3);
    if (from == k) return f->data + r.at;
    r.at += (size_t)*n * swsi_itemsize[*dtype];
  }
}

static uint32_t swsi_value(const uint8_t *book, int dtype, uint32_t k) { /* the bits of value k as float32 */
  const unsigned size = swsi_itemsize[dtype];
  return k == 0 ? 0 : (uint32_t)swsi_convert(swsi_load(book + (size_t)(k - 1) * size, size), dtype, SWS_F32);
}

static void swsi_read_codebook(swsi_reader *r) {
  const size_t start = r->at;
  const uint64_t code = swsi_varint(r), n = code >> 2;
  const int dtype = (int)(code & 3);
  uint32_t k, before = 1;
  const uint8_t *book;
  if (dtype > SWS_BF16 || n > 65536) swsi_fail(r, start);
  if (r->bad) return;
  if (n * swsi_itemsize[dtype] > r->end - r->at) {
    swsi_fail(r, r->at);
    return;
  }
  book = r->data + r->at;
  for (k = 1; k <= n; k++) { /* bits of floats have the order of their magnitudes */
    const uint32_t magnitude = swsi_value(book, dtype, k) & 0x7fffffffu;
    if (magnitude < before || magnitude >= 0x7f800000u) swsi_fail(r, start);
    before = magnitude;
  }
  r->at += (size_t)n * swsi_itemsize[dtype];
}

static int swsi_name_is_valid(const uint8_t *s, size_t n) { /* UTF-8 without control characters */
  size_t i = 0;
  if (n == 0) return 0;
  while (i < n) {
    const unsigned c = s[i++];
    unsigned more = c < 0x80 ? 0 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3, low = 0x80, high = 0xbf;
    if (c < 0x20 || c == 0x7f || (c >= 0x80 && (c < 0xc2 || c > 0xf4)) || n - i < more) return 0;
    if (c == 0xe0 || c == 0xc2) low = 0xa0; /* C2 80 to C2 9F are control characters */
    if (c == 0xed) high = 0x9f;
    if (c == 0xf0) low = 0x90;
    if (c == 0xf4) high = 0x8f;
    for (; more; more--, i++, low = 0x80, high = 0xbf)
      if (s[i] < low || s[i] > high) return 0;
  }
  return 1;
}

static void swsi_read_name(swsi_reader *r, sws_tensor *t, int check) {
  static const char suffixes[] = "\0.weight\0.bias\0.running_mean\0.running_var\0.num_batches_tracked\0.in_proj_weight\0"
                                 ".in_proj_bias";
  const size_t start = r->at;
  const unsigned first = swsi_byte(r);
  uint64_t prefix = first & 31, more;
  unsigned suffix = first >> 5;
  const char *end = suffixes;
  size_t k, n_end = 0;
  if (prefix == 31) prefix += swsi_varint(r);
  if (r->bad) return;
  if (prefix > t->stem_bytes) {
    swsi_fail(r, start);
    return;
  }
  more = swsi_varint(r);
  if (more > 4096 || prefix + more > 4096) swsi_fail(r, start);
  if (r->bad) return;
  if (more > r->end - r->at) {
    swsi_fail(r, r->at);
    return;
  }
  while (suffix--)
    while (*end++) {}
  while (end[n_end]) n_end++;
  t->stem_bytes = (size_t)(prefix + more);
  t->name_bytes = t->stem_bytes + n_end;
  t->name = NULL;
  if (t->name_bytes > 4096) swsi_fail(r, start);
  if (r->bad) return;
  if (t->stem != NULL) {
    if (t->name_bytes + 1 > t->room) {
      r->bad = 2;
      return;
    }
    for (k = 0; k < more; k++) t->stem[prefix + k] = r->data[r->at + k];
    for (k = 0; k <= n_end; k++) t->stem[t->stem_bytes + k] = (uint8_t)end[k];
    t->name = (const char *)t->stem;
    t->names_bytes += t->name_bytes;
    if (check && (t->names_bytes > UINT32_C(1) << 24 || !swsi_name_is_valid(t->stem, t->name_bytes))) swsi_fail(r, start);
  }
  r->at += (size_t)more;
}

static int swsi_set_size(sws_tensor *t, int k, uint64_t size) { /* 0 if there are too many values */
  const uint64_t counted = size ? size : 1;
  if (k == 0) t->n = t->counted = t->rows = t->cols = 1;
  if (counted > SWSI_MAX_VALUES / t->counted) return 0;
  t->counted *= counted;
  t->n *= size;
  if (k == 0 && t->n_dims > 1) t->rows = size;
  else t->cols *= size;
  if (t->n == 0) t->rows = t->cols = 0; /* (0, 2^36) takes no memory, and (2^36, 0) no time */
  return 1;
}

static void swsi_read_shape(swsi_reader *r, sws_tensor *t) {
  const size_t start = r->at;
  const unsigned n_dims = swsi_byte(r);
  int k, fits = 1;
  uint64_t first = t->first_size;
  t->sizes = r->at;
  t->vector = n_dims == 128 && t->has_first;
  t->n_dims = t->vector ? 1 : (int)n_dims;
  if (t->n_dims > 64) {
    swsi_fail(r, start);
    return;
  }
  t->n = t->rows = t->cols = t->counted = 1;
  for (k = 0; k < t->n_dims && !r->bad; k++) {
    const uint64_t size = t->vector ? first : swsi_varint(r);
    if (k == 0) first = size;
    if (fits) fits = swsi_set_size(t, k, size);
  }
  if (!fits) swsi_fail(r, start);
  t->first_size = first;
  t->has_first = t->n_dims > 0;
  t->has_shape = 1;
}

static void swsi_read_entry(const sws_file *f, swsi_reader *r, sws_tensor *t, int check) {
  const size_t start = r->at;
  const uint64_t length = swsi_varint(r);
  unsigned kind = length & 1 ? 0 : swsi_byte(r);
  t->n_bytes = length >> 1;
  t->shared = !(kind & 1);
  t->planes = 0;
  if (t->shared) {
    if (!(length & 1)) {
      if (f->version == 1 ? kind >> 1 > SWS_F64 : (kind >> 1 & 7) > SWS_F64 || (kind & 144) == 144) swsi_fail(r, r->at - 1);
      t->before_kind = (int)kind;
      t->before_codebook = (uint32_t)swsi_min(swsi_varint(r), UINT32_MAX);
    }
    t->dtype = t->stored = t->before_kind >> 1 & 7;
    t->codebook = t->before_codebook;
    if (t->codebook >= f->n_codebooks) swsi_fail(r, start);
    kind = (unsigned)t->before_kind;
  } else {
    const unsigned is_static = f->version > 1 ? kind & 128 : 0;
    t->dtype = t->stored = (int)((kind ^ is_static) >> 3);
    t->planes = kind >> 1 & 1;
    if (t->dtype > SWS_BOOL || (is_static && !t->planes)) swsi_fail(r, r->at - 1);
    if (kind & 4 && !r->bad) {
      t->stored = (int)swsi_byte(r);
      if (t->stored > SWS_BOOL) swsi_fail(r, r->at - 1);
      else if (t->dtype > SWS_F64 || t->stored > SWS_F64 || swsi_itemsize[t->stored] >= swsi_itemsize[t->dtype])
        swsi_fail(r, start);
    }
    kind = is_static;
  }
  t->in_bands = (int)(kind >> 4 & 1);
  t->row_scales = (int)(kind >> 5 & 1);
  t->column_scales = (int)(kind >> 6 & 1);
  t->is_static = (int)(kind >> 7 & 1);
  t->has_shape = 0;
  if (f->has_names && !r->bad) {
    swsi_read_name(r, t, check);
    if (!r->bad) swsi_read_shape(r, t);
  }
}

void sws_first(const sws_file *f, sws_tensor *t, void *names, size_t room) {
  t->at = f->entries;
  t->next = 0;
  t->name = NULL;
  t->stem = (uint8_t *)names;
  t->room = room;
  t->name_bytes = t->stem_bytes = 0;
  t->names_bytes = 0;
  t->before_kind = 0;
  t->before_codebook = 0;
  t->has_first = 0;
  t->first_size = 0;
  t->offset = f->sections;
  t->n_bytes = 0;
  t->has_shape = t->n_dims = 0;
  t->n = t->rows = t->cols = t->counted = 1;
}

static sws_status swsi_refuse(sws_file *f, sws_section section, uint32_t number, uint64_t offset) {
  f->section = section;
  f->number = number;
  f->offset = offset;
  return SWS_REFUSED;
}

static sws_status swsi_stopped(sws_file *f, const swsi_reader *r, sws_section section, uint32_t number) {
  f->need = SWS_OPEN_BYTES;
  return r->bad == 2 ? SWS_WORKSPACE : swsi_refuse(f, section, number, r->bad_at);
}

static sws_status swsi_step(sws_file *f, sws_tensor *t, int check) {
  swsi_reader r = {f->data, 0, 0, 0, 0};
  if (t->next >= f->n_tensors) return SWS_END;
  r.at = t->at;
  r.end = f->end;
  t->offset = swsi_add(t->offset, t->n_bytes);
  t->number = t->next++;
  swsi_read_entry(f, &r, t, check);
  t->at = r.at;
  return r.bad ? swsi_stopped(f, &r, SWS_HEADER_TENSOR, t->number) : SWS_OK;
}

static sws_status swsi_step_tied(sws_file *f, sws_tensor *t, int check) {
  swsi_reader r = {f->data, 0, 0, 0, 0};
  size_t start;
  uint64_t number;
  if (!f->has_names || t->next - f->n_tensors >= f->n_tied) return SWS_END;
  r.at = start = t->next == f->n_tensors ? f->tied : t->at;
  r.end = f->end;
  t->next++;
  swsi_read_name(&r, t, check);
  number = swsi_varint(&r);
  if (number >= f->n_tensors) swsi_fail(&r, start);
  t->number = (uint32_t)number;
  t->at = r.at;
  return r.bad ? swsi_stopped(f, &r, SWS_HEADER_TIED, 0) : SWS_OK;
}

sws_status sws_next(sws_file *f, sws_tensor *t) { return swsi_step(f, t, 0); }

sws_status sws_next_tied(sws_file *f, sws_tensor *t) {
  return t->next < f->n_tensors ? SWS_END : swsi_step_tied(f, t, 0);
}

uint64_t sws_size(const sws_file *f, const sws_tensor *t, int dimension) {
  swsi_reader r = {f->data, 0, 0, 0, 0};
  uint64_t size = t->first_size;
  r.at = t->sizes;
  r.end = f->end;
  if (!t->vector && f->has_names)
    while (dimension-- >= 0) size = swsi_varint(&r);
  return size;
}

sws_status sws_shape(sws_tensor *t, const uint64_t *sizes, int n_dims) {
  int k, fits = n_dims >= 0 && n_dims <= 64;
  t->n_dims = n_dims;
  t->n = t->rows = t->cols = t->counted = 1;
  for (k = 0; fits && k < n_dims; k++) fits = swsi_set_size(t, k, sizes[k]);
  t->has_shape = fits;
  return fits ? SWS_OK : SWS_ARGUMENT;
}

int sws_stands_alone(const sws_file *f, uint32_t number) {
  swsi_reader r = {f->data, 0, 0, 0, 0};
  uint32_t k;
  if (f->base == NULL) return 1;
  r.at = f->alone;
  r.end = f->end;
  for (k = 0; k < f->n_alone; k++)
    if (swsi_varint(&r) == number) return 1;
  return 0;
}

uint32_t sws_codebook_size(const sws_file *f, uint32_t codebook) {
  uint32_t n = 0;
  int dtype;
  if (codebook >= f->n_codebooks) return 0;
  (void)swsi_book(f, codebook, &n, &dtype);
  return n + 1;
}

typedef union {
  uint32_t bits;
  float value;
} swsi_float;

void sws_codebook(const sws_file *f, uint32_t codebook, float *values, uint32_t n) {
  uint32_t k, size;
  int dtype;
  const uint8_t *book;
  if (codebook >= f->n_codebooks) return;
  book = swsi_book(f, codebook, &size, &dtype);
  for (k = 0; k < n && k <= size; k++) {
    swsi_float x;
    x.bits = swsi_value(book, dtype, k);
    values[k] = x.value;
  }
}

/* Names that occur twice. A table of some 64-bit hashes is compared with all names after them; then come the next. */

static sws_status swsi_next_name(sws_file *f, sws_tensor *t, uint64_t *hash, size_t *at) {
  sws_status status;
  size_t k;
  *at = t->next == f->n_tensors ? f->tied : t->at;
  status = t->next < f->n_tensors ? swsi_step(f, t, 0) : swsi_step_tied(f, t, 0);
  *hash = UINT64_C(0xcbf29ce484222325);
  for (k = 0; status == SWS_OK && k < t->name_bytes; k++) *hash = (*hash ^ t->stem[k]) * UINT64_C(0x100000001b3);
  *hash = (*hash ^ *hash >> 29) | 1;
  return status;
}

static int swsi_twice(sws_file *f, sws_tensor *t, uint32_t from, uint32_t to, uint64_t *table, size_t slots, size_t *where) {
  uint8_t *names = t->stem; /* returns whether a name of from..to - 1 repeats one of them, and where the first does */
  const size_t room = t->room;
  uint32_t first = to, start, k;
  for (start = from; start < first; start += (uint32_t)(slots / 2)) {
    size_t s;
    for (s = 0; s < slots; s++) table[s] = 0;
    sws_first(f, t, names, room);
    for (k = 0; k < first; k++) {
      uint64_t hash;
      size_t at;
      if (swsi_next_name(f, t, &hash, &at) != SWS_OK) break;
      if (k < start) continue;
      for (s = (size_t)(hash >> 7) & (slots - 1); table[s] != 0 && table[s] != hash; s = (s + 1) & (slots - 1)) {}
      if (table[s] == hash) {
        first = k;
        *where = at;
      } else if (k - start < slots / 2) {
        table[s] = hash;
      }
    }
  }
  return first < to;
}

static sws_status swsi_header(sws_file *f, size_t room, uint8_t *names, uint64_t *table, size_t slots) {
  swsi_reader r = {f->data, 5, 0, 0, 0};
  sws_tensor t;
  sws_status status = SWS_OK;
  uint64_t values = 0, sections = 0, k;
  int version = 1, bands = 0;
  uint32_t n_tied;
  unsigned flags;
  size_t where = 0;
  r.end = f->end;
  f->n_tensors = f->n_tied = f->n_alone = 0;
  flags = swsi_byte(&r);
  if (flags > (f->version > 1 ? 7u : 3u) || (flags & 6) == 4) swsi_fail(&r, 5);
  f->base = flags & 4 ? f->data + r.at : NULL;
  if (flags & 4 && r.end - r.at < 32) swsi_fail(&r, r.at);
  else if (flags & 4) r.at += 32;
  f->codec = (int)(flags & 1);
  f->has_names = (int)(flags >> 1 & 1);
  f->n_codebooks = (uint32_t)swsi_count(&r);
  f->codebooks = r.at;
  if (r.bad) return swsi_stopped(f, &r, SWS_HEADER, 0);
  f->stride = f->n_codebooks / 16 + 1;
  for (k = 0; k < f->n_codebooks; k++) {
    if (k % f->stride == 0) f->marks[k / f->stride] = r.at;
    swsi_read_codebook(&r);
    if (r.bad) return swsi_stopped(f, &r, SWS_CODEBOOK, (uint32_t)k);
  }
  f->n_tensors = (uint32_t)swsi_count(&r);
  if (r.bad) return swsi_stopped(f, &r, SWS_HEADER, 0);
  f->entries = r.at;
  f->sections = 0;
  sws_first(f, &t, names, room);
  for (k = 0; k < f->n_tensors; k++) {
    status = swsi_step(f, &t, 1);
    if (status != SWS_OK) return status;
    values = swsi_add(values, t.counted);
    sections = swsi_add(sections, t.n_bytes);
    bands |= t.in_bands;
    if (t.row_scales || t.column_scales || t.in_bands || t.is_static) version = 2;
  }
  r.at = t.at;
  if (f->has_names) {
    n_tied = (uint32_t)swsi_count(&r);
    if (r.bad) return swsi_stopped(f, &r, SWS_HEADER_TIED, 0);
    f->tied = r.at;
    f->n_tied = n_tied;
    for (k = 0; k < n_tied && status == SWS_OK; k++) {
      status = swsi_step_tied(f, &t, 1);
      if (status != SWS_OK) f->n_tied = (uint32_t)k; /* those that can be read again */
    }
    if (n_tied) r.at = t.at;
    if (status == SWS_WORKSPACE) return status;
    {
      const sws_file before = *f;
      if (swsi_twice(f, &t, f->n_tensors, f->n_tensors + f->n_tied, table, slots, &where))
        return swsi_refuse(f, SWS_HEADER_TIED, 0, where);
      if (status != SWS_OK) return swsi_refuse(f, before.section, before.number, before.offset);
    }
    if (f->base != NULL) { /* numbers of shared tensors, rising */
      const uint64_t n_alone = swsi_count(&r);
      uint64_t least = 0;
      f->alone = r.at;
      f->n_alone = (uint32_t)n_alone;
      sws_first(f, &t, NULL, 0);
      for (k = 0; k < n_alone && !r.bad; k++) {
        const size_t start = r.at;
        const uint64_t number = swsi_varint(&r);
        if (number < least || number >= f->n_tensors) swsi_fail(&r, start);
        while (!r.bad && t.next <= number) (void)swsi_step(f, &t, 0);
        if (!r.bad && !t.shared) swsi_fail(&r, start);
        least = number + 1;
      }
      if (r.bad) return swsi_stopped(f, &r, SWS_HEADER_TIED, 0);
      t.stem = names;
      t.room = room;
    }
  }
  f->sections = r.at;
  if (swsi_add(r.at, sections) != f->end || values > SWSI_MAX_VALUES || (bands && f->codec == 0) ||
      (f->has_names && swsi_twice(f, &t, 0, f->n_tensors + f->n_tied, table, slots, &where)))
    return swsi_refuse(f, SWS_HEADER, 0, r.at);
  return (f->base != NULL ? 2 : version) == f->version ? SWS_OK : swsi_refuse(f, SWS_HEADER, 0, 4);
}

/* Checksum, limits, and opening */

static uint32_t swsi_crc(const uint8_t *p, size_t n) {
  uint32_t crc = UINT32_MAX;
#ifdef SWS_SMALL
  int k;
  for (; n; n--)
    for (crc ^= *p++, k = 0; k < 8; k++) crc = crc >> 1 ^ (UINT32_C(0xedb88320) & (0u - (crc & 1)));
#else
  uint32_t table[8][256], i, k; /* eight bytes at a time */
  for (i = 0; i < 256; i++) {
    uint32_t c = i;
    for (k = 0; k < 8; k++) c = c >> 1 ^ (UINT32_C(0xedb88320) & (0u - (c & 1)));
    table[0][i] = c;
  }
  for (k = 1; k < 8; k++)
    for (i = 0; i < 256; i++) table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 255];
  for (; n >= 8; n -= 8, p += 8) {
    const uint32_t a = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
    crc = table[7][a & 255] ^ table[6][a >> 8 & 255] ^ table[5][a >> 16 & 255] ^ table[4][a >> 24] ^ table[3][p[4]] ^
          table[2][p[5]] ^ table[1][p[6]] ^ table[0][p[7]];
  }
  for (; n; n--) crc = crc >> 8 ^ table[0][(crc ^ *p++) & 255];
#endif
  return ~crc;
}

static int swsi_is_fast(const sws_tensor *t) { return t->in_bands || t->n > SWSI_FAST_ABOVE; }

static uint64_t swsi_steps(const sws_file *f, const sws_tensor *t) { /* format.md 7 */
  swsi_reader r = {f->data, 0, 0, 0, 0};
  uint64_t n_nonzero, steps;
  uint32_t n;
  int dtype, bits = 0;
  r.at = (size_t)t->offset;
  r.end = (size_t)(t->offset + t->n_bytes);
  if (!t->shared) {
    const unsigned size = swsi_itemsize[t->stored];
    uint64_t coded = 0;
    unsigned k, modes = 0;
    for (k = 0; t->planes && k < size; k++) {
      if (k % 4 == 0) modes = r.at + k / 4 < r.end ? f->data[r.at + k / 4] : 0;
      coded += (modes >> 2 * (k % 4) & 3) == 2;
    }
    return swsi_add(1 << 14, swsi_mul((t->is_static ? 1 : 16) * coded, t->n));
  }
  n_nonzero = t->n_bytes ? swsi_varint(&r) : 0;
  if (r.bad || (t->n_bytes && n_nonzero == 0)) return 1 << 14;
  steps = (1 << 14) + 16 * ((t->row_scales ? t->rows : 0) + (t->column_scales ? t->cols : 0)) + t->n;
  if (n_nonzero == 0 || f->codec == 0 || t->is_static) return steps;
  (void)swsi_book(f, t->codebook, &n, &dtype);
  for (; n > 1 && (n - 1) >> bits; bits++) {}
  return steps + (swsi_is_fast(t) ? 0 : 5) * t->n + (uint64_t)(5 * bits) * swsi_min(n_nonzero, t->n);
}

#ifndef SWS_WITHOUT_COMPACT
static int swsi_expand(sws_file *f, void *work);
static int swsi_starts_well(const sws_file *f);
#define SWSI_FIELD_STATES 1069
#endif

static sws_status swsi_open(sws_file *f, const void *data, size_t size, uint64_t max_bytes, int check, void *work,
                            size_t work_bytes) {
  static const uint8_t magic[4] = {0x89, 0x53, 0x57, 0x53};
  const size_t skew = (size_t)(0 - (uintptr_t)work) & 7;
  size_t k, slots = 4, room, end;
  uint8_t *memory = (uint8_t *)work + skew;
  sws_status status;
  f->data = (const uint8_t *)data;
  f->end = end = size < 4 ? 0 : size - 4;
  for (k = 0; k < 4; k++)
    if (k >= end || f->data[k] != magic[k]) return swsi_refuse(f, SWS_PREFIX, 0, 0);
  f->version = end > 4 ? f->data[4] : 0;
  if (f->version < 1 || f->version > SWSI_VERSION) return swsi_refuse(f, SWS_PREFIX, 0, 4);
  if (check && swsi_crc(f->data, end) != swsi_load(f->data + end, 4)) return swsi_refuse(f, SWS_CHECKSUM, 0, end);
  f->need = SWS_OPEN_BYTES;
  if (work_bytes < 64 + skew) return SWS_WORKSPACE;
  work_bytes -= skew;
  f->compact = f->version > 1 && end > 5 && f->data[5] == 11;
  if (f->compact) {
#ifdef SWS_WITHOUT_COMPACT
    return SWS_ARGUMENT;
#else
    if (work_bytes < 6 * SWSI_FIELD_STATES + SWS_OUTLINE_BYTES) return SWS_WORKSPACE;
    if (!swsi_expand(f, memory)) return swsi_refuse(f, SWS_HEADER, 0, 6);
#endif
  }
  while (32 * slots <= work_bytes) slots *= 2; /* an eighth to a quarter... */
  while (slots > 4 && work_bytes - 8 * slots < swsi_min(4112, work_bytes / 2)) slots /= 2;
  room = work_bytes - 8 * slots;
  status = swsi_header(f, room, memory + 8 * slots, (uint64_t *)(void *)memory, slots);
#ifndef SWS_WITHOUT_COMPACT
  if (f->compact) {
    f->version = 2;
    if (status == SWS_REFUSED || (status == SWS_OK && !swsi_starts_well(f))) return swsi_refuse(f, SWS_HEADER, 0, 6);
  }
#endif
  if (status == SWS_OK && check && max_bytes != UINT64_MAX) {
    const uint64_t base = swsi_add(UINT64_C(1) << 30, swsi_mul(128, size));
    uint64_t bytes = 0, steps = 0;
    sws_tensor t;
    sws_first(f, &t, NULL, 0);
    while (sws_next(f, &t) == SWS_OK) {
      bytes = swsi_add(bytes, swsi_mul(t.n, swsi_itemsize[t.dtype]));
      steps = swsi_add(steps, swsi_steps(f, &t));
    }
    if (bytes > max_bytes || steps > swsi_mul(base, max_bytes >> 32 ? max_bytes >> 32 : 1))
      return swsi_refuse(f, SWS_HEADER, 0, 0);
  }
  return status;
}

sws_status sws_inspect(sws_file *f, const void *data, size_t size, void *work, size_t work_bytes) {
  return swsi_open(f, data, size, 0, 0, work, work_bytes);
}

sws_status sws_open(sws_file *f, const void *data, size_t size, uint64_t max_bytes, void *work, size_t work_bytes) {
  return swsi_open(f, data, size, max_bytes, 1, work, work_bytes);
}

sws_status sws_nonzero(sws_file *f, const sws_tensor *t, uint64_t *n_nonzero) {
  swsi_reader r = {f->data, 0, 0, 0, 0};
  *n_nonzero = 0;
  if (!t->shared) return SWS_ARGUMENT;
  if (t->n_bytes == 0) return SWS_OK;
  r.at = (size_t)t->offset;
  r.end = (size_t)(t->offset + t->n_bytes);
  *n_nonzero = swsi_varint(&r);
  return r.bad || *n_nonzero == 0 ? swsi_refuse(f, SWS_TENSOR, t->number, t->offset) : SWS_OK;
}

/* Tables of the logistic function (format.md 8.1). anchor has every 32nd SQUASH[-x], fall the difference to the next
   one, and bend how much less the next difference is, plus 1: four bits for each of the first 960, then two. */

static const uint32_t swsi_anchor[96] = {
  2097152, 1966250, 1836365, 1708480, 1583520, 1462324, 1345622, 1234027, 1128022, 1027961, 934072, 846466,
  765148, 690032, 620955, 557692, 499973, 447493, 399925, 356931, 318172, 283311, 252022, 223990,
  198919, 176529, 156560, 138773, 122944, 108873, 96374, 85280, 75440, 66716, 58987, 52142,
  46083, 40720, 35977, 31781, 28072, 24793, 21895, 19334, 17071, 15073, 13307, 11748,
  10371, 9155, 8081, 7133, 6296, 5558, 4905, 4329, 3821, 3373, 2977, 2627,
  2319, 2046, 1806, 1594, 1407, 1241, 1096, 967, 853, 753, 665, 586,
  518, 457, 403, 356, 314, 277, 244, 216, 190, 168, 148, 131,
  115, 102, 90, 79, 70, 62, 55, 48, 42, 37, 33, 29};
static const uint16_t swsi_fall[96] = {
  4096, 4079, 4032, 3954, 3848, 3719, 3567, 3399, 3218, 3028, 2833, 2636, 2440, 2249, 2064, 1886,
  1717, 1559, 1411, 1273, 1146, 1030, 924, 827, 739, 660, 587, 524, 465, 413, 367, 326,
  289, 256, 227, 201, 178, 157, 139, 123, 109, 96, 85, 75, 66, 59, 52, 46,
  40, 36, 31, 27, 24, 22, 19, 16, 15, 14, 12, 10, 10, 8, 7, 6,
  6, 5, 5, 4, 3, 3, 3, 2, 2, 2, 1, 2, 1, 1, 0, 1,
  0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0};
static const uint8_t swsi_bend[1008] = {
  17, 33, 32, 17, 33, 17, 34, 48, 48, 17, 34, 18, 34, 34, 49, 49, 49, 18, 35, 19, 35, 50, 50, 50, 34, 51, 66, 65, 50, 51, 50,
  36, 67, 66, 66, 51, 67, 66, 52, 51, 37, 68, 67, 67, 52, 68, 83, 67, 68, 68, 68, 68, 68, 84, 68, 68, 85, 83, 84, 53, 54, 70,
  84, 85, 84, 69, 70, 85, 100, 69, 86, 100, 69, 102, 84, 86, 101, 100, 86, 85, 102, 116, 85, 86, 102, 101, 86, 86, 87, 102,
  101, 102, 102, 86, 103, 117, 117, 117, 102, 133, 101, 87, 119, 117, 102, 118, 118, 133, 117, 118, 118, 118, 102, 119, 118,
  102, 104, 118, 119, 102, 104, 103, 119, 103, 119, 103, 119, 119, 118, 88, 120, 103, 135, 118, 119, 134, 119, 134, 134, 103,
  104, 104, 104, 120, 134, 119, 119, 119, 135, 118, 120, 103, 120, 104, 135, 119, 119, 119, 104, 120, 119, 104, 120, 119,
  119, 120, 119, 119, 120, 119, 119, 104, 120, 119, 104, 120, 119, 135, 134, 119, 119, 104, 120, 134, 104, 119, 120, 134,
  119, 119, 135, 134, 134, 134, 134, 119, 134, 119, 119, 134, 119, 103, 120, 134, 134, 134, 118, 119, 119, 134, 118, 119,
  119, 134, 118, 134, 118, 119, 134, 133, 103, 134, 118, 103, 119, 118, 103, 119, 102, 104, 118, 103, 103, 103, 103, 103,
  103, 103, 103, 118, 87, 119, 102, 118, 87, 103, 87, 119, 117, 102, 103, 102, 118, 117, 102, 118, 117, 117, 102, 86, 103,
  102, 102, 102, 102, 117, 86, 118, 101, 117, 117, 101, 117, 101, 86, 102, 86, 102, 101, 86, 86, 102, 101, 101, 86, 117, 100,
  86, 101, 101, 101, 85, 86, 101, 101, 100, 70, 86, 70, 86, 70, 86, 85, 101, 100, 85, 85, 85, 85, 70, 85, 70, 85, 85, 85, 69,
  70, 85, 85, 100, 84, 100, 84, 69, 85, 100, 68, 85, 69, 100, 68, 85, 84, 84, 84, 84, 84, 84, 84, 68, 69, 84, 53, 69, 69, 84,
  83, 53, 69, 84, 68, 68, 84, 68, 68, 84, 83, 83, 68, 83, 68, 68, 68, 68, 52, 69, 67, 53, 68, 68, 67, 53, 83, 52, 52, 53, 68,
  83, 51, 68, 52, 68, 67, 52, 83, 51, 68, 67, 67, 36, 53, 67, 67, 36, 37, 68, 51, 52, 36, 37, 68, 66, 36, 68, 66, 67, 66, 67,
  66, 67, 66, 51, 67, 66, 51, 67, 66, 66, 51, 51, 51, 36, 67, 66, 50, 36, 36, 36, 51, 36, 51, 35, 52, 66, 50, 51, 35, 36, 51,
  35, 36, 35, 36, 51, 35, 51, 50, 51, 66, 65, 50, 66, 65, 50, 50, 35, 51, 50, 50, 35, 66, 65, 34, 51, 34, 51, 50, 34, 51, 50,
  34, 35, 35, 35, 19, 36, 34, 51, 65, 49, 174, 235, 186, 186, 171, 238, 237, 173, 247, 185, 122, 171, 183, 170, 183, 170,
  122, 183, 182, 170, 158, 170, 167, 170, 170, 218, 230, 121, 182, 230, 169, 157, 170, 157, 218, 105, 167, 157, 154, 154,
  106, 154, 106, 154, 118, 157, 169, 105, 154, 166, 217, 165, 102, 154, 169, 165, 105, 166, 153, 105, 102, 166, 153, 105,
  105, 105, 102, 205, 204, 140, 102, 150, 150, 41, 163, 201, 101, 105, 153, 101, 38, 87, 90, 105, 165, 140, 89, 102, 89, 150,
  89, 150, 101, 89, 102, 101, 89, 38, 138, 89, 153, 40, 102, 101, 89, 89, 162, 49, 150, 149, 149, 149, 101, 149, 37, 138,
  149, 149, 149, 40, 86, 86, 89, 89, 101, 149, 149, 88, 86, 101, 37, 150, 88, 98, 149, 85, 98, 146, 149, 88, 137, 149, 88,
  101, 40, 89, 149, 88, 137, 85, 98, 85, 134, 73, 86, 149, 97, 146, 97, 146, 97, 137, 88, 37, 98, 149, 136, 149, 100, 88,
  146, 88, 85, 98, 161, 148, 88, 85, 146, 133, 82, 34, 86, 37, 137, 85, 149, 136, 97, 73, 137, 97, 149, 36, 98, 97, 82, 34,
  22, 150, 148, 136, 133, 149, 148, 136, 133, 85, 82, 34, 134, 85, 149, 36, 25, 22, 86, 82, 137, 136, 133, 85, 149, 36, 137,
  97, 97, 85, 82, 146, 136, 97, 97, 85, 73, 73, 34, 98, 88, 21, 74, 85, 146, 136, 136, 97, 133, 85, 37, 149, 36, 137, 24, 98,
  97, 85, 85, 149, 148, 36, 137, 136, 97, 88, 88, 85, 85, 85, 82, 146, 36, 34, 34, 134, 97, 133, 85, 85, 85, 85, 82, 82, 34,
  137, 136, 136, 24, 22, 22, 86, 97, 85, 85, 149, 84, 73, 73, 73, 34, 137, 136, 136, 24, 134, 97, 88, 97, 21, 86, 85, 85, 85,
  85, 82, 37, 149, 148, 36, 73, 34, 137, 136, 136, 136, 24, 98, 24, 134, 133, 133, 21, 86, 133, 85, 85, 85, 85, 85, 85, 85,
  73, 85, 82, 73, 37, 37, 73, 73, 146, 72, 146, 136, 36, 34, 34, 34, 34, 98, 136, 33, 134, 24, 134, 97, 97, 88, 88, 88, 88,
  97, 21, 86, 97, 85, 133, 85, 85, 21, 86, 85, 85, 85, 85, 149, 84, 85, 85, 73, 85, 37, 85, 73, 149, 84, 73, 37, 37, 149,
  148, 148, 148, 36, 37, 73, 73, 146, 36, 73, 146, 72, 146, 36, 146, 72, 34, 137, 72, 34, 34, 137, 136, 72, 34, 34, 34, 34,
  34, 34, 134, 136, 136, 136, 33, 98, 136, 136, 33, 134, 24, 98, 136, 33, 134, 24, 134, 33, 134, 97, 24, 134, 33, 134, 133,
  97, 24, 134, 97, 97, 24, 22, 134, 133, 97, 97, 97, 88, 88, 88, 88, 88, 88, 88, 88, 88, 88, 97, 97, 133, 133, 21, 86, 88,
  88, 97, 133, 21, 86, 97, 133, 21, 86, 97, 21, 86, 88, 133, 85, 97, 21, 86, 97, 85, 88, 133, 85, 97, 85, 97, 85, 88, 21, 86,
  21, 86, 21, 86, 21, 86, 85, 88, 85, 97, 85, 133, 85, 21, 86, 85};

SWSI_COLD static uint32_t swsi_bent(uint32_t fall, uint32_t k) { /* the next difference after that of k */
  const unsigned bend = k < 960 ? (unsigned)swsi_bend[k >> 1] >> (k & 1) * 4 & 15u
                                : (unsigned)swsi_bend[240 + (k >> 2)] >> (k & 3) * 2 & 3u;
  return fall + 1 - bend;
}

#define SWSI_LIMIT 3071
#ifdef SWS_SMALL
typedef int32_t swsi_int; /* log-odds and weights of a mix */
#else
typedef int64_t swsi_int; /* needs no extension before a product */
#endif

#ifdef SWS_SMALL
typedef struct {
  int unused;
} swsi_tables;

static uint32_t swsi_squash(const swsi_tables *t, int32_t x) {
  const uint32_t y = (uint32_t)(x < 0 ? -x : x);
  uint32_t k = y & ~31u, q = swsi_anchor[k >> 5], d = swsi_fall[k >> 5];
  (void)t;
  for (; k < y; k++) {
    q -= d;
    d = swsi_bent(d, k);
  }
  return x < 0 ? q : (UINT32_C(1) << 22) - q;
}

static int32_t swsi_least(uint32_t most) { /* the least y with SQUASH[-y] <= most, 3072 if there is none */
  uint32_t low = 0, high = 96, k, q, d;
  while (high - low > 1) {
    const uint32_t middle = (low + high) >> 1;
    if (swsi_anchor[middle] > most) low = middle;
    else high = middle;
  }
  k = 32 * low;
  q = swsi_anchor[low];
  d = swsi_fall[low];
  for (; q > most && k < 3072; k++) {
    q -= d;
    d = swsi_bent(d, k);
    if (k == 3071) break;
  }
  return (int32_t)(q > most ? 3072 : k);
}

static int32_t swsi_stretch(const swsi_tables *t, uint32_t k) {
  const uint32_t target = 64 * k + 32;
  int32_t x;
  (void)t;
  if (target <= UINT32_C(1) << 21) return 1 - swsi_least(target - 1);
  x = swsi_least((UINT32_C(1) << 22) - target);
  return x < SWSI_LIMIT ? x : SWSI_LIMIT;
}

static uint32_t swsi_rate(const swsi_tables *t, uint32_t n) {
  (void)t;
  return 131072u / (2 * n + 3);
}
#else
typedef struct {
  int16_t stretch[65536];
  uint32_t squash[2 * SWSI_LIMIT + 1];
  uint16_t rate[4096];
  uint8_t level[2 * SWSI_LIMIT + 1]; /* of the tensor being decoded */
} swsi_tables;

static void swsi_make_tables(swsi_tables *t) {
  uint32_t k, q = UINT32_C(1) << 21, d = 4096;
  int32_t x;
  for (k = 0; k <= SWSI_LIMIT; k++) {
    t->squash[SWSI_LIMIT - k] = q;
    t->squash[SWSI_LIMIT + k] = (UINT32_C(1) << 22) - q;
    q -= d;
    d = swsi_bent(d, k);
  }
  for (x = -SWSI_LIMIT, k = 0; k < 65536; k++) {
    while (x < SWSI_LIMIT && t->squash[x + SWSI_LIMIT] < 64 * k + 32) x++;
    t->stretch[k] = (int16_t)x;
  }
  for (k = 0; k < 4096; k++) t->rate[k] = (uint16_t)(131072u / (2 * k + 3));
}

SWSI_HOT uint32_t swsi_squash(const swsi_tables *t, int32_t x) { return t->squash[x + SWSI_LIMIT]; }
SWSI_HOT int32_t swsi_stretch(const swsi_tables *t, uint32_t k) { return t->stretch[k]; }
SWSI_HOT uint32_t swsi_rate(const swsi_tables *t, uint32_t n) { return t->rate[n]; }
#endif

/* States (8.1): an estimate of a 1 in 2^-30 and a count of uses. For speed, a state also holds its log-odds; for little memory
   it takes six bytes. */

#define SWSI_ONE (UINT32_C(1) << 30)

SWSI_HOT uint32_t swsi_moved(uint32_t estimate, unsigned bit, uint64_t rate) {
  uint32_t moved; /* a negative step rounds down, so away from 0 */
  if (bit) {
    moved = estimate + (uint32_t)((SWSI_ONE - estimate) * rate >> 16);
    return moved > SWSI_ONE - 8192 ? SWSI_ONE - 8192 : moved;
  }
  moved = estimate - (uint32_t)((estimate * rate + 65535) >> 16);
  return moved < 8192 ? 8192 : moved;
}

SWSI_HOT uint32_t swsi_learned(const swsi_tables *t, uint32_t estimate, unsigned bit, uint32_t n) {
  return swsi_moved(estimate, bit, swsi_rate(t, n));
}

#ifdef SWS_SMALL
typedef struct {
  uint32_t *estimate;
  uint16_t *count;
} swsi_states;

static void swsi_fill(const swsi_tables *t, swsi_states s, size_t from, size_t n, uint32_t estimate, uint32_t count) {
  (void)t;
  for (; n; n--, from++) {
    s.estimate[from] = estimate;
    s.count[from] = (uint16_t)count;
  }
}
static int32_t swsi_odds(const swsi_tables *t, swsi_states s, size_t k) { return swsi_stretch(t, s.estimate[k] >> 14); }
#ifndef SWS_WITHOUT_FAST
static uint32_t swsi_estimate(swsi_states s, size_t k) { return s.estimate[k]; }
#endif
static void swsi_learn(const swsi_tables *t, swsi_states s, size_t k, unsigned bit) {
  s.estimate[k] = swsi_learned(t, s.estimate[k], bit, s.count[k]);
  if (s.count[k] < 4095) s.count[k]++;
}
#else
typedef struct {
  uint32_t estimate;
  uint16_t count;
  int16_t odds;
} swsi_state;
typedef swsi_state *swsi_states;

static void swsi_fill(const swsi_tables *t, swsi_states s, size_t from, size_t n, uint32_t estimate, uint32_t count) {
  swsi_state state;
  state.estimate = estimate;
  state.count = (uint16_t)count;
  state.odds = t->stretch[estimate >> 14];
  for (; n; n--) s[from++] = state;
}
SWSI_HOT swsi_int swsi_odds(const swsi_tables *t, swsi_states s, size_t k) {
  (void)t;
  return s[k].odds;
}
#ifndef SWS_WITHOUT_FAST
SWSI_HOT uint32_t swsi_estimate(swsi_states s, size_t k) { return s[k].estimate; }
#endif
SWSI_HOT void swsi_learn(const swsi_tables *t, swsi_states s, size_t k, unsigned bit) {
  swsi_state *state = s + k;
  const uint32_t count = state->count, estimate = swsi_learned(t, state->estimate, bit, count);
  state->estimate = estimate;
  state->odds = t->stretch[estimate >> 14];
  state->count = (uint16_t)(count + (count < 4095));
}
#endif

/* Range coder (8.2) */

typedef struct {
  const swsi_tables *t;
  const uint8_t *data;
  size_t n, at; /* bytes of data; bytes read, those past the end included */
  uint64_t range, code;
} swsi_coder;

static void swsi_start(swsi_coder *c, const swsi_tables *t, const uint8_t *data, size_t n) {
  c->t = t;
  c->data = data;
  c->n = n;
  c->range = UINT64_C(1) << 40;
  c->code = 0;
  for (c->at = 0; c->at < 5; c->at++) c->code = c->code << 8 | (c->at < n ? data[c->at] : 0);
}

SWSI_HOT unsigned swsi_bit(swsi_coder *c, uint32_t probability) {
  const uint64_t bound = (c->range >> 22) * probability;
  unsigned bit = 0;
  if (c->code < bound) {
    bit = 1;
    c->range = bound;
  } else {
    c->range -= bound;
    c->code -= bound;
  }
  while (c->range < UINT64_C(1) << 32) {
    c->range <<= 8;
    c->code = c->code << 8 | (c->at < c->n ? c->data[c->at] : 0);
    c->at++;
  }
  return bit;
}

SWSI_HOT int swsi_is_past(const swsi_coder *c) { return c->at > c->n + 5; }

static int swsi_is_complete(const swsi_coder *c) { /* the data are exactly what an encoder writes */
  const uint64_t offset = UINT64_C(1) << 41; /* a multiple of 2^40: numbers below may be negative without it */
  const size_t least = c->at - 5;
  uint64_t code = 0, low, shortest;
  size_t k;
  int zeros = 40;
  if (c->n < least || c->n > c->at || (c->n > least && c->data[c->n - 1] == 0)) return 0;
  for (k = least; k < c->at; k++) code = code << 8 | (k < c->n ? c->data[k] : 0);
  low = offset + code - c->code;
  do shortest = (low + (UINT64_C(1) << zeros) - 1) >> zeros << zeros;
  while (shortest >= low + c->range && zeros-- > 0);
  return shortest == offset + code;
}

SWSI_HOT unsigned swsi_mixed(swsi_coder *c, const int given, const int contexts, swsi_int *x, const uint32_t *slots,
                             swsi_states s, swsi_int *w, int32_t rate) {
  int64_t mix = 1 << 15;
  int32_t probability;
  swsi_int error;
  unsigned bit;
  int k;
  SWSI_UNROLL for (k = 0; k < given; k++) mix += (int64_t)w[k] * x[k];
  SWSI_UNROLL for (k = 0; k < contexts; k++) {
    x[given + k] = swsi_odds(c->t, s, slots[k]) - x[0];
    mix += (int64_t)w[given + k] * x[given + k];
  }
  mix >>= 16;
  mix = mix < -SWSI_LIMIT ? -SWSI_LIMIT : mix > SWSI_LIMIT ? SWSI_LIMIT : mix;
  probability = (int32_t)swsi_squash(c->t, (int32_t)mix);
  bit = swsi_bit(c, (uint32_t)probability);
  error = (swsi_int)(((bit ? INT32_C(1) << 22 : 0) - probability) >> 6) * rate;
  SWSI_UNROLL for (k = 0; k < given + contexts; k++) {
    const swsi_int moved = w[k] + (swsi_int)(((int64_t)x[k] * error + (1 << 23)) >> 24);
    w[k] = moved < -(1 << 20) ? -(1 << 20) : moved > 1 << 20 ? 1 << 20 : moved;
  }
#ifdef SWS_SMALL
  for (k = 0; k < contexts; k++) swsi_learn(c->t, s, slots[k], bit);
#else
  if (bit) { /* each loop needs one bound of an estimate alone */
    SWSI_UNROLL for (k = 0; k < contexts; k++) swsi_learn(c->t, s, slots[k], 1);
  } else {
    SWSI_UNROLL for (k = 0; k < contexts; k++) swsi_learn(c->t, s, slots[k], 0);
  }
#endif
  return bit;
}

#ifndef SWS_WITHOUT_COMPACT
/* The header of a compact file (15): it becomes an ordinary one, followed by numbers of non-zeros and periods */

static const uint8_t swsi_primer[139] = {
  0x45, 0x78, 0x00, 0x34, 0x50, 0x00, 0x3b, 0x27, 0xe9, 0xd9, 0xf9, 0x6c, 0xa6, 0xed, 0xf0, 0x10, 0x2c, 0xe3, 0x7c, 0x72,
  0x62, 0x56, 0x9a, 0x00, 0x39, 0xd4, 0xb1, 0x9f, 0x15, 0xeb, 0xfe, 0x69, 0xed, 0xd7, 0xf6, 0x50, 0x83, 0xd0, 0x06, 0x35,
  0xed, 0x8e, 0xf8, 0x92, 0xcd, 0xc2, 0x59, 0x46, 0x22, 0x7f, 0x51, 0x6a, 0xde, 0x1c, 0xa1, 0xd5, 0xea, 0xb8, 0xc6, 0xc1,
  0x8f, 0xbc, 0x33, 0xfd, 0x21, 0xc4, 0x14, 0xfe, 0xd3, 0x1a, 0xe6, 0x04, 0x23, 0x82, 0x37, 0x11, 0xf6, 0x42, 0x6c, 0xa8,
  0xc2, 0x7b, 0x1e, 0x09, 0x27, 0x9b, 0xbd, 0xea, 0x35, 0x60, 0x52, 0xeb, 0x85, 0x22, 0x53, 0x7c, 0x74, 0x67, 0xed, 0xc0,
  0xb2, 0xbf, 0xe4, 0x0e, 0x57, 0x82, 0x9b, 0xbc, 0x7e, 0xcf, 0xd7, 0x83, 0x0d, 0x84, 0x21, 0x8d, 0x80, 0xf1, 0x95, 0xa3,
  0xc3, 0xce, 0x51, 0xfc, 0xd2, 0xa9, 0x2c, 0x68, 0x93, 0x6d, 0xf8, 0x2e, 0x56, 0xf7, 0x24, 0x83, 0xc8, 0xa6, 0x68};

enum { /* kinds of numbers, each with 48 states; then other decisions */
  SWSI_COUNT, SWSI_VALUES, SWSI_FORM, SWSI_ZEROS, SWSI_FIRST, SWSI_STEP, SWSI_PREFIX, SWSI_LETTERS, SWSI_DIMENSIONS, SWSI_ROWS,
  SWSI_NONZERO = 12, SWSI_PERIOD,
  SWSI_SIGN = 14 * 48, SWSI_PLAIN, SWSI_SAME, SWSI_VECTOR = SWSI_SAME + 2, SWSI_CHAIN = SWSI_VECTOR + 8, SWSI_SUFFIX,
  SWSI_LETTER = SWSI_SUFFIX + 128
};

typedef struct {
  swsi_coder c;
  uint32_t *estimates;
  uint16_t *uses;
  uint8_t *out, *stem;
  size_t n, n_stem;
  unsigned same, suffix;
  int bad;
} swsi_fields;

SWSI_COLD static unsigned swsi_field_bit(swsi_fields *q, uint32_t place) {
  const uint32_t estimate = q->estimates[place], n = q->uses[place];
  const unsigned bit = swsi_bit(&q->c, estimate >> 8);
  q->estimates[place] = swsi_moved(estimate, bit, 131072u / (2 * n + 3));
  if (n < 4095) q->uses[place]++;
  return bit;
}

static unsigned swsi_field_tree(swsi_fields *q, uint32_t place, int bits) {
  unsigned node = 1;
  int k;
  for (k = 0; k < bits; k++) node = 2 * node + swsi_field_bit(q, place + node);
  return node - (1u << bits);
}

SWSI_COLD static uint64_t swsi_field_number(swsi_fields *q, uint32_t kind, uint64_t most) { /* a number up to this one */
  uint32_t place = 48 * kind, bits = 0, k;
  uint64_t node = 1;
  while (bits <= 40 && swsi_field_bit(q, place + (bits < 15 ? bits : 15))) bits++;
  place += 16 + 4 * (bits < 7 ? bits : 7);
  for (k = 0; k < bits; k++)
    node = 2 * node + (node < 4 ? swsi_field_bit(q, place + (uint32_t)node) : swsi_bit(&q->c, UINT32_C(1) << 21));
  if (bits > 40 || node - 1 > most) q->bad = 1;
  return q->bad ? 0 : node - 1;
}

SWSI_COLD static void swsi_put_byte(swsi_fields *q, unsigned octet) {
  if (q->n < SWS_OUTLINE_BYTES) q->out[q->n++] = (uint8_t)octet;
  else q->bad = 1;
}

SWSI_COLD static void swsi_put_number(swsi_fields *q, uint64_t value) {
  for (; value > 127; value >>= 7) swsi_put_byte(q, (unsigned)(value & 127) | 128);
  swsi_put_byte(q, (unsigned)value);
}

SWSI_COLD static uint64_t swsi_copy_field(swsi_fields *q, uint32_t kind, uint64_t most) {
  const uint64_t value = swsi_field_number(q, kind, most);
  swsi_put_number(q, value);
  return value;
}

static void swsi_expand_book(swsi_fields *q) {
  const uint64_t n = swsi_field_number(q, SWSI_VALUES, SWS_OUTLINE_BYTES), form = swsi_field_number(q, SWSI_FORM, 2);
  const unsigned width = form ? 2 : 4, shift = (unsigned)(swsi_put_number(q, 4 * n + form), swsi_field_number(q, SWSI_ZEROS, 8 * width - 2));
  const uint64_t sign = UINT64_C(1) << (8 * width - 1);
  uint64_t k, value = 0;
  unsigned b;
  if (n * width > SWS_OUTLINE_BYTES) q->bad = 1;
  for (k = 0; k < n && !q->bad; k++) {
    const unsigned negative = swsi_field_bit(q, SWSI_SIGN);
    uint32_t bits;
    value += swsi_field_number(q, k ? SWSI_STEP : SWSI_FIRST, sign);
    if (value > (sign - 1) >> shift) q->bad = 1;
    bits = (uint32_t)(value << shift | (negative ? sign : 0));
    for (b = 0; b < width; b++) swsi_put_byte(q, bits >> 8 * b & 255);
  }
}

static void swsi_expand_name(swsi_fields *q) {
  const unsigned same = swsi_field_bit(q, SWSI_SAME + q->same);
  size_t prefix = q->n_stem, k;
  if (!same) {
    prefix = (size_t)swsi_field_number(q, SWSI_PREFIX, q->n_stem);
    q->n_stem = prefix + (size_t)swsi_field_number(q, SWSI_LETTERS, SWS_OUTLINE_BYTES);
    if (q->n_stem > SWS_OUTLINE_BYTES) q->bad = 1;
    for (k = prefix; k < q->n_stem && !q->bad; k++) q->stem[k] = (uint8_t)swsi_field_tree(q, SWSI_LETTER, 8);
  }
  q->suffix = swsi_field_tree(q, SWSI_SUFFIX + 64 * same + 8 * q->suffix, 3);
  q->same = same;
  swsi_put_byte(q, q->suffix << 5 | (prefix < 31 ? (unsigned)prefix : 31));
  if (prefix >= 31) swsi_put_number(q, prefix - 31);
  swsi_put_number(q, q->n_stem - prefix);
  for (k = prefix; k < q->n_stem && !q->bad; k++) swsi_put_byte(q, q->stem[k]);
}

static void swsi_expand_shape(swsi_fields *q, uint64_t *first, int *has_first) {
  const uint64_t before = *first;
  const int linked = *has_first;
  unsigned k, n;
  if (linked && swsi_field_bit(q, SWSI_VECTOR + q->suffix)) {
    swsi_put_byte(q, 128);
    return;
  }
  n = (unsigned)swsi_field_number(q, SWSI_DIMENSIONS, 64);
  swsi_put_byte(q, n);
  *has_first = n > 0;
  for (k = 0; k < n; k++) {
    const int same = k == 1 && linked && swsi_field_bit(q, SWSI_CHAIN);
    const uint64_t size = same ? before : swsi_field_number(q, SWSI_ROWS + (k < 2 ? k : 2), UINT64_MAX);
    swsi_put_number(q, size);
    if (k == 0) *first = size;
  }
}

static void swsi_expand_header(swsi_fields *q) {
  static const uint8_t begin[6] = {0x89, 0x53, 0x57, 0x53, 1, 3};
  uint16_t places[128];
  uint64_t first = 0, k, n;
  uint32_t n_tensors;
  int has_first = 0;
  q->n = q->n_stem = 0;
  q->same = q->suffix = 0;
  q->bad = 0;
  for (k = 0; k < 6; k++) swsi_put_byte(q, begin[k]);
  n = swsi_copy_field(q, SWSI_COUNT, SWS_OUTLINE_BYTES);
  for (k = 0; k < n && !q->bad; k++) swsi_expand_book(q);
  n_tensors = (uint32_t)swsi_copy_field(q, SWSI_COUNT, 128);
  for (k = 0; k < n_tensors && !q->bad; k++) {
    const unsigned plain = swsi_field_bit(q, SWSI_PLAIN);
    places[k] = (uint16_t)q->n;
    swsi_put_byte(q, plain);
    if (!plain) {
      swsi_put_byte(q, (unsigned)swsi_field_number(q, SWSI_FORM, 3) << 1);
      (void)swsi_copy_field(q, SWSI_FORM, UINT64_MAX);
    }
    swsi_expand_name(q);
    swsi_expand_shape(q, &first, &has_first);
  }
  n = swsi_copy_field(q, SWSI_COUNT, SWS_OUTLINE_BYTES);
  for (k = 0; k < n && !q->bad; k++) {
    swsi_expand_name(q);
    (void)swsi_copy_field(q, SWSI_COUNT, UINT64_MAX);
  }
  for (k = 0; k < n_tensors && !q->bad; k++) {
    const size_t start = q->n;
    const uint64_t n_nonzero = swsi_field_number(q, SWSI_NONZERO, UINT64_MAX);
    if (n_nonzero) {
      swsi_put_number(q, n_nonzero);
      swsi_put_byte(q, (unsigned)swsi_field_number(q, SWSI_PERIOD, 127));
    }
    q->out[places[k]] |= (uint8_t)((q->n - start) << 1);
  }
}

static int swsi_expand(sws_file *f, void *work) {
  swsi_fields q;
  uint32_t k;
  q.estimates = (uint32_t *)work;
  q.uses = (uint16_t *)(void *)(q.estimates + SWSI_FIELD_STATES);
  q.stem = (uint8_t *)(q.uses + SWSI_FIELD_STATES);
  q.out = f->outline;
  for (k = 0; k < SWSI_FIELD_STATES; k++) {
    q.estimates[k] = UINT32_C(1) << 29;
    q.uses[k] = 0;
  }
  swsi_start(&q.c, NULL, swsi_primer, sizeof swsi_primer);
  swsi_expand_header(&q);
  f->code = f->data + 6;
  f->code_bytes = f->end - 6;
  swsi_start(&q.c, NULL, f->code, f->code_bytes);
  swsi_expand_header(&q);
  f->code_at[0] = f->code_at[1] = q.c.at;
  f->code_range[0] = f->code_range[1] = q.c.range;
  f->code_value[0] = f->code_value[1] = q.c.code;
  f->code_next = 0;
  f->data = f->outline;
  f->end = q.n;
  f->version = 1;
  return !q.bad;
}

static void swsi_resume(swsi_coder *c, const swsi_tables *t, const sws_file *f) {
  c->t = t;
  c->data = f->code;
  c->n = f->code_bytes;
  c->at = f->code_at[1];
  c->range = f->code_range[1];
  c->code = f->code_value[1];
}

static int swsi_pause(const swsi_coder *c, sws_file *f) {
  f->code_at[1] = c->at;
  f->code_range[1] = c->range;
  f->code_value[1] = c->code;
  return !swsi_is_past(c);
}

static void swsi_rewind(sws_file *f) {
  f->code_at[1] = f->code_at[0];
  f->code_range[1] = f->code_range[0];
  f->code_value[1] = f->code_value[0];
  f->code_next = 0;
}

static int swsi_next_is(sws_file *f, uint32_t number) { /* 0: the code ends wrongly after the last tensor */
  swsi_coder c;
  f->code_next = number;
  swsi_resume(&c, NULL, f);
  return number < f->n_tensors || swsi_is_complete(&c);
}

static int swsi_starts_well(const sws_file *f) {
  uint64_t values = 0;
  sws_file copy = *f;
  sws_tensor t;
  sws_first(&copy, &t, NULL, 0);
  while (sws_next(&copy, &t) == SWS_OK) values += t.counted;
  return values <= UINT64_C(1) << 20 && (f->n_tensors > 0 || swsi_next_is(&copy, 0));
}
#endif /* SWS_WITHOUT_COMPACT */

/* Memory: the same function counts it and gives it out */

typedef struct {
  uint8_t *base;
  uint64_t room, used, most;
} swsi_memory;

static void *swsi_take(swsi_memory *m, uint64_t count, unsigned size) {
  const uint64_t start = swsi_add(m->used, 7) & ~UINT64_C(7), bytes = swsi_mul(count, size);
  m->used = swsi_add(start, bytes);
  if (m->used > m->most) m->most = m->used;
  return m->base != NULL && m->used <= m->room ? m->base + (size_t)start : NULL;
}

static swsi_states swsi_take_states(swsi_memory *m, uint64_t n) {
  swsi_states s;
#ifdef SWS_SMALL
  s.estimate = (uint32_t *)swsi_take(m, n, 4);
  s.count = (uint16_t *)swsi_take(m, n, 2);
#else
  s = (swsi_states)swsi_take(m, n, sizeof(swsi_state));
#endif
  return s;
}

/* A row of indices */

#ifdef SWS_SMALL
typedef struct {
  uint8_t *narrow; /* up to 256 values, else NULL */
  uint32_t *wide;
} swsi_cells;
static uint32_t swsi_get(const swsi_cells *row, size_t k) { return row->narrow ? row->narrow[k] : row->wide[k]; }
static void swsi_set(const swsi_cells *row, size_t k, uint32_t index) {
  if (row->narrow) row->narrow[k] = (uint8_t)index;
  else row->wide[k] = index;
}
#else
typedef struct {
  uint8_t *narrow; /* of a static code, else NULL */
  uint32_t *wide;
} swsi_cells;
SWSI_HOT uint32_t swsi_get(const swsi_cells *row, size_t k) { return row->wide[k]; }
SWSI_HOT void swsi_set(const swsi_cells *row, size_t k, uint32_t index) { row->wide[k] = index; }
#endif
#ifndef SWS_WITHOUT_PLANES
static uint32_t swsi_index(const swsi_cells *row, size_t k) { return row->narrow ? row->narrow[k] : row->wide[k]; }
#endif

typedef struct {
  uint32_t n_tables, lanes, n_values;
  int axis; /* 1: rows, 2: columns have classes */
  unsigned chunk_bits, class_bits;
  const uint8_t *classes, *frequencies, *words, *chunks;
} swsi_static_head;

typedef struct {
  sws_file *f;
  const sws_tensor *t;
  sws_output output;
  sws_row row; /* NULL: into out */
  void *user;
  uint8_t *out;     /* room of all values, or of a row */
  unsigned size;    /* bytes of a value */
  int stopped;
  swsi_memory memory;
  const uint8_t *code; /* after the number of non-zeros and the scales */
  size_t code_bytes;
  uint64_t n_nonzero;
  const uint8_t *scale_code[2];
  size_t scale_bytes[2];
  uint8_t *scales[2]; /* exponents of rows and columns, as bytes */
  const uint8_t *book;
  int book_dtype;
  uint32_t n_values;
  int depth, period;
  swsi_tables *tables;
  uint8_t *converted; /* values of the codebook as the output has them */
  swsi_cells cells;   /* of a row, after a margin of zeros */
  size_t margin;
  swsi_states states;
  uint32_t value_from[6]; /* where the table of a context of values begins */
  int value_wraps[6];
  uint32_t value_slots;   /* T of format.md 8.5 */
  uint64_t value_states;  /* with those before them */
  swsi_int *value_weights;
  void *columns;     /* full: densities; fast: counts */
  uint8_t *levels;   /* fast: of the columns */
  uint32_t *symbols; /* han: of both codes; static: slots */
  swsi_static_head static_head;
} swsi_job;

static void swsi_store(uint8_t *p, unsigned size, uint64_t bits) {
  if (size == 1) *p = (uint8_t)bits;
  else if (size == 2) *(uint16_t *)(void *)p = (uint16_t)bits;
  else if (size == 4) *(uint32_t *)(void *)p = (uint32_t)bits;
  else *(uint64_t *)(void *)p = bits;
}

static uint64_t swsi_fetch(const uint8_t *p, unsigned size) {
  if (size == 1) return *p;
  if (size == 2) return *(const uint16_t *)(const void *)p;
  if (size == 4) return *(const uint32_t *)(const void *)p;
  return *(const uint64_t *)(const void *)p;
}

static uint64_t swsi_as_output(const swsi_job *j, uint64_t bits, int dtype) { /* of a float in dtype */
  if (j->output == SWS_OWN) return swsi_convert(bits, dtype, j->t->dtype);
  return swsi_convert(swsi_convert(bits, dtype, j->t->dtype), j->t->dtype, j->output == SWS_FLOAT32 ? SWS_F32 : SWS_F16);
}

#ifndef SWS_WITHOUT_PLANES
static uint32_t swsi_factor(int quarters) { /* the bits of 2^(quarters / 4) */
  static const uint32_t mantissas[4] = {0, 0x1837f0, 0x3504f3, 0x5744fd};
  return (uint32_t)((quarters >> 2) + 127) << 23 | mantissas[quarters & 3];
}

static uint32_t swsi_scaled(uint32_t bits, int quarters) {
  swsi_float a, b;
  a.bits = bits;
  b.bits = swsi_factor(quarters);
  a.value *= b.value;
  return a.bits;
}
#else
static uint32_t swsi_scaled(uint32_t bits, int quarters) { return quarters ? 0 : bits; }
#endif

static void swsi_convert_book(swsi_job *j, int quarters) {
  uint32_t k;
  for (k = 0; k < j->n_values; k++) {
    const uint32_t bits = swsi_value(j->book, j->book_dtype, k);
    swsi_store(j->converted + (size_t)k * j->size, j->size,
               j->output == SWS_INDEX ? k : swsi_as_output(j, quarters ? swsi_scaled(bits, quarters) : bits, SWS_F32));
  }
}

static int swsi_give(swsi_job *j, uint64_t i, const uint8_t *values) { /* a row that is complete; 0: stop */
  if (j->row != NULL) j->stopped = j->row(j->user, i, values, (size_t)j->t->cols) != 0;
  return !j->stopped;
}

#ifndef SWS_SMALL
static void swsi_emit_narrow(const swsi_job *j, const uint8_t *from, uint8_t *to) {
  const size_t cols = (size_t)j->t->cols;
  size_t k;
  if (j->output == SWS_INDEX) {
    for (k = 0; k < cols; k++) to[k] = from[k];
  } else if (j->size == 4) {
    const uint32_t *values = (const uint32_t *)(const void *)j->converted;
    for (k = 0; k < cols; k++) ((uint32_t *)(void *)to)[k] = values[from[k]];
  } else if (j->size == 2) {
    const uint16_t *values = (const uint16_t *)(const void *)j->converted;
    for (k = 0; k < cols; k++) ((uint16_t *)(void *)to)[k] = values[from[k]];
  } else {
    const uint64_t *values = (const uint64_t *)(const void *)j->converted;
    for (k = 0; k < cols; k++) ((uint64_t *)(void *)to)[k] = values[from[k]];
  }
}
#endif

static int swsi_emit(swsi_job *j, uint64_t i, int any) { /* row i of the indices in cells; without any, it is zeros */
  const size_t cols = (size_t)j->t->cols, margin = j->margin;
  uint8_t *to = j->row != NULL ? j->out : j->out + (size_t)i * cols * j->size;
  size_t k;
  if (!any) {
    for (k = 0; k < cols * j->size; k++) to[k] = 0;
    return swsi_give(j, i, to);
  }
#ifndef SWS_WITHOUT_PLANES
  if (j->scales[1] != NULL && j->output != SWS_INDEX) {
    const int of_row = j->scales[0] != NULL ? (int)(int8_t)j->scales[0][i] : 0;
    for (k = 0; k < cols; k++) {
      const uint32_t bits = swsi_value(j->book, j->book_dtype, swsi_index(&j->cells, margin + k));
      swsi_store(to + k * j->size, j->size,
                 swsi_as_output(j, swsi_scaled(bits, of_row + (int)(int8_t)j->scales[1][k]), SWS_F32));
    }
  } else {
    if (j->scales[0] != NULL && j->output != SWS_INDEX) swsi_convert_book(j, (int)(int8_t)j->scales[0][i]);
#else
  {
#endif
#ifndef SWS_SMALL
    if (j->cells.narrow != NULL) {
      swsi_emit_narrow(j, j->cells.narrow, to);
    } else if (j->size == 4) {
      const uint32_t *values = (const uint32_t *)(const void *)j->converted;
      for (k = 0; k < cols; k++) ((uint32_t *)(void *)to)[k] = values[swsi_get(&j->cells, margin + k)];
    } else if (j->size == 2) {
      const uint16_t *values = (const uint16_t *)(const void *)j->converted;
      for (k = 0; k < cols; k++) ((uint16_t *)(void *)to)[k] = values[swsi_get(&j->cells, margin + k)];
    } else
#endif
      for (k = 0; k < cols; k++)
        swsi_store(to + k * j->size, j->size,
                   swsi_fetch(j->converted + (size_t)swsi_get(&j->cells, margin + k) * j->size, j->size));
  }
  if (j->t->is_static) return swsi_give(j, i, to);
  for (k = 0; k < cols; k++) swsi_set(&j->cells, margin + k, 0);
  return swsi_give(j, i, to);
}

/* Codec adaptive: values (8.5) */

static unsigned swsi_bits(uint64_t x) { /* bit length */
  unsigned n = 0;
  for (; x; x >>= 1) n++;
  return n;
}

static void swsi_plan_values(swsi_job *j, uint64_t states_before) {
  const uint64_t few = swsi_min(15, j->n_values - 1) + 1; /* values of min(15, index) */
  uint64_t sizes[6], total = states_before, cols = j->t->cols;
  int k, is_fast = swsi_is_fast(j->t);
  j->depth = (int)swsi_bits(j->n_values - 2);
  k = j->depth + (int)swsi_bits((cols > 256 ? cols : 256) - 1);
  j->value_slots = k >= 16 ? 65536 : UINT32_C(1) << k;
  sizes[0] = 1;
  sizes[1] = j->n_values;
  sizes[2] = is_fast ? 1 : j->n_values;
  sizes[3] = is_fast ? 16 : 256;
  sizes[4] = cols;
  sizes[5] = 9;
  for (k = 0; k < 6; k++) { /* most tables need no more than their contexts can reach */
    j->value_wraps[k] = swsi_mul(sizes[k], UINT64_C(1) << j->depth) > j->value_slots;
    if (k == 3 && !j->value_wraps[k]) sizes[k] = is_fast || j->period == 0 ? few : few * few;
    j->value_from[k] = (uint32_t)total;
    total += j->value_wraps[k] ? j->value_slots : sizes[k] * ((UINT64_C(1) << j->depth) - 1);
  }
  j->states = swsi_take_states(&j->memory, total);
  j->value_weights = (swsi_int *)swsi_take(&j->memory, 7 * (uint64_t)(j->depth ? j->depth : 1), sizeof(swsi_int));
  j->value_states = total;
}

static void swsi_start_values(const swsi_job *j) {
  const size_t from = j->value_from[0];
  int k;
  swsi_fill(j->tables, j->states, from, (size_t)j->value_states - from, 3u << 27, 0);
  for (k = 0; k < 7 * j->depth; k++) j->value_weights[k] = k % 7 ? 9830 : 65536;
}

static uint32_t swsi_decode_value(swsi_job *j, swsi_coder *c, const uint32_t *contexts) {
  const uint32_t n = j->n_values - 1;
  uint32_t base[6], mask[6], slots[6], value = 0;
  swsi_int x[7];
  int k, level;
  for (k = 0; k < 6; k++) {
    base[k] = j->value_wraps[k] ? contexts[k] << j->depth : contexts[k] * ((UINT32_C(1) << j->depth) - 1) - 1;
    mask[k] = j->value_wraps[k] ? j->value_slots - 1 : UINT32_MAX;
  }
  for (level = 0; level < j->depth; level++) {
    const uint32_t node = (UINT32_C(1) << level) + value;
    value *= 2;
    if ((value + 1) << (j->depth - 1 - level) >= n) continue;
    SWSI_UNROLL for (k = 0; k < 6; k++) slots[k] = j->value_from[k] + ((base[k] + node) & mask[k]);
    x[0] = swsi_odds(c->t, j->states, slots[0]);
    value += swsi_mixed(c, 1, 6, x, slots, j->states, j->value_weights + 7 * level, 1024);
  }
  return value + 1;
}

/* The full model (8.4) */

SWSI_HOT int32_t swsi_level(int32_t distance) { /* of log-odds */
  const int32_t level = (distance + 128 + 1024) >> 8;
  return level < 0 ? 0 : level > 8 ? 8 : level;
}

#ifdef SWS_SMALL
static void swsi_make_levels(swsi_tables *t, int32_t origin) {
  (void)t;
  (void)origin;
}
static uint32_t swsi_level_of(const swsi_tables *t, int32_t odds, int32_t origin) {
  (void)t;
  return (uint32_t)swsi_level(odds - origin);
}
#else
static void swsi_make_levels(swsi_tables *t, int32_t origin) {
  int32_t x;
  for (x = -SWSI_LIMIT; x <= SWSI_LIMIT; x++) t->level[x + SWSI_LIMIT] = (uint8_t)swsi_level(x - origin);
}
SWSI_HOT uint32_t swsi_level_of(const swsi_tables *t, int32_t odds, int32_t origin) {
  (void)origin;
  return t->level[odds + SWSI_LIMIT];
}
#endif

static uint32_t swsi_lines(const swsi_job *j) { return j->period ? (uint32_t)swsi_min(256, j->t->cols / (unsigned)j->period + 1) : 1; }

static int swsi_plan_full(swsi_job *j, int counting) {
  const uint64_t cols = j->t->cols, first = j->code_bytes ? j->code[0] : 0;
  if (first && (first < 2 || first > swsi_min(127, cols ? cols - 1 : 0))) return 0;
  if (!counting && j->code_bytes == 0) return 0;
  j->period = (int)first;
  j->margin = 2 * (size_t)(first ? first : 1);
  j->columns = swsi_take(&j->memory, cols + 2 * j->margin, 4);
  swsi_plan_values(j, 2 * swsi_lines(j) + 64 + 324 + 108 + 81);
  return 1;
}

static int swsi_full(swsi_job *j) {
  const uint32_t rows = (uint32_t)j->t->rows, cols = (uint32_t)j->t->cols, p = (uint32_t)j->period;
  const uint32_t margin = (uint32_t)j->margin, lines = swsi_lines(j), n = rows * cols;
  swsi_tables *t = j->tables;
  const swsi_states s = j->states;
  const swsi_cells cells = j->cells;
  uint32_t *column = (uint32_t *)j->columns;
  uint32_t left = (uint32_t)j->n_nonzero, n_left = n, decided = 0, i, k;
  uint32_t initial = (uint32_t)(((uint64_t)left << 30) / n);
  int32_t origin, rate = 2621;
  swsi_int w[9];
  swsi_coder c;
  if (initial < 8192) initial = 8192;
  if (initial > SWSI_ONE - 8192) initial = SWSI_ONE - 8192;
  origin = swsi_stretch(t, initial >> 14);
  swsi_make_levels(t, origin);
#ifndef SWS_WITHOUT_COMPACT
  if (j->f->compact) swsi_resume(&c, t, j->f);
  else
#endif
    swsi_start(&c, t, j->code + 1, j->code_bytes - 1);
  swsi_fill(t, s, 0, 2 * lines + 64 + 324 + 108 + 81, initial, 2);
  swsi_start_values(j);
  for (k = 0; k < cols + 2 * margin; k++) column[k] = initial;
  for (k = 0; k < 9; k++) w[k] = k ? 9830 : 65536;
  for (i = 0; i < rows; i++) {
    uint32_t in_row = initial, recent = initial, run = 0, run_level = 0, line = 0, in_line = 0, col, any = 0;
    uint32_t left1 = 0, left2 = 0, above_left = 0, above = 0;
    for (col = 0; col < cols && left; col++) {
      const uint32_t at = margin + col, here = column[at];
      const int32_t here_odds = swsi_stretch(t, here >> 14);
      const uint32_t column_level = swsi_level_of(t, here_odds, origin);
      uint32_t above_right = 0;
      unsigned bit = 1;
      if (swsi_is_past(&c)) return 0;
      if (p) above_right = swsi_get(&cells, at - p + 1) != 0;
      if (left < n_left) {
        uint32_t slots[5], around = (2 * here + column[at - 1] + column[at + 1]) >> 2;
        swsi_int x[9];
        const int32_t row_odds = swsi_stretch(t, in_row >> 14);
        int32_t around_odds;
        uint32_t recent_level = swsi_level_of(t, swsi_stretch(t, recent >> 14), origin), above2 = 0;
        if (p) {
          around = (uint32_t)((2 * (uint64_t)around + column[at - p] + column[at + p]) >> 2);
          above2 = swsi_get(&cells, at - 2 * p) != 0;
        }
        around_odds = swsi_stretch(t, around >> 14);
        x[0] = swsi_stretch(t, left < 65536 ? (left << 16) / n_left : (uint32_t)(((uint64_t)left << 16) / n_left));
        x[1] = row_odds - x[0];
        x[2] = here_odds - x[0];
        x[3] = around_odds - x[0];
        slots[0] = 32 * above + 16 * above_left + 8 * above_right + 4 * above2 + 2 * left1 + left2;
        slots[1] = 64 + 4 * (9 * recent_level + column_level) + 2 * left1 + above;
        slots[2] = 64 + 324 + 9 * run_level + swsi_level_of(t, around_odds, origin);
        slots[3] = 64 + 324 + 108 + 9 * swsi_level_of(t, row_odds, origin) + column_level;
        slots[4] = 64 + 324 + 108 + 81 + 2 * (line & 255) + left1;
        if ((decided & 127) == 0) {
          const uint32_t slow = decided >> 7;
          rate = slow < 149 ? (int32_t)(2621440u / (1000 + 128 * slow)) : 131;
          if (rate < 131) rate = 131;
        }
        decided++;
        bit = swsi_mixed(&c, 4, 5, x, slots, s, w, rate);
        column[at] = swsi_learned(t, here, bit, i + 2 < 4095 ? i + 2 : 4095);
        in_row = swsi_learned(t, in_row, bit, col + 2 < 4095 ? col + 2 : 4095);
        recent = swsi_learned(t, recent, bit, col + 2 < 16 ? col + 2 : 16);
      }
      n_left--;
      if (++in_line == p) {
        line++;
        in_line = 0;
      }
      if (!bit) {
        run++;
        if (run >> run_level && run_level < 11) run_level++;
      } else {
        uint32_t contexts[6], lag[6], first = 0, second = 0, one = swsi_get(&cells, at - 1), up = 0, index;
        left--;
        run = run_level = 0;
        lag[0] = 1; lag[1] = p; lag[2] = p + 1; lag[3] = p - 1; lag[4] = 2; lag[5] = 2 * p;
        for (k = 0; k < 6 && !second; k++) {
          const uint32_t near = p || k == 0 || k == 4 ? swsi_get(&cells, at - lag[k]) : 0;
          if (first) second = near;
          else first = near;
        }
        if (p) up = swsi_get(&cells, at - p);
        if (one > 15) one = 15;
        if (up > 15) up = 15;
        contexts[0] = 0;
        contexts[1] = first;
        contexts[2] = second;
        contexts[3] = j->value_wraps[3] ? 16 * one + up : p ? one * (uint32_t)swsi_min(16, j->n_values) + up : one;
        contexts[4] = col;
        contexts[5] = column_level;
        index = swsi_decode_value(j, &c, contexts);
        swsi_set(&cells, at, index);
        any = 1;
      }
      left2 = left1;
      left1 = bit;
      above_left = above;
      above = above_right;
    }
    if (!swsi_emit(j, i, any != 0)) return 0;
  }
#ifndef SWS_WITHOUT_COMPACT
  if (j->f->compact) return swsi_pause(&c, j->f);
#endif
  return swsi_is_complete(&c);
}

#ifndef SWS_WITHOUT_FAST
/* The fast model (8.6) */

static int swsi_plan_fast(swsi_job *j, int counting) {
  if (!j->t->in_bands && (j->code_bytes ? j->code[0] != 128 : !counting)) return 0;
  j->period = 0;
  j->margin = 2;
  j->columns = swsi_take(&j->memory, j->t->cols, 8);
  j->levels = (uint8_t *)swsi_take(&j->memory, j->t->cols, 1);
  swsi_plan_values(j, 324);
  return 1;
}

static uint64_t swsi_ratio(uint64_t part, uint64_t whole, int bits) { /* part 2^bits // whole, for part <= whole < 2^62 */
  uint64_t q = part == whole;
  if (q) part = 0;
  for (; bits; bits--) {
    part *= 2;
    q *= 2;
    if (part >= whole) {
      part -= whole;
      q++;
    }
  }
  return q;
}

static uint32_t swsi_fast_level(const swsi_tables *t, uint64_t count, uint64_t seen, uint64_t density, int32_t origin) {
  const uint64_t d = ((count << 16) + 4 * density) / (seen + 4);
  return (uint32_t)swsi_level(swsi_stretch(t, (uint32_t)(d < 65535 ? d : 65535)) - origin);
}

static int swsi_fast(swsi_job *j, uint64_t first, uint64_t rows, uint64_t n_nonzero, const uint8_t *code, size_t bytes) {
  const uint64_t cols = j->t->cols, n = rows * cols;
  const swsi_tables *t = j->tables;
  const swsi_states s = j->states;
  uint64_t *counts = (uint64_t *)j->columns;
  uint8_t *levels = j->levels;
  uint64_t left = n_nonzero, n_left = n, i, col;
  uint64_t density = swsi_ratio(left, n, 16), initial = swsi_ratio(left, n, 30);
  const int32_t origin = swsi_stretch(t, (uint32_t)swsi_min(65535, density));
  swsi_coder c;
  if (initial < 8192) initial = 8192;
  if (initial > SWSI_ONE - 8192) initial = SWSI_ONE - 8192;
  swsi_start(&c, t, code, bytes);
  swsi_fill(t, s, 0, 324, (uint32_t)initial, 2);
  swsi_start_values(j);
  for (col = 0; col < cols; col++) counts[col] = 0;
  for (i = 0; i < rows; i++) {
    uint64_t in_row = 0;
    uint32_t row_slot = 0, last = 0, recent = 0;
    if (left && (i < 16 || i % 16 == 0))
      for (col = 0; col < cols; col++) levels[col] = (uint8_t)(4 * swsi_fast_level(t, counts[col], i, density, origin));
    for (col = 0; col < cols && left; col++) {
      unsigned bit = 1;
      if (swsi_is_past(&c)) return 0;
      if (col % 16 == 0) row_slot = 36 * swsi_fast_level(t, in_row, col, density, origin);
      if (left < n_left) {
        const uint32_t slot = row_slot + levels[col] + recent;
        bit = swsi_bit(&c, swsi_estimate(s, slot) >> 8);
        swsi_learn(t, s, slot, bit);
      }
      n_left--;
      recent = (2 * recent + bit) & 3;
      if (bit) {
        const size_t at = (size_t)col + 2;
        const uint32_t one = swsi_get(&j->cells, at - 1);
        uint32_t contexts[6];
        contexts[0] = contexts[2] = 0;
        contexts[1] = last;
        contexts[3] = one < 15 ? one : 15;
        contexts[4] = (uint32_t)col;
        contexts[5] = levels[col] >> 2;
        last = swsi_decode_value(j, &c, contexts);
        swsi_set(&j->cells, at, last);
        left--;
        in_row++;
        row_slot = 36 * swsi_fast_level(t, in_row, col + 1, density, origin);
        levels[col] = (uint8_t)(4 * swsi_fast_level(t, ++counts[col], i + 1, density, origin));
      }
    }
    if (!swsi_emit(j, first + i, last != 0)) return 0;
  }
  return swsi_is_complete(&c);
}

/* Bands (14) */

static int swsi_bands(swsi_job *j) {
  const uint64_t rows = j->t->rows, cols = j->t->cols;
  swsi_reader heads = {NULL, 1, 0, 0, 0}, r;
  const uint8_t *code;
  unsigned k, bits;
  uint64_t total = 0, bytes = 0, i;
  heads.data = j->code;
  heads.end = j->code_bytes;
  bits = j->code_bytes ? j->code[0] : 0;
  if (bits < 1 || bits > 4 || UINT64_C(1) << bits > rows) return 0;
  for (r = heads, k = 0; k < 1u << bits; k++) {
    const uint64_t n = swsi_varint(&r), length = swsi_varint(&r);
    if (n > (((k + 1) * rows >> bits) - (k * rows >> bits)) * cols || (n == 0 && length)) return 0;
    total += n;
    bytes = swsi_add(bytes, length);
  }
  if (r.bad || total != j->n_nonzero || bytes != r.end - r.at) return 0;
  code = r.data + r.at;
  for (k = 0; k < 1u << bits; k++) {
    const uint64_t first = k * rows >> bits, end = (k + 1) * rows >> bits, n = swsi_varint(&heads);
    const size_t length = (size_t)swsi_varint(&heads);
    for (i = first; n == 0 && i < end; i++)
      if (!swsi_emit(j, i, 0)) return 0;
    if (n && !swsi_fast(j, first, end - first, n, code, length)) return 0;
    code += length;
  }
  return 1;
}
#endif /* SWS_WITHOUT_FAST */

#ifndef SWS_WITHOUT_STATIC
/* Static code (13). A slot of a table is symbol | (slot - cum) << 8 | (frequency - 1) << 20. */

static int swsi_read_static(swsi_reader *r, uint64_t rows, uint64_t cols, uint32_t n_values, swsi_static_head *h) {
  const unsigned a = swsi_byte(r), c = swsi_byte(r), form = swsi_byte(r);
  uint64_t classes, n_bits, n_chunks, units = 0, k;
  uint32_t table;
  h->n_values = n_values;
  h->lanes = 1u << (a & 31);
  h->chunk_bits = c;
  h->n_tables = (form & 7) + 1;
  h->axis = (int)(form >> 3);
  h->class_bits = swsi_bits(h->n_tables - 1);
  if (r->bad || rows * cols == 0 || n_values < 2 || n_values > 256 || a > 5 || c < 6 || c > 16 || h->axis > 2 ||
      (h->axis != 0) != (h->n_tables > 1))
    return 0;
  classes = h->axis == 1 ? rows : h->axis == 2 ? cols : 0;
  n_bits = classes * h->class_bits;
  h->classes = r->data + r->at;
  if ((n_bits + 7) / 8 > r->end - r->at) return 0;
  r->at += (size_t)((n_bits + 7) / 8);
  if (n_bits % 8 && r->data[r->at - 1] >> n_bits % 8) return 0;
  h->frequencies = r->data + r->at;
  for (table = 0; table < h->n_tables; table++) {
    uint64_t sum = 0;
    for (k = 0; k < n_values && !r->bad; k++) {
      const uint64_t f = swsi_varint(r);
      sum = swsi_add(sum, f);
      if (f == 0) k += swsi_min(swsi_varint(r), 256);
    }
    if (r->bad || k != n_values || sum != 4096) return 0;
  }
  n_chunks = (rows * cols - 1) >> c;
  n_chunks++;
  h->words = r->data + r->at;
  if (n_chunks > (r->end - r->at) / 2) return 0;
  r->at += (size_t)n_chunks * 2;
  h->chunks = r->data + r->at;
  for (k = 0; k < n_chunks; k++) units += 2 * h->lanes + swsi_load(h->words + 2 * k, 2);
  if (units > (r->end - r->at) / 2) return 0;
  r->at += (size_t)units * 2;
  return 1;
}

static unsigned swsi_class(const swsi_static_head *h, uint64_t k) {
  unsigned class_ = 0, bit;
  for (bit = 0; bit < h->class_bits; bit++) {
    const uint64_t at = k * h->class_bits + bit;
    class_ |= ((unsigned)h->classes[at >> 3] >> (at & 7) & 1u) << bit;
  }
  return class_;
}

static int swsi_make_static(const swsi_static_head *h, uint64_t cols, uint64_t rows, uint32_t *slots, uint8_t *of_columns) {
  swsi_reader r = {NULL, 0, 0, 0, 0};
  uint64_t k;
  uint32_t table, more = 0, symbol, slot, i;
  r.data = h->frequencies;
  r.end = (size_t)(h->words - h->frequencies);
  for (table = 0; table < h->n_tables; table++, slots += 4096) {
    for (symbol = slot = 0; symbol < h->n_values; symbol++) {
      const uint32_t f = (uint32_t)swsi_varint(&r);
      for (i = 0; i < f; i++) slots[slot++] = symbol | i << 8 | (f - 1) << 20;
      if (f == 0) {
        more = (uint32_t)swsi_varint(&r);
        symbol += more;
      }
    }
  }
  for (k = 0; h->axis == 1 && k < rows; k++)
    if (swsi_class(h, k) >= h->n_tables) return 0;
  for (k = 0; h->axis == 2 && k < cols; k++) {
    of_columns[k] = (uint8_t)swsi_class(h, k);
    if (of_columns[k] >= h->n_tables) return 0;
  }
  return 1;
}

typedef struct {
  const swsi_static_head *h;
  const uint32_t *slots;
  const uint8_t *of_columns;
  const uint8_t *at, *end; /* of the words of a chunk */
  uint64_t chunk, in_chunk; /* the next one, and the symbols left in this one */
  uint32_t lane, x[32];
} swsi_static_state;

static int swsi_next_chunk(swsi_static_state *s, uint64_t n_left) { /* 0: the last chunk has not ended as it must */
  const uint64_t whole = UINT64_C(1) << s->h->chunk_bits;
  uint32_t k, lanes = s->h->lanes;
  for (k = 0; s->chunk && k < lanes; k++)
    if (s->x[k] != 65536) return 0;
  if (s->at != s->end) return 0;
  if (n_left == 0) return 1;
  s->in_chunk = n_left < whole ? n_left : whole;
  s->lane = 0;
  s->end = s->at + 4 * lanes + 2 * (size_t)swsi_load(s->h->words + 2 * s->chunk, 2);
  for (k = 0; k < lanes; k++, s->at += 4) {
    s->x[k] = swsi_load(s->at, 4);
    if (s->x[k] < 65536) return 0;
  }
  s->chunk++;
  return 1;
}

SWSI_HOT uint32_t swsi_symbol_of(uint32_t *x, const uint32_t *slots, const uint8_t **at) {
  const uint32_t slot = slots[*x & 4095], word = (uint32_t)(*at)[0] | (uint32_t)(*at)[1] << 8, high = *x >> 12;
  const uint32_t next = (slot >> 20) * high + (high + (slot >> 8 & 4095)), few = next < 65536;
  *x = few ? next << 16 | word : next;
  *at += 2 * few;
  return slot & 255;
}

typedef struct { /* where symbols go: as values (size 2 or 4), or as bytes, `stride` apart (size 0) */
  uint8_t *out;
  const uint8_t *values;
  size_t stride;
  unsigned size;
  uint64_t *n_nonzero;
} swsi_target;

SWSI_HOT void swsi_put(const swsi_target *to, size_t k, uint32_t symbol) {
  if (to->size == 4) ((uint32_t *)(void *)to->out)[k] = ((const uint32_t *)(const void *)to->values)[symbol];
  else if (to->size == 2) ((uint16_t *)(void *)to->out)[k] = ((const uint16_t *)(const void *)to->values)[symbol];
  else to->out[k * to->stride] = (uint8_t)symbol;
  if (to->n_nonzero != NULL) *to->n_nonzero += symbol != 0;
}

SWSI_HOT int swsi_static_row(swsi_static_state *s, uint64_t row, uint64_t cols, uint64_t n_left, const swsi_target *to) {
  const uint32_t *slots = s->slots + (s->h->axis == 1 ? 4096 * (size_t)swsi_class(s->h, row) : 0);
  const uint32_t lanes = s->h->lanes;
  const int by_column = s->h->axis == 2;
  size_t col = 0; /* the symbols of a row; n_left: those of the matrix from this row on */
  while (col < cols) {
    size_t n;
    if (s->in_chunk == 0 && !swsi_next_chunk(s, n_left - col)) return 0;
    n = (size_t)swsi_min(s->in_chunk, cols - col);
    s->in_chunk -= n;
#ifndef SWS_SMALL
    while (s->lane == 0 && n >= lanes && (size_t)(s->end - s->at) >= 2 * lanes) {
      const size_t words = (size_t)(s->end - s->at) / 2; /* a symbol takes one word at most */
      size_t groups = (n < words ? n : words) / lanes;
      const uint8_t *at = s->at;
      n -= lanes * groups;
      if (lanes == 4) {
        const uint32_t *slots0 = slots, *slots1 = slots, *slots2 = slots, *slots3 = slots;
        uint32_t x0 = s->x[0], x1 = s->x[1], x2 = s->x[2], x3 = s->x[3];
        for (; groups; groups--, col += 4) {
          if (by_column) {
            const uint8_t *of = s->of_columns + col;
            slots0 = s->slots + 4096 * (size_t)of[0];
            slots1 = s->slots + 4096 * (size_t)of[1];
            slots2 = s->slots + 4096 * (size_t)of[2];
            slots3 = s->slots + 4096 * (size_t)of[3];
          }
          swsi_put(to, col, swsi_symbol_of(&x0, slots0, &at));
          swsi_put(to, col + 1, swsi_symbol_of(&x1, slots1, &at));
          swsi_put(to, col + 2, swsi_symbol_of(&x2, slots2, &at));
          swsi_put(to, col + 3, swsi_symbol_of(&x3, slots3, &at));
        }
        s->x[0] = x0;
        s->x[1] = x1;
        s->x[2] = x2;
        s->x[3] = x3;
      } else if (lanes == 32 && !by_column) {
        for (; groups; groups--) {
          uint32_t k;
          SWSI_UNROLL for (k = 0; k < 32; k++, col++) swsi_put(to, col, swsi_symbol_of(&s->x[k], slots, &at));
        }
      } else {
        for (; groups; groups--) {
          uint32_t k;
          for (k = 0; k < lanes; k++, col++) {
            if (by_column) slots = s->slots + 4096 * (size_t)s->of_columns[col];
            swsi_put(to, col, swsi_symbol_of(&s->x[k], slots, &at));
          }
        }
      }
      s->at = at;
    }
#endif
    for (; n; n--, col++) { /* a word behind the last one is read, but not used: the checksum follows */
      if (by_column) slots = s->slots + 4096 * (size_t)s->of_columns[col];
      swsi_put(to, col, swsi_symbol_of(&s->x[s->lane], slots, &s->at));
      if (s->at > s->end) return 0;
      s->lane = (s->lane + 1) & (lanes - 1);
    }
  }
  return 1;
}

static void swsi_start_static(swsi_static_state *s, const swsi_static_head *h, const uint32_t *slots, const uint8_t *of_columns) {
  s->h = h;
  s->slots = slots;
  s->of_columns = of_columns;
  s->at = s->end = h->chunks;
  s->chunk = s->in_chunk = 0;
}

static int swsi_plan_static(swsi_job *j, int counting) {
  swsi_reader r = {NULL, 0, 0, 0, 0};
  r.data = j->code;
  r.end = j->code_bytes;
  j->margin = 0;
  j->static_head.n_tables = 1;
  if (!swsi_read_static(&r, j->t->rows, j->t->cols, j->n_values, &j->static_head) || r.at != r.end)
    return counting;
  j->symbols = (uint32_t *)swsi_take(&j->memory, 4096 * (uint64_t)j->static_head.n_tables, 4);
  j->levels = (uint8_t *)swsi_take(&j->memory, j->static_head.axis == 2 ? j->t->cols : 0, 1);
  return 1;
}

static uint64_t swsi_count_nonzero(const uint8_t *p, size_t n) {
  uint64_t count = 0;
#ifndef SWS_SMALL
  const uint64_t low = UINT64_C(0x7f7f7f7f7f7f7f7f), ones = UINT64_C(0x0101010101010101);
  for (; n >= 8; n -= 8, p += 8) {
    const uint64_t v = (uint64_t)swsi_load(p, 4) | (uint64_t)swsi_load(p + 4, 4) << 32;
    count += ((((v & low) + low) | v) >> 7 & ones) * ones >> 56; /* the top bit of each byte that is not 0 */
  }
#endif
  for (; n; n--) count += *p++ != 0;
  return count;
}

static int swsi_static(swsi_job *j) {
  const uint64_t rows = j->t->rows, cols = j->t->cols;
  uint64_t i, n_nonzero = 0;
  swsi_static_state s;
  if (!swsi_make_static(&j->static_head, cols, rows, j->symbols, j->levels)) return 0;
  swsi_start_static(&s, &j->static_head, j->symbols, j->levels);
  for (i = 0; i < rows; i++) {
    uint64_t any = 0;
#ifndef SWS_SMALL
    if (j->scales[0] == NULL && j->scales[1] == NULL && j->size != 8 && j->size != 1) { /* straight to their place */
      uint8_t *out = j->row != NULL ? j->out : j->out + (size_t)i * (size_t)cols * j->size;
      int fine;
      if (j->size == 4) {
        const swsi_target to = {out, j->converted, 1, 4, &any};
        fine = swsi_static_row(&s, i, cols, (rows - i) * cols, &to);
      } else {
        const swsi_target to = {out, j->converted, 1, 2, &any};
        fine = swsi_static_row(&s, i, cols, (rows - i) * cols, &to);
      }
      if (!fine || !swsi_give(j, i, out)) return 0;
      n_nonzero += any;
      continue;
    }
#endif
    {
      const swsi_target to = {j->cells.narrow, NULL, 1, 0, NULL};
      if (!swsi_static_row(&s, i, cols, (rows - i) * cols, &to)) return 0;
    }
    any = swsi_count_nonzero(j->cells.narrow, (size_t)cols);
    n_nonzero += any;
    if (!swsi_emit(j, i, any != 0)) return 0;
  }
  return swsi_next_chunk(&s, 0) && n_nonzero == j->n_nonzero;
}
#endif /* SWS_WITHOUT_STATIC */

#ifndef SWS_WITHOUT_PLANES
/* Byte planes (8.7). Tables of 256 states are made for the bytes that occur. */

typedef struct {
  swsi_states states;
  uint16_t *places; /* of the table of each byte before, then of each byte after; 0: none yet */
} swsi_plane_tables;

static swsi_plane_tables swsi_plan_planes(swsi_memory *m, uint64_t n) {
  swsi_plane_tables p;
  p.states = swsi_take_states(m, 256 * (1 + 2 * swsi_min(n, 256)));
  p.places = (uint16_t *)swsi_take(m, 512, 2);
  return p;
}

static int swsi_planes(const swsi_tables *t, const swsi_plane_tables *p, const uint8_t *data, size_t n_bytes, uint64_t n,
                       unsigned size, uint8_t *octets) {
  const unsigned header = size > 4 ? 2 : 1;
  const uint32_t modes = n_bytes < header ? UINT32_MAX : swsi_load(data, header);
  const size_t count = (size_t)n;
  size_t at = header, k;
  uint32_t plane;
  swsi_coder c;
  if (n_bytes < header || modes >> 2 * size) return 0;
  for (plane = size; plane-- > 0;) {
    const uint32_t mode = modes >> 2 * plane & 3;
    const size_t bytes = mode == 1 ? 1 : mode == 3 ? count : 0;
    if (n_bytes - at < bytes || (mode == 1 && data[at] == 0)) return 0;
    for (k = 0; k < count; k++) octets[k * size + plane] = mode == 1 ? data[at] : mode == 3 ? data[at + k] : 0;
    at += bytes;
  }
  swsi_start(&c, t, data + at, n_bytes - at);
  for (plane = size; plane-- > 0;) {
    uint32_t before = 0, tables = 1;
    swsi_int w[8][4], x[4];
    unsigned level;
    if ((modes >> 2 * plane & 3) != 2) continue;
    swsi_fill(t, p->states, 0, 256, 1u << 29, 0);
    for (k = 0; k < 512; k++) p->places[k] = 0;
    for (k = 0; k < 32; k++) w[k / 4][k % 4] = k % 4 ? 19660 : 65536;
    for (k = 0; k < count; k++) {
      uint32_t slots[3], from[2], node = 1;
      int which;
      if (swsi_is_past(&c)) return 0;
      for (which = 0; which < 2; which++) {
        uint16_t *place = p->places + (which ? 256u + (plane + 1 < size ? octets[k * size + plane + 1] : 0u) : before);
        if (*place == 0) {
          swsi_fill(t, p->states, 256 * (size_t)tables, 256, 1u << 29, 0);
          *place = (uint16_t)tables++;
        }
        from[which] = 256u * *place;
      }
      for (level = 0; level < 8; level++) {
        slots[0] = node;
        slots[1] = from[0] + node;
        slots[2] = from[1] + node;
        x[0] = swsi_odds(t, p->states, node);
        node = 2 * node + swsi_mixed(&c, 1, 3, x, slots, p->states, w[level], 1310);
      }
      before = node - 256;
      octets[k * size + plane] = (uint8_t)before;
    }
  }
  return swsi_is_complete(&c);
}
#endif /* SWS_WITHOUT_PLANES */

#ifndef SWS_WITHOUT_HAN
/* Codec han (9) */

typedef struct {
  const uint8_t *data;
  uint64_t at, end; /* in bits; at > end: past the end */
} swsi_bit_reader;

static uint64_t swsi_field(swsi_bit_reader *b, unsigned width) {
  uint64_t value = 0;
  for (; width; width--, b->at++)
    value = value << 1 | (b->at < b->end ? (unsigned)b->data[b->at >> 3] >> (7 - (b->at & 7)) & 1u : 0u);
  return value;
}

typedef struct {
  uint32_t counts[32]; /* codes of each length */
  uint32_t *symbols;   /* in the order of their codes */
} swsi_huffman;

static int swsi_read_huffman(swsi_bit_reader *b, swsi_huffman *h, uint32_t alphabet) {
  const uint64_t last = swsi_field(b, swsi_bits(alphabet - 1));
  const unsigned width = (unsigned)swsi_field(b, 3);
  uint32_t k, places[32], used = 0;
  uint64_t kraft = 0;
  swsi_bit_reader again;
  if (last >= alphabet || width < 1 || width > 5 || b->at > b->end) return 0;
  for (k = 0; k < 32; k++) h->counts[k] = 0;
  again = *b;
  for (k = 0; k <= last; k++) h->counts[swsi_field(b, width)]++;
  h->counts[0] = 0;
  for (k = 1; k < 32; k++) {
    places[k] = used;
    used += h->counts[k];
    kraft += (uint64_t)h->counts[k] << (31 - k);
  }
  if (b->at > b->end || (kraft != UINT64_C(1) << 31 && !(used == 1 && h->counts[1] == 1))) return 0;
  for (k = 0; k <= last; k++) {
    const unsigned length = (unsigned)swsi_field(&again, width);
    if (length) h->symbols[places[length]++] = k;
  }
  return 1;
}

static int swsi_symbol(swsi_bit_reader *b, const swsi_huffman *h, uint32_t *symbol) {
  uint64_t code = 0, first = 0;
  uint32_t place = 0;
  unsigned length;
  for (length = 1; length < 32 && b->at < b->end; length++) {
    code = code << 1 | ((unsigned)b->data[b->at >> 3] >> (7 - (b->at & 7)) & 1u);
    b->at++;
    first <<= 1;
    if (code - first < h->counts[length]) {
      *symbol = h->symbols[place + (uint32_t)(code - first)];
      return 1;
    }
    place += h->counts[length];
    first += h->counts[length];
  }
  return 0;
}

static int swsi_plan_han(swsi_job *j) {
  j->margin = 0;
  j->symbols = (uint32_t *)swsi_take(&j->memory, 256 + (uint64_t)j->n_values, 4);
  return 1;
}

static int swsi_han(swsi_job *j) {
  const uint64_t rows = j->t->rows, cols = j->t->cols;
  const uint32_t alphabet = j->t->n_dims > 2 ? 256 : 32;
  swsi_bit_reader ends = {NULL, 0, 0}, gaps, indices;
  swsi_huffman of_gaps, of_indices;
  uint64_t n = 0, k, i, n_nonzero = 0;
  uint32_t symbol = 0, index = 0;
  unsigned width;
  ends.data = j->code;
  ends.end = 8 * (uint64_t)j->code_bytes;
  width = (unsigned)swsi_field(&ends, 6);
  if (width < 1 || width > swsi_bits(rows * cols) || swsi_mul(width, rows) > ends.end - swsi_min(ends.at, ends.end)) return 0;
  gaps = ends;
  for (i = 0; i < rows; i++) {
    const uint64_t end = swsi_field(&gaps, width);
    if (end < n) return 0;
    n = end;
  }
  of_gaps.symbols = j->symbols;
  of_indices.symbols = j->symbols + 256;
  if (n < 1 || n > rows * cols || !swsi_read_huffman(&gaps, &of_gaps, alphabet)) return 0;
  indices = gaps; /* the indices follow the gaps */
  for (k = 0; k < n; k++)
    if (!swsi_symbol(&indices, &of_gaps, &symbol)) return 0;
  if (!swsi_read_huffman(&indices, &of_indices, j->n_values)) return 0;
  for (k = i = 0; i < rows; i++) {
    const uint64_t end = swsi_field(&ends, width);
    uint64_t col = 0;
    int any = 0;
    for (; k < end; k++, col++) {
      if (!swsi_symbol(&gaps, &of_gaps, &symbol) || !swsi_symbol(&indices, &of_indices, &index)) return 0;
      col += symbol;
      if (col >= cols) return 0;
      swsi_set(&j->cells, (size_t)col, index);
      n_nonzero += index != 0;
      any |= index != 0;
    }
    if (!swsi_emit(j, i, any)) return 0;
  }
  return n_nonzero == j->n_nonzero && indices.end - indices.at < 8 && swsi_field(&indices, (unsigned)(indices.end - indices.at)) == 0;
}
#endif /* SWS_WITHOUT_HAN */

/* Sections (5 and 6) */

static int swsi_read_section(swsi_job *j) {
  const sws_tensor *t = j->t;
  swsi_reader r = {NULL, 0, 0, 0, 0};
  uint32_t n;
  int k;
  r.data = j->f->data;
  r.at = (size_t)t->offset;
  r.end = (size_t)(t->offset + t->n_bytes);
  j->n_nonzero = 0;
  j->scales[0] = j->scales[1] = NULL;
  j->book = swsi_book(j->f, t->codebook, &n, &j->book_dtype);
  j->n_values = n + 1;
  if ((t->row_scales || t->column_scales) && t->n_dims < 2) return 0;
  if (t->n_bytes == 0) return 1;
  j->n_nonzero = swsi_varint(&r);
  if (r.bad || j->n_nonzero == 0 || j->n_nonzero > (n ? t->n : 0)) return 0;
  for (k = 0; k < 2; k++) {
    uint64_t bytes;
    if (!(k ? t->column_scales : t->row_scales)) continue;
    bytes = swsi_varint(&r);
    if (r.bad || bytes > (k ? t->cols : t->rows) || bytes > r.end - r.at) return 0;
    j->scale_code[k] = r.data + r.at;
    j->scale_bytes[k] = (size_t)bytes;
    r.at += (size_t)bytes;
  }
  j->code = r.data + r.at;
  j->code_bytes = r.end - r.at;
  return 1;
}

static int swsi_knows(const sws_file *f, const sws_tensor *t) { /* 0: the code of the tensor was left out */
  (void)f;
  (void)t;
#ifdef SWS_WITHOUT_STATIC
  if (t->is_static) return 0;
#endif
#ifdef SWS_WITHOUT_PLANES
  if ((t->planes && !t->is_static) || t->row_scales || t->column_scales) return 0;
#endif
#ifdef SWS_WITHOUT_FAST
  if (t->shared && !t->is_static && f->codec == 1 && t->n_bytes && swsi_is_fast(t)) return 0;
#endif
#ifdef SWS_WITHOUT_HAN
  if (t->shared && !t->is_static && f->codec == 0 && t->n_bytes) return 0;
#endif
  return 1;
}

static void swsi_plan_tables(swsi_job *j, int wanted) {
#ifdef SWS_SMALL
  (void)wanted;
  j->tables = NULL;
#else
  if (wanted) j->tables = (swsi_tables *)swsi_take(&j->memory, 1, sizeof(swsi_tables));
  if (j->tables != NULL) swsi_make_tables(j->tables);
#endif
}

static int swsi_plan_code(swsi_job *j, int counting) {
#ifndef SWS_WITHOUT_STATIC
  if (j->t->is_static) return swsi_plan_static(j, counting);
#endif
#ifndef SWS_WITHOUT_HAN
  if (j->f->codec == 0) return swsi_plan_han(j);
#endif
#ifndef SWS_WITHOUT_FAST
  if (swsi_is_fast(j->t)) return swsi_plan_fast(j, counting);
#endif
  return swsi_plan_full(j, counting);
}

#ifndef SWS_WITHOUT_PLANES
static int swsi_read_scales(swsi_job *j, int counting) {
  int k;
  for (k = 0; k < 2; k++) {
    const uint64_t n = k ? j->t->cols : j->t->rows;
    uint64_t used;
    size_t i;
    if (!(k ? j->t->column_scales : j->t->row_scales)) continue;
    j->scales[k] = (uint8_t *)swsi_take(&j->memory, n, 1);
    used = j->memory.used;
    if (j->scale_bytes[k] < n) { /* the tables for them are free again afterwards */
      const swsi_plane_tables planes = swsi_plan_planes(&j->memory, n);
      if (planes.places != NULL && !counting &&
          !swsi_planes(j->tables, &planes, j->scale_code[k], j->scale_bytes[k], n, 1, j->scales[k]))
        return 0;
    } else if (j->scales[k] != NULL) {
      for (i = 0; i < n; i++) j->scales[k][i] = j->scale_code[k][i];
    }
    j->memory.used = used;
  }
  return 1;
}
#endif

static int swsi_plan_shared(swsi_job *j, int counting) {
  const sws_tensor *t = j->t;
  if (j->n_nonzero) {
    swsi_plan_tables(j, (j->f->codec == 1 && !t->is_static) || t->row_scales || t->column_scales);
#ifndef SWS_WITHOUT_PLANES
    if (!swsi_read_scales(j, counting)) return 0;
#endif
    if (!swsi_plan_code(j, counting)) return 0;
  }
  j->converted = (uint8_t *)swsi_take(&j->memory, j->n_values, j->size);
#ifdef SWS_SMALL
  j->cells.narrow = j->n_values <= 256 ? (uint8_t *)swsi_take(&j->memory, t->cols + j->margin, 1) : NULL;
  j->cells.wide = j->n_values <= 256 ? NULL : (uint32_t *)swsi_take(&j->memory, t->cols + j->margin, 4);
#else
  j->cells.narrow = t->is_static && j->n_nonzero ? (uint8_t *)swsi_take(&j->memory, t->cols, 1) : NULL;
  j->cells.wide = t->is_static && j->n_nonzero ? NULL : (uint32_t *)swsi_take(&j->memory, t->cols + j->margin, 4);
#endif
  return 1;
}

static int swsi_decode_shared(swsi_job *j) {
  const sws_tensor *t = j->t;
  uint32_t top = swsi_value(j->book, j->book_dtype, j->n_values - 1); /* the largest value in magnitude */
  uint64_t i;
#ifndef SWS_WITHOUT_PLANES
  int k, quarters = 0, scaled = 0;
  for (k = 0; k < 2; k++) {
    int most = -128;
    if (j->scales[k] == NULL) continue;
    scaled = 1;
    for (i = 0; i < (k ? t->cols : t->rows); i++)
      if ((int)(int8_t)j->scales[k][i] > most) most = (int)(int8_t)j->scales[k][i];
    quarters += most;
  }
  if (scaled) top = swsi_scaled(top, quarters);
#endif
  if (!swsi_finite(swsi_convert(top, SWS_F32, t->dtype), t->dtype)) return 0;
  for (i = 0; !t->is_static && i < t->cols + j->margin; i++) swsi_set(&j->cells, (size_t)i, 0);
  swsi_convert_book(j, 0);
  if (j->n_nonzero == 0) {
    for (i = 0; i < t->rows; i++)
      if (!swsi_emit(j, i, 0)) return 0;
    return 1;
  }
#ifndef SWS_WITHOUT_STATIC
  if (t->is_static) return swsi_static(j);
#endif
#ifndef SWS_WITHOUT_HAN
  if (j->f->codec == 0) return swsi_han(j);
#endif
#ifndef SWS_WITHOUT_FAST
  if (t->in_bands) return swsi_bands(j);
  if (swsi_is_fast(t)) return swsi_fast(j, 0, t->rows, j->n_nonzero, j->code + 1, j->code_bytes - 1);
#endif
  return swsi_full(j);
}

#ifndef SWS_WITHOUT_STATIC
static int swsi_static_planes(swsi_job *j, uint8_t *octets, int counting) { /* 13.4 */
  const sws_tensor *t = j->t;
  const unsigned size = swsi_itemsize[t->stored];
  const int is_float = t->stored <= SWS_F64;
  const uint64_t rows = t->rows, cols = t->cols, n = t->n, used = j->memory.used;
  swsi_reader r = {NULL, 0, 0, 0, 0};
  uint64_t i;
  uint32_t modes;
  size_t k;
  unsigned plane;
  r.data = j->f->data;
  r.at = (size_t)t->offset;
  r.end = (size_t)(t->offset + t->n_bytes);
  modes = swsi_byte(&r);
  if (size > 4) modes |= swsi_byte(&r) << 8;
  if (r.bad || n == 0 || modes >> 2 * size) return 0;
  for (plane = size; plane-- > 0;) {
    const uint32_t mode = modes >> 2 * plane & 3;
    const uint64_t bytes = mode == 1 ? 1 : mode == 3 ? n : 0;
    if (mode == 2) {
      swsi_static_head h;
      swsi_static_state s;
      uint32_t *slots;
      uint8_t *of_columns;
      if (!swsi_read_static(&r, rows, cols, 256, &h)) return 0;
      j->memory.used = used;
      slots = (uint32_t *)swsi_take(&j->memory, 4096 * (uint64_t)h.n_tables, 4);
      of_columns = (uint8_t *)swsi_take(&j->memory, h.axis == 2 ? cols : 0, 1);
      if (counting) continue;
      if (!swsi_make_static(&h, cols, rows, slots, of_columns)) return 0;
      swsi_start_static(&s, &h, slots, of_columns);
      for (i = 0; i < rows; i++) {
        const swsi_target to = {octets + (size_t)(i * cols) * size + plane, NULL, size, 0, NULL};
        if (!swsi_static_row(&s, i, cols, (rows - i) * cols, &to)) return 0;
      }
      if (!swsi_next_chunk(&s, 0)) return 0;
      continue;
    }
    if (r.end - r.at < bytes || (mode == 1 && r.data[r.at] == 0)) return 0;
    for (k = 0; !counting && k < n; k++)
      octets[k * size + plane] = mode == 1 ? r.data[r.at] : mode == 3 ? r.data[r.at + k] : 0;
    r.at += (size_t)bytes;
  }
  if (r.at != r.end) return 0;
  for (k = 0; is_float && !counting && k < n; k++) { /* rotate right by one bit */
    uint8_t *number = octets + k * size;
    const unsigned lowest = number[0] & 1u;
    for (plane = 0; plane < size; plane++)
      number[plane] = (uint8_t)(number[plane] >> 1 | (plane + 1 < size ? number[plane + 1] & 1u : lowest) << 7);
  }
  return 1;
}
#endif /* SWS_WITHOUT_STATIC */

static int swsi_rest(swsi_job *j, int counting) {
  const sws_tensor *t = j->t;
  const unsigned size = swsi_itemsize[t->stored];
  const uint64_t bytes = t->n * size;
  const uint8_t *data = j->f->data + (size_t)t->offset;
  uint64_t i, k;
  if (t->planes) {
    uint8_t *octets;
    if (t->n_bytes >= bytes) return 0;
    octets = (uint8_t *)swsi_take(&j->memory, bytes, 1);
    (void)octets;
    if (t->is_static) {
#ifndef SWS_WITHOUT_STATIC
      if (!swsi_static_planes(j, octets, counting)) return 0;
#endif
    } else {
#ifndef SWS_WITHOUT_PLANES
      swsi_plane_tables planes;
      swsi_plan_tables(j, 1);
      planes = swsi_plan_planes(&j->memory, t->n);
      if (counting) return 1;
      if (!swsi_planes(j->tables, &planes, data, (size_t)t->n_bytes, t->n, size, octets)) return 0;
#endif
    }
    data = octets;
  } else if (!counting && t->n_bytes != bytes) {
    return 0;
  }
  if (counting) return 1;
  if (t->dtype == SWS_BOOL)
    for (k = 0; k < t->n; k++)
      if (data[k] > 1) return 0;
  for (i = 0; i < t->rows; i++) {
    uint8_t *to = j->row != NULL ? j->out : j->out + (size_t)(i * t->cols) * j->size;
    for (k = 0; k < t->cols; k++, data += size) {
      uint64_t bits = swsi_load(data, size < 4 ? size : 4);
      if (size == 8) bits |= (uint64_t)swsi_load(data + 4, 4) << 32;
      swsi_store(to + (size_t)k * j->size, j->size, t->dtype <= SWS_F64 ? swsi_as_output(j, bits, t->stored) : bits);
    }
    if (!swsi_give(j, i, to)) return 0;
  }
  return 1;
}

static size_t swsi_value_bytes(const sws_tensor *t, sws_output output, uint32_t n_values) {
  if (output == SWS_OWN) return swsi_itemsize[t->dtype];
  if (output == SWS_INDEX) return !t->shared ? 0 : n_values <= 256 ? 1 : n_values <= 65536 ? 2 : 4;
  return t->dtype > SWS_F64 ? 0 : output == SWS_FLOAT32 ? 4 : 2;
}

size_t sws_value_bytes(const sws_file *f, const sws_tensor *t, sws_output output) {
  return swsi_value_bytes(t, output, t->shared ? sws_codebook_size(f, t->codebook) : 0);
}

static uint64_t swsi_offset(const sws_file *f, const sws_tensor *t) { return f->compact ? 6 : t->offset; }

static sws_status swsi_run_one(sws_file *f, const sws_tensor *t, sws_output output, sws_row row, int by_row, void *user,
                               void *out, void *work, size_t work_bytes, int counting, uint64_t *need) {
  const size_t skew = (size_t)(0 - (uintptr_t)work) & 7;
  swsi_job j;
  int fine;
  j.f = f;
  j.t = t;
  j.output = output;
  j.row = row;
  j.user = user;
  j.size = (unsigned)sws_value_bytes(f, t, output);
  j.stopped = 0;
  j.tables = NULL;
  j.margin = 0;
  j.memory.base = counting || work == NULL || work_bytes < skew ? NULL : (uint8_t *)work + skew;
  j.memory.room = j.memory.base != NULL ? work_bytes - skew : 0;
  j.memory.used = j.memory.most = 0;
  *need = 0;
  if (j.size == 0 || !t->has_shape || !swsi_knows(f, t)) return SWS_ARGUMENT;
  j.out = by_row ? (uint8_t *)swsi_take(&j.memory, t->cols, j.size) : (uint8_t *)out;
  if (t->shared) {
    fine = swsi_read_section(&j) && swsi_plan_shared(&j, counting);
    *need = swsi_add(j.memory.most, 7);
    if (counting) return SWS_OK;
    if (fine && j.memory.most > j.memory.room) {
      f->need = *need;
      return SWS_WORKSPACE;
    }
    if (!by_row && ((uintptr_t)out & (j.size - 1))) return SWS_ARGUMENT;
    fine = fine && swsi_decode_shared(&j);
  } else {
    (void)swsi_rest(&j, 1);
    *need = swsi_add(j.memory.most, 7);
    if (counting) return SWS_OK;
    if (j.memory.most > j.memory.room) {
      f->need = *need;
      return SWS_WORKSPACE;
    }
    if (!by_row && ((uintptr_t)out & (j.size - 1))) return SWS_ARGUMENT;
    j.memory.used = by_row ? swsi_mul(t->cols, j.size) : 0;
    fine = swsi_rest(&j, 0);
  }
  if (j.stopped) return SWS_STOPPED;
#ifndef SWS_WITHOUT_COMPACT
  if (fine && f->compact) fine = swsi_next_is(f, t->number + 1);
#endif
  return fine ? SWS_OK : swsi_refuse(f, SWS_TENSOR, t->number, swsi_offset(f, t));
}

#ifndef SWS_WITHOUT_COMPACT
static int swsi_ignore(void *user, uint64_t row, const void *values, size_t n) {
  (void)user, (void)row, (void)values, (void)n;
  return 0;
}
#endif

static sws_status swsi_run(sws_file *f, const sws_tensor *t, sws_output output, sws_row row, int by_row, void *user,
                           void *out, void *work, size_t work_bytes, int counting, uint64_t *need) {
  sws_status status = SWS_OK;
#ifndef SWS_WITHOUT_COMPACT
  uint64_t most = 0;
  if (f->compact) { /* the tensors before it, unless the last one that was decoded is that before it */
    sws_tensor s;
    if (!counting && t->number < f->code_next) swsi_rewind(f);
    sws_first(f, &s, NULL, 0);
    while (status == SWS_OK && swsi_step(f, &s, 0) == SWS_OK && s.number < t->number) {
      if (counting || s.number >= f->code_next)
        status = swsi_run_one(f, &s, SWS_INDEX, swsi_ignore, 1, NULL, NULL, work, work_bytes, counting, need);
      if (counting && *need > most) most = *need;
    }
  }
#endif
  if (status == SWS_OK) status = swsi_run_one(f, t, output, row, by_row, user, out, work, work_bytes, counting, need);
#ifndef SWS_WITHOUT_COMPACT
  if (*need < most && *need > 0) *need = most;
#endif
  return status;
}

uint64_t sws_need(const sws_file *f, const sws_tensor *t, sws_output output) {
  uint64_t need;
  sws_file copy = *f;
  (void)swsi_run(&copy, t, output, NULL, 0, NULL, NULL, NULL, 0, 1, &need);
  return need;
}

uint64_t sws_need_rows(const sws_file *f, const sws_tensor *t, sws_output output) {
  uint64_t need;
  sws_file copy = *f;
  (void)swsi_run(&copy, t, output, NULL, 1, NULL, NULL, NULL, 0, 1, &need);
  return need;
}

sws_status sws_decode(sws_file *f, const sws_tensor *t, sws_output output, void *out, void *work, size_t work_bytes) {
  uint64_t need;
  return swsi_run(f, t, output, NULL, 0, NULL, out, work, work_bytes, 0, &need);
}

sws_status sws_scales(sws_file *f, const sws_tensor *t, int columns, int8_t *exponents, void *work, size_t work_bytes) {
  const size_t skew = (size_t)(0 - (uintptr_t)work) & 7;
  const uint64_t n = columns ? t->cols : t->rows;
  uint64_t i;
  swsi_job j;
  int fine;
  if (!t->shared || !t->has_shape || !swsi_knows(f, t)) return SWS_ARGUMENT;
  j.f = f;
  j.t = t;
  j.output = SWS_INDEX;
  j.size = 0;
  j.tables = NULL;
  j.margin = 0;
  j.memory.base = work == NULL || work_bytes < skew ? NULL : (uint8_t *)work + skew;
  j.memory.room = j.memory.base != NULL ? work_bytes - skew : 0;
  j.memory.used = j.memory.most = 0;
  fine = swsi_read_section(&j) && swsi_plan_shared(&j, 0);
  if (fine && j.memory.most > j.memory.room) {
    f->need = swsi_add(j.memory.most, 7);
    return SWS_WORKSPACE;
  }
  if (!fine) return swsi_refuse(f, SWS_TENSOR, t->number, swsi_offset(f, t));
  for (i = 0; i < n; i++) exponents[i] = j.scales[columns != 0] != NULL ? (int8_t)j.scales[columns != 0][i] : 0;
  return SWS_OK;
}

sws_status sws_rows(sws_file *f, const sws_tensor *t, sws_output output, sws_row row, void *user, void *work,
                    size_t work_bytes) {
  uint64_t need;
  return swsi_run(f, t, output, row, 1, user, NULL, work, work_bytes, 0, &need);
}

#endif /* SWS_IMPLEMENTED */
#endif /* SWS_IMPLEMENTATION */
