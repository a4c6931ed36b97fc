/* A stand-in for libnccl.so.2 on host memory: ranks are processes or threads of one machine, which talk through a mapped
 * file. It is as asynchronous as the library: a call is put into a queue, and a thread of the communicator does it.
 *
 * FAKE_NCCL_VERSION  what ncclGetVersion says
 * FAKE_NCCL_LOG      a file that gets a line for every call: the rank in its communicator, ranks, function, count, type,
 *                    and the other rank of a send or receive
 * FAKE_NCCL_FAIL     "rank:function:call:code": the call of that number answers the code; -1: it is never done. With
 *                    the function "async" ncclCommGetAsyncError answers the code once so many calls were made
 * FAKE_NCCL_SPLIT    the ranks of each part that ncclCommSplit makes, 2 if it is not set
 */
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID = 4, IN_PROGRESS = 7, MOST = 4, CALLS = 256 };
enum { CAPACITY = 1 << 18 };

typedef struct {
  char internal[128];
} UniqueId;

typedef struct {
  size_t size;
  unsigned magic, version;
  int blocking, cga, min_ctas, max_ctas;
  const char* net;
  int split_share;
} Config;

typedef struct {
  atomic_ulong written, read;
  char data[CAPACITY];
} Box;

typedef struct {
  atomic_int present[MOST];
  Box boxes[MOST][MOST]; /* from, to */
} Shared;

typedef struct {
  const char* function;
  const void* source;
  void* target;
  size_t count;
  int type, peer;
} Call;

typedef struct Comm {
  Shared* shared;
  char path[128];
  int rank, size, splits, made;
  atomic_int aborted, state, code; /* state: IN_PROGRESS until all ranks are there */
  pthread_t worker;
  pthread_mutex_t lock;
  Call calls[CALLS];
  unsigned begun, done;
  struct Comm* next;
} Comm;

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static Comm* all = NULL;
static atomic_int ids;

static void nap(void) {
  struct timespec time = {0, 50000};
  nanosleep(&time, NULL);
}

static size_t item_bytes(int type) { return type == 0 ? 1 : type == 6 || type == 9 ? 2 : 4; }

static void write_log(const Comm* comm, const char* function, size_t count, int type, int peer) {
  const char* path = getenv("FAKE_NCCL_LOG");
  if (!path) return;
  char line[200];
  int length = snprintf(line, sizeof line, "%d %d %s %zu %d %d\n", comm->rank, comm->size, function, count, type, peer);
  int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (file < 0 || write(file, line, (size_t)length) != length) abort();
  close(file);
}

/* The code that FAKE_NCCL_FAIL has for this call, SUCCESS for none. */
static int planned(const Comm* comm, const char* function, int call) {
  const char* text = getenv("FAKE_NCCL_FAIL");
  int rank, number, code;
  char name[32];
  if (!text || sscanf(text, "%d:%31[^:]:%d:%d", &rank, name, &number, &code) != 4) return SUCCESS;
  if (rank != comm->rank || strcmp(name, function)) return SUCCESS;
  return strcmp(name, "async") ? (number == call ? code : SUCCESS) : (call >= number ? code : SUCCESS);
}

static int give(Comm* comm, int to, const void* data, size_t bytes) {
  Box* box = &comm->shared->boxes[comm->rank][to];
  while (atomic_load(&box->written) != atomic_load(&box->read)) {
    if (atomic_load(&comm->aborted)) return 0;
    nap();
  }
  memcpy(box->data, data, bytes);
  atomic_fetch_add(&box->written, 1);
  return 1;
}

static int take(Comm* comm, int from, void* data, size_t bytes) {
  Box* box = &comm->shared->boxes[from][comm->rank];
  while (atomic_load(&box->written) == atomic_load(&box->read)) {
    if (atomic_load(&comm->aborted)) return 0;
    nap();
  }
  memcpy(data, box->data, bytes);
  atomic_fetch_add(&box->read, 1);
  return 1;
}

static float from_bfloat(unsigned short bits) {
  unsigned wide = (unsigned)bits << 16;
  float value;
  memcpy(&value, &wide, 4);
  return value;
}

