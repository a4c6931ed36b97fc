// A stand-in for libcuda and libcublasLt: device memory is host memory, and nothing runs before its stream is
// synchronized, as late as a GPU may run it. A captured graph keeps what was started, and replays it. Kernels and
// products are handed to a function of the test. What a GPU would answer with a crash or with wrong numbers is a fault.
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_PARAMETERS 64
#define MOST_PIECES 4096
#define MOST_OPS 65536

enum { COPY_TO_DEVICE, COPY_TO_HOST, COPY_ON_DEVICE, SET, LAUNCH, PRODUCT, EVENT };

// Numbers of CUresult.
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, ILLEGAL_ADDRESS = 700 };

typedef struct {
  int kind;
  char *to;
  const char *from;
  size_t bytes;
  int value;
  int64_t kernel;
  uint32_t grid[3], block, shared;
  uint64_t values[MOST_PARAMETERS];  // of a launch; of a product m, n, k, types, addresses and the stride of C and D
} Op;

typedef struct {
  Op *ops;
  size_t count, room;
} List;

typedef struct {
  List queue;
  uint64_t done;  // how many ran that are in the queue no more
  int capturing;
  List captured;
} Stream;

typedef struct {
  Stream *stream;  // NULL before it is recorded
  uint64_t behind;  // how many come before it on the stream
} Event;

typedef struct {
  char *data;
  size_t bytes;
  int device;
} Piece;

typedef void (*Runner)(int kind, int64_t kernel, const uint32_t *grid, uint32_t block, uint32_t shared,
                       const uint64_t *values);

static Piece pieces[MOST_PIECES];
static size_t free_bytes = (size_t)1 << 30;
static int sm = 90, parameters = MOST_PARAMETERS;
static char faults[4096];
static Runner runner;
static int fail_call = -1;  // the number of the call of cuLaunchKernel that fails
static int64_t started;

static void fault(const char *text) {
  if (strlen(faults) + strlen(text) + 2 < sizeof faults) {
    strcat(faults, text);
    strcat(faults, "\n");
  }
}

// -- what tests call ---------------------------------------------------------------------------------------------

void fake_reset(int new_sm, size_t memory, Runner new_runner) {
  sm = new_sm;
  free_bytes = memory;
  runner = new_runner;
  faults[0] = 0;
  fail_call = -1;
  started = 0;
}
const char *fake_faults(void) { return faults; }
void fake_fail_launch(int call) { fail_call = call; }
int64_t fake_started(void) { return started; }
// How many pieces of memory are not freed.
int fake_live(void) {
  int live = 0;
  for (int i = 0; i < MOST_PIECES; ++i) live += pieces[i].data != NULL;
  return live;
}
// Fills addresses and sizes of the device's memory, and returns how many pieces there are.
int fake_pieces(uint64_t *addresses, uint64_t *sizes) {
  int count = 0;
  for (int i = 0; i < MOST_PIECES; ++i) {
    if (!pieces[i].data || !pieces[i].device) continue;
    addresses[count] = (uint64_t)pieces[i].data;
    sizes[count++] = pieces[i].bytes;
  }
  return count;
}

// -- memory ------------------------------------------------------------------------------------------------------

static int take(void **to, size_t bytes, int device) {
  if (device && bytes > free_bytes) return OUT_OF_MEMORY;
  for (int i = 0; i < MOST_PIECES; ++i) {
    if (pieces[i].data) continue;
    char *data = aligned_alloc(512, (bytes + 511) / 512 * 512);
    if (!data) return OUT_OF_MEMORY;
    memset(data, 0xFF, bytes);  // NaN in every type
    pieces[i] = (Piece){data, bytes, device};
    if (device) free_bytes -= bytes;
    *to = data;
    return OK;
  }
  return OUT_OF_MEMORY;
}

static int give(void *data, int device) {
  for (int i = 0; i < MOST_PIECES; ++i) {
    if (pieces[i].data != data || pieces[i].device != device) continue;
    if (device) free_bytes += pieces[i].bytes;
    free(data);
    pieces[i] = (Piece){0};
    return OK;
  }
  fault("memory is freed that nobody has");
  return INVALID_VALUE;
}

