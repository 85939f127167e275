/* Seconds of processor time that it takes to decode the shared tensors of a file, the best of some runs: speed FILE [RUNS]. */
#define _POSIX_C_SOURCE 199309L
#define SWS_IMPLEMENTATION
#include "sws.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv) {
  const int runs = argc > 2 ? atoi(argv[2]) : 5;
  FILE *file = argc > 1 ? fopen(argv[1], "rb") : NULL;
  double best = 1e9;
  uint64_t weights = 0;
  size_t size;
  uint8_t *data, work[SWS_OPEN_BYTES];
  sws_file f;
  int k;
  if (file == NULL) return 2;
  fseek(file, 0, SEEK_END);
  size = (size_t)ftell(file);
  rewind(file);
  data = (uint8_t *)malloc(size ? size : 1);
  if (data == NULL || fread(data, 1, size, file) != size) return 2;
  fclose(file);
  for (k = 0; k < runs; k++) {
    sws_tensor t;
    const double start = now();
    double seconds;
    if (sws_open(&f, data, size, UINT64_MAX, work, sizeof work) != SWS_OK) return 1;
    weights = 0;
    sws_first(&f, &t, NULL, 0);
    while (sws_next(&f, &t) == SWS_OK) {
      const uint64_t need = sws_need(&f, &t, SWS_OWN);
      void *out, *memory;
      sws_status status;
      if (!t.shared) continue;
      out = malloc((size_t)t.n * sws_value_bytes(&f, &t, SWS_OWN) + 1);
      memory = malloc((size_t)need);
      if (out == NULL || memory == NULL) return 3;
      status = sws_decode(&f, &t, SWS_OWN, out, memory, (size_t)need);
      free(out);
      free(memory);
      if (status != SWS_OK) return 1;
      weights += t.n;
    }
    seconds = now() - start;
    if (seconds < best) best = seconds;
  }
  printf("%.9f %llu\n", best, (unsigned long long)weights);
  free(data);
  return 0;
}
