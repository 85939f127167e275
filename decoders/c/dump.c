/* Prints what .sws files decode to, one line for each tensor, with checksums of the decoded bytes. tests/c_decoder.py prints the
   same with the Python package. Every block of memory has exactly the size that the decoder asks for, so that a sanitizer
   sees a step beyond it.

   Standard input has a line for each file: path, limit of decoded bytes, and for a file without names the shapes of its
   tensors, as in "3,4;5;". Fields end with a tab. */
#define SWS_IMPLEMENTATION
#include "sws.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const DTYPES[] = {"float32", "float16", "bfloat16", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"};

static void *room(uint64_t n) {
  void *p = malloc(n ? (size_t)n : 1);
  if (p == NULL) {
    fprintf(stderr, "out of memory: %" PRIu64 " bytes\n", n);
    exit(3);
  }
  return p;
}

typedef struct {
  uint8_t *at, *end;
  size_t value_bytes;
  uint64_t next;
} rows;

static int keep(void *user, uint64_t row, const void *values, size_t n) {
  rows *r = (rows *)user;
  if (row != r->next++ || n * r->value_bytes > (size_t)(r->end - r->at)) return 1;
  if (n) memcpy(r->at, values, n * r->value_bytes);
  r->at += n * r->value_bytes;
  return 0;
}

static sws_status output(sws_file *f, const sws_tensor *t, sws_output kind, const char *label) {
  const size_t value_bytes = sws_value_bytes(f, t, kind);
  const uint64_t need = sws_need(f, t, kind), need_rows = sws_need_rows(f, t, kind);
  const size_t bytes = (size_t)t->n * value_bytes;
  uint8_t *out, *again, *work;
  rows r;
  sws_status status, by_row;
  if (value_bytes == 0) return SWS_OK;
  out = (uint8_t *)room(bytes);
  again = (uint8_t *)room(bytes);
  work = (uint8_t *)room(need);
  status = sws_decode(f, t, kind, out, work, (size_t)need);
  free(work);
  work = (uint8_t *)room(need_rows);
  r.at = again;
  r.end = again + bytes;
  r.value_bytes = value_bytes;
  r.next = 0;
  by_row = sws_rows(f, t, kind, keep, &r, work, (size_t)need_rows);
  free(work);
  if (by_row != status || (status == SWS_OK && (r.at != r.end || (bytes && memcmp(out, again, bytes) != 0)))) {
    printf(" rows differ");
    status = SWS_STOPPED;
  }
  if (status == SWS_OK) printf(" %s %08" PRIx32, label, swsi_crc(out, bytes));
  else if (status != SWS_REFUSED) printf(" status %d", (int)status);
  free(out);
  free(again);
  return status;
}

static sws_status scales(sws_file *f, const sws_tensor *t, int columns) {
  const size_t n = (size_t)(columns ? t->cols : t->rows);
  const uint64_t need = sws_need(f, t, SWS_INDEX);
  int8_t *exponents = (int8_t *)room(n);
  uint8_t *work = (uint8_t *)room(need);
  const sws_status status = sws_scales(f, t, columns, exponents, work, (size_t)need);
  printf(" %s %08" PRIx32, columns ? "columns" : "rows", swsi_crc((const uint8_t *)exponents, n));
  free(exponents);
  free(work);
  return status;
}

static void print_refusal(const sws_file *f, const char *name) {
  static const char *const SECTIONS[] = {"prefix", "checksum", "header", "header, tensor", "header, tied names", "codebook", "tensor"};
  printf("refused in %s", SECTIONS[f->section]);
  if (f->section == SWS_HEADER_TENSOR || f->section == SWS_CODEBOOK) printf(" %" PRIu32, f->number);
  if (f->section == SWS_TENSOR) printf(" %" PRIu32 " %s", f->number, name);
  printf(" at %" PRIu64 "\n", f->offset);
}

static int give_shape(sws_tensor *t, const char **shapes) {
  uint64_t sizes[64];
  int n = 0;
  while (**shapes && **shapes != ';') {
    char *end;
    sizes[n++] = strtoull(*shapes, &end, 10);
    *shapes = *end == ',' ? end + 1 : end;
  }
  if (**shapes) ++*shapes;
  return sws_shape(t, sizes, n) == SWS_OK;
}