static int inside(const void *at, size_t bytes, int device) {
  for (int i = 0; i < MOST_PIECES; ++i) {
    const Piece *p = &pieces[i];
    if (!p->data || p->device != device) continue;
    if ((const char *)at >= p->data && (const char *)at + bytes <= p->data + p->bytes) return 1;
  }
  return 0;
}

int cuMemAlloc_v2(uint64_t *to, size_t bytes) { return take((void **)to, bytes, 1); }
int cuMemFree_v2(uint64_t at) { return give((void *)at, 1); }
int cuMemHostAlloc(void **to, size_t bytes, unsigned flags) { return (void)flags, take(to, bytes, 0); }
int cuMemFreeHost(void *at) { return give(at, 0); }
int cuMemGetInfo_v2(size_t *available, size_t *total) {
  *available = free_bytes;
  *total = (size_t)1 << 40;
  return OK;
}

// -- the device --------------------------------------------------------------------------------------------------

int cuInit(unsigned flags) { return (void)flags, OK; }
int cuDeviceGetCount(int *count) { return *count = 1, OK; }
int cuDeviceGet(int *device, int number) { return *device = number, OK; }
int cuDeviceGetName(char *name, int size, int device) {
  (void)device;
  snprintf(name, (size_t)size, "a stand-in");
  return OK;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  *value = attribute == 75 ? sm / 10 : attribute == 76 ? sm % 10 : 4;
  return OK;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) { return (void)device, *bytes = (size_t)1 << 40, OK; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return (void)device, *context = faults, OK; }
int cuDevicePrimaryCtxRelease_v2(int device) { return (void)device, OK; }
int cuCtxSetCurrent(void *context) { return (void)context, OK; }
int cuGetErrorName(int error, const char **name) {
  *name = error == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR";
  return OK;
}
int cuGetErrorString(int error, const char **text) { return (void)error, *text = "what a stand-in says", OK; }

// -- streams and graphs ------------------------------------------------------------------------------------------

static int add(List *list, Op op) {
  if (list->count == list->room) {
    list->room = list->room ? 2 * list->room : 64;
    if (list->room > MOST_OPS) return OUT_OF_MEMORY;
    list->ops = realloc(list->ops, list->room * sizeof(Op));
  }
  list->ops[list->count++] = op;
  return OK;
}

static int start(Stream *stream, Op op) {
  ++started;
  return add(stream->capturing ? &stream->captured : &stream->queue, op);
}

static int run(const Op *op) {
  const int device_to = op->kind != COPY_TO_HOST;
  switch (op->kind) {
    case LAUNCH:
    case PRODUCT:
      if (runner) runner(op->kind, op->kernel, op->grid, op->block, op->shared, op->values);
      return OK;
    case SET:
      if (!inside(op->to, op->bytes, 1)) return fault("bytes are set outside of memory"), ILLEGAL_ADDRESS;
      memset(op->to, op->value, op->bytes);
      return OK;
    default:
      if (!inside(op->to, op->bytes, device_to)) return fault("a copy goes outside of memory"), ILLEGAL_ADDRESS;
      if (op->kind != COPY_TO_DEVICE && !inside(op->from, op->bytes, 1))
        return fault("a copy comes from outside of memory"), ILLEGAL_ADDRESS;
      memmove(op->to, op->from, op->bytes);
      return OK;
  }
}

