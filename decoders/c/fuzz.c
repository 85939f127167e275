/* Mutates .sws files and decodes them, under the sanitizers: fuzz FILES SEED < LIST, a list as dump.c reads it.

   Files are flipped, cut, extended and spliced. Half of them get a new checksum, so that the decoder gets past it. A
   decoder may refuse a file or decode it. Beside what the sanitizers see, these are findings: a wrong checksum that is
   accepted, two ways to decode that differ, a tensor with other than its number of non-zeros. */
#define SWS_IMPLEMENTATION
#include "sws.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BYTES (UINT64_C(1) << 20)
#define MOST_SEEDS 1024

typedef struct {
  uint8_t *data;
  size_t size;
  char *shapes;
} seed_file;

typedef struct {
  const uint8_t *expected;
  size_t at, value_bytes;
  int same;
} compared;

static seed_file seeds[MOST_SEEDS];
static size_t n_seeds;
static uint64_t state;

static uint64_t random_below(uint64_t n) { /* xorshift64* */
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return (state * UINT64_C(0x2545f4914f6cdd1d) >> 11) % n;
}

static void *room(uint64_t n) {
  void *p = malloc(n ? (size_t)n : 1);
  if (p == NULL) exit(3);
  return p;
}

static void found(const char *what, const uint8_t *data, size_t size) {
  size_t k;
  printf("%s: ", what);
  for (k = 0; k < size; k++) printf("%02x", data[k]);
  printf("\n");
  exit(1);
}

static int compare(void *user, uint64_t row, const void *values, size_t n) {
  compared *c = (compared *)user;
  (void)row;
  c->same = c->same && (n == 0 || memcmp(c->expected + c->at, values, n * c->value_bytes) == 0);
  c->at += n * c->value_bytes;
  return 0;
}

static void decode(sws_file *f, const sws_tensor *t, sws_output output, const uint8_t *data, size_t size) {
  const size_t value_bytes = sws_value_bytes(f, t, output), bytes = (size_t)t->n * value_bytes;
  const uint64_t need = sws_need(f, t, output), need_rows = sws_need_rows(f, t, output);
  compared c = {NULL, 0, 0, 1};
  uint8_t *out, *work;
  sws_status status;
  uint64_t k, nonzero = 0, n_nonzero;
  if (value_bytes == 0) return;
  out = (uint8_t *)room(bytes);
  work = (uint8_t *)room(need);
  status = sws_decode(f, t, output, out, work, (size_t)need);
  if (status != SWS_OK && status != SWS_REFUSED) found("another status", data, size);
  if (status == SWS_OK) {
    free(work);
    work = (uint8_t *)room(need_rows);
    c.expected = out;
    c.value_bytes = value_bytes;
    if (sws_rows(f, t, output, compare, &c, work, (size_t)need_rows) != SWS_OK || !c.same || c.at != bytes)
      found("rows differ", data, size);
    for (k = 0; output == SWS_INDEX && k < t->n; k++) nonzero += swsi_fetch(out + k * value_bytes, (unsigned)value_bytes) != 0;
    if (output == SWS_INDEX && (sws_nonzero(f, t, &n_nonzero) != SWS_OK || n_nonzero != nonzero))
      found("another number of non-zeros", data, size);
    if (need > 64 && sws_decode(f, t, output, out, work, (size_t)random_below(need - 32)) == SWS_OK)
      found("too small a workspace was enough", data, size);
  }
  free(out);
  free(work);
}

static int read_file(const uint8_t *data, size_t size, const char *shapes, int valid) {
  const size_t work_bytes = random_below(4) ? SWS_OPEN_BYTES : random_below(SWS_OPEN_BYTES);
  uint8_t *work = (uint8_t *)room(work_bytes), *names = (uint8_t *)room(SWS_OPEN_BYTES);
  sws_file f;
  sws_tensor t;
  sws_status status;
  (void)sws_inspect(&f, data, size, work, work_bytes);
  status = sws_open(&f, data, size, MAX_BYTES, work, work_bytes);
  free(work);
  if (status == SWS_OK) {
    if (!valid) found("a wrong checksum was accepted", data, size);
    sws_first(&f, &t, names, SWS_OPEN_BYTES);
    while (sws_next(&f, &t) == SWS_OK) {
      if (!f.has_names) {
        uint64_t sizes[64];
        int n = 0;
        while (*shapes && *shapes != ';') {
          char *end;
          sizes[n++] = strtoull(shapes, &end, 10);
          shapes = *end == ',' ? end + 1 : end;
        }
        if (*shapes) shapes++;
        if (sws_shape(&t, sizes, n) != SWS_OK) break;
      }
      decode(&f, &t, (sws_output)random_below(3), data, size);
      decode(&f, &t, SWS_INDEX, data, size);
    }
    while (sws_next_tied(&f, &t) == SWS_OK) {}
  }
  free(names);
  return status == SWS_OK;
}