static sws_status inspect(const uint8_t *data, size_t size) { /* headers, and the number of non-zeros of each tensor */
  uint8_t *work = (uint8_t *)room(SWS_OPEN_BYTES);
  sws_file f;
  sws_tensor t;
  uint64_t n_nonzero;
  sws_status status = sws_inspect(&f, data, size, work, SWS_OPEN_BYTES);
  if (status == SWS_OK) {
    sws_first(&f, &t, NULL, 0);
    while (status == SWS_OK && sws_next(&f, &t) == SWS_OK)
      if (t.shared) status = sws_nonzero(&f, &t, &n_nonzero);
  }
  free(work);
  return status;
}

static void dump(const uint8_t *data, size_t size, uint64_t max_bytes, const char *shapes, int brief) {
  uint8_t *work = (uint8_t *)room(SWS_OPEN_BYTES), *names = (uint8_t *)room(SWS_OPEN_BYTES);
  sws_file f;
  sws_tensor t;
  sws_status status;
  printf("inspect %s\n", inspect(data, size) == SWS_OK ? "ok" : "refused");
  status = sws_open(&f, data, size, max_bytes, work, SWS_OPEN_BYTES);
  free(work);
  if (status == SWS_REFUSED) print_refusal(&f, "");
  else if (status != SWS_OK) printf("status %d\n", (int)status);
  else printf("version %d codec %d tensors %" PRIu32 " tied %" PRIu32 "\n", f.version, f.codec, f.n_tensors, f.n_tied);
  if (status == SWS_OK && f.base != NULL) {
    int k;
    printf("base ");
    for (k = 0; k < 32; k++) printf("%02x", f.base[k]);
    printf("\n");
  }
  if (status == SWS_OK) {
    sws_first(&f, &t, names, SWS_OPEN_BYTES);
    while (status == SWS_OK && (status = sws_next(&f, &t)) == SWS_OK) {
      char number[16];
      const char *name = t.name ? t.name : number;
      uint64_t n_nonzero = 0;
      int k;
      snprintf(number, sizeof number, "t%" PRIu32, t.number);
      if (!f.has_names && !give_shape(&t, &shapes)) printf("bad shape\n");
      printf("%s %s %s", name, t.shared ? "shared" : "rest", DTYPES[t.dtype]);
      for (k = 0; k < t.n_dims && f.has_names; k++) printf("%c%" PRIu64, k ? 'x' : ' ', sws_size(&f, &t, k));
      if (sws_nonzero(&f, &t, &n_nonzero) == SWS_OK) printf(" nonzero %" PRIu64, n_nonzero);
      status = output(&f, &t, SWS_OWN, "own");
      if (status == SWS_OK && !brief) status = output(&f, &t, SWS_FLOAT32, "float32");
      if (status == SWS_OK && !brief) status = output(&f, &t, SWS_FLOAT16, "float16");
      if (status == SWS_OK && !brief && t.shared && sws_value_bytes(&f, &t, SWS_INDEX)) {
        const uint32_t n = sws_codebook_size(&f, t.codebook);
        float *book = (float *)room(n * sizeof(float));
        status = output(&f, &t, SWS_INDEX, "index");
        sws_codebook(&f, t.codebook, book, n);
        printf(" codebook %08" PRIx32, swsi_crc((const uint8_t *)book, n * sizeof(float)));
        free(book);
        if (status == SWS_OK && n_nonzero && t.row_scales) status = scales(&f, &t, 0);
        if (status == SWS_OK && n_nonzero && t.column_scales) status = scales(&f, &t, 1);
      }
      printf("\n");
      if (status == SWS_REFUSED) print_refusal(&f, name);
    }
    if (status == SWS_END) {
      while ((status = sws_next_tied(&f, &t)) == SWS_OK) printf("%s tied to %" PRIu32 "\n", t.name, t.number);
    }
  }
  free(names);
}

int main(int argc, char **argv) {
  const int brief = argc > 1 && strcmp(argv[1], "brief") == 0; /* only the tensor's own dtype */
  static char line[1 << 16];
  while (fgets(line, sizeof line, stdin)) {
    char *path = strtok(line, "\t\n"), *limit = strtok(NULL, "\t\n"), *shapes = strtok(NULL, "\t\n");
    FILE *file = fopen(path, "rb");
    uint8_t *data;
    size_t size;
    long end;
    if (file == NULL || fseek(file, 0, SEEK_END) != 0 || (end = ftell(file)) < 0) {
      fprintf(stderr, "cannot read %s\n", path);
      return 2;
    }
    size = (size_t)end;
    rewind(file);
    data = (uint8_t *)room(size);
    if (fread(data, 1, size, file) != size) return 2;
    fclose(file);
    printf("# %s\n", path);
    dump(data, size, limit ? strtoull(limit, NULL, 10) : SWS_MAX_BYTES, shapes ? shapes : "", brief);
    free(data);
  }
  return 0;
}