int cuStreamCreate(Stream **stream, unsigned flags) {
  (void)flags;
  *stream = calloc(1, sizeof(Stream));
  return OK;
}
// Runs the first `count` of the queue, and takes them out of it.
static int run_first(Stream *stream, size_t count) {
  List *queue = &stream->queue;
  int result = OK;
  if (stream->capturing) return fault("a stream is synchronized while it is captured"), INVALID_VALUE;
  for (size_t i = 0; i < count && result == OK; ++i) result = run(&queue->ops[i]);
  queue->count -= count;
  stream->done += count;
  if (count) memmove(queue->ops, queue->ops + count, queue->count * sizeof(Op));
  return result;
}
int cuStreamSynchronize(Stream *stream) { return run_first(stream, stream->queue.count); }
int cuStreamDestroy_v2(Stream *stream) {
  if (stream->queue.count) fault("a stream is destroyed before it is done");
  free(stream->queue.ops);
  free(stream->captured.ops);
  free(stream);
  return OK;
}
int cuEventCreate(Event **event, unsigned flags) {
  (void)flags;
  return *event = calloc(1, sizeof(Event)), OK;
}
int cuEventDestroy_v2(Event *event) { return free(event), OK; }
int cuEventRecord(Event *event, Stream *stream) {
  if (stream->capturing) return fault("an event is recorded while a stream is captured"), INVALID_VALUE;
  *event = (Event){stream, stream->done + stream->queue.count};
  return OK;
}
int cuEventSynchronize(Event *event) {
  Stream *stream = event->stream;
  return stream && event->behind > stream->done ? run_first(stream, event->behind - stream->done) : OK;
}
int cuStreamBeginCapture_v2(Stream *stream, int mode) {
  (void)mode;
  if (stream->capturing) return INVALID_VALUE;
  stream->capturing = 1;
  stream->captured = (List){0};
  return OK;
}
int cuStreamEndCapture(Stream *stream, List **graph) {
  if (!stream->capturing) return INVALID_VALUE;
  stream->capturing = 0;
  *graph = malloc(sizeof(List));
  **graph = stream->captured;
  stream->captured = (List){0};
  return OK;
}
int cuGraphInstantiateWithFlags(List **exec, List *graph, unsigned long long flags) {
  (void)flags;
  *exec = calloc(1, sizeof(List));
  for (size_t i = 0; i < graph->count; ++i) add(*exec, graph->ops[i]);
  return OK;
}
int cuGraphLaunch(List *exec, Stream *stream) {
  for (size_t i = 0; i < exec->count; ++i) start(stream, exec->ops[i]);
  return OK;
}
int cuGraphDestroy(List *graph) {
  free(graph->ops);
  free(graph);
  return OK;
}
int cuGraphExecDestroy(List *exec) { return cuGraphDestroy(exec); }

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, Stream *stream) {
  return start(stream, (Op){.kind = COPY_TO_DEVICE, .to = (char *)to, .from = from, .bytes = bytes});
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, Stream *stream) {
  // The host's memory may be pageable: a GPU's driver then waits for all that was started.
  const Op op = {.kind = COPY_TO_HOST, .to = to, .from = (const char *)from, .bytes = bytes};
  if (inside(to, bytes, 0)) return start(stream, op);
  const int result = cuStreamSynchronize(stream);
  if (result != OK) return result;
  memcpy(to, (const void *)from, bytes);
  return OK;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, Stream *stream) {
  return start(stream, (Op){.kind = COPY_ON_DEVICE, .to = (char *)to, .from = (const char *)from, .bytes = bytes});
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, Stream *stream) {
  return start(stream, (Op){.kind = SET, .to = (char *)to, .bytes = bytes, .value = value});
}

// -- kernels: their code is the text "kernel NUMBER PARAMETERS" ----------------------------------------------------

typedef struct {
  int64_t number;
  int parameters;
} Kernel;

int cuModuleLoadData(Kernel **kernel, const void *code) {
  long number;
  int count;
  if (sscanf(code, "kernel %ld %d", &number, &count) != 2 || count > parameters) return INVALID_VALUE;
  *kernel = malloc(sizeof(Kernel));
  **kernel = (Kernel){number, count};
  return OK;
}
int cuModuleUnload(Kernel *kernel) { return free(kernel), OK; }
int cuModuleGetFunction(Kernel **function, Kernel *kernel, const char *name) {
  (void)name;
  *function = kernel;
  return OK;
}
int cuFuncSetAttribute(Kernel *function, int attribute, int value) {
  (void)function, (void)value;
  return attribute == 8 ? OK : INVALID_VALUE;
}
int cuLaunchKernel(Kernel *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, Stream *stream, void **values, void **extra) {
  (void)extra;
  if (by != 1 || bz != 1) return INVALID_VALUE;
  if (fail_call == 0) return fail_call = -1, ILLEGAL_ADDRESS;
  if (fail_call > 0) --fail_call;
  Op op = {.kind = LAUNCH, .kernel = function->number, .grid = {x, y, z}, .block = bx, .shared = shared};
  for (int i = 0; i < function->parameters; ++i) memcpy(&op.values[i], values[i], 8);
  return start(stream, op);
}

