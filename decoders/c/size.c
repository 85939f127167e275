/* What a program needs of sws.h to decode a file: `make size` measures it. */
#define SWS_IMPLEMENTATION
#include "sws.h"

int open_model(const void *data, size_t size, sws_row row, void *user, void *work, size_t work_bytes);
void *memset(void *to, int value, size_t n);
void *memcpy(void *to, const void *from, size_t n);

int open_model(const void *data, size_t size, sws_row row, void *user, void *work, size_t work_bytes) {
  sws_file file;
  sws_tensor t;
  sws_status status = sws_open(&file, data, size, SWS_MAX_BYTES, work, work_bytes);
  if (status != SWS_OK) return (int)status;
  sws_first(&file, &t, NULL, 0);
  while ((status = sws_next(&file, &t)) == SWS_OK) {
    float values[8];
    sws_codebook(&file, t.codebook, values, 8);
    status = sws_rows(&file, &t, SWS_INDEX, row, user, work, work_bytes);
    if (status != SWS_OK) return (int)status;
  }
  return (int)status;
}

/* A compiler may call these two; a microcontroller's own library has them. */
void *memset(void *to, int value, size_t n) {
  volatile uint8_t *p = (volatile uint8_t *)to;
  while (n--) *p++ = (uint8_t)value;
  return to;
}
void *memcpy(void *to, const void *from, size_t n) {
  volatile uint8_t *p = (volatile uint8_t *)to;
  const uint8_t *q = (const uint8_t *)from;
  while (n--) *p++ = *q++;
  return to;
}
