/* Classifies a digit by a LeNet-5 of 1.4 kB, without a C library and without memory for its 431,080 weights: rows of weights
   are applied as they are decoded. classify() is all a microcontroller needs; the rest lets a Linux computer run it.

   `make build/digit` embeds the file as model.h and links with -nostdlib: digit < IMAGES prints a line for each image of
   784 bytes, the digit and its score in thousandths. `make size` says what it takes. */
#define SWS_SMALL
#define SWS_WITHOUT_HAN
#define SWS_WITHOUT_PLANES
#define SWS_WITHOUT_FAST
#define SWS_WITHOUT_STATIC
#define SWS_WITHOUT_COMPACT /* the file that is embedded has version 1 */
#define SWS_IMPLEMENTATION
#include "sws.h"

#include "model.h" /* static const uint8_t model[] */

int classify(const uint8_t *image, float *scores);

typedef struct {
  const uint8_t *image; /* of the first layer */
  const float *in;
  float *out;
  int channels, side, kernel; /* of a convolution's input; kernel 0: a fully connected layer */
  float values[8];            /* the codebook */
} layer;

static uint64_t work[14400 / 8]; /* for the largest tensor, 500 x 800 */
static float pooled[20 * 12 * 12], features[50 * 4 * 4], hidden[500];

static int dense(void *user, uint64_t row, const void *indices, size_t n) {
  const layer *l = (const layer *)user;
  const uint8_t *index = (const uint8_t *)indices;
  float sum = 0;
  size_t k;
  for (k = 0; k < n; k++)
    if (index[k]) sum += l->values[index[k]] * l->in[k];
  l->out[row] = sum;
  return 0;
}

static int convolution(void *user, uint64_t channel, const void *indices, size_t n) {
  const layer *l = (const layer *)user; /* a row has the weights of an output channel; pooling by 2 follows */
  const uint8_t *index = (const uint8_t *)indices;
  const int side = l->side, k = l->kernel, half = (side - k + 1) / 2;
  int y, x;
  (void)n;
  for (y = 0; y < half; y++) {
    for (x = 0; x < half; x++) {
      float best = 0;
      int part;
      for (part = 0; part < 4; part++) {
        const int top = 2 * y + part / 2, left = 2 * x + part % 2;
        float sum = 0;
        int c, dy, dx, at = 0;
        for (c = 0; c < l->channels; c++)
          for (dy = 0; dy < k; dy++)
            for (dx = 0; dx < k; dx++, at++)
              if (index[at]) {
                const int place = (c * side + top + dy) * side + left + dx;
                sum += l->values[index[at]] * (l->image != NULL ? (float)l->image[place] / 255.0f : l->in[place]);
              }
        if (part == 0 || sum > best) best = sum;
      }
      l->out[(channel * (uint64_t)half + (uint64_t)y) * (uint64_t)half + (uint64_t)x] = best;
    }
  }
  return 0;
}

static int bias(void *user, uint64_t row, const void *indices, size_t n) { /* of each output, or of a channel's */
  const layer *l = (const layer *)user;
  const uint8_t *index = (const uint8_t *)indices;
  const int outputs = l->kernel ? (l->side - l->kernel + 1) / 2 * ((l->side - l->kernel + 1) / 2) : 1;
  size_t k;
  int i;
  (void)row;
  for (k = 0; k < n; k++)
    for (i = 0; i < outputs; i++) l->out[k * (size_t)outputs + (size_t)i] += l->values[index[k]];
  return 0;
}

int classify(const uint8_t *image, float *scores) { /* 0 to 9, or -1 if the file is not a LeNet-5 */
  layer layers[4] = {{NULL, NULL, NULL, 1, 28, 5, {0}}, {NULL, NULL, NULL, 20, 12, 5, {0}},
                     {NULL, NULL, NULL, 0, 0, 0, {0}}, {NULL, NULL, NULL, 0, 0, 0, {0}}};
  static const uint64_t sizes[4] = {20 * 25, 50 * 500, 500 * 800, 10 * 500};
  sws_file file;
  sws_tensor t;
  int k, best = 0;
  layers[0].image = image;
  layers[0].out = pooled;
  layers[1].in = pooled;
  layers[1].out = features;
  layers[2].in = features;
  layers[2].out = hidden;
  layers[3].in = hidden;
  layers[3].out = scores;
  if (sws_open(&file, model, sizeof model, SWS_MAX_BYTES, work, sizeof work) != SWS_OK || file.n_tensors != 8) return -1;
  sws_first(&file, &t, NULL, 0);
  while (sws_next(&file, &t) == SWS_OK) {
    layer *l = &layers[t.number / 2];
    if (!t.shared || (t.number % 2 == 0 && t.n != sizes[t.number / 2])) return -1;
    if (sws_codebook_size(&file, t.codebook) > 8) return -1;
    sws_codebook(&file, t.codebook, l->values, 8);
    if (sws_rows(&file, &t, SWS_INDEX, t.number % 2 ? bias : l->kernel ? convolution : dense, l, work, sizeof work) != SWS_OK)
      return -1;
    for (k = 0; t.number == 5 && k < 500; k++)
      if (hidden[k] < 0) hidden[k] = 0;
  }
  for (k = 1; k < 10; k++)
    if (scores[k] > scores[best]) best = k;
  return best;
}

#if defined(__x86_64__) && defined(__linux__)
/* The compiler may call these two. */
void *memset(void *to, int value, size_t n);
void *memcpy(void *to, const void *from, size_t n);
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

static long call(long number, long a, void *b, long c) {
  long result;
  __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  return result;
}

static char *decimal(char *end, long value) {
  unsigned long n = value < 0 ? 0ul - (unsigned long)value : (unsigned long)value;
  do *--end = (char)('0' + n % 10);
  while (n /= 10);
  if (value < 0) *--end = '-';
  return end;
}

#define STACK 16384

static void print(long a, long b) {
  char text[64], *at = text + sizeof text;
  *--at = '\n';
  at = decimal(at, b);
  *--at = ' ';
  at = decimal(at, a);
  (void)call(1, 1, at, (long)(text + sizeof text - at));
}

/* Bytes of stack that classify() takes: those below it that no longer have the value they were given. */
static __attribute__((noinline)) long stack_of(const uint8_t *image, float *scores, int *digit) {
  volatile uint8_t *here = (volatile uint8_t *)__builtin_frame_address(0) - 256;
  long k;
  for (k = 0; k < STACK; k++) here[-k] = 0xa5;
  *digit = classify(image, scores);
  for (k = STACK - 1; k > 0 && here[-k] == 0xa5; k--) {}
  return k;
}

void _start(void);
__attribute__((force_align_arg_pointer)) void _start(void) {
  static uint8_t image[784];
  static float scores[10];
  long most = 0, got = 0, n;
  while ((n = call(0, 0, image + got, 784 - got)) > 0) {
    int digit;
    long stack;
    got += n;
    if (got < 784) continue;
    stack = stack_of(image, scores, &digit);
    if (stack > most) most = stack;
    print(digit, digit < 0 ? 0 : (long)(scores[digit] * 1000.0f));
    got = 0;
  }
  print((long)sizeof work, most); /* the last line: workspace and stack */
  (void)call(60, 0, NULL, 0);
  for (;;) {}
}
#endif