// -- products ----------------------------------------------------------------------------------------------------

typedef struct {
  int transposed, epilogue, bias_type;
  uint64_t bias;
} Description;

typedef struct {
  int type;
  uint64_t rows, columns;
  int64_t stride;
} Layout;

int cublasLtCreate(void **handle) { return *handle = malloc(1), 0; }
int cublasLtDestroy(void *handle) { return free(handle), 0; }
int cublasLtMatmulDescCreate(Description **description, int compute, int scale) {
  if (compute != 68 || scale != 0) return 7;
  *description = calloc(1, sizeof(Description));
  (*description)->epilogue = 1;
  return 0;
}
int cublasLtMatmulDescDestroy(Description *description) { return free(description), 0; }
int cublasLtMatmulDescSetAttribute(Description *d, int attribute, const void *value, size_t bytes) {
  switch (attribute) {
    case 3:
      return memcpy(&d->transposed, value, bytes), 0;
    case 7:
      return memcpy(&d->epilogue, value, bytes), 0;
    case 8:
      return memcpy(&d->bias, value, bytes), 0;
    case 26:
      return memcpy(&d->bias_type, value, bytes), 0;
    default:
      return 7;
  }
}
int cublasLtMatrixLayoutCreate(Layout **layout, int type, uint64_t rows, uint64_t columns, int64_t stride) {
  *layout = malloc(sizeof(Layout));
  **layout = (Layout){type, rows, columns, stride};
  return 0;
}
int cublasLtMatrixLayoutDestroy(Layout *layout) { return free(layout), 0; }
int cublasLtMatmulPreferenceCreate(void **preference) { return *preference = malloc(1), 0; }
int cublasLtMatmulPreferenceDestroy(void *preference) { return free(preference), 0; }
int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value, size_t bytes) {
  (void)preference, (void)value;
  return attribute == 1 && bytes == 8 ? 0 : 7;
}
int cublasLtMatmulAlgoGetHeuristic(void *handle, Description *d, Layout *w, Layout *x, Layout *c, Layout *out,
                                   void *preference, int wanted, void *results, int *found) {
  (void)handle, (void)preference;
  const int fits = wanted == 1 && d->transposed == 1 && w->rows == x->rows && w->columns == out->rows &&
                   x->columns == out->columns && w->type == x->type && w->stride == (int64_t)w->rows &&
                   x->stride == (int64_t)x->rows && out->stride >= (int64_t)out->rows && c == out;
  *found = fits;
  if (fits) memset(results, 0, 8 * 8 + 8 + 4 + 4 + 16);
  return 0;
}
int cublasLtMatmul(void *handle, Description *d, const float *alpha, const void *a, Layout *w, const void *b, Layout *x,
                   const float *beta, const void *c, Layout *c_layout, void *to, Layout *out, const void *algorithm,
                   void *workspace, size_t workspace_bytes, Stream *stream) {
  (void)handle, (void)algorithm, (void)workspace, (void)workspace_bytes;
  if (*alpha != 1 || (*beta != 0 && *beta != 1) || c_layout != out) return 7;
  Op op = {.kind = PRODUCT};
  const uint64_t values[] = {x->columns, w->columns, w->rows, (uint64_t)w->type, (uint64_t)out->type, (uint64_t)b,
                             (uint64_t)a, d->epilogue == 4 ? d->bias : 0, *beta == 1 ? (uint64_t)c : 0, (uint64_t)to,
                             (uint64_t)out->stride};
  memcpy(op.values, values, sizeof values);
  return start(stream, op);
}