static size_t mutate(uint8_t *out, size_t size, size_t most, int in_place) {
  uint64_t changes = 1 + random_below(4);
  while (changes--) {
    const size_t at = (size_t)random_below(size + 1);
    size_t n = 1 + (size_t)random_below(UINT64_C(1) << (1 + random_below(6))), k;
    switch (random_below(in_place ? 3 : 8)) {
      case 0:
      case 1:
        if (at < size) out[at] = (uint8_t)(out[at] ^ 1u << random_below(8));
        break;
      case 2: {
        static const uint8_t values[6] = {0, 1, 2, 127, 128, 255};
        const uint64_t which = random_below(7);
        if (at < size) out[at] = which < 6 ? values[which] : (uint8_t)random_below(256);
        break;
      }
      case 3: size = at; break;
      case 4: /* new bytes, or those that follow once more */
      case 6:
        if (n > most - size) n = most - size;
        memmove(out + at + n, out + at, size - at);
        for (k = 0; k < n && random_below(2); k++) out[at + k] = (uint8_t)random_below(256);
        size += n;
        break;
      case 5:
        if (n > size - at) n = size - at;
        memmove(out + at, out + at + n, size - at - n);
        size -= n;
        break;
      default: {
        const seed_file *other = &seeds[random_below(n_seeds)];
        const size_t from = (size_t)random_below(other->size + 1);
        for (k = 0; k < n && at + k < size && from + k < other->size; k++) out[at + k] = other->data[from + k];
      }
    }
  }
  return size;
}

int main(int argc, char **argv) {
  static char line[1 << 16];
  const uint64_t files = argc > 1 ? strtoull(argv[1], NULL, 10) : 10000;
  uint64_t k, accepted = 0;
  state = (argc > 2 ? strtoull(argv[2], NULL, 10) : 0) + UINT64_C(0x9e3779b97f4a7c15);
  while (n_seeds < MOST_SEEDS && fgets(line, sizeof line, stdin)) {
    char *path = strtok(line, "\t\n"), *shapes;
    FILE *file = fopen(path, "rb");
    seed_file *s = &seeds[n_seeds++];
    (void)strtok(NULL, "\t\n");
    shapes = strtok(NULL, "\t\n");
    if (file == NULL) return 2;
    s->shapes = (char *)room(shapes ? strlen(shapes) + 1 : 1);
    strcpy(s->shapes, shapes ? shapes : "");
    s->data = (uint8_t *)room(1 << 16);
    s->size = fread(s->data, 1, 1 << 16, file);
    fclose(file);
  }
  if (n_seeds == 0) return 2;
  for (k = 0; k < files; k++) {
    const seed_file *s = &seeds[random_below(n_seeds)];
    const size_t most = s->size + 1024;
    uint8_t *grown = (uint8_t *)room(most), *data;
    size_t size;
    int valid;
    memcpy(grown, s->data, s->size);
    size = mutate(grown, s->size, most, k % 4 == 0);
    data = (uint8_t *)room(size); /* of exactly this size */
    memcpy(data, grown, size);
    free(grown);
    if (k % 2 == 0 && size >= 4) {
      const uint32_t crc = swsi_crc(data, size - 4);
      int byte;
      for (byte = 0; byte < 4; byte++) data[size - 4 + (size_t)byte] = (uint8_t)(crc >> 8 * byte);
    }
    valid = size >= 4 && swsi_load(data + size - 4, 4) == swsi_crc(data, size - 4);
    accepted += (uint64_t)read_file(data, size, s->shapes, valid);
    free(data);
  }
  for (k = 0; k < n_seeds; k++) {
    free(seeds[k].data);
    free(seeds[k].shapes);
  }
  printf("%" PRIu64 " files, %" PRIu64 " opened, 0 findings\n", files, accepted);
  return 0;
}