static unsigned short to_bfloat(float value) {
  unsigned bits;
  memcpy(&bits, &value, 4);
  return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void add(void* total, const void* part, size_t count, int type) {
  for (size_t i = 0; i < count; ++i) {
    if (type == 7) ((float*)total)[i] += ((const float*)part)[i];
    if (type == 6) ((_Float16*)total)[i] = (_Float16)((float)((_Float16*)total)[i] + (float)((const _Float16*)part)[i]);
    if (type == 9) {
      unsigned short* sum = (unsigned short*)total + i;
      *sum = to_bfloat(from_bfloat(*sum) + from_bfloat(((const unsigned short*)part)[i]));
    }
  }
}

/* Brings what every rank has, one behind the other. */
static int gather(Comm* comm, const void* source, char* target, size_t bytes) {
  for (int rank = 0; rank < comm->size; ++rank)
    if (rank != comm->rank && !give(comm, rank, source, bytes)) return 0;
  memcpy(target + (size_t)comm->rank * bytes, source, bytes);
  for (int rank = 0; rank < comm->size; ++rank)
    if (rank != comm->rank && !take(comm, rank, target + (size_t)rank * bytes, bytes)) return 0;
  return 1;
}

static void perform(Comm* comm, const Call* call) {
  const size_t bytes = call->count * item_bytes(call->type);
  if (!strcmp(call->function, "ncclSend")) give(comm, call->peer, call->source, bytes);
  if (!strcmp(call->function, "ncclRecv")) take(comm, call->peer, call->target, bytes);
  if (!strcmp(call->function, "ncclAllGather")) gather(comm, call->source, call->target, bytes);
  if (strcmp(call->function, "ncclAllReduce")) return;
  char* parts = malloc(bytes * (size_t)comm->size + 1);
  if (gather(comm, call->source, parts, bytes)) {
    for (int rank = 1; rank < comm->size; ++rank) add(parts, parts + (size_t)rank * bytes, call->count, call->type);
    memcpy(call->target, parts, bytes);
  }
  free(parts);
}

static void* work(void* given) {
  Comm* comm = given;
  atomic_store(&comm->shared->present[comm->rank], 1);
  for (int rank = 0; rank < comm->size; ++rank) {
    while (!atomic_load(&comm->shared->present[rank])) {
      if (atomic_load(&comm->aborted)) return NULL;
      nap();
    }
  }
  if (comm->rank == 0) unlink(comm->path);
  atomic_store(&comm->state, SUCCESS);
  while (!atomic_load(&comm->aborted)) {
    pthread_mutex_lock(&comm->lock);
    const int idle = comm->begun == comm->done;
    const Call call = comm->calls[comm->done % CALLS];
    pthread_mutex_unlock(&comm->lock);
    if (idle) {
      nap();
      continue;
    }
    if (call.function) perform(comm, &call);
    while (!call.function && !atomic_load(&comm->aborted)) nap(); /* a call that is never done */
    pthread_mutex_lock(&comm->lock);
    ++comm->done;
    pthread_mutex_unlock(&comm->lock);
  }
  return NULL;
}

static int open_comm(Comm** made, const char* path, int size, int rank, const Config* config) {
  if (!config || config->magic != 0xcafebeef || config->size != sizeof(Config) || config->blocking != 0) return INVALID;
  if (config->min_ctas != INT_MIN || config->net || size < 1 || size > MOST || rank < 0 || rank >= size) return INVALID;
  int file = open(path, O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, sizeof(Shared))) return 2;
  Comm* comm = calloc(1, sizeof(Comm));
  comm->shared = mmap(NULL, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  snprintf(comm->path, sizeof comm->path, "%s", path);
  comm->rank = rank;
  comm->size = size;
  atomic_store(&comm->state, IN_PROGRESS);
  pthread_mutex_init(&comm->lock, NULL);
  pthread_mutex_lock(&all_lock);
  comm->next = all;
  all = comm;
  pthread_mutex_unlock(&all_lock);
  pthread_create(&comm->worker, NULL, work, comm);
  *made = comm;
  return IN_PROGRESS;
}

static int put(Comm* comm, Call call) {
  write_log(comm, call.function, call.count, call.type, call.peer);
  const int code = planned(comm, call.function, ++comm->made);
  atomic_store(&comm->code, planned(comm, "async", comm->made));
  if (code > 0) return code;
  if (call.count * item_bytes(call.type) > CAPACITY) return INVALID;
  if (code < 0) call.function = NULL;
  pthread_mutex_lock(&comm->lock);
  const int full = comm->begun - comm->done == CALLS;
  if (!full) comm->calls[comm->begun++ % CALLS] = call;
  pthread_mutex_unlock(&comm->lock);
  return full ? INVALID : SUCCESS;
}

int ncclGetVersion(int* version) {
  const char* text = getenv("FAKE_NCCL_VERSION");
  *version = text ? atoi(text) : 21805;
  return SUCCESS;
}

const char* ncclGetErrorString(int code) {
  return code == 2 ? "unhandled system error" : code == 6 ? "remote process exited" : "an error";
}

const char* ncclGetLastError(const void* comm) {
  (void)comm;
  return "the stand-in was told to fail";
}

int ncclGetUniqueId(UniqueId* id) {
  memset(id, 0, sizeof *id);
  snprintf(id->internal, sizeof id->internal, "/dev/shm/fake-nccl-%d-%d", getpid(), atomic_fetch_add(&ids, 1));
  return SUCCESS;
}

int ncclCommInitRankConfig(Comm** made, int size, UniqueId id, int rank, Config* config) {
  Comm asked = {.rank = rank, .size = size};
  write_log(&asked, "ncclCommInitRankConfig", 0, 0, 0);
  const int code = planned(&asked, "ncclCommInitRankConfig", 1);
  return code > 0 ? code : open_comm(made, id.internal, size, rank, config);
}

/* Ranks of one color follow each other, as those of a stage do, and keys count from 0. */
int ncclCommSplit(Comm* comm, int color, int key, Comm** made, Config* config) {
  char path[128];
  snprintf(path, sizeof path, "%.80s-%d-%d", comm->path, comm->splits++, color);
  write_log(comm, "ncclCommSplit", (size_t)color, 0, key);
  const char* size = getenv("FAKE_NCCL_SPLIT");
  return open_comm(made, path, size ? atoi(size) : 2, key, config);
}

int ncclCommGetAsyncError(Comm* comm, int* code) {
  const int failed = atomic_load(&comm->code);
  *code = failed ? failed : atomic_load(&comm->state);
  return SUCCESS;
}

int ncclCommAbort(Comm* comm) {
  write_log(comm, "ncclCommAbort", 0, 0, 0);
  atomic_store(&comm->aborted, 1);
  pthread_mutex_lock(&all_lock);
  for (Comm** at = &all; *at; at = &(*at)->next) {
    if (*at != comm) continue;
    *at = comm->next;
    break;
  }
  pthread_mutex_unlock(&all_lock);
  pthread_join(comm->worker, NULL);
  unlink(comm->path);
  munmap(comm->shared, sizeof(Shared));
  free(comm);
  return SUCCESS;
}

int ncclAllReduce(const void* source, void* target, size_t count, int type, int op, Comm* comm, void* stream) {
  (void)stream;
  return op ? INVALID : put(comm, (Call){"ncclAllReduce", source, target, count, type, -1});
}

int ncclAllGather(const void* source, void* target, size_t count, int type, Comm* comm, void* stream) {
  (void)stream;
  return put(comm, (Call){"ncclAllGather", source, target, count, type, -1});
}

int ncclSend(const void* source, size_t count, int type, int peer, Comm* comm, void* stream) {
  (void)stream;
  return put(comm, (Call){"ncclSend", source, NULL, count, type, peer});
}

int ncclRecv(void* target, size_t count, int type, int peer, Comm* comm, void* stream) {
  (void)stream;
  return put(comm, (Call){"ncclRecv", NULL, target, count, type, peer});
}

/* Returns whether nothing is left to do of a communicator, or it is aborted: what the end of a stream waits for. */
int fakeIdle(const Comm* comm) {
  int idle = 1;
  pthread_mutex_lock(&all_lock);
  for (Comm* at = all; at; at = at->next) {
    if (at != comm) continue;
    pthread_mutex_lock(&at->lock);
    idle = at->begun == at->done;
    pthread_mutex_unlock(&at->lock);
  }
  pthread_mutex_unlock(&all_lock);
  return idle;
}
